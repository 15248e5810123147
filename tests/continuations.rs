//! A generation that parts from the reference's is a tie or a divergence, at the step where it parts and after it.

use std::path::{Path, PathBuf};

use crate::common::faulty::At;
use crate::common::terminal::Terminal;
use crate::common::{rules, variant};
use tempfile::TempDir;
use xcheck::checkpoint::{Point, Site};
use xcheck::compare::{Row, Selection, Tolerances, Verdict};
use xcheck::diagnose::{Mode, Outcome, cross_check};
use xcheck::dump::{Dump, Input, Layout, Manifest, ModelInfo, Producer, Recorder};
use xcheck::engine::{self, GreedyToken, Script, Step};
use xcheck::model::Model;
use xcheck::numerics::F32;

const PROMPT: &[u32] = &[1, 393, 395, 260];
/// The steps that the planted references choose; of their passes, two are dumped.
const STEPS: usize = 8;
const DUMPED: usize = 2;
const RUN: Site = Site { point: Point::Generated, layer: None, pass: None };

fn model() -> Box<dyn Model> {
    variant("tiny-llama2-hf").load().expect("it loads").model
}

/// The prompt, then `ids` one by one; those dumped are looked at.
fn script(ids: &[u32]) -> Script {
    let steps =
        ids.iter().enumerate().map(|(step, id)| Step { tapped: step + 1 < DUMPED, ..Step::given(&[*id]) });
    Script { passes: std::iter::once(Step::given(PROMPT)).chain(steps).collect(), prompt_len: PROMPT.len() }
}

/// Our own choices after the prompt and each of `ids`.
fn choices_along(ids: &[u32]) -> Vec<GreedyToken> {
    engine::run(&*model(), &F32, &script(ids), &mut ()).expect("it runs").choices
}

/// A continuation that is ours, but at `step` where it takes the second best token, and then goes on as we would.
fn parting_at(step: usize) -> (Vec<u32>, f32) {
    let mut ids: Vec<u32> = Vec::new();
    let mut margin = 0.0;
    while ids.len() < STEPS {
        let last = *choices_along(&ids).last().expect("one after the prompt");
        let parts = ids.len() == step;
        ids.push(if parts { last.second } else { last.token });
        margin = if parts { last.margin } else { margin };
    }
    (ids, margin)
}

/// A dump of our own run along `ids`, which it says were chosen.
fn dump_of(ids: &[u32], home: &TempDir) -> PathBuf {
    let path = home.path().join("planted.safetensors");
    let producer = Producer {
        name: "test".into(),
        version: String::new(),
        settings: Default::default(),
        rounding: None,
    };
    let info = ModelInfo { name: String::new(), architecture: "llama".into(), sha256: None };
    let layout = Layout { rope_pairing: model().dimensions().rope_pairing };
    let input = Input { tokens: PROMPT.to_vec(), ..Input::default() };
    let mut recorder = Recorder::create(&path, Manifest::new(producer, info, layout, input, Vec::new()))
        .expect("a new dump");
    let says = At(RUN, |data: &mut [f32]| data.iter_mut().zip(ids).for_each(|(said, id)| *said = *id as f32));
    let along = script(&ids[..ids.len() - 1]);
    let transcript = engine::run(&*model(), &F32, &along, &mut (says, &mut recorder)).expect("it runs");
    recorder.finish(transcript.passes[..DUMPED].to_vec(), ids.to_vec()).expect("it is written");
    path
}

/// Compares our model with a dump of such a continuation, where each logit may be off by `allowed`.
fn run(ids: &[u32], allowed: f32, follow_reference: bool) -> Outcome {
    let home = TempDir::new().expect("a temporary directory");
    let reference = Dump::open(&dump_of(ids, &home)).expect("it is sound");
    let tolerances = allowing(allowed.into(), home.path());
    let selection = Selection { follow_reference, ..Selection::everything() };
    let rules = rules(&selection, &tolerances, "f32", Mode::Both);
    cross_check("planted", &*model(), &F32, &reference, rules, &mut ()).expect("it runs")
}

/// Tolerances by which rounding may move each logit that a choice is made from so far.
fn allowing(last_logits: f64, home: &Path) -> Tolerances {
    let file = home.join("loose.toml");
    let table = [("logits", 1e3), ("last_logits", last_logits), ("probs", 1e3)].map(|(checkpoint, bound)| {
        format!("{checkpoint} = {{ max_abs = {bound:?}, source = \"this test\" }}\n")
    });
    std::fs::write(&file, format!("[any.any]\n{}", table.concat())).expect("it is written");
    Tolerances::shipped().overridden_by(&file).expect("the table is sound")
}

#[track_caller]
fn assert_generation(outcome: &Outcome, verdict: Verdict, told: &str) {
    let row: &Row = outcome.rows.iter().find(|row| row.site == RUN).expect("it was compared");
    assert_eq!(row.verdict, verdict, "{:?}", row.reason);
    assert!(row.reason.as_deref().unwrap_or_default().contains(told), "{:?}", row.reason);
}

#[test]
fn the_same_continuation_passes_beyond_the_dumped_passes() {
    let (ids, _) = parting_at(STEPS);
    assert_generation(&run(&ids, 0.0, false), Verdict::Pass, "");
}

#[test]
fn a_choice_between_logits_that_may_be_off_by_half_their_distance_is_a_tie_although_its_pass_is_not_dumped() {
    let (ids, margin) = parting_at(4);
    for follow_reference in [false, true] {
        let outcome = run(&ids, 0.6 * margin, follow_reference);
        assert_generation(&outcome, Verdict::Tie, "step 4: the candidate chose token");
        assert_eq!(outcome.verdict, Verdict::Pass);
    }
}

#[test]
fn a_choice_between_logits_that_are_further_apart_is_a_divergence() {
    let (ids, margin) = parting_at(4);
    for follow_reference in [false, true] {
        let outcome = run(&ids, 0.4 * margin, follow_reference);
        assert_generation(&outcome, Verdict::Fail, "step 4: the candidate chose token");
        assert_eq!(outcome.verdict, Verdict::Fail);
    }
}

#[test]
fn a_tie_hides_what_comes_after_it_unless_the_reference_is_followed() {
    let (mut ids, margin) = parting_at(4);
    let worst = choices_along(&ids[..6]).last().expect("a choice").token ^ 1; // a token that is neither of our best
    ids[6] = worst;
    let outcome = run(&ids, 0.6 * margin, false);
    assert_generation(&outcome, Verdict::Tie, "not judged without --follow-reference");
    let outcome = run(&ids, 0.6 * margin, true);
    assert_generation(&outcome, Verdict::Fail, "step 6: the candidate chose token");
    assert_eq!(outcome.verdict, Verdict::Fail);
}

#[test]
fn a_divergence_before_a_tie_is_a_divergence() {
    let (mut ids, margin) = parting_at(4);
    ids[3] = choices_along(&ids[..3]).last().expect("a choice").token ^ 1;
    assert_generation(&run(&ids, 0.6 * margin, true), Verdict::Fail, "step 3: the candidate chose token");
}

#[test]
fn the_margin_of_a_choice_is_that_of_its_two_best_logits() {
    let model = model();
    let mut engine = engine::Engine::new(&*model, &F32, 16).expect("it fits");
    let logits = engine.read(PROMPT, &mut ()).expect("it reads");
    let mut sorted = logits.data().to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let choice = choices_along(&[])[0];
    assert_eq!(choice.margin, sorted[0] - sorted[1]);
    assert_eq!(
        (logits.data()[choice.token as usize], logits.data()[choice.second as usize]),
        (sorted[0], sorted[1])
    );
}

#[test]
fn the_first_step_that_differs_is_shown_with_both_texts() {
    let home = TempDir::new().expect("a temporary directory");
    let (ids, _) = parting_at(4);
    let dump = dump_of(&ids, &home);
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/hf");
    let reference = dump.to_str().expect("UTF-8");
    let (code, report) = Terminal::new().json(&["run", "--model", model, "--reference", reference]);
    assert_eq!(code, 1);
    let text = report.to_string();
    assert!(text.contains("the generation parts at step 4, after"), "where the texts part");
    assert!(text.contains("the candidate goes on"), "the texts of both sides");
}
