//! Ways in which real kernels round that no manifest states, each as the engine does it whose dumps failed for it: explained,
//! and what is nearly the same is not.

use xcheck_engine::exact::{self, Choice, Float, Profile, ResultPair};
use xcheck_engine::numerics::{Numerics, Transformers};
use xcheck_engine::ops::norm::{Gain, RmsNorm};
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::view::View;
use xcheck_engine::weight::{DType, Matrix, StoredTensor};

const ROWS: usize = 8;
const WIDTH: usize = 256;
const OUTPUTS: usize = 64;

fn short(x: f64) -> f64 {
    Float::Bf16.round(x)
}

/// Cut off to the 8 bits of bf16.
fn cut(x: f64) -> f64 {
    f32::from_bits((x as f32).to_bits() & 0xffff_0000).into()
}

fn wave(count: usize, step: f64) -> Vec<f64> {
    (0..count).map(|at| (at as f64 * step).sin()).collect()
}

fn tensor(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::new(shape, values.iter().map(|&x| x as f32).collect())
}

fn matrix(w: &[f64]) -> Matrix {
    let data: Vec<u8> = w.iter().flat_map(|&w| (w as f32).to_le_bytes()).collect();
    let stored = StoredTensor { dtype: DType::F32, shape: vec![OUTPUTS, WIDTH], data: data.into() };
    Matrix::from_stored(&stored).expect("a matrix")
}

/// The product at a place, of operands.
fn product(x: &[f64], w: &[f64], flat: usize, operand: fn(f64) -> f64) -> f64 {
    let (row, output) = (flat / OUTPUTS, flat % OUTPUTS);
    let terms = x[row * WIDTH..][..WIDTH].iter().zip(&w[output * WIDTH..][..WIDTH]);
    terms.map(|(&x, w)| operand(x) * w).sum()
}

fn traced() -> TracedNumerics<'static> {
    TracedNumerics::new(&Transformers::Bf16, Profile::of(&Transformers::Bf16))
}

/// By which choices values are explained that an engine has made, if they are.
fn found(own: &Tensor, made: Vec<f64>) -> Option<Vec<Choice>> {
    let dump = tensor(own.shape(), &made);
    let sides = [&View::from(&dump), &View::from(own)];
    let compared =
        ResultPair { traced: own, sides, stored: None, is_double: false, sees: &|_| 0..usize::MAX };
    let judged = exact::judge(&compared, true).expect("few operations");
    judged.dump.is_explained().then_some(judged.found)
}

/// Rows divided by the root of the mean square of other rows, and multiplied.
fn normed(x: &[f64], squared: &[f64], eps: f32, gained: impl Fn(f64, usize) -> f64) -> Vec<f64> {
    let row = |(x, squared): (&[f64], &[f64])| {
        let mean = squared.iter().map(|x| x * x).sum::<f64>() / squared.len() as f64;
        let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
        x.iter().enumerate().map(|(at, x)| gained(x * inverse, at)).collect::<Vec<_>>()
    };
    x.chunks(WIDTH).zip(squared.chunks(WIDTH)).flat_map(row).collect()
}

/// litgpt's Gemma adds one to its weight in bf16, and multiplies what it has not rounded.
#[test]
fn the_one_added_to_an_rms_norm_weight_is_rounded_by_itself() {
    let x: Vec<f64> = wave(ROWS * WIDTH, 0.37).into_iter().map(short).collect();
    let weight: Vec<f64> = wave(WIDTH, 0.73).into_iter().map(short).collect();
    let norm = RmsNorm {
        weight: weight.iter().map(|&w| w as f32).collect(),
        eps: 1e-6,
        gain: Gain::OnePlusWeight,
        groups: 1,
    };
    let own = traced().rms_norm(&tensor(&[ROWS, WIDTH], &x), &norm);
    let by = |eps, gain: fn(f64) -> f64| {
        found(&own, normed(&x, &x, eps, |x, at| short(x * gain(1.0 + weight[at]))))
    };
    assert_eq!(by(1e-6, |gain| gain), Some(vec![]));
    assert_eq!(by(1e-6, short), Some(vec![Choice::GainsAlone]));
    assert_eq!(by(1e-6, cut), None);
    assert_eq!(by(2e-3, short), None);
}

/// Keras adds the bias to a product that is rounded already.
#[test]
fn a_bias_is_added_to_a_rounded_product() {
    let x: Vec<f64> = wave(ROWS * WIDTH, 0.37).into_iter().map(short).collect();
    let w: Vec<f64> = wave(OUTPUTS * WIDTH, 1.13).into_iter().map(short).collect();
    let bias: Vec<f64> = wave(OUTPUTS, 0.59).into_iter().map(short).collect();
    let biased: Vec<f32> = bias.iter().map(|&b| b as f32).collect();
    let own = traced().affine(&tensor(&[ROWS, WIDTH], &x), &matrix(&w), &biased);
    let by = |summed: fn(f64) -> f64, with: f64| {
        let at = |flat: usize| short(summed(product(&x, &w, flat, |x| x)) + with * bias[flat % OUTPUTS]);
        found(&own, (0..ROWS * OUTPUTS).map(at).collect())
    };
    assert_eq!(by(|sum| sum, 1.0), Some(vec![]));
    assert_eq!(by(short, 1.0), Some(vec![Choice::Biased]));
    assert_eq!(by(cut, 1.0), None);
    assert_eq!(by(short, 0.0), None);
    assert_eq!(by(short, 1.02), None);
}

/// TransformerLens shows what its norms make before it rounds it to the type of the model.
#[test]
fn what_is_held_in_more_digits_is_rounded_where_it_meets_weights() {
    let x = wave(ROWS * WIDTH, 0.37);
    let x: Vec<f64> = x.into_iter().map(|x| f64::from(x as f32)).collect();
    let w: Vec<f64> = wave(OUTPUTS * WIDTH, 1.13).into_iter().map(short).collect();
    let own = traced().linear(&tensor(&[ROWS, WIDTH], &x), &matrix(&w));
    let by = |operand: fn(f64) -> f64| {
        let at = |flat: usize| short(product(&x, &w, flat, operand));
        found(&own, (0..ROWS * OUTPUTS).map(at).collect())
    };
    assert_eq!(by(|x| x), Some(vec![]));
    assert_eq!(by(short), Some(vec![Choice::Operands]));
    assert_eq!(by(cut), None);
    assert_eq!(by(|x| Float::E4m3.round(x)), None);
}

/// torch.compile takes the mean square of a sum as it has it, and reads again what it has stored.
#[test]
fn a_fused_rms_norm_takes_the_mean_square_of_the_residual_before_rounding() {
    let a: Vec<f64> = wave(ROWS * WIDTH, 0.37).into_iter().map(short).collect();
    let b: Vec<f64> = wave(ROWS * WIDTH, 1.7).into_iter().map(|x| short(x / 9.0)).collect();
    let sum: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    let stored: Vec<f64> = sum.iter().copied().map(short).collect();
    let norm = RmsNorm { weight: vec![1.0; WIDTH], eps: 1e-6, gain: Gain::Weight, groups: 1 };
    let n = traced();
    let added = n.add(&tensor(&[ROWS, WIDTH], &a), &tensor(&[ROWS, WIDTH], &b));
    let own = n.rms_norm(&exact::in_place_of(&added, tensor(&[ROWS, WIDTH], &stored)), &norm);
    let by = |x: &[f64], squared: &[f64]| found(&own, normed(x, squared, 1e-6, |x, _| short(x)));
    assert_eq!(by(&stored, &stored), Some(vec![]));
    assert_eq!(by(&stored, &sum), Some(vec![Choice::MeanOfSums]));
    assert_eq!(by(&sum, &sum), Some(vec![Choice::NormOfSums]));
    let larger: Vec<f64> = sum.iter().map(|x| x * 1.001).collect();
    assert_eq!(by(&stored, &larger), None);
    assert_eq!(by(&stored, &stored.iter().copied().map(cut).map(|x| x * 0.999).collect::<Vec<_>>()), None);
}

/// torch.compile puts Gemma's norm of what attention makes, the sum with the residual and the norm of that into one kernel,
/// which rounds what it stores alone.
#[test]
fn a_chain_of_operations_is_rounded_where_it_is_stored() {
    let out: Vec<f64> = wave(ROWS * WIDTH, 0.37).into_iter().map(short).collect();
    let residual: Vec<f64> = wave(ROWS * WIDTH, 1.7).into_iter().map(|x| short(x / 3.0)).collect();
    let norm = RmsNorm { weight: vec![1.0; WIDTH], eps: 1e-6, gain: Gain::Weight, groups: 1 };
    let n = traced();
    let made = normed(&out, &out, 1e-6, |x, _| x);
    let stored: Vec<f64> = made.iter().copied().map(short).collect();
    let read = exact::in_place_of(
        &n.rms_norm(&tensor(&[ROWS, WIDTH], &out), &norm),
        tensor(&[ROWS, WIDTH], &stored),
    );
    let own = n.add(&tensor(&[ROWS, WIDTH], &residual), &read);
    let by = |added: &[f64], last: fn(f64) -> f64| {
        let sums = residual.iter().zip(added).map(|(a, b)| last(a + b));
        found(&own, sums.collect())
    };
    assert_eq!(by(&stored, short), Some(vec![]));
    assert_eq!(by(&made, short), Some(vec![Choice::ChainedNorms]));
    assert_eq!(by(&made, cut), None);
    let larger: Vec<f64> = made.iter().map(|x| x * (1.0 + 1.0 / 128.0)).collect();
    assert_eq!(by(&larger, short), None);
    assert_eq!(by(&stored.iter().map(|x| -x).collect::<Vec<_>>(), short), None);
    // Of what was given alone, it is certain.
    let plain = n.add(&tensor(&[ROWS, WIDTH], &residual), &tensor(&[ROWS, WIDTH], &stored));
    let sums = residual.iter().zip(&made).map(|(a, b)| short(a + b));
    assert_eq!(found(&plain, sums.collect()), None);
}

/// Kernels that decode the new elements have no other values.
#[test]
fn changed_elements_have_no_values_of_kernels() {
    let w = wave(OUTPUTS * WIDTH, 0.73);
    let plain = matrix(&w);
    let data: Vec<u8> = w.iter().flat_map(|&w| (w as f32 * 1.01).to_le_bytes()).collect();
    let values = StoredTensor { dtype: DType::F32, shape: vec![OUTPUTS, WIDTH], data: data.into() };
    let with_values = plain.clone().with_values_of_kernels(&values).expect("as many values");
    assert_ne!(with_values, plain);
    let same = with_values.with_elements(plain.row_range(0..OUTPUTS).to_vec()).expect("as many bytes");
    assert_eq!(same, plain);
}
