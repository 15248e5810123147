//! Products with an error as small as such errors get.

use xcheck_engine::exact::Profile;
use xcheck_engine::numerics::{KvType, LlamaCpp, Numerics};
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::weight::Matrix;

use super::dice::Law;
use super::linear::{Linear, decoded, dot_of_codes, matrix_of_codes, products, products_of_codes};
use super::order::{Adder, Order};
use super::specimen::{Specimen, Store, times, to_tf32};

const TOKENS: usize = 16;
const OUTPUTS: usize = 256;

fn linear(width: usize, store: Store) -> (Linear, Adder) {
    let sizes = [TOKENS, width, OUTPUTS];
    (Linear::new(Law::Normal, sizes, store, 5000), Adder::new(Order::Lanes, width, 0))
}

fn about(name: &str, width: usize, store: Store) -> String {
    format!("linear, {name}, {store:?}, n = {width}")
}

pub fn honest(width: usize, store: Store) -> Specimen {
    let (linear, _) = linear(width, store);
    let own = linear.by(&Adder::new(Order::Sequential, width, 0));
    linear.specimen(about("sequential", width, store), own)
}

/// In a stream that is larger or smaller than about 1, of another law; `by` too large.
pub fn of_stream(law: Law, size: f32, by: f64, store: Store) -> Specimen {
    let linear = Linear::new(law, [TOKENS, 4096, OUTPUTS], store, 5100).scaled(size);
    let adder = Adder::new(Order::Sequential, 4096, 0);
    let scaled = |x: &[f32], w: &[f32]| store.round((f64::from(adder.dot(x, w)) * (1.0 + by)) as f32);
    let own = products(&linear.x, &linear.w, 4096, scaled);
    let fault = if by == 0.0 { String::new() } else { format!(", all {by:e} too large") };
    linear.specimen(about(&format!("{law:?} times {size}{fault}"), 4096, store), own)
}

/// Both operands through `round` first.
fn operands(name: &str, width: usize, round: impl Fn(f32) -> f32, weights_only: bool) -> Specimen {
    let (linear, adder) = linear(width, Store::F32);
    let x: Vec<f32> = linear.x.iter().map(|&x| if weights_only { x } else { round(x) }).collect();
    let w: Vec<f32> = linear.w.iter().map(|&w| round(w)).collect();
    linear.specimen(about(name, width, Store::F32), products(&x, &w, width, |x, w| adder.dot(x, w)))
}

pub fn tf32(width: usize) -> Specimen {
    operands("TF32 operands", width, to_tf32, false)
}

pub fn f16_weights(width: usize) -> Specimen {
    operands("weights through f16", width, |w| Store::F16.round(w), true)
}

pub fn too_large(width: usize, by: f64) -> Specimen {
    let (linear, adder) = linear(width, Store::F32);
    let own = times(&linear.by(&adder), 1.0 + by);
    linear.specimen(about(&format!("all {by:e} too large"), width, Store::F32), own)
}

/// The result is 1e-5 too large before it is rounded.
pub fn too_large_in_16_bits(width: usize, store: Store) -> Specimen {
    let (linear, adder) = linear(width, store);
    let dot = |x: &[f32], w: &[f32]| store.round(adder.dot(x, w) * (1.0 + 1e-5));
    let own = products(&linear.x, &linear.w, width, dot);
    linear.specimen(about("all 1e-5 too large", width, store), own)
}

/// Of a matrix, one weight in the middle of each row.
pub fn one_missing(width: usize, store: Store) -> Specimen {
    let (linear, adder) = linear(width, store);
    let mut w = linear.w.clone();
    w.chunks_mut(width).for_each(|row| row[width / 2] = 0.0);
    let own = products(&linear.x, &w, width, |x, w| store.round(adder.dot(x, w)));
    linear.specimen(about("one weight missing", width, store), own)
}

/// A product with Q8_0 blocks by llama.cpp, and its parts.
fn coded(width: usize) -> (Tensor, Linear, Matrix) {
    let numerics = LlamaCpp { kv: KvType::F16 };
    let by = TracedNumerics::new(&numerics, Profile::of(&numerics));
    let (linear, _) = linear(width, Store::F32);
    let w = matrix_of_codes(&linear.w, OUTPUTS);
    (by.linear(&linear.tensor(), &w), linear, w)
}

/// Codes meet codes; the scale of a block of activations is kept as `stored` says.
fn with_scales(name: &str, width: usize, stored: impl Fn(f32) -> f32) -> Specimen {
    let (traced, linear, w) = coded(width);
    let adder = Adder::new(Order::Sequential, width / 32, 0);
    let own = products_of_codes(&linear.x, &w, |x, w| dot_of_codes(x, w, &adder, &stored));
    Specimen::new(format!("Q8_0, {name}, n = {width}"), traced, own)
}

pub fn honest_codes(width: usize) -> Specimen {
    with_scales("block by block", width, |step| Store::F16.round(step))
}

pub fn scale_in_f32(width: usize) -> Specimen {
    with_scales("scales of activations in f32", width, |step| step)
}

pub fn not_quantised(width: usize) -> Specimen {
    let (traced, linear, w) = coded(width);
    let adder = Adder::new(Order::Lanes, width, 0);
    let own = products(&linear.x, &decoded(&w), width, |x, w| adder.dot(x, w));
    Specimen::new(format!("Q8_0, activations not quantised, n = {width}"), traced, own)
}

#[test]
fn operands_that_have_lost_bits_are_seen() {
    for width in [64, 1024, 4096] {
        honest(width, Store::F32).assert_honest();
        for fault in [tf32(width), f16_weights(width)] {
            let over = fault.assert_caught().over;
            assert!(over > TOKENS * OUTPUTS / 2, "{}: most values, not {over}", fault.name);
        }
    }
}

#[test]
fn one_weight_of_many_that_is_missing_is_seen() {
    for store in [Store::F32, Store::Bf16, Store::F16] {
        for width in [64, 1024, 4096] {
            assert!(one_missing(width, store).assert_caught().over > 0);
        }
    }
}

#[test]
fn products_that_are_a_hundred_thousandth_too_large_are_seen() {
    for width in [64, 1024, 4096] {
        assert!(too_large(width, 1e-5).assert_caught().over > 0);
    }
    for store in Store::SHORT {
        assert!(too_large_in_16_bits(1024, store).assert_caught().over > 0);
    }
}

#[test]
fn products_that_are_a_millionth_too_large_are_seen_by_their_mean_alone() {
    for width in [1024, 4096] {
        let fault = too_large(width, 1e-6);
        let side = fault.assert_caught();
        assert_eq!(side.over, 0, "{}: no value by itself", fault.name);
        let bias = side.bias.expect("sums to nearest have no direction");
        assert!(bias.is_scale && (bias.error / 1e-6 - 1.0).abs() < 0.1, "{}: {bias:?}", fault.name);
    }
}

#[test]
fn quantised_activations_with_another_rounding_are_seen() {
    for width in [256, 1024, 4096] {
        honest_codes(width).assert_honest();
        for fault in [not_quantised(width), scale_in_f32(width)] {
            let over = fault.assert_caught().over;
            assert!(over > TOKENS * OUTPUTS / 2, "{}: most values, not {over}", fault.name);
        }
    }
}
