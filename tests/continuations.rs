//! A generation that parts from the reference's is a tie or a divergence, at the step where it parts and after it.

use std::path::{Path, PathBuf};

use crate::common::faulty::At;
use crate::common::terminal::Terminal;
use crate::common::{rules, variant};
use tempfile::TempDir;
use xcheck::align::Selection;
use xcheck::check::{Gate, Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::{cross_check, cross_check_dumps};
use xcheck::dump::{Dump, DumpInput, Layout, Manifest, ModelInfo, Producer, Recorder};
use xcheck::engine::{self, GreedyToken, PassInput, RunInput};
use xcheck::model::Model;
use xcheck::numerics::{F32, Numerics, Transformers};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, SiteResult, Verdict};

const PROMPT: &[u32] = &[1, 393, 395, 260];
/// The steps that the planted references choose; of their passes, two are dumped.
const STEPS: usize = 8;
const DUMPED: usize = 2;
const RUN: Site = Site { point: Point::Generated, layer: None, pass: None };

fn model() -> Box<dyn Model> {
    variant("tiny-llama2-hf").load().expect("it loads").model
}

/// The prompt, then `ids` one by one; those dumped are looked at.
fn script(ids: &[u32]) -> RunInput {
    let steps = ids
        .iter()
        .enumerate()
        .map(|(step, id)| PassInput { tapped: step + 1 < DUMPED, ..PassInput::given(&[*id]) });
    RunInput {
        passes: std::iter::once(PassInput::given(PROMPT)).chain(steps).collect(),
        prompt_len: PROMPT.len(),
    }
}

/// Our own choices after the prompt and each of `ids`.
fn choices_along(ids: &[u32]) -> Vec<GreedyToken> {
    choices_of(&F32, ids)
}

fn choices_of(numerics: &dyn Numerics, ids: &[u32]) -> Vec<GreedyToken> {
    engine::run(&*model(), numerics, &script(ids), &mut ()).expect("it runs").choices
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

/// Makes the second best token of a pass the best by little.
struct Lean {
    pass: usize,
    choice: GreedyToken,
}

impl Tap for Lean {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point != Point::Logits || site.pass != Some(self.pass) {
            return value;
        }
        let shape = value.shape().to_vec();
        let mut data = value.into_data();
        let row = data.len() - shape[1];
        data[row + self.choice.token as usize] -= 0.51 * self.choice.margin;
        data[row + self.choice.second as usize] += 0.51 * self.choice.margin;
        Tensor::new(&shape, data)
    }
}

/// A dump of our own run along `ids`, which it says were chosen.
fn dump_of(ids: &[u32], home: &TempDir) -> PathBuf {
    dump_before(ids, home, &mut ())
}

fn dump_before(ids: &[u32], home: &TempDir, lean: &mut dyn Tap) -> PathBuf {
    let path = home.path().join("planted.safetensors");
    let producer = Producer {
        name: "test".into(),
        version: String::new(),
        settings: Default::default(),
        rounding: None,
    };
    let info = ModelInfo { name: String::new(), architecture: "llama".into(), sha256: None };
    let layout = Layout { rope_pairing: model().dimensions().rope_pairing };
    let input = DumpInput { tokens: PROMPT.to_vec(), ..DumpInput::default() };
    let mut recorder = Recorder::create(&path, Manifest::new(producer, info, layout, input, Vec::new()))
        .expect("a new dump");
    let says = At(RUN, |data: &mut [f32]| data.iter_mut().zip(ids).for_each(|(said, id)| *said = *id as f32));
    let along = script(&ids[..ids.len() - 1]);
    let transcript =
        engine::run(&*model(), &F32, &along, &mut (lean, (says, &mut recorder))).expect("it runs");
    recorder.finish(transcript.passes[..DUMPED].to_vec(), ids.to_vec()).expect("it is written");
    path
}

/// Compares our model with a dump of such a continuation, where each logit may be off by `allowed`.
fn run(ids: &[u32], allowed: f32) -> Outcome {
    let home = TempDir::new().expect("a temporary directory");
    let reference = Dump::open(&dump_of(ids, &home)).expect("it is sound");
    let tolerances = allowing(allowed.into(), home.path());
    let selection = Selection::everything();
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
    let row: &SiteResult = outcome.rows.iter().find(|row| row.site == RUN).expect("it was compared");
    assert_eq!(row.verdict, verdict, "{:?}", row.reason);
    assert!(row.reason.as_deref().unwrap_or_default().contains(told), "{:?}", row.reason);
}

#[test]
fn the_same_continuation_passes_beyond_the_dumped_passes() {
    let (ids, _) = parting_at(STEPS);
    assert_generation(&run(&ids, 0.0), Verdict::Pass, "");
}

#[test]
fn a_greedy_choice_between_logits_that_may_be_off_by_half_their_distance_is_a_tie_although_its_pass_is_not_dumped()
 {
    let (ids, margin) = parting_at(4);
    let outcome = run(&ids, 0.6 * margin);
    assert_generation(&outcome, Verdict::Tie, "step 4: the candidate chose token");
    assert_eq!(outcome.verdict, Verdict::Pass);
}

#[test]
fn a_greedy_choice_between_logits_that_are_far_apart_is_a_divergence() {
    let (ids, margin) = parting_at(4);
    let outcome = run(&ids, 0.4 * margin);
    assert_generation(&outcome, Verdict::Fail, "step 4: the candidate chose token");
    assert_eq!(outcome.verdict, Verdict::Fail);
}

#[test]
fn what_comes_after_a_tie_is_judged_along_the_dumps_own_tokens() {
    let (mut ids, margin) = parting_at(4);
    ids[6] = choices_along(&ids[..6]).last().expect("a choice").token ^ 1; // a token that is neither of our best
    let outcome = run(&ids, 0.6 * margin);
    assert_generation(&outcome, Verdict::Fail, "step 6: the candidate chose token");
    assert_eq!(outcome.verdict, Verdict::Fail);
    let divergence = outcome.first_divergence().expect("it is named");
    let worst = divergence.judged().and_then(|found| found.worst.as_ref()).expect("a step");
    assert_eq!(worst.index, [6], "the step that decides is shown, not the tie before it");
}

/// A prompt of tiny-llama3 after which its two best tokens are 6e-4 apart in f32.
const CLOSE: [u32; 77] = [
    1, 393, 395, 260, 394, 486, 263, 305, 315, 17, 200, 77, 56, 191, 33, 7, 126, 78, 61, 198, 155, 463, 178,
    220, 472, 368, 406, 253, 489, 7, 71, 227, 292, 291, 87, 337, 102, 463, 316, 470, 28, 344, 180, 407, 196,
    367, 276, 338, 364, 337, 330, 93, 131, 9, 73, 126, 507, 475, 157, 262, 70, 262, 35, 337, 52, 88, 94, 22,
    125, 429, 129, 203, 22, 145, 429, 461, 507,
];

/// Reads the prompt alone and says that `ids` were chosen.
fn check(model: &dyn Model, numerics: &dyn Numerics, dtype: &str, prompt: &[u32], ids: &[u32]) -> Outcome {
    let home = TempDir::new().expect("a temporary directory");
    let path = home.path().join("generated.safetensors");
    let settings = [("dtype".to_owned(), dtype.into())].into_iter().collect();
    let producer = Producer { name: "test".into(), version: String::new(), settings, rounding: None };
    let info = ModelInfo { name: String::new(), architecture: "llama".into(), sha256: None };
    let layout = Layout { rope_pairing: model.dimensions().rope_pairing };
    let input = DumpInput { tokens: prompt.to_vec(), ..DumpInput::default() };
    let mut recorder = Recorder::create(&path, Manifest::new(producer, info, layout, input, Vec::new()))
        .expect("a new dump");
    let says = Tensor::new(&[ids.len()], ids.iter().map(|id| *id as f32).collect());
    recorder.tap(RUN, says);
    recorder.finish(vec![prompt.to_vec()], ids.to_vec()).expect("it is written");
    let dump = Dump::open(&path).expect("it is sound");
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules { role: Role::Candidate, ..rules(&selection, &tolerances, dtype, Mode::Both) };
    let rules = Rules { gate: Gate::Rounding, ..rules };
    cross_check("generated", model, numerics, &dump, rules, &mut ()).expect("it runs")
}

/// A continuation that takes the second best token after the prompt, and then goes on as the model would.
fn parting_at_once(model: &dyn Model, numerics: &dyn Numerics, prompt: &[u32]) -> (Vec<u32>, f32) {
    let mut engine = engine::Engine::new(model, numerics, prompt.len() + 24).expect("it fits");
    let first = engine.pass(prompt, 1.0, &mut ()).expect("it reads");
    let mut ids = vec![first.second];
    while ids.len() < 24 {
        ids.push(engine.pass(&ids[ids.len() - 1..], 1.0, &mut ()).expect("it reads").token);
    }
    (ids, first.margin)
}

/// A prompt after which the two best tokens are closest, of some.
fn closest(model: &dyn Model, numerics: &dyn Numerics) -> Vec<u32> {
    let prompt =
        |seed: u32| -> Vec<u32> { (0..12).map(|at| (seed * 97 + at * 131 + at * at) % 509 + 3).collect() };
    let margin = |prompt: &Vec<u32>| {
        let mut engine = engine::Engine::new(model, numerics, 12).expect("it fits");
        engine.pass(prompt, 1.0, &mut ()).expect("it reads").margin
    };
    (0..80).map(prompt).min_by(|a, b| margin(a).total_cmp(&margin(b))).expect("a prompt")
}

#[test]
fn a_correct_engine_that_takes_the_other_token_of_a_tie_passes_and_fails_if_it_goes_wrong_later() {
    let model = variant("tiny-llama3-hf").load().expect("it loads").model;
    for (numerics, dtype) in
        [(Transformers::F32, "f32"), (Transformers::Bf16, "bf16"), (Transformers::F16, "f16")]
    {
        let prompt = if dtype == "f32" { CLOSE.to_vec() } else { closest(&*model, &numerics) };
        let (ids, margin) = parting_at_once(&*model, &numerics, &prompt);
        let outcome = check(&*model, &numerics, dtype, &prompt, &ids);
        assert_eq!(outcome.verdict, Verdict::Pass, "{dtype}, {margin}: {:?}", outcome.reason);
        assert_generation(&outcome, Verdict::Tie, "step 0: the candidate chose token");
        for from in [1, 12] {
            let mut wrong = ids.clone();
            wrong[from..].iter_mut().for_each(|id| *id = (*id * 37 + 11) % 512);
            let outcome = check(&*model, &numerics, dtype, &prompt, &wrong);
            assert_eq!(outcome.verdict, Verdict::Fail, "{dtype}");
            assert_generation(&outcome, Verdict::Fail, &format!("step {from}: the candidate chose token"));
        }
    }
}

/// Two dumps without a model, each logit of which may be off by `allowed`; the candidate's prefer its choice where it parts.
fn compare(candidate: &[u32], parts: usize, reference: &[u32], allowed: f32) -> Outcome {
    let homes = [(); 2].map(|()| TempDir::new().expect("a temporary directory"));
    let choice = choices_along(&candidate[..parts]).pop().expect("a choice");
    let mut lean = Lean { pass: parts, choice };
    let candidate = Dump::open(&dump_before(candidate, &homes[0], &mut lean)).expect("it is sound");
    let reference = Dump::open(&dump_of(reference, &homes[1])).expect("it is sound");
    let tolerances = allowing(allowed.into(), homes[0].path());
    let selection = Selection::everything();
    cross_check_dumps("two", &candidate, &reference, rules(&selection, &tolerances, "f32", Mode::Both))
        .expect("they are of one model")
}

#[test]
fn of_two_dumps_that_part_at_a_tie_the_rest_is_not_judged_and_the_verdict_is_inconclusive() {
    let (ours, _) = parting_at(STEPS);
    let (theirs, margin) = parting_at(0);
    let outcome = compare(&theirs, 0, &ours, 0.6 * margin);
    assert_eq!(outcome.verdict, Verdict::Inconclusive, "{:?}", outcome.reason);
    assert_generation(&outcome, Verdict::Inconclusive, "are not judged: the reference reads another token");
    assert_eq!(compare(&theirs, 0, &ours, 0.4 * margin).verdict, Verdict::Fail);
}

#[test]
fn of_two_dumps_a_tie_at_the_last_choice_is_a_pass() {
    let (ours, _) = parting_at(STEPS);
    let (theirs, margin) = parting_at(1);
    let outcome = compare(&theirs[..2], 1, &ours[..2], 0.6 * margin);
    assert_generation(&outcome, Verdict::Tie, "step 1: the candidate chose token");
    assert_eq!(outcome.verdict, Verdict::Pass, "{:?}", outcome.reason);
}

#[test]
fn a_divergence_before_a_tie_is_a_divergence() {
    let (mut ids, margin) = parting_at(4);
    ids[3] = choices_along(&ids[..3]).last().expect("a choice").token ^ 1;
    assert_generation(&run(&ids, 0.6 * margin), Verdict::Fail, "step 3: the candidate chose token");
}

#[test]
fn the_margin_of_a_greedy_choice_is_that_of_its_two_best_logits() {
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
    assert!(text.contains("the generated texts differ from step 4 on, after"), "where the texts part");
    assert!(text.contains("the candidate continues with"), "the texts of both sides");
}
