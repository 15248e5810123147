//! What engines compute in `bf16` and `f16`: sums in any order, and results rounded where transformers rounds them.

use xcheck_engine::numerics::Numerics;
use xcheck_engine::ops::activation::Activation;

use super::activations::{Formula, GELU_ERF, GELU_TANH, Gated, SILU};
use super::attention::{self, Heads};
use super::dice::Law;
use super::linear::Linear;
use super::norm::{Rows, Way};
use super::order::{Adder, Order};
use super::rope::{self, Turned};
use super::specimen::{Specimen, Store};
use crate::share::{one_of, pairs};

/// Both types and all laws but that whose activations `f16` cannot hold after a product of two.
fn each(f: impl Fn(Store, Law, u64)) {
    let laws = Law::ALL.into_iter().enumerate().filter(|(_, law)| *law != Law::Massive);
    for (store, (seed, law)) in one_of(2, pairs(Store::SHORT, laws)) {
        f(store, law, 10 * seed as u64 + store as u64);
    }
}

#[test]
fn products_in_bf16_and_f16_pass_in_every_order() {
    each(|store, law, seed| {
        for [width, tokens, outputs] in [[64, 32, 256], [1024, 16, 128], [4096, 16, 32]] {
            let linear = Linear::new(law, [tokens, width, outputs], store, 2000 + seed);
            let mut specimen = linear.specimen("", Vec::new());
            for order in Order::ALL {
                specimen.name = format!("linear, {store:?}, {law:?}, {width}, {order:?}");
                specimen.own = linear.by(&Adder::new(order, width, 21));
                specimen.assert_honest();
            }
        }
    });
}

#[test]
fn rms_norm_and_layer_norm_in_bf16_and_f16_pass_in_every_order_and_form() {
    each(|store, law, seed| {
        for width in [64, 1024, 4096] {
            let rows = Rows::new(law, [65_536 / width, width], 1.0, store, 2100 + seed);
            let mut specimen = rows.specimen("", Vec::new());
            let layer = rows.store.traced().layer_norm(&rows.tensor(), &rows.layer());
            for order in Order::ALL {
                let adder = Adder::new(order, width, 22);
                for way in [Way::Reciprocal, Way::Divided] {
                    specimen.name = format!("RMSNorm, {store:?}, {law:?}, {width}, {order:?}, {way:?}");
                    specimen.own = rows.rms(&adder, way);
                    specimen.assert_honest();
                }
                for is_shifted in [false, true] {
                    let name = format!("LayerNorm, {store:?}, {law:?}, {width}, {order:?}, {is_shifted}");
                    Specimen::new(name, layer.clone(), rows.layered(&adder, is_shifted)).assert_honest();
                }
            }
        }
    });
}

#[test]
fn attention_in_bf16_and_f16_passes_in_every_order_and_form() {
    each(|store, law, seed| {
        let heads = Heads::new(law, [4, 4, 256, 128], store, 2200 + seed);
        let weights = heads.weights(2300);
        let rows = attention::Rows::new(law, [8, 1024], store, 2400 + seed);
        let mut scores = heads.scores_specimen("", Vec::new());
        let mut context = heads.context_specimen("", &weights, Vec::new());
        let mut softmax = rows.specimen("", Vec::new());
        for order in Order::ALL {
            let about = format!("{store:?}, {law:?}, {order:?}");
            scores.name = format!("scores, {about}");
            scores.own = heads.scores(&Adder::new(order, 128, 23), heads.scale());
            scores.assert_honest();
            context.name = format!("context, {about}");
            context.own = heads.context(&weights, &Adder::new(order, 256, 24));
            context.assert_honest();
            for way in attention::Way::ALL {
                softmax.name = format!("softmax, {about}, {way:?}");
                softmax.own = rows.softmax(&Adder::new(order, 1024, 25), way, |_| ());
                softmax.assert_honest();
            }
        }
    });
}

#[test]
fn rope_in_bf16_and_f16_passes_with_every_math_library() {
    each(|store, law, seed| {
        for first in [0, 8128] {
            let turned = Turned::new(law, [64, 4, 128], first, store, 2500 + seed);
            for way in [rope::Way::Library, rope::Way::Libm, rope::Way::Double] {
                let name = format!("RoPE, {store:?}, {law:?}, from {first}, {way:?}");
                turned.specimen(name, turned.by(way)).assert_honest();
            }
        }
    });
}

#[test]
fn activations_and_residual_sums_in_bf16_and_f16_pass_in_every_form() {
    let all: [(Activation, &[Formula]); 3] =
        [(Activation::Silu, &SILU), (Activation::GeluTanh, &GELU_TANH), (Activation::GeluErf, &GELU_ERF)];
    each(|store, law, seed| {
        for (activation, formulas) in all {
            let gated = Gated::new(activation, law, [16, 4096], store, 2600 + seed);
            for (at, &formula) in formulas.iter().enumerate() {
                let name = format!("{activation}, {store:?}, {law:?}, form {at}");
                gated.alone(name.clone(), formula).assert_honest();
                gated.specimen(name + ", gated", gated.by(formula, store)).assert_honest();
            }
            let sums = gated.sums(|a, b| a + b);
            gated.added(format!("add, {store:?}, {law:?}"), sums).assert_honest();
        }
    });
}
