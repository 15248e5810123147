//! Twenty builds and twenty regressions: a build that adds up in another order is no regression, and one bit of a scale is.

use rayon::prelude::*;
use xcheck::check::Mode;
use xcheck::model::decoder::Norm;
use xcheck::model::llama::Llama;
use xcheck::numerics::Numerics;
use xcheck::ops::attention::AttentionScale;
use xcheck::ratchet::Diff;
use xcheck::report::{RecordedReport, Report};
use xcheck::verdict::Verdict;
use xcheck::weight::Matrix;

use super::bed::{
    audit, audit_alone, audit_of, baseline, build, dice, flip_scale_bit, gated, model, told, with,
};
use crate::common::share::one_of;

const SEEDS: std::ops::Range<usize> = 1..21;

fn matrices(model: &mut Llama, layer: usize) -> [&mut Matrix; 7] {
    let layer = &mut model.layers[layer];
    let (attn, ffn) = (&mut layer.attn, &mut layer.ffn);
    let gate = ffn.gate.as_mut().expect("Llama has a gate");
    [&mut attn.q, &mut attn.k, &mut attn.v, &mut attn.output, gate, &mut ffn.up, &mut ffn.down]
        .map(|projection| &mut projection.weight)
}

/// One bit of the scale of one block, anywhere in the layers.
fn regress(model: &mut Llama, seed: usize) -> String {
    let mut dice = dice(seed as u64);
    let (layer, which) = (dice(model.layers.len()), dice(7));
    let matrix = &mut *matrices(model, layer)[which];
    let (row, block, bit) = (dice(matrix.rows), dice(matrix.cols / 32), dice(16) as u32);
    flip_scale_bit(matrix, row, block, bit);
    format!("layer {layer}, matrix {which}, row {row}, block {block}, bit {bit}")
}

#[track_caller]
fn assert_gate(report: &Report, yesterday: &Report, is_regression: bool, what: &str) {
    let (verdict, told) = told(&gated(report, &baseline(yesterday)));
    assert_eq!(verdict, if is_regression { Verdict::Fail } else { Verdict::Pass }, "{what}: {told}");
    let diff = Diff::new(&RecordedReport::of(yesterday), &RecordedReport::of(report), false);
    let worse: Vec<_> = diff.changes.iter().filter(|change| change.class.name() == "worse").collect();
    assert_eq!(!worse.is_empty(), is_regression, "{what}: {worse:?}");
}

/// Honest builds of an engine pass, and each with one bit more in a scale fails.
fn assert_ratchet(engine: impl Fn() -> Llama + Sync, audit: fn(&Llama, &dyn Numerics) -> Report) {
    let yesterday = audit(&engine(), &build(0));
    let seeds: Vec<usize> = one_of(6, SEEDS).collect();
    seeds.par_iter().for_each(|&seed| {
        assert_gate(&audit(&engine(), &build(seed)), &yesterday, false, &format!("build {seed}"));
        let mut regressed = engine();
        let what = regress(&mut regressed, seed);
        assert_gate(&audit(&regressed, &build(seed)), &yesterday, true, &what);
    });
}

#[test]
fn of_an_engine_without_failures() {
    assert_ratchet(model, audit_alone);
}

#[test]
fn of_an_engine_with_a_known_failure_whose_cause_was_found() {
    assert_ratchet(|| with(|model| model.config.attn_scale = AttentionScale::Products(0.1771)), audit);
}

#[test]
fn of_an_engine_with_known_failures_whose_causes_are_read_off_their_values() {
    let engine = || {
        with(|model| {
            model.layers[1].attn_norm.weight[77] *= 1.000_371;
            match &mut model.layers[2].ffn.norm {
                Some(Norm::Rms(norm)) => norm.eps = 1.237e-5,
                _ => unreachable!("Llama has an RMSNorm"),
            }
            model.config.rope.theta = 10_017.0;
        })
    };
    let text = baseline(&audit(&engine(), &build(0))).text();
    assert!(text.matches("cause = ").count() >= 4, "{text}");
    assert_ratchet(engine, audit);
}

#[test]
fn of_an_engine_with_known_failures_of_no_single_cause() {
    // A third of the rows of one matrix, each with another scale: nothing in the catalogue says that.
    let engine = || {
        with(|model| {
            let up = &mut model.layers[1].ffn.up.weight;
            (0..up.rows).step_by(3).for_each(|row| flip_scale_bit(up, row, row % 3, (row % 7) as u32));
        })
    };
    let found = audit(&engine(), &build(0));
    assert!(baseline(&found).text().contains("taps = \"ffn_up\""), "{}", baseline(&found).text());
    assert!(!baseline(&found).text().contains("cause"), "{}", baseline(&found).text());
    assert_ratchet(engine, audit);
}

#[test]
fn a_second_bit_in_the_matrix_of_a_known_one_is_told_by_its_cause() {
    let known = |model: &mut Llama| flip_scale_bit(&mut model.layers[2].attn.v.weight, 5, 1, 9);
    let yesterday = audit(&with(known), &build(0));
    for seed in SEEDS.step_by(4) {
        assert_gate(&audit(&with(known), &build(seed)), &yesterday, false, "the same bit");
        let mut dice = dice(seed as u64);
        let (row, block) = (6 + dice(100), dice(4));
        let both = with(|model| {
            known(model);
            flip_scale_bit(&mut model.layers[2].attn.v.weight, row, block, 9);
        });
        assert_gate(&audit(&both, &build(seed)), &yesterday, true, &format!("row {row}, block {block}"));
    }
}

/// Where few taps were kept, errors are weighed against perturbed runs. What they come to is no room for another fault.
#[test]
fn a_fault_that_is_larger_by_a_third_is_told_where_few_taps_were_kept() {
    let faulty = |strength: f32| {
        with(|model| {
            let norm = &mut model.layers[1].attn_norm.weight;
            norm.iter_mut().step_by(3).for_each(|weight| *weight *= 1.0 + strength);
        })
    };
    let kept: [(&[&str], Mode); 3] = [
        (&["block_out", "logits"], Mode::Both),
        (&["block_out", "last_logits"], Mode::Local),
        (&["logits", "argmax"], Mode::Accumulated),
    ];
    for (kept, mode) in kept {
        let audit = |strength: f32, number: usize| audit_of(&faulty(strength), &build(number), kept, mode);
        let yesterday = audit(1.0, 0);
        assert_eq!(yesterday.verdict(), Verdict::Fail, "{kept:?}");
        for seed in SEEDS.step_by(5) {
            assert_gate(&audit(1.0, seed), &yesterday, false, &format!("{kept:?}, build {seed}"));
            assert_gate(&audit(1.3, seed), &yesterday, true, &format!("{kept:?}, larger, build {seed}"));
        }
    }
}
