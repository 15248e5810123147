//! Another token is a tie only where the two logits are closer than rounding may move them: what the error really is proves
//! nothing.

use crate::common::{LLAMA_CPP_F32, reference, rules, tiny_llama2};
use xcheck::align::Selection;
use xcheck::check::{Mode, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::cross_check;
use xcheck::dump::Dump;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, SiteResult, Verdict};

/// The pass whose two best logits are closest: 0.45 apart.
const PASS: usize = 1;

/// Adds to the two best logits of one pass, as rounding might.
struct Nudge {
    best: (usize, f32),
    second: (usize, f32),
}

impl Nudge {
    fn new(reference: &Dump, best: f32, second: f32) -> Self {
        let site = Site { point: Point::LastLogits, layer: None, pass: Some(PASS) };
        let logits = reference.read(site).expect("sound").expect("held").data;
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let margin = logits[order[0]] - logits[order[1]];
        assert!((0.4..0.5).contains(&margin), "the test is written for a margin of 0.45, not {margin}");
        Self { best: (order[0], best), second: (order[1], second) }
    }
}

impl Tap for Nudge {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point != Point::Logits || site.pass != Some(PASS) {
            return value;
        }
        let shape = value.shape().to_vec();
        let mut data = value.into_data();
        let last_row = data.len() - shape[1];
        for (index, change) in [self.best, self.second] {
            data[last_row + index] += change;
        }
        Tensor::new(&shape, data)
    }
}

/// A run in which each logit that is chosen from may be off by a little more than half the margin.
fn run(best: f32, second: f32) -> Outcome {
    run_allowing(1.0, 0.25, best, second)
}

/// A run that allows so much error where logits are computed, and so much where one is chosen.
fn run_allowing(logits: f64, last_logits: f64, best: f32, second: f32) -> Outcome {
    let reference = reference("llama.cpp-f32");
    let mut nudge = Nudge::new(&reference, best, second);
    let home = tempfile::tempdir().expect("a temporary directory");
    let file = home.path().join("loose.toml");
    let bounds = [("logits", logits), ("last_logits", last_logits), ("probs", 1.0)];
    let table = bounds
        .map(|(checkpoint, bound)| format!("{checkpoint} = {{ max_abs = {bound:?}, source = \"x\" }}\n"));
    let table = table.concat();
    std::fs::write(&file, format!("[any.any]\n{table}")).expect("it is written");
    let tolerances = Tolerances::shipped().overridden_by(&file).expect("the table is sound");
    let selection = Selection::everything();
    let rules = rules(&selection, &tolerances, "f32", Mode::Both);
    cross_check("reference", &tiny_llama2(), &LLAMA_CPP_F32, &reference, rules, &mut nudge).expect("it runs")
}

fn row(outcome: &Outcome, point: Point) -> &SiteResult {
    let pass = (point == Point::Argmax).then_some(PASS);
    outcome.rows.iter().find(|row| (row.site.point, row.site.pass) == (point, pass)).expect("it was compared")
}

#[test]
fn the_same_tokens_are_no_tie() {
    let outcome = run(0.0, 0.1);
    assert_eq!(row(&outcome, Point::Argmax).verdict, Verdict::Pass);
    assert_eq!(outcome.verdict, Verdict::Pass);
}

#[test]
fn another_greedy_token_within_rounding_is_a_tie_and_the_run_passes() {
    let outcome = run(0.0, 0.6);
    assert_eq!(row(&outcome, Point::Argmax).verdict, Verdict::Tie);
    assert_eq!(row(&outcome, Point::Generated).verdict, Verdict::Tie);
    assert_eq!(outcome.verdict, Verdict::Pass);
    assert!(
        outcome.notes.iter().any(|note| note.starts_with("argmax, pass 1: a tie: the candidate chose token")),
        "{:?}",
        outcome.notes
    );
}

#[test]
fn another_greedy_token_in_a_wrong_run_is_no_tie() {
    let outcome = run_allowing(0.1, 0.25, 0.0, 0.6);
    for point in [Point::Argmax, Point::Generated] {
        let row = row(&outcome, point);
        assert_eq!(row.verdict, Verdict::Fail);
        assert!(
            row.reason.as_ref().is_some_and(|reason| reason.contains("not a tie, because logits")),
            "{row:?}"
        );
    }
}

#[test]
fn another_greedy_token_with_a_margin_beyond_rounding_is_a_divergence_however_large_the_error_is() {
    let outcome = run_allowing(1.0, 0.2, -0.3, 0.6);
    assert_eq!(row(&outcome, Point::Argmax).verdict, Verdict::Fail);
    assert_eq!(row(&outcome, Point::Generated).verdict, Verdict::Fail);
    assert_eq!(outcome.verdict, Verdict::Fail);
    let first = outcome.first_divergence().expect("it is named");
    assert_eq!((first.site.point, first.site.pass), (Point::Argmax, Some(PASS)));
}
