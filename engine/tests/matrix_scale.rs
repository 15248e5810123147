//! Faults of matrices with a scale of their own: changed weights are stored weights, which the scale multiplies.

use half::{bf16, f16};
use xcheck_engine::catalogue::OperationChange;
use xcheck_engine::change::{ChangeValue, ModelOperations, SiteContext};
use xcheck_engine::checkpoint::{Point, Site};
use xcheck_engine::exact::Profile;
use xcheck_engine::numerics::{ActivationQuantisation, F32, KvType, LlamaCpp, Numerics, Transformers};
use xcheck_engine::quant::{ActivationCodes, quantise_row};
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::weight::{DType, InputCodes, InputScale, Matrix, StoredTensor};

const TOKENS: usize = 8;
const WIDTH: usize = 64;
const SCALE: f32 = 0.037;
const LLAMA_CPP: LlamaCpp = LlamaCpp { kv: KvType::F16 };

/// Pseudorandom numbers from -1 to 1.
fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A square matrix of a type, without a scale of its own.
fn matrix(dtype: DType, values: &[f32]) -> Matrix {
    let row_bytes = dtype.bytes_for(WIDTH).expect("whole blocks");
    let mut data = vec![0; WIDTH * row_bytes];
    data.chunks_mut(row_bytes)
        .zip(values.chunks(WIDTH))
        .for_each(|(bytes, row)| quantise_row(dtype, row, bytes));
    stored(dtype, data)
}

fn stored(dtype: DType, data: Vec<u8>) -> Matrix {
    let tensor = StoredTensor { dtype, shape: vec![WIDTH, WIDTH], data: data.into() };
    Matrix::from_stored(&tensor).expect("a matrix")
}

fn activations() -> Tensor {
    Tensor::new(&[TOKENS, WIDTH], random(TOKENS * WIDTH, 1))
}

/// Gives the product with a matrix as the queries of a layer.
fn at_queries<T>(numerics: &dyn Numerics, w: &Matrix, found: impl Fn(&SiteContext) -> T) -> T {
    let profile = Profile::of(numerics);
    let traced = TracedNumerics::new(numerics, profile).rounding_by(profile);
    let value = traced.linear(&activations(), w);
    let site = Site { point: Point::Q, layer: Some(0), pass: Some(0) };
    found(&SiteContext::new(site, 0..TOKENS, &value, &traced, &ModelOperations::default()))
}

/// The changed product.
fn changed(numerics: &dyn Numerics, w: &Matrix, change: &str) -> Tensor {
    let change = OperationChange::named(change).expect("a change");
    at_queries(numerics, w, |at| change.iter().find_map(|change| change.compute(at)).expect("it applies"))
}

/// Values of an entry that are read from the results of an engine.
fn read(numerics: &dyn Numerics, w: &Matrix, change: &str, theirs: &Tensor) -> Vec<ChangeValue> {
    let change = OperationChange::named(change).expect("a change").remove(0);
    let theirs: Vec<f64> = theirs.data().iter().map(|&x| x.into()).collect();
    at_queries(numerics, w, |at| change.entry.read_at(at, &theirs))
}

#[track_caller]
fn assert_near(made: &Tensor, expected: &Tensor) {
    let size = expected.data().iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let near = |(made, expected): (&f32, &f32)| (made - expected).abs() <= 1e-5 * size;
    assert!(made.data().iter().zip(expected.data()).all(near));
}

#[test]
fn a_wrong_number_is_read_as_the_file_stores_it() {
    let mut values = random(WIDTH * WIDTH, 2);
    let w = matrix(DType::F32, &values);
    values[17 * WIDTH + 33] = 5.25;
    for scale in [1.0, SCALE] {
        let (w, wrong) = (w.clone().with_scale(scale), matrix(DType::F32, &values).with_scale(scale));
        let theirs = F32.linear(&activations(), &wrong);
        let found = read(&F32, &w, "weight_corruption=17:33=0.25", &theirs);
        assert_eq!(found.first(), Some(&ChangeValue::word("17:33=5.25")), "scale {scale}: {found:?}");
        assert!(changed(&F32, &w, "weight_corruption=17:33=5.25") == theirs, "scale {scale}");
    }
}

#[test]
fn a_wrong_byte_of_a_block_is_read() {
    for (numerics, dtype) in [(&LLAMA_CPP as &dyn Numerics, DType::Q8_0), (&F32, DType::Q8_0)] {
        let w = matrix(dtype, &random(WIDTH * WIDTH, 2));
        let mut bytes = w.row_range(0..WIDTH).to_vec();
        // The code of the sixth row's ninth weight.
        let at = 2 + 8;
        let byte = &mut bytes[5 * w.row(0).len() + at];
        *byte ^= 0x80;
        let word = ChangeValue::Word(format!("5:byte{at}={byte:#04x}"));
        for scale in [1.0, SCALE] {
            let (w, wrong) = (w.clone().with_scale(scale), stored(dtype, bytes.clone()).with_scale(scale));
            let theirs = numerics.linear(&activations(), &wrong);
            let found = read(numerics, &w, "weight_corruption=17:33=0.25", &theirs);
            assert_eq!(found.first(), Some(&word), "scale {scale}: {found:?}");
        }
    }
}

#[test]
fn weights_are_rounded_as_the_file_stores_them() {
    let values = random(WIDTH * WIDTH, 2);
    let w = matrix(DType::F32, &values);
    let rounded: Vec<f32> = values.iter().map(|&w| f16::from_f32(w).to_f32()).collect();
    for scale in [1.0, SCALE] {
        let made = changed(&F32, &w.clone().with_scale(scale), "weight_precision=f16");
        let expected = F32.linear(&activations(), &matrix(DType::F32, &rounded).with_scale(scale));
        assert!(made == expected, "scale {scale}");
    }
    // Integers with one scale for the tensor are the same integers, whatever the matrix's own scale.
    let by = |scale: f32| changed(&F32, &w.clone().with_scale(scale), "weight_precision=int8-tensor");
    assert!(by(0.25) == by(1.0).map(|y| 0.25 * y));
}

#[test]
fn a_zero_point_off_by_one_is_off_by_the_scale_of_its_block_times_that_of_the_matrix() {
    let values = random(WIDTH * WIDTH, 2);
    for dtype in [DType::Q4_0, DType::Q8_0] {
        let w = matrix(dtype, &values);
        // Codes are changed for numerics that multiply them, and numbers for others.
        for numerics in [&LLAMA_CPP as &dyn Numerics, &Transformers::F32] {
            let plain = changed(numerics, &w, "weight_groups=zero+1");
            let scaled = changed(numerics, &w.clone().with_scale(SCALE), "weight_groups=zero+1");
            assert_near(&scaled, &plain.map(|y| SCALE * y));
        }
    }
}

#[test]
fn a_transposed_matrix_keeps_its_scale() {
    let w = matrix(DType::F32, &random(WIDTH * WIDTH, 2));
    let plain = changed(&F32, &w, "weight_transposed");
    assert_near(&changed(&F32, &w.with_scale(SCALE), "weight_transposed"), &plain.map(|y| SCALE * y));
}

/// Numbers in groups of codes with a scale each, as a quantised checkpoint decodes them.
fn grouped() -> Vec<f32> {
    let code = |at: usize| ((at * 37 + at / 7) % 15) as f32 - 7.0;
    (0..WIDTH * WIDTH).map(|at| code(at) * (1.0 + (at / 32) as f32) / 4096.0).collect()
}

#[test]
fn activations_of_a_changed_matrix_are_quantised_as_before() {
    let input = InputScale { codes: InputCodes::Int8, number: 0.05, zero: 0.0 };
    let w = matrix(DType::F32, &grouped());
    let with_scale = w.clone().with_input_scale(Some(input));
    let with_threshold = w.with_outliers(Some(1.5));
    let cases = [
        (ActivationCodes::of_matrix(&input), with_scale),
        (ActivationCodes::with_outliers(1.5), with_threshold),
    ];
    for (codes, w) in cases {
        let coded = ActivationQuantisation::over(Box::new(F32), codes);
        for change in ["weight_transposed", "weight_groups=next"] {
            let whole = changed(&F32, &w, change);
            assert!(changed(&coded, &w, change) != whole, "{change}, {codes:?}");
        }
    }
}

#[test]
fn products_of_plain_weights_have_the_scale_of_the_matrix() {
    let values = random(WIDTH * WIDTH, 2);
    let scaled: Vec<f32> = values.iter().map(|w| SCALE * w).collect();
    let plain = F32.linear(&activations(), &matrix(DType::F32, &scaled));
    for numerics in [&F32 as &dyn Numerics, &LLAMA_CPP] {
        assert_near(&numerics.linear(&activations(), &matrix(DType::F32, &values).with_scale(SCALE)), &plain);
    }
    // Scaled weights of bf16 are rounded again.
    let rounded: Vec<f32> = values.iter().map(|&w| SCALE * bf16::from_f32(w).to_f32()).collect();
    let made = Transformers::Bf16.linear(&activations(), &matrix(DType::BF16, &values).with_scale(SCALE));
    assert!(made == Transformers::Bf16.linear(&activations(), &matrix(DType::BF16, &rounded)));
}
