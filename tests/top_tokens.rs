//! The tokens that lead, and how far distributions are apart, held to their definitions; and what a report tells of them.

use crate::common::terminal::Terminal;
use approx::assert_relative_eq;
use proptest::prelude::*;
use xcheck::measure::{Agreement, Tops};
use xcheck::view::View;

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / sum).collect()
}

fn divergence(candidate: &[f64], reference: &[f64]) -> f64 {
    let (q, p) = (softmax(candidate), softmax(reference));
    p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum()
}

fn rows() -> impl Strategy<Value = (Vec<f64>, Vec<f64>, usize)> {
    (1usize..5, 2usize..12).prop_flat_map(|(rows, width)| {
        let logits = || prop::collection::vec(-8.0..8.0f64, rows * width);
        (logits(), logits(), Just(width))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn they_are_as_defined((candidate, reference, width) in rows()) {
        let shape = [candidate.len() / width, width];
        let (one, other) = (View::of(&shape, &candidate), View::of(&shape, &reference));
        let all: Vec<usize> = (0..shape[0]).collect();
        let agreement = Agreement::of_logits(&one, &other, &all);
        for (row, place) in agreement.places.iter().enumerate() {
            let [q, p] = [&candidate, &reference].map(|side| &side[row * width..][..width]);
            assert_relative_eq!(place.divergence, divergence(q, p), epsilon = 1e-12, max_relative = 1e-9);
            let logs = softmax(q).into_iter().zip(softmax(p)).map(|(q, p)| (q.ln() - p.ln()).abs());
            assert_relative_eq!(place.delta, logs.fold(0.0, f64::max), max_relative = 1e-9);
            let tops = Tops::of(&View::of(&[width], q), &View::of(&[width], p)).expect("nothing is NaN");
            let best = (0..width).max_by(|&a, &b| q[a].total_cmp(&q[b])).expect("there are some");
            prop_assert_eq!(tops.candidate[0].token as usize, best);
            assert_relative_eq!(tops.candidate[0].probability, softmax(q)[best], max_relative = 1e-9);
            prop_assert!(tops.candidate.windows(2).all(|two| two[0].probability >= two[1].probability));
            assert_relative_eq!(tops.divergence, place.divergence, epsilon = 1e-12);
        }
    }
}

#[test]
fn the_same_is_not_apart_and_nan_leads_nothing() {
    let logits = [1.0, 3.0, 3.0, f64::NEG_INFINITY];
    let view = View::of(&[4], &logits);
    let tops = Tops::of(&view, &view).expect("it is told");
    assert_eq!((tops.divergence, tops.candidate == tops.reference), (0.0, true));
    assert_eq!(
        tops.candidate.iter().map(|likely| likely.token).collect::<Vec<_>>(),
        [1, 2, 0, 3],
        "of equals the lowest id first"
    );
    let odd = [1.0, f64::NAN, 0.0, 2.0];
    assert_eq!(Tops::of(&View::of(&[4], &odd), &view), None);
    assert_eq!(Tops::of(&View::of(&[0], &[]), &View::of(&[0], &[])), None);
}

/// Of an engine that is wrong: another token leads, and a person can read which.
#[test]
fn a_report_tells_which_tokens_lead_in_words() {
    let dump = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engines/tiny-llama3/mlx-lm-f32.safetensors");
    let (code, report) =
        Terminal::new().json(&["check", "--model", "tiny-llama3", "--candidate", dump, "--no-report"]);
    assert_eq!(code, 1);
    let reference = &report["references"][0];
    let rows = reference["results"].as_array().expect("rows");
    let of =
        |tap: &str| rows.iter().find(|row| row["tap"] == tap && row["pass"] == 0).expect("it was compared");
    let tops = &of("last_logits")["accumulated"]["tops"];
    let choice = &of("argmax")["accumulated"];
    for side in ["candidate", "reference"] {
        assert_eq!(tops[side][0]["token"].as_f64(), choice[side].as_f64(), "{side}");
        let token = &tops[side][0]["token"];
        let texts = reference["tokens"]["texts"].as_array().expect("texts");
        assert!(texts.iter().any(|text| text["token"] == *token && text["text"].is_string()), "{token}");
    }
    assert!(tops["kl"].as_f64().is_some_and(|kl| kl > 1.0), "{tops}");
    let apart = &of("logits")["accumulated"]["agreement"];
    assert_eq!(
        apart["rows"].as_array().map(Vec::len),
        reference["tokens"]["prompt"].as_array().map(Vec::len)
    );
}
