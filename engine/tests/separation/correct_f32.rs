//! What engines compute in `f32`, each in its own order: rounding explains every value, and their mean.

use xcheck_engine::numerics::{KvType, LlamaCpp, Numerics};
use xcheck_engine::ops::activation::Activation;
use xcheck_engine::tensor::RopePairing;

use super::activations::{GELU_ERF, GELU_TANH, Gated, SILU};
use super::attention::{self, Heads};
use super::dice::{Dice, Law, normal};
use super::linear::{Linear, dot_of_codes, matrix_of_codes, products_of_codes};
use super::norm::{Rows, Way};
use super::order::{Adder, Order};
use super::rope::{self, Turned};
use super::specimen::{Specimen, Store};
use crate::share::{one_of, pairs};

/// Width, tokens, outputs.
const PRODUCTS: [[usize; 3]; 5] =
    [[64, 32, 512], [256, 32, 512], [1024, 16, 256], [4096, 16, 64], [8192, 8, 64]];

#[test]
fn products_pass_in_every_order_of_sums_over_a_million_values() {
    let mut values = 0;
    for (seed, law) in Law::ALL.into_iter().enumerate() {
        for [width, tokens, outputs] in PRODUCTS {
            let linear = Linear::new(law, [tokens, width, outputs], Store::F32, 100 + seed as u64);
            let mut specimen = linear.specimen("", Vec::new());
            for order in Order::ALL {
                specimen.name = format!("linear, {law:?}, {width}, {order:?}");
                specimen.own = linear.by(&Adder::new(order, width, 7));
                values += specimen.assert_honest();
            }
        }
    }
    assert!(values >= 1_000_000, "{values} values");
}

/// Where the bias is larger than the products, each partial sum is rounded as it is. Three times as far as that may take them is
/// seen.
#[test]
fn products_that_begin_with_a_bias_pass_whatever_its_size() {
    for store in [Store::F32, Store::Bf16, Store::F16] {
        for [width, tokens, outputs] in [[64, 64, 256], [576, 32, 256], [4096, 8, 128]] {
            for size in [0.0, 0.1, 1.0, 30.0] {
                let linear = Linear::new(Law::Normal, [tokens, width, outputs], store, 150);
                let bias = store.rounded(&normal(outputs, size, 151));
                let mut specimen = Specimen::new("", linear.traced_with(&bias), Vec::new());
                let orders =
                    [(0..width).collect(), (0..width).rev().collect(), Dice::new(152).permutation(width)];
                for order in &orders {
                    specimen.name = format!("linear, {store:?}, {width}, bias {size}, {:?} first", order[0]);
                    specimen.own = linear.begun_with(&bias, order);
                    specimen.assert_honest();
                }
                if store == Store::F32 && size == 30.0 {
                    // LAMBDA sigmas of as many roundings.
                    let allowed = 8.0 * 0.425 * (width as f32).sqrt() / (1u32 << 24) as f32;
                    let wrong: Vec<f32> = bias.iter().map(|bias| bias * (1.0 + 3.0 * allowed)).collect();
                    specimen.own = linear.begun_with(&wrong, &orders[0]);
                    specimen.assert_caught();
                }
            }
        }
    }
}

#[test]
fn rms_norm_passes_in_every_order_and_form() {
    let cases = pairs(
        Law::ALL.into_iter().enumerate(),
        [(64, 1.0), (256, 0.1), (1024, 10.0), (4096, 1.0), (8192, 0.02)],
    );
    for ((seed, law), (width, rms)) in one_of(2, cases) {
        let rows = Rows::new(law, [65_536 / width, width], rms, Store::F32, 200 + seed as u64);
        let mut specimen = rows.specimen("", Vec::new());
        for order in Order::ALL {
            for way in [Way::Reciprocal, Way::Divided, Way::GainFirst] {
                specimen.name = format!("RMSNorm, {law:?}, {width}, {order:?}, {way:?}");
                specimen.own = rows.rms(&Adder::new(order, width, 8), way);
                specimen.assert_honest();
            }
        }
    }
}

#[test]
fn layer_norm_passes_in_every_order_and_form() {
    let cases = pairs(Law::ALL.into_iter().enumerate(), [64, 256, 1024, 4096, 8192]);
    for ((seed, law), width) in one_of(2, cases) {
        let rows = Rows::new(law, [65_536 / width, width], 1.0, Store::F32, 300 + seed as u64);
        let traced = rows.store.traced().layer_norm(&rows.tensor(), &rows.layer());
        for order in Order::ALL {
            for is_shifted in [false, true] {
                let name = format!("LayerNorm, {law:?}, {width}, {order:?}, shifted {is_shifted}");
                let own = rows.layered(&Adder::new(order, width, 9), is_shifted);
                Specimen::new(name, traced.clone(), own).assert_honest();
            }
        }
    }
}

#[test]
fn softmax_passes_in_every_order_and_form() {
    let cases = pairs(Law::ALL.into_iter().enumerate(), [64, 256, 1024, 4096, 8192]);
    for ((seed, law), keys) in one_of(2, cases) {
        let rows = attention::Rows::new(law, [8, keys], Store::F32, 400 + seed as u64);
        let mut specimen = rows.specimen("", Vec::new());
        for order in Order::ALL {
            for way in attention::Way::ALL {
                specimen.name = format!("softmax, {law:?}, {keys}, {order:?}, {way:?}");
                specimen.own = rows.softmax(&Adder::new(order, keys, 10), way, |_| ());
                specimen.assert_honest();
            }
        }
    }
}

#[test]
fn attention_scores_pass_in_every_order_and_wherever_the_attention_scale_is_applied() {
    let cases = pairs(Law::ALL.into_iter().enumerate(), [64, 128, 256]);
    for ((seed, law), dim) in one_of(2, cases) {
        let heads = Heads::new(law, [8, 4, 256, dim], Store::F32, 500 + seed as u64);
        let mut specimen = heads.scores_specimen("", Vec::new());
        for order in Order::ALL {
            let (adder, scale) = (Adder::new(order, dim, 11), heads.scale());
            specimen.name = format!("scores, {law:?}, {dim}, {order:?}");
            specimen.own = heads.scores(&adder, scale);
            specimen.assert_honest();
            specimen.name += ", scaled queries";
            specimen.own = heads.scores_by(|q, k| {
                let q: Vec<f32> = q.iter().map(|q| q * scale).collect();
                adder.dot(&q, k)
            });
            specimen.assert_honest();
        }
    }
}

#[test]
fn attention_contexts_pass_in_every_order() {
    let cases = pairs(Law::ALL.into_iter().enumerate(), [64, 256, 1024, 4096]);
    for ((seed, law), keys) in one_of(2, cases) {
        let heads = Heads::new(law, [4, 4, keys, 64], Store::F32, 600 + seed as u64);
        let weights = heads.weights(12);
        let mut specimen = heads.context_specimen("", &weights, Vec::new());
        for order in Order::ALL {
            specimen.name = format!("context, {law:?}, {keys}, {order:?}");
            specimen.own = heads.context(&weights, &Adder::new(order, keys, 13));
            specimen.assert_honest();
        }
    }
}

/// Values of neighbouring keys are alike: partial sums go far away, and come back in the end.
#[test]
fn attention_contexts_of_drifting_values_pass_in_every_order() {
    for keys in [128, 512, 2048] {
        let mut heads = Heads::new(Law::Normal, [4, 4, keys, 64], Store::F32, 660);
        let row_len = heads.v.len() / keys;
        for (key, row) in heads.v.chunks_mut(row_len).enumerate() {
            let sign = if key < keys / 2 { 1.0 } else { -1.0 };
            row.iter_mut().for_each(|value| *value = value.abs() * sign);
        }
        let weights = heads.weights(17);
        let mut specimen = heads.context_specimen("", &weights, Vec::new());
        for order in Order::ALL {
            specimen.name = format!("context, drifting, {keys}, {order:?}");
            specimen.own = heads.context(&weights, &Adder::new(order, keys, 18));
            specimen.assert_honest();
        }
    }
}

/// What is added to the value of a sink is so small that a sum may lose all of it, in one direction where values share a
/// sign.
#[test]
fn attention_contexts_with_an_attention_sink_pass_in_every_order() {
    for law in [Law::Normal, Law::Positive] {
        for keys in [256, 1024, 4096] {
            for larger in [10.0, 14.0, 18.0, 22.0] {
                let heads = Heads::new(law, [4, 4, keys, 64], Store::F32, 650);
                let weights = heads.weights_with_sink(larger, 15);
                let mut specimen = heads.context_specimen("", &weights, Vec::new());
                for order in Order::ALL {
                    specimen.name = format!("context, {law:?}, {keys}, sink {larger}, {order:?}");
                    specimen.own = heads.context(&weights, &Adder::new(order, keys, 16));
                    specimen.assert_honest();
                }
            }
        }
    }
}

#[test]
fn rope_passes_with_every_math_library_and_pairing_at_large_positions_too() {
    let cases = pairs(Law::ALL.into_iter().enumerate(), [(64, 0), (64, 8128), (128, 0), (128, 8128)]);
    for ((seed, law), (dim, first)) in one_of(2, cases) {
        for pairing in [RopePairing::Half, RopePairing::Interleaved] {
            let mut turned = Turned::new(law, [64, 4, dim], first, Store::F32, 700 + seed as u64);
            turned.rope.pairing = pairing;
            for way in rope::Way::ALL {
                let name = format!("RoPE, {law:?}, {dim}, from {first}, {way:?}");
                turned.specimen(name, turned.by(way)).assert_honest();
            }
            let name = format!("RoPE as ggml has it, {law:?}, {dim}, from {first}");
            let traced = turned.traced_by_ggml(&LlamaCpp { kv: KvType::F32 });
            Specimen::new(name, traced, turned.iterated()).assert_honest();
        }
    }
}

#[test]
fn gelu_and_silu_pass_in_every_form_and_with_every_math_library() {
    for (seed, law) in Law::ALL.into_iter().enumerate() {
        for (activation, formulas) in [
            (Activation::Silu, &SILU[..]),
            (Activation::GeluTanh, &GELU_TANH[..]),
            (Activation::GeluErf, &GELU_ERF[..]),
        ] {
            let gated = Gated::new(activation, law, [16, 4096], Store::F32, 800 + seed as u64);
            for (at, &formula) in formulas.iter().enumerate() {
                let name = format!("{activation}, {law:?}, form {at}");
                gated.alone(name.clone(), formula).assert_honest();
                gated.specimen(name + ", gated", gated.by(formula, Store::F32)).assert_honest();
            }
        }
    }
}

#[test]
fn residual_sums_pass() {
    for (seed, law) in Law::ALL.into_iter().enumerate() {
        let added = Gated::new(Activation::Silu, law, [16, 4096], Store::F32, 900 + seed as u64);
        added.added(format!("add, {law:?}"), added.sums(|a, b| a + b)).assert_honest();
        let fused = added.sums(|a, b| a.mul_add(1.0, b));
        added.added(format!("add, {law:?}, fused"), fused).assert_honest();
    }
}

#[test]
fn q8_0_products_pass_in_every_order() {
    let numerics = LlamaCpp { kv: KvType::F16 };
    let by =
        xcheck_engine::tracing::TracedNumerics::new(&numerics, xcheck_engine::exact::Profile::of(&numerics));
    let cases = pairs(Law::ALL.into_iter().enumerate(), [256, 1024, 4096]);
    for ((seed, law), width) in one_of(2, cases) {
        let linear = Linear::new(law, [16, width, 128], Store::F32, 1000 + seed as u64);
        let w = matrix_of_codes(&linear.w, linear.outputs);
        let mut specimen = Specimen::new("", by.linear(&linear.tensor(), &w), Vec::new());
        for order in Order::ALL {
            let adder = Adder::new(order, width / 32, 14);
            specimen.name = format!("Q8_0, {law:?}, {width}, {order:?}");
            specimen.own =
                products_of_codes(&linear.x, &w, |x, w| dot_of_codes(x, w, &adder, |d| Store::F16.round(d)));
            specimen.assert_honest();
        }
    }
}
