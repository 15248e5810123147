//! Choices: whose logits made them, where two runs part, and what is a tie.

use std::path::Path;

use serde_json::json;
use xcheck::align::Selection;
use xcheck::check::{Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Checkpoint, Point, Site};
use xcheck::diagnose::{cross_check, cross_check_dumps};
use xcheck::dump::Dump;
use xcheck::engine::{PassInput, RunInput};
use xcheck::numerics::Numerics;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};

use super::clay::{Clay, two_largest};
use super::scene::{
    Scene, assert_does_not_pass, assert_first_wrong, assert_inconclusive, assert_passes, compare, of_pass,
    recorded, row, told,
};
use crate::common::faulty::At;
use crate::common::{LLAMA_CPP_F32, reference, rules, tiny_llama2};

const PROMPT: [u32; 6] = [1, 393, 395, 260, 394, 486];
const ROLES: [Role; 2] = [Role::Candidate, Role::Reference];

fn scene() -> Scene {
    Scene::shipped("tiny-llama2", "llama.cpp-f32")
}

fn made(script: &RunInput, fault: &mut dyn Tap) -> Dump {
    recorded(&tiny_llama2(), &LLAMA_CPP_F32, "f32", script, fault)
}

/// The prompt in one pass, and greedy passes after it.
fn whole() -> Dump {
    made(&RunInput::greedy(&PROMPT, 3), &mut ())
}

fn one_by_one(tokens: &[u32]) -> RunInput {
    RunInput {
        passes: tokens.iter().map(|&token| PassInput::given(&[token])).collect(),
        prompt_len: PROMPT.len(),
    }
}

fn read(dump: &Dump) -> Vec<u32> {
    dump.manifest.passes.iter().flat_map(|pass| pass.tokens.clone()).collect()
}

fn logits(dump: &Dump, pass: usize) -> Vec<f64> {
    dump.read(of_pass(Point::LastLogits, pass)).expect("sound").expect("held").data
}

// ---- dumps that are cut differently ---------------------------------------------------------------------

#[test]
fn a_greedy_token_far_from_the_best_fails_at_its_position_in_any_chunked_prefill() {
    let honest = whole();
    let (best, _) = two_largest(&logits(&honest, 1));
    let mut order = logits(&honest, 1).into_iter().enumerate().collect::<Vec<_>>();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let far = order[100].0;
    assert!(order[0].1 - order[100].1 > 5.0 && far != best, "no rounding explains it");
    // The passes are given, so that only the choice is wrong.
    let mut passes: Vec<PassInput> = vec![PassInput::given(&PROMPT)];
    passes.extend(read(&honest)[PROMPT.len()..].iter().map(|&token| PassInput::given(&[token])));
    let script = RunInput { passes, prompt_len: PROMPT.len() };
    let sampler = |fault: &mut dyn Tap| made(&script, fault);
    let wrong = sampler(&mut At(of_pass(Point::Argmax, 1), |token: &mut [f32]| token[0] = far as f32));
    let right = sampler(&mut ());
    let position = PROMPT.len();
    for other in [honest, made(&one_by_one(&read(&right)), &mut ())] {
        for (one, two) in [(&wrong, &other), (&other, &wrong)] {
            let outcome = compare(one, two);
            assert_does_not_pass(&outcome);
            let ties = outcome.rows.iter().filter(|row| row.verdict == Verdict::Tie);
            assert_eq!(ties.count(), 0, "{}", told(&outcome));
            let argmax =
                outcome.rows.iter().find(|row| row.site.point == Point::Argmax && !row.verdict.is_good());
            assert_eq!(
                argmax.map(|row| row.positions.clone()),
                Some(position..position + 1),
                "{}",
                told(&outcome)
            );
        }
        let outcome = compare(&wrong, &other);
        assert_eq!(outcome.verdict, Verdict::Fail, "{}", told(&outcome));
        assert_eq!(
            outcome.first_divergence().map(|row| row.site.point),
            Some(Point::Argmax),
            "{}",
            told(&outcome)
        );
        assert_passes(&compare(&right, &other));
        assert_passes(&compare(&other, &right));
    }
}

#[test]
fn what_is_missing_at_two_positions_that_were_read_is_not_passed_over() {
    let honest = whole();
    let single = made(&one_by_one(&read(&honest)), &mut ());
    let passes = single.manifest.passes.len();
    let hole = Clay::of(&single)
        .keep(|site| site.layer.is_none() || site.pass.is_some_and(|pass| pass + 2 < passes))
        .dump();
    let selection = Selection { explicit: true, ..Selection::everything() };
    for (one, two) in [(&hole, &honest), (&honest, &hole)] {
        let outcome = super::scene::compare_selected(one, two, &selection).expect("they can be compared");
        assert_inconclusive(&outcome);
        let coverage = &outcome.coverage;
        assert!(coverage.taps_compared < coverage.taps_expected, "{coverage:?}");
        assert!(!coverage.skipped.is_empty());
        assert_inconclusive(&compare(one, two));
    }
    assert_passes(
        &super::scene::compare_selected(&single, &honest, &selection).expect("they can be compared"),
    );
}

// ---- runs that part -------------------------------------------------------------------------------------

/// A run of which the logits after the second pass are moved, so that its tokens part from there on.
fn parting(by: impl Fn(f64) -> f32) -> (Dump, f64) {
    let honest = whole();
    let row = logits(&honest, 1);
    let (best, second) = two_largest(&row);
    let margin = row[best] - row[second];
    let push = by(margin);
    let mut fault = At(of_pass(Point::LastLogits, 1), move |logits: &mut [f32]| logits[second] += push);
    // The engine chooses by what it has shown, so the tap at the choice says which.
    let mut choice = At(of_pass(Point::Argmax, 1), move |token: &mut [f32]| token[0] = second as f32);
    let mut passes = vec![PassInput::given(&PROMPT), PassInput::given(&[read(&honest)[PROMPT.len()]])];
    passes.push(PassInput::given(&[second as u32]));
    let script = RunInput { passes, prompt_len: PROMPT.len() };
    (made(&script, &mut (&mut fault, &mut choice)), margin)
}

#[test]
fn two_runs_whose_tokens_part_are_compared_up_to_there_and_the_token_fails() {
    let (other, _) = parting(|margin| margin as f32 + 0.5);
    let honest = whole();
    for (one, two) in [(&other, &honest), (&honest, &other)] {
        let outcome = compare(one, two);
        assert_eq!(outcome.verdict, Verdict::Fail, "{}", told(&outcome));
        let argmax = row(&outcome, of_pass(Point::Argmax, 1));
        assert_eq!(argmax.verdict, Verdict::Fail, "{argmax:?}");
        let compared = outcome.rows.iter().map(|row| row.positions.end).max();
        assert_eq!(compared, Some(PROMPT.len() + 1), "what follows read another token");
        assert!(outcome.count(Verdict::Pass) > 150, "everything up to there is compared");
        assert!(outcome.notes.iter().any(|note| note.contains("up to position 7")), "{}", told(&outcome));
    }
}

#[test]
fn two_runs_that_part_where_the_tolerance_allows_it_are_inconclusive_since_one_goes_on() {
    let (other, margin) = parting(|margin| margin as f32 + 0.01);
    let honest = whole();
    let home = tempfile::tempdir().expect("a directory");
    let selection = Selection::everything();
    for (allowed, verdict) in [(margin + 0.1, Verdict::Inconclusive), (margin / 4.0, Verdict::Fail)] {
        let tolerances = loose(&home.path().join("loose.toml"), &format!("{allowed:?}"));
        let (precision, mode, role) = ("f32", Mode::Accumulated, Role::Reference);
        let rules = Rules { role, ..rules(&selection, &tolerances, precision, mode) };
        for (one, two) in [(&other, &honest), (&honest, &other)] {
            let outcome = cross_check_dumps("reference", one, two, rules).expect("they can be compared");
            assert_eq!(outcome.verdict, verdict, "{allowed}: {}", told(&outcome));
            let argmax = row(&outcome, of_pass(Point::Argmax, 1));
            let is_tie = argmax.reason.as_deref().is_some_and(|reason| reason.contains(": a tie, but"));
            assert_eq!((argmax.verdict, is_tie), (verdict, verdict == Verdict::Inconclusive), "{argmax:?}");
        }
    }
}

// ---- what a dump tells of its own choices ---------------------------------------------------------------

#[test]
fn a_dump_whose_tokens_agree_and_are_not_its_logits_does_not_pass() {
    let scene = scene();
    let (_, second) = two_largest(&logits(&scene.dump, 4));
    let dump = Clay::of(&scene.dump)
        .edit(of_pass(Point::Argmax, 4), |token| token[0] = second as f64)
        .say(|json| json["generated"][4] = json!(second))
        .dump();
    for role in ROLES {
        for mode in [Mode::Local, Mode::Both, Mode::Accumulated] {
            println!("{} {}", role.name(), mode.name());
            assert_does_not_pass(&scene.judge_dump(&dump, mode, role, &mut ()));
        }
    }
    let outcome = scene.judge_dump(&dump, Mode::Local, Role::Candidate, &mut ());
    assert_first_wrong(&outcome, of_pass(Point::Argmax, 4));
    assert_does_not_pass(&compare(&dump, &scene.dump));
    assert_does_not_pass(&compare(&scene.dump, &dump));
}

/// Logits that prefer another token than the run went on with: a continuation that no logits made.
#[test]
fn a_dump_whose_continuation_is_not_what_its_logits_prefer_does_not_pass() {
    let scene = scene();
    let (_, second) = two_largest(&logits(&scene.dump, 4));
    let dump = Clay::of(&scene.dump)
        .without(&[Point::Argmax])
        .say(|json| json["generated"] = json!([260, 274, 276, 471, second]))
        .dump();
    for role in ROLES {
        for mode in [Mode::Local, Mode::Both, Mode::Accumulated] {
            println!("{} {}", role.name(), mode.name());
            assert_does_not_pass(&scene.judge_dump(&dump, mode, role, &mut ()));
        }
    }
}

#[test]
fn an_honest_dump_passes_in_every_mode_and_role() {
    let scene = scene();
    for role in ROLES {
        for mode in [Mode::Local, Mode::Both, Mode::Accumulated, Mode::Layers] {
            assert_passes(&scene.judge_dump(&scene.dump, mode, role, &mut ()));
        }
    }
}

/// The prompt's logits prefer another token than the second pass reads.
fn not_greedy(decode: &str) -> Dump {
    let other = PROMPT[1];
    let script = RunInput {
        passes: vec![PassInput::given(&PROMPT), PassInput::given(&[other])],
        prompt_len: PROMPT.len(),
    };
    let dump = made(&script, &mut ());
    assert_ne!(two_largest(&logits(&dump, 0)).0, other as usize);
    Clay::of(&dump).without(&[Point::Generated]).say(|json| json["input"]["decode"] = json!(decode)).dump()
}

#[test]
fn a_run_that_says_it_was_greedy_and_read_something_else_does_not_pass() {
    let scene = scene();
    for role in ROLES {
        for mode in [Mode::Local, Mode::Both, Mode::Accumulated] {
            let outcome = scene.judge_dump(&not_greedy("greedy"), mode, role, &mut ());
            println!("{} {}", role.name(), mode.name());
            assert_does_not_pass(&outcome);
            assert_passes(&scene.judge_dump(&not_greedy("forced"), mode, role, &mut ()));
        }
    }
    let (greedy, forced) = (not_greedy("greedy"), not_greedy("forced"));
    assert_does_not_pass(&compare(&greedy, &forced));
    assert_does_not_pass(&compare(&forced, &greedy));
    assert_passes(&compare(&forced, &forced));
}

/// A pass that verifies drafts reads its own choices: no later pass tells that one of them is none.
#[test]
fn a_draft_that_a_greedy_run_would_not_have_chosen_does_not_pass_however_little_is_held() {
    let (scene, chosen) = (scene(), read(&whole())[PROMPT.len()..].to_vec());
    let run = |drafts: &[u32]| {
        let passes = vec![PassInput::given(&PROMPT), PassInput::given(drafts)];
        Clay::of(&made(&RunInput { passes, prompt_len: PROMPT.len() }, &mut ())).without(&[Point::Generated])
    };
    let other = (chosen[1] + 1) % 512;
    let (right, wrong) = (run(&chosen[..2]), run(&[chosen[0], other]));
    let few = [Point::Embed, Point::BlockOut, Point::FinalNorm];
    let some = [Point::Argmax, Point::LastLogits];
    for role in ROLES {
        for mode in [Mode::Local, Mode::Both, Mode::Accumulated] {
            let judge = |clay: Clay| scene.judge_dump(&clay.dump(), mode, role, &mut ());
            for (points, verdict) in [(&few[..], Verdict::Inconclusive), (&some, Verdict::Fail)] {
                assert_passes(&judge(right.clone().with_only(points)));
                let outcome = judge(wrong.clone().with_only(points));
                assert_eq!(outcome.verdict, verdict, "{points:?} {mode:?}: {}", told(&outcome));
            }
            assert_passes(&judge(right.clone()));
            assert_does_not_pass(&judge(wrong.clone()));
        }
    }
}

#[test]
fn passes_that_read_a_part_of_the_prompt_are_inconclusive() {
    let (scene, honest) = (scene(), whole());
    let (prompt, rest) =
        (json!([PROMPT.as_slice(), &[7, 8]].concat()), Clay::of(&honest).keep(|site| site.pass == Some(0)));
    let part = rest.say(|json| {
        json["input"]["tokens"] = prompt;
        json["passes"].as_array_mut().expect("passes").truncate(1);
    });
    let part = part.without(&[Point::Argmax, Point::Generated]).dump();
    for role in ROLES {
        assert_inconclusive(&scene.judge_dump(&part, Mode::Both, role, &mut ()));
    }
    assert_inconclusive(&compare(&part, &part));
}

// ---- ties -----------------------------------------------------------------------------------------------

/// Adds to the second best logit of one pass, as rounding might.
struct Nudge {
    pass: usize,
    second: usize,
    by: f32,
}

impl Nudge {
    /// The two best logits of that pass are 0.45 apart.
    const PASS: usize = 1;

    fn new(by: f32) -> Self {
        let (_, second) = two_largest(&logits(&reference("llama.cpp-f32"), Self::PASS));
        Self { pass: Self::PASS, second, by }
    }
}

impl Tap for Nudge {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site != of_pass(Point::Logits, self.pass) {
            return value;
        }
        let shape = value.shape().to_vec();
        let mut data = value.into_data();
        let last = data.len() - shape[1];
        data[last + self.second] += self.by;
        Tensor::new(&shape, data)
    }
}

/// A table by which so much error in the logits is allowed.
fn loose(file: &Path, allowed: &str) -> Tolerances {
    let entry = format!("{{ max_abs = {allowed}, source = \"this test\" }}");
    let table = ["logits", "last_logits", "probs"].map(|name| format!("{name} = {entry}\n")).concat();
    std::fs::write(file, format!("[any.any]\n{table}")).expect("it is written");
    Tolerances::shipped().overridden_by(file).expect("the table is sound")
}

fn narrowed(
    checkpoints: &[Checkpoint],
    numerics: &dyn Numerics,
    tolerances: &Tolerances,
    by: f32,
) -> Outcome {
    let selection = Selection { checkpoints: checkpoints.to_vec(), ..Selection::everything() };
    let (mode, role) = (Mode::Both, Role::Reference);
    let rules = Rules { role, ..rules(&selection, tolerances, "f32", mode) };
    let dump = reference("llama.cpp-f32");
    cross_check("reference", &tiny_llama2(), numerics, &dump, rules, &mut Nudge::new(by)).expect("it runs")
}

#[test]
fn a_run_that_passes_with_a_tie_passes_too_when_less_is_looked_at() {
    let home = tempfile::tempdir().expect("a directory");
    let tolerances = loose(&home.path().join("loose.toml"), "1.0");
    let choices = [
        Checkpoint::with_input().to_vec(),
        vec![Checkpoint::Argmax],
        vec![Checkpoint::Generation],
        vec![Checkpoint::Argmax, Checkpoint::Generation],
        vec![Checkpoint::Argmax, Checkpoint::LastLogits],
    ];
    for checkpoints in choices {
        let outcome = narrowed(&checkpoints, &LLAMA_CPP_F32, &tolerances, 0.6);
        println!("{checkpoints:?}");
        assert_passes(&outcome);
        assert!(outcome.count(Verdict::Tie) > 0, "{}", told(&outcome));
    }
}

#[test]
fn a_run_that_fails_fails_too_when_less_is_looked_at() {
    for checkpoints in
        [Checkpoint::with_input().to_vec(), vec![Checkpoint::Argmax], vec![Checkpoint::Generation]]
    {
        let outcome = narrowed(&checkpoints, &LLAMA_CPP_F32, &Tolerances::shipped(), 0.6);
        assert_eq!(outcome.verdict, Verdict::Fail, "{}", told(&outcome));
        assert_eq!(outcome.count(Verdict::Tie), 0, "{}", told(&outcome));
    }
}
