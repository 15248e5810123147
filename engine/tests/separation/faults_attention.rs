//! Attention, RoPE and activations with an error as small as such errors get.

use xcheck_engine::exact::{EngineErrors, Float, InexactValue, Profile};
use xcheck_engine::ops::activation::Activation;

use super::activations::{GELU_ERF, GELU_TANH, Gated, SILU};
use super::attention::{Heads, Rows, Way};
use super::dice::Law;
use super::order::{Adder, Order};
use super::rope::{self, Turned};
use super::specimen::{Specimen, Store};

fn heads(store: Store) -> (Heads, Adder) {
    (Heads::new(Law::Normal, [8, 4, 256, 128], store, 6000), Adder::new(Order::Lanes, 128, 0))
}

pub fn honest_scores(store: Store) -> Specimen {
    let (heads, _) = heads(store);
    let own = heads.scores(&Adder::new(Order::Sequential, 128, 0), heads.scale());
    heads.scores_specimen(format!("scores, sequential, {store:?}, D = 128"), own)
}

pub fn rounded_scale(store: Store) -> Specimen {
    let (heads, adder) = heads(store);
    let own = heads.scores(&adder, Store::Bf16.round(heads.scale()));
    heads.scores_specimen(format!("scores, scale rounded to bf16, {store:?}, D = 128"), own)
}

/// q·k is not rounded before its scale, where that is declared.
pub fn fused_scores(store: Store) -> Specimen {
    let (heads, adder) = heads(store);
    let own = heads.scores_by(|q, k| store.round(adder.dot(q, k) * heads.scale()));
    heads.scores_specimen(format!("scores, one rounding for two, {store:?}, D = 128"), own)
}

/// It is, where one rounding is declared.
pub fn unfused_scores(store: Store) -> Specimen {
    let (heads, adder) = heads(store);
    // Attention in one kernel would not round its scores either: this is a product that is scaled as it is stored.
    let profile = store.profile();
    let traced = store.traced_by(Profile { dots: Float::F32, ..profile });
    let traced = heads.traced_scores(&traced);
    let own = heads.scores(&adder, heads.scale());
    let other = heads.scores_by(|q, k| store.round(adder.dot(q, k) * heads.scale()));
    let name = format!("scores, two roundings for one, {store:?}, D = 128");
    Specimen::new(name, traced, own).beside(other)
}

fn rows(keys: usize) -> (Rows, Adder) {
    (Rows::new(Law::Normal, [64, keys], Store::F32, 6100), Adder::new(Order::Lanes, keys, 0))
}

pub fn honest_softmax(keys: usize) -> Specimen {
    let (rows, adder) = rows(keys);
    let own = rows.softmax(&adder, Way::Online, |_| ());
    rows.specimen(format!("softmax, online, F32, S = {keys}"), own)
}

pub fn temperature(keys: usize) -> Specimen {
    let (rows, adder) = rows(keys);
    let own = rows.softmax(&adder, Way::Reciprocal, |scores| {
        scores.iter_mut().for_each(|score| *score = (f64::from(*score) * (1.0 + 1e-5)) as f32);
    });
    rows.specimen(format!("softmax, temperature 1e-5 off, F32, S = {keys}"), own)
}

pub fn least_masked(keys: usize) -> Specimen {
    let (rows, adder) = rows(keys);
    let own = rows.softmax(&adder, Way::Reciprocal, |scores| {
        // Of a single key nothing would be left.
        if scores.len() > 1 {
            let least = scores.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("a visible key");
            *least = f32::NEG_INFINITY;
        }
    });
    rows.specimen(format!("softmax, least visible key masked, F32, S = {keys}"), own)
}

fn turned(dim: usize) -> Turned {
    Turned::new(Law::Normal, [64, 8, dim], 1000, Store::F32, 6200)
}

pub fn honest_rope(dim: usize) -> Specimen {
    let turned = turned(dim);
    turned.specimen(format!("RoPE, fused, F32, D = {dim}"), turned.by(rope::Way::Fused))
}

pub fn wrong_base(dim: usize) -> Specimen {
    let turned = turned(dim);
    let base = turned.rope.theta * (1.0 + 1e-4);
    let own = turned.with_frequencies(|pair| 1.0 / base.powf((2 * pair) as f32 / dim as f32));
    turned.specimen(format!("RoPE, base 1e-4 off, F32, D = {dim}"), own)
}

pub fn rounded_frequencies(dim: usize) -> Specimen {
    let turned = turned(dim);
    let own = turned.with_frequencies(|pair| Store::Bf16.round(turned.frequency(pair)));
    turned.specimen(format!("RoPE, frequencies in bf16, F32, D = {dim}"), own)
}

fn gated(activation: Activation, store: Store) -> Gated {
    Gated::new(activation, Law::Normal, [16, 4096], store, 6300)
}

pub fn honest_gelu(store: Store) -> Specimen {
    let gated = gated(Activation::GeluTanh, store);
    gated.alone(format!("GELU tanh, another form, {store:?}"), GELU_TANH[3])
}

pub fn erf_for_tanh(store: Store) -> Specimen {
    let gated = gated(Activation::GeluTanh, store);
    gated.alone(format!("GELU, erf for tanh, {store:?}"), GELU_ERF[0])
}

pub fn gated_erf_for_tanh(store: Store) -> Specimen {
    let gated = gated(Activation::GeluTanh, store);
    let own = gated.by(GELU_ERF[0], store);
    gated.specimen(format!("GELU · up, erf for tanh, {store:?}"), own)
}

pub fn fused_silu(store: Store) -> Specimen {
    let gated = gated(Activation::Silu, store);
    let own = gated.by(SILU[0], Store::F32);
    gated.specimen(format!("SiLU · up, one rounding for two, {store:?}"), own)
}

pub fn unfused_silu(store: Store) -> Specimen {
    let gated = gated(Activation::Silu, store);
    let traced = gated.traced(&store.traced_as_fused());
    let other = gated.by(SILU[1], Store::F32);
    let name = format!("SiLU · up, two roundings for one, {store:?}");
    Specimen::new(name, traced, gated.by(SILU[0], store)).beside(other)
}

pub fn honest_silu(store: Store) -> Specimen {
    let gated = gated(Activation::Silu, store);
    gated.specimen(format!("SiLU · up, another form, {store:?}"), gated.by(SILU[1], store))
}

fn assert_share(fault: &Specimen, least: f64) -> EngineErrors {
    let side = fault.assert_caught();
    let share = side.over as f64 / fault.own.len() as f64;
    assert!(share > least, "{}: more than {least} of all values, not {share}", fault.name);
    side
}

#[test]
fn a_rounded_attention_scale_is_seen() {
    for (store, least) in [(Store::F32, 0.9), (Store::F16, 0.01), (Store::Bf16, 0.01)] {
        honest_scores(store).assert_honest();
        assert_share(&rounded_scale(store), least);
    }
}

#[test]
fn a_softmax_temperature_that_is_a_little_off_is_seen() {
    for keys in [64, 1024, 4096] {
        honest_softmax(keys).assert_honest();
        assert!(temperature(keys).assert_caught().over > 0);
    }
}

#[test]
fn a_causal_mask_that_hides_the_least_attended_key_is_seen() {
    for keys in [64, 1024, 4096] {
        let side = least_masked(keys).assert_caught();
        assert!((1..=2 * 64 * keys).contains(&side.over));
        let InexactValue { value, exact, .. } = *side.worst.first().expect("a worst value");
        assert!(value == 0.0 && exact.value > 0.0, "{value} for {exact:?}");
    }
}

#[test]
fn another_rope_theta_and_rope_frequencies_in_a_shorter_type_are_seen() {
    for dim in [64, 128] {
        honest_rope(dim).assert_honest();
        assert_share(&wrong_base(dim), 0.5);
        assert_share(&rounded_frequencies(dim), 0.5);
    }
}

#[test]
fn the_other_form_of_gelu_is_seen() {
    for (store, least) in [(Store::F32, 0.9), (Store::F16, 0.05), (Store::Bf16, 0.05)] {
        honest_gelu(store).assert_honest();
        assert_share(&erf_for_tanh(store), least);
        assert_share(&gated_erf_for_tanh(store), least);
    }
}

#[test]
fn a_rounding_too_many_or_too_few_is_seen() {
    for store in Store::SHORT {
        honest_silu(store).assert_honest();
        for fault in [fused_scores(store), unfused_scores(store), fused_silu(store), unfused_silu(store)] {
            assert_share(&fault, 0.05);
        }
    }
}
