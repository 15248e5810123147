//! How far a reference is from itself: what that allows, and what it does not.

mod common;

use common::faulty::At;
use common::{counterpart, judge_in, reference, reference_with_only};
use xcheck::checkpoint::{Checkpoint, Point, Site};
use xcheck::compare::{Selection, Tolerances, Verdict};
use xcheck::diagnose::{Mode, Outcome};
use xcheck::dump::Dump;

const SPREAD: &str = include_str!("../checkpoints/spread.toml");
const LOGITS: Site = Site { point: Point::Logits, layer: None, pass: Some(0) };

fn total(point: Point, precision: &str, producer: &str) -> f64 {
    Tolerances::shipped().get_total("llama", precision, point, producer).max_abs
}

#[test]
fn every_figure_is_of_a_known_type_and_tap_and_sound() {
    let table: toml::Table = SPREAD.parse().expect("it is TOML");
    let types = table.iter().flat_map(|(architecture, types)| {
        assert!(Tolerances::ARCHITECTURES.contains(&architecture.as_str()), "{architecture}");
        types.as_table().expect("types")
    });
    for (precision, taps) in types {
        assert!(Tolerances::precisions().contains(&precision.as_str()), "{precision}");
        for (tap, figure) in taps.as_table().expect("taps") {
            assert!(tap.parse::<Point>().is_ok(), "{precision}.{tap}");
            let figure = figure.as_float().expect("a number");
            assert!(figure > 0.0 && figure < 0.1, "{precision}.{tap} = {figure}");
        }
    }
    assert!(table["llama"].as_table().is_some_and(|types| types.len() > 10), "one table per type");
}

#[test]
fn it_widens_what_a_total_error_may_be_against_its_own_producer_alone() {
    let logits = Tolerances::shipped().get("llama", "f16", Checkpoint::Logits).max_abs;
    assert!(total(Point::Logits, "f16", "llama.cpp") > logits);
    assert_eq!(total(Point::Logits, "f16", "transformers"), logits);
    assert_eq!(total(Point::Logits, "torch-f16", "llama.cpp"), total(Point::Logits, "torch-f16", "anyone"));
}

/// GELU comes from a table of f16 in Gemma's models: their F32 files are further apart than Llama's.
#[test]
fn what_one_architecture_was_seen_to_do_is_not_allowed_to_another() {
    let gemma = Tolerances::shipped().get_total("gemma3", "f32", Point::Logits, "llama.cpp").max_abs;
    assert!(total(Point::Logits, "f32", "llama.cpp") < gemma);
    assert_eq!(Tolerances::shipped().get_total("bitnet", "f32", Point::Logits, "llama.cpp").max_abs, 1e-3);
}

#[test]
fn it_never_narrows() {
    let norm = Tolerances::shipped().get("llama", "q8_0", Checkpoint::Qkv).max_abs;
    assert_eq!(total(Point::Q, "q8_0", "llama.cpp"), norm);
}

#[test]
fn a_table_of_the_users_is_not_widened() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, "[any.f16]\nlogits = { max_abs = 1e-5, source = \"mine\" }\n").expect("written");
    let mine = Tolerances::shipped().overridden_by(&file).expect("it is sound");
    assert_eq!(mine.get_total("llama", "f16", Point::Logits, "llama.cpp").max_abs, 1e-5);
    assert!(mine.get_total("llama", "f16", Point::AttnScores, "llama.cpp").max_abs > 1e-3);
}

/// Logits of the F16 file of which one is off, as far as told.
fn judged(reference: &Dump, off: f32) -> Outcome {
    let (model, numerics) = counterpart("tiny-llama2", reference);
    let fault = &mut At(LOGITS, |logits| logits[0] += off);
    let (selection, model) = (Selection::everything(), model.model.as_ref());
    judge_in(Mode::Both, &selection, reference, model, numerics.as_ref(), fault)
}

#[test]
fn a_bare_dump_is_judged_by_it_and_says_so() {
    let bare = reference_with_only("tiny-llama2", "llama.cpp-f16", &["logits"]);
    let within = judged(&bare, 5e-3);
    assert_eq!(within.verdict, Verdict::Pass);
    let row = within.rows.iter().find(|row| row.site == LOGITS).expect("it was compared");
    assert!(row.tolerance.source.contains("llama.cpp's own builds"), "{}", row.tolerance.source);
    assert_eq!(judged(&bare, 2e-2).verdict, Verdict::Fail);
}

#[test]
fn a_stage_judged_from_the_references_own_inputs_is_not() {
    assert_eq!(judged(&reference("llama.cpp-f16"), 5e-3).verdict, Verdict::Fail);
}
