//! Numerics `llama.cpp` against its dumps of the shipped models: every value of every tap, bit for bit.

use std::collections::BTreeSet;

use crate::common::faulty::Faulty;
use crate::common::{assert_identical, counterpart, judge, judge_in, reference_of, tiny_llama2};
use xcheck::align::Selection;
use xcheck::check::Mode;
use xcheck::checkpoint::Point;
use xcheck::kernels::elementwise::zip;
use xcheck::measure::Measurement;
use xcheck::numerics::{F32, Numerics as _};
use xcheck::shipped_models;
use xcheck::tensor::Tensor;
use xcheck::verdict::Outcome;

#[test]
fn q8_0_f16_and_f32_runs_have_every_value_of_llama_cpp_bit_for_bit() {
    let mut seen = 0;
    for model in shipped_models::MODELS {
        let dumps = model.dumps().expect("it ships").into_iter().map(|(name, _)| name);
        for name in dumps.filter(|name| name.starts_with("llama.cpp-")) {
            let reference = reference_of(model.name, &name);
            let (loaded, numerics) = counterpart(model.name, &reference);
            let selection = Selection::everything();
            let outcome = judge_in(Mode::Both, &selection, &reference, &*loaded.model, &*numerics, &mut ());
            assert_eq!(outcome.coverage.taps_compared, outcome.coverage.taps_expected);
            assert_identical(&format!("{} {name}", model.name), &outcome);
            seen += 1;
        }
    }
    assert!(seen >= 18, "three of each of six models, not {seen}");
}

/// The points at which a stage by itself does not give the reference's bits.
fn differing(outcome: &Outcome) -> BTreeSet<&'static str> {
    let differs = |found: &Measurement| !found.is_identical();
    let rows = outcome.rows.iter().filter(|row| row.local.as_ref().is_some_and(differs));
    rows.map(|row| row.site.point.name()).collect()
}

fn judged(numerics: &Faulty) -> BTreeSet<&'static str> {
    differing(&judge(&tiny_llama2(), numerics, &mut ()))
}

#[test]
fn the_last_bit_of_each_stage_is_seen() {
    let faults: [(Faulty, Point); 4] = [
        (Faulty { rotate: Some(|x, table| F32.rotate(x, table)), ..Faulty::default() }, Point::QRope),
        (
            Faulty { scores: Some(|q, k, scale| F32.scores(q, k, scale)), ..Faulty::default() },
            Point::AttnScores,
        ),
        (Faulty { softmax: Some(|x, mask| F32.softmax(x, mask)), ..Faulty::default() }, Point::AttnWeights),
        (Faulty { context: Some(|x, v| F32.context(x, v)), ..Faulty::default() }, Point::AttnContext),
    ];
    assert!(judged(&Faulty::default()).is_empty());
    for (fault, point) in faults {
        assert!(judged(&fault).contains(point.name()), "{}", point.name());
    }
}

#[test]
fn another_exponential_in_silu_of_swiglu_is_seen() {
    let gated = |gate: &Tensor, up: &Tensor, _| zip(gate, up, |gate, up| gate / (1.0 + (-gate).exp()) * up);
    let fault = Faulty { gated: Some(gated), ..Faulty::default() };
    assert_eq!(judged(&fault), BTreeSet::from([Point::FfnAct.name()]));
}
