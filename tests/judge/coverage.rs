//! A pass says how much was compared, and what shows nothing is no pass.

use serde_json::json;
use xcheck::check::{Mode, Role};
use xcheck::checkpoint::Point;
use xcheck::dump::Dump;
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{Scene, told};
use crate::common::terminal::Terminal;

/// The dump with these rows of every tap of its first pass that has rows of tokens, and nothing of later passes.
fn with_rows(scene: &Scene, rows: &[usize]) -> Dump {
    let mut clay = Clay::of(&scene.dump)
        .with_only(&[Point::QRope, Point::AttnContext, Point::BlockOut, Point::FinalNorm])
        .keep(|site| site.pass == Some(0));
    let tokens = scene.dump.manifest.passes[0].tokens.len();
    for array in clay.arrays.values_mut() {
        let row = array.values.data.len() / tokens;
        array.values.data =
            rows.iter().flat_map(|at| array.values.data[at * row..][..row].to_vec()).collect();
        array.values.shape[0] = rows.len();
    }
    clay.manifest["passes"] = json!([clay.manifest["passes"][0]]);
    clay.rows = Some(rows.to_vec());
    clay.dump()
}

fn judged(scene: &Scene, dump: &Dump) -> Outcome {
    scene.judge_dump(dump, Mode::Both, Role::Candidate, &mut ())
}

#[test]
fn the_first_position_alone_shows_nothing_of_attention() {
    let scene = Scene::shipped("tiny-llama3", "transformers-f32");
    let outcome = judged(&scene, &with_rows(&scene, &[0]));
    assert_eq!(outcome.verdict, Verdict::Inconclusive, "{}", told(&outcome));
    assert!(
        outcome.reason.as_ref().is_some_and(|why| why.contains("only position 0 was compared")),
        "{}",
        told(&outcome)
    );
    let outcome = judged(&scene, &with_rows(&scene, &[0, 4]));
    assert_eq!(outcome.verdict, Verdict::Pass, "{}", told(&outcome));
    let coverage = &outcome.coverage;
    assert!(coverage.taps_in_part == coverage.taps_compared && coverage.rows < coverage.rows_expected);
}

/// The hidden states of transformers are compared, whatever else the file lacks.
#[test]
fn a_wrong_hidden_state_fails() {
    let terminal = Terminal::new();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cases/hidden-states/wrong.pt");
    let words =
        ["check", "--model", "tiny-llama2", "--candidate", file, "--tokens", "1,5,9,12,3,7", "--no-report"];
    let (code, report) = terminal.json(&words);
    assert_eq!(code, 1, "{report}");
    assert_eq!(report["references"][0]["first_divergence"]["tap"], "block_out", "{report}");
}
