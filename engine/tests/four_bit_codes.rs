//! Error bounds of products with activations of 4 bits, NVFP4 and MXFP4: codes and scales of groups that a correct engine may
//! round either way are explained, other scales are not.

use half::{bf16, f16};
use xcheck_engine::exact::{Float, Profile, ResultPair, judge};
use xcheck_engine::numerics::{ActivationQuantisation, F32, Numerics, QuantisedWeights, Transformers};
use xcheck_engine::ops::linear::exact::{IntegerProducts, products_that_explain};
use xcheck_engine::quant::{
    ActivationCodeType, ActivationCodes, CodeGroup, ScaleType, WeightRounding, decode_matrix_row,
};
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::view::View;
use xcheck_engine::weight::{DType, InputCodes, InputScale, Matrix, StoredTensor};

const TOKENS: usize = 48;
const WIDTH: usize = 64;
const OUTPUTS: usize = 16;
const NVFP4: InputScale = InputScale { codes: InputCodes::Nvfp4, number: 900.0, zero: 0.0 };
const MXFP4: InputScale = InputScale { codes: InputCodes::Mxfp4, number: 1.0, zero: 0.0 };

/// Values of bf16 with many sizes.
fn values(count: usize, seed: f32) -> Vec<f32> {
    let value = |at: usize| {
        let x = at as f32 * seed;
        bf16::from_f32(x.sin() * (3.0 * (x * 0.31).cos()).exp2()).to_f32()
    };
    (0..count).map(value).collect()
}

fn of_weights(weights: Vec<f32>) -> Matrix {
    let shape = vec![weights.len() / WIDTH, WIDTH];
    let data: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
    Matrix::from_stored(&StoredTensor { dtype: DType::F32, shape, data: data.into() }).expect("a matrix")
}

fn matrix(input: InputScale) -> Matrix {
    of_weights(values(OUTPUTS * WIDTH, 1.7)).with_input_scale(Some(input))
}

/// The codes that a file states, with quotients and decoded values of a type.
fn codes(input: &InputScale, float: ScaleType) -> ActivationCodes {
    let scale = if input.codes == InputCodes::Mxfp4 { ScaleType::Power } else { float };
    ActivationCodes { scale, quotients: float, ..ActivationCodes::of_matrix(input) }
}

/// Compares a traced result with another engine's values.
fn compared<T>(traced: &Tensor, made: &[f64], judge: impl Fn(&ResultPair) -> T) -> T {
    let made: Vec<f64> = made.iter().map(|&x| bf16::from_f64(x).to_f64()).collect();
    compared_as_is(traced, &made, judge)
}

fn compared_as_is<T>(traced: &Tensor, made: &[f64], judge: impl Fn(&ResultPair) -> T) -> T {
    // The other side differs everywhere, so that all values are evaluated.
    let nowhere = vec![f64::NAN; made.len()];
    let sides = [&View::of(traced.shape(), made), &View::of(traced.shape(), &nowhere)];
    judge(&ResultPair { traced, sides, stored: None, is_double: false, sees: &|_| 0..usize::MAX })
}

fn is_explained(traced: &Tensor, made: &[f64]) -> bool {
    compared(traced, made, |pair| judge(pair, false).expect("one operation").dump.is_explained())
}

fn wide(x: &Tensor) -> Vec<f64> {
    x.data().iter().map(|&x| x.into()).collect()
}

/// Products of decoded activations.
fn products(x: &[f32], w: &Matrix) -> Vec<f64> {
    let x = Tensor::new(&[x.len() / WIDTH, WIDTH], x.to_vec());
    wide(&F32.linear(&x, &w.clone().with_input_scale(None)))
}

/// The numerics of a model in bf16 whose codes have scales and decoded values of a type.
fn coded(input: &InputScale, float: ScaleType) -> ActivationQuantisation {
    ActivationQuantisation::over(Box::new(Transformers::Bf16), codes(input, float))
}

fn traced(numerics: &ActivationQuantisation) -> TracedNumerics<'_> {
    let profile = Profile::of(numerics);
    TracedNumerics::new(numerics, profile).rounding_by(profile)
}

/// Products in bf16, with sums from the last product to the first.
fn in_other_order(x: &Tensor, w: &Matrix) -> Tensor {
    let mut rows = vec![vec![0.0f32; w.cols]; w.rows];
    rows.iter_mut().enumerate().for_each(|(row, weights)| decode_matrix_row(w, row, weights));
    let times = |x: &[f32], w: &[f32]| {
        let sum = x.iter().zip(w).rev().fold(0.0f32, |sum, (x, w)| sum + x * w);
        bf16::from_f32(sum).to_f32()
    };
    let data = x.data().chunks(w.cols).flat_map(|x| rows.iter().map(move |w| times(x, w))).collect();
    Tensor::new(&[x.rows(), w.rows], data)
}

/// The inputs are unrecorded products, some of which round to another number of bf16 if they are added in another order.
#[test]
fn codes_of_uncertain_values_are_explained() {
    let weights = values(WIDTH * WIDTH / 2, 0.9).into_iter().flat_map(|w| [w, w]).collect();
    let first = of_weights(weights);
    // Large terms cancel out, so that sums are small compared to their rounding errors.
    let cancelled = |x: f32| [x, bf16::from_f32(-0.98 * x).to_f32()];
    let x = values(TOKENS * WIDTH / 2, 0.77).into_iter().flat_map(cancelled).collect();
    let x = Tensor::new(&[TOKENS, WIDTH], x);
    for input in [NVFP4, MXFP4] {
        let (w, right) = (matrix(input), coded(&input, ScaleType::Bf16));
        let traced = traced(&right);
        let (own, other) = (right.linear(&x, &first), in_other_order(&x, &first));
        assert!(own.data().iter().zip(other.data()).any(|(own, other)| own != other), "the order matters");
        let result = traced.linear(&traced.linear(&x, &first), &w);
        let by = |input: InputScale| right.linear(&other, &w.clone().with_input_scale(Some(input)));
        assert!(is_explained(&result, &wide(&by(input))), "{input:?}");
        let wrong = InputScale { number: 1.3 * input.number, ..NVFP4 };
        assert!(!is_explained(&result, &wide(&by(wrong))), "{input:?}: another scale");
    }
}

const TIES: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];

/// Activations of ties times a step, close to or at a distance from the tie. The first value of a group is the largest.
fn ties(step: f32, off: f32) -> Vec<f32> {
    let tie = |at: usize| TIES[at % 7] * [1.0, -1.0][at % 2] * off;
    let value = |at: usize| if at.is_multiple_of(16) { 6.0 } else { tie(at) };
    (0..TOKENS * WIDTH).map(|at| value(at) * step).collect()
}

/// Activations as codes times a step, with codes that are rounded after a small change.
fn rounded(x: &[f32], step: f32, by: f32) -> Vec<f32> {
    let code = |x: &f32| {
        let quotient = f64::from(x.abs() * by / step);
        let far = |code: &f32| (f64::from(*code) - quotient).abs();
        let codes = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0].into_iter();
        codes.min_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or_default().copysign(*x) * step
    };
    x.iter().map(code).collect()
}

/// A quotient that is a tie in one order of operations is not a tie in another.
#[test]
fn codes_of_ties_are_explained_either_way() {
    let (w, right) = (matrix(NVFP4), coded(&NVFP4, ScaleType::F32));
    let step = 1.125 / NVFP4.number;
    for (off, is_tie) in [(1.0, true), (0.9995, false)] {
        let x = ties(step, off);
        let result = traced(&right).linear(&Tensor::new(&[TOKENS, WIDTH], x.clone()), &w);
        assert!(is_explained(&result, &products(&rounded(&x, step, 0.9999), &w)), "rounded down");
        assert_eq!(is_explained(&result, &products(&rounded(&x, step, 1.001), &w)), is_tie, "rounded up");
    }
}

/// The scale 1.0625 is halfway between two numbers of 8 bits.
#[test]
fn scales_of_groups_that_are_ties_are_explained_either_way() {
    let (w, right) = (matrix(NVFP4), coded(&NVFP4, ScaleType::F32));
    for (scale, are_explained) in [(1.0625, [true, true]), (1.064, [false, true]), (1.061, [true, false])] {
        let x: Vec<f32> = ties(scale / NVFP4.number, 0.93);
        let result = traced(&right).linear(&Tensor::new(&[TOKENS, WIDTH], x.clone()), &w);
        let by = |stored: f32| products(&rounded(&x, stored / NVFP4.number, 1.0), &w);
        assert_eq!([1.0, 1.125].map(|stored| is_explained(&result, &by(stored))), are_explained, "{scale}");
    }
}

/// Groups whose scale is stored as zero have codes of zero.
#[test]
fn groups_of_zeros_and_of_tiny_values_are_zeros() {
    let (w, right) = (matrix(NVFP4), coded(&NVFP4, ScaleType::F32));
    let tiny = 6.0 / NVFP4.number / 1025.0;
    for (value, is_zero) in [(0.0, true), (tiny, true), (4.0 * tiny, false)] {
        let x = Tensor::new(&[1, WIDTH], vec![value; WIDTH]);
        let result = traced(&right).linear(&x, &w);
        assert_eq!(result.data().iter().all(|&x| x == 0.0), is_zero, "{value}");
        assert!(is_explained(&result, &wide(&right.linear(&x, &w))), "{value}");
        assert_eq!(is_explained(&result, &[0.0; OUTPUTS]), is_zero, "{value}");
    }
}

/// A group whose scale is stored as zero keeps NaN.
#[test]
fn nan_among_tiny_values_is_not_hidden() {
    let (w, right) = (matrix(NVFP4), coded(&NVFP4, ScaleType::F32));
    let tiny = 6.0 / NVFP4.number / 1025.0;
    for (value, is_hidden) in [(f32::NAN, false), (tiny, true)] {
        let mut x = vec![tiny; WIDTH];
        x[3] = value;
        let x = Tensor::new(&[1, WIDTH], x);
        let made = wide(&right.linear(&x, &w));
        assert_eq!(made.iter().all(|x| x.is_nan()), !is_hidden, "{value}");
        assert_eq!(is_explained(&traced(&right).linear(&x, &w), &[0.0; OUTPUTS]), is_hidden, "{value}");
    }
}

/// Each expert has its own number for the scales of groups.
#[test]
fn experts_use_the_scales_of_their_own_matrix() {
    let x = Tensor::new(&[TOKENS, WIDTH], values(TOKENS * WIDTH, 0.77));
    let chosen = Tensor::new(&[TOKENS, 2], (0..2 * TOKENS).map(|at| [0.0, 1.0, 2.0, 0.0][at % 4]).collect());
    let right = coded(&NVFP4, ScaleType::Bf16);
    let of = |steps: [f32; 3]| steps.map(|step| matrix(InputScale { number: step, ..NVFP4 }));
    let result = traced(&right).routed(&x, &of([900.0, 1200.0, 1500.0]), &chosen);
    for (steps, is_right) in [([900.0, 1200.0, 1500.0], true), ([900.0, 1500.0, 1200.0], false)] {
        assert_eq!(
            is_explained(&result, &wide(&right.routed(&x, &of(steps), &chosen))),
            is_right,
            "{steps:?}"
        );
    }
    let plain = Transformers::Bf16.routed(&x, &of([900.0; 3]), &chosen);
    assert!(!is_explained(&result, &wide(&plain)), "nothing is quantised");
}

/// Experts show their codes if no other products are quantised.
#[test]
fn codes_of_experts_are_found_from_their_products() {
    let x = Tensor::new(&[TOKENS, WIDTH], values(TOKENS * WIDTH, 0.77));
    let chosen = Tensor::new(&[TOKENS, 2], (0..2 * TOKENS).map(|at| [0.0, 1.0, 2.0, 0.0][at % 4]).collect());
    for input in [NVFP4, MXFP4] {
        let w = [1.0, 1.3, 1.7].map(|by| matrix(InputScale { number: by * input.number, ..input }));
        let stated = IntegerProducts::stored(Float::Bf16, w.iter()).expect("codes");
        let traced = TracedNumerics::new(&Transformers::Bf16, Profile::of(&Transformers::Bf16));
        let result = traced.routed(&x, &w, &chosen);
        let by = |numerics: &dyn Numerics| wide(&numerics.routed(&x, &w, &chosen));
        let right = coded(&input, ScaleType::Bf16);
        for (made, is_found) in [(by(&right), true), (by(&Transformers::Bf16), false)] {
            let found = compared(&result, &made, |pair| products_that_explain(pair, &stated));
            assert_eq!(found.is_some_and(|found| !found.is_empty()), is_found, "{input:?}");
        }
    }
}

/// Each format of codes that the file states adds its types.
#[test]
fn candidates_cover_all_formats_of_a_file() {
    let w = [MXFP4, InputScale { codes: InputCodes::Float8, number: 0.1, zero: 0.0 }].map(matrix);
    let of = |w: &[Matrix]| IntegerProducts::stored(Float::Bf16, w.iter()).unwrap_or_default();
    let has = |all: &[IntegerProducts], scale| all.iter().any(|one| one.codes.scale == scale);
    for w in [w.clone(), [w[1].clone(), w[0].clone()]] {
        assert!(has(&of(&w), ScaleType::PowerBelow) && has(&of(&w), ScaleType::Bf16));
        let powers = w[0].input_scale().is_some_and(|input| input.codes == InputCodes::Mxfp4);
        assert_eq!(has(&of(&w[..1]), ScaleType::PowerBelow), powers);
    }
}

/// Floats have no zero points, and scales that a format does not have are not used.
#[test]
fn settings_of_another_format_change_nothing() {
    let x = Tensor::new(&[TOKENS, WIDTH], values(TOKENS * WIDTH, 0.77));
    let by = |codes, input| {
        let numerics = ActivationQuantisation::over(Box::new(Transformers::Bf16), codes);
        numerics.linear(&x, &matrix(input))
    };
    let right = codes(&NVFP4, ScaleType::F32);
    let powers = ActivationCodes { scale: ScaleType::Power, ..right };
    assert!(by(right, NVFP4) == by(powers, NVFP4));
    assert!(by(right, NVFP4) == by(ActivationCodes { asymmetric: true, ..right }, NVFP4));
    assert!(by(right, NVFP4) != by(right, InputScale { number: 1.3 * NVFP4.number, ..NVFP4 }));
}

#[test]
fn settings_of_codes_that_do_not_exist_are_refused() {
    let stated = |json: &str| serde_json::from_str::<ActivationCodes>(json).expect("the keys exist");
    let integers = stated(r#"{"group": {"values": 32}, "scale": "e8m0"}"#);
    assert!(integers.problem().is_some_and(|problem| problem.contains("power of two")));
    let quotients = stated(r#"{"codes": "f4_e2m1", "quotients": "e8m0_floor"}"#);
    assert!(quotients.problem().is_some_and(|problem| problem.contains("quotients")));
    let floats = stated(r#"{"codes": "f4_e2m1", "asymmetric": true}"#);
    assert!(floats.problem().is_some_and(|problem| problem.contains("asymmetric")));
    let matrix = stated(r#"{"group": "matrix", "asymmetric": true}"#);
    assert!(matrix.problem().is_some_and(|problem| problem.contains("zero points")));
    assert_eq!(stated(r#"{"group": "matrix", "scale": "e8m0_floor"}"#).problem(), None);
    let sound = stated(r#"{"group": {"values": 32}, "codes": "f4_e2m1", "scale": "e8m0_ceil"}"#);
    assert_eq!((sound.problem(), sound.group), (None, CodeGroup::Values(32)));
}

/// Values that have no finite scale, and the largest number, which has one.
#[test]
fn groups_of_infinite_and_of_largest_values_are_evaluated() {
    let w = of_weights(values(OUTPUTS * WIDTH, 1.7));
    for scale in [ScaleType::Power, ScaleType::PowerBelow, ScaleType::PowerAbove] {
        let group = CodeGroup::Values(32);
        let codes = ActivationCodes { group, codes: ActivationCodeType::F4E2m1, scale, ..Default::default() };
        let right = ActivationQuantisation::over(Box::new(Transformers::Bf16), codes);
        for (value, is_sound) in [(f32::INFINITY, false), (f32::MAX, false), (1e30, true)] {
            let mut x = values(WIDTH, 0.77);
            x[0] = value;
            let x = Tensor::new(&[1, WIDTH], x);
            let result = traced(&right).linear(&x, &w);
            let made = wide(&right.linear(&x, &w));
            assert!(!is_sound || is_explained(&result, &made), "{scale:?}, {value}");
            let zeros = [0.0; OUTPUTS];
            assert!(!is_sound || !is_explained(&result, &zeros), "{scale:?}, {value}: other values");
        }
    }
}

/// compressed-tensors computes powers of two in the type of the values. In f16, the power of a group below its normal numbers
/// is 0, and so are the group's codes. Other engines have codes.
#[test]
fn groups_below_the_normal_numbers_of_f16_have_no_codes_in_some_engines() {
    const TINY: f32 = 1.0 / 65536.0 / 4.0;
    let value = |(at, x): (usize, f32)| if at / WIDTH % 2 == 1 { x * TINY } else { x };
    let x = values(TOKENS * WIDTH, 0.77).into_iter().enumerate().map(value);
    let x = Tensor::new(&[TOKENS, WIDTH], x.map(|x| f16::from_f32(x).to_f32()).collect());
    let w = matrix(MXFP4);
    let stated = IntegerProducts::stored(Float::F16, std::iter::once(&w)).expect("codes");
    let plain = codes(&MXFP4, ScaleType::F32);
    let traced = TracedNumerics::new(&Transformers::F16, Profile::of(&Transformers::F16));
    let result = traced.linear(&x, &w);
    for values in [None, Some(ScaleType::F16)] {
        let engine = ActivationCodes { values, ..plain };
        let made = ActivationQuantisation::over(Box::new(Transformers::F16), engine).linear(&x, &w);
        let is_lost = |row: usize| made.row(row).iter().all(|&x| x == 0.0);
        assert_eq!((is_lost(0), is_lost(1)), (false, values.is_some()));
        let found = |made: &[f64]| {
            let found = compared_as_is(&result, made, |pair| products_that_explain(pair, &stated));
            found.unwrap_or_default().iter().any(|one| one.codes == engine)
        };
        assert!(found(&wide(&made)), "{values:?}");
        let wrong: Vec<f64> = wide(&made).iter().map(|x| f16::from_f64(1.02 * x).to_f64()).collect();
        assert!(!found(&wrong), "{values:?}: another factor");
    }
}

/// Weights that are rounded in memory keep the scales that the file stores for their activations.
#[test]
fn rounded_weights_keep_the_scales_of_activations() {
    let x = Tensor::new(&[TOKENS, WIDTH], values(TOKENS * WIDTH, 0.77));
    let w = matrix(NVFP4);
    let rounded =
        |inner| QuantisedWeights::over(inner, [(&w, WeightRounding::Float(DType::F16))]).linear(&x, &w);
    let whole = rounded(Box::new(Transformers::Bf16) as Box<dyn Numerics>);
    assert!(whole != rounded(Box::new(coded(&NVFP4, ScaleType::Bf16))));
}
