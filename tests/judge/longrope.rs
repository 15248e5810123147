//! A sequence that outgrows LongRoPE's short factors: what transformers' `generate()` computes, and what engines do instead.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use xcheck::align::Selection;
use xcheck::change::CauseKind;
use xcheck::check::{Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::cross_check;
use xcheck::dump::{Dump, Manifest, Recorder};
use xcheck::engine::{self, RunInput};
use xcheck::model::{LoadedModel, ModelFiles};
use xcheck::numerics::{F32, Transformers};
use xcheck::plan::{Unit, units};
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{assert_inconclusive, assert_passes, told};
use crate::common::{architecture, rules};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn model() -> LoadedModel {
    ModelFiles::open(&architecture("tiny-phi4").join("hf")).and_then(|files| files.load()).expect("it loads")
}

/// A dump of `reference-scripts/make/make_longrope_dumps.py`.
fn real(name: &str) -> Clay {
    let path = data("longrope").join(format!("{name}.safetensors"));
    Clay::open(&path)
}

/// The same, which states a rule.
fn stating(clay: Clay, rule: &str) -> Clay {
    clay.say(|manifest| manifest["producer"]["settings"]["longrope"] = json!(rule))
}

fn judged(dump: &Dump, mode: Mode, role: Role) -> xcheck::Result<Outcome> {
    judged_of(&model(), dump, mode, role)
}

fn judged_of(loaded: &LoadedModel, dump: &Dump, mode: Mode, role: Role) -> xcheck::Result<Outcome> {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules { role, ..rules(&selection, &tolerances, "torch-f32", mode) };
    cross_check("dump", &*loaded.model, &Transformers::F32, dump, rules, &mut ())
}

fn judge(clay: &Clay) -> Outcome {
    judged(&clay.dump(), Mode::Both, Role::Candidate).expect("they can be compared")
}

/// All that a dump holds, less, and least.
fn thinned(clay: &Clay) -> [Clay; 4] {
    const FEW: &[Point] = &[Point::BlockOut, Point::LastLogits];
    let of = |points: &[Point]| clay.clone().with_only(points);
    [clay.clone(), of(FEW), of(&[Point::LastLogits, Point::Generated]), of(&[Point::Generated])]
}

fn assert_kept(outcome: &Outcome, role: Role) {
    assert_eq!(outcome.verdict, Verdict::Fail, "{}", told(outcome));
    let [finding] = outcome.findings.as_slice() else { panic!("one cause: {:?}", outcome.findings) };
    let dumped = if role == Role::Candidate { &finding.candidate } else { &finding.reference };
    assert_eq!((finding.kind, dumped.as_deref()), (CauseKind::CacheStale, Some("kept")));
}

#[test]
fn what_generate_computes_passes_and_keys_that_keep_the_short_factors_fail_by_name() {
    for (right, wrong) in thinned(&real("generate")).iter().zip(&thinned(&real("kept"))) {
        assert_passes(&judge(right));
        assert_kept(&judge(wrong), Role::Candidate);
    }
    for role in [Role::Candidate, Role::Reference] {
        for mode in [Mode::Both, Mode::Accumulated, Mode::Local] {
            assert_passes(&judged(&real("generate").dump(), mode, role).expect("it runs"));
            assert_kept(&judged(&real("kept").dump(), mode, role).expect("it runs"), role);
        }
    }
}

#[test]
fn the_first_wrong_value_is_the_kv_cache_of_the_pass_that_crosses() {
    let outcome = judge(&real("kept"));
    let first = outcome.first_divergence().expect("it is named").site;
    assert_eq!(first, Site { point: Point::KCache, layer: Some(0), pass: Some(3) });
}

#[test]
fn an_engine_that_states_its_rule_is_held_to_that_rule() {
    for (name, rule) in [("generate", "reread"), ("kept", "kept"), ("long", "long")] {
        for clay in thinned(&real(name)) {
            let outcome = judge(&stating(clay, rule));
            assert_passes(&outcome);
            let is_told = outcome.notes.iter().any(|note| note.starts_with("LongRoPE: "));
            assert_eq!(is_told, rule != "reread", "{:?}", outcome.notes);
        }
    }
    for (name, rule) in
        [("generate", "kept"), ("kept", "reread"), ("kept", "long"), ("generate", "long"), ("long", "short")]
    {
        assert_eq!(judge(&stating(real(name), rule)).verdict, Verdict::Fail, "{name}, which states {rule}");
    }
    let problem = judged(&stating(real("kept"), "sometimes").dump(), Mode::Both, Role::Candidate);
    let problem = problem.expect_err("there is no such rule").to_string();
    assert!(
        problem.contains("longrope: 'sometimes', expected one of reread, kept, long, short"),
        "{problem}"
    );
}

#[test]
fn long_factors_from_the_start_are_neither_right_nor_wrong_unless_the_dump_states_them() {
    let outcome = judge(&real("long"));
    assert_inconclusive(&outcome);
    let reason = outcome.reason.expect("a sentence");
    assert!(reason.contains("\"longrope\": \"long\""), "{reason}");
    let wrong = real("long").edit_all(|site| site.point == Point::LastLogits, |values| values.data[7] += 3.0);
    assert_eq!(judge(&wrong).verdict, Verdict::Fail, "and something else is wrong");
}

/// tiny-phi4 with long factors that are the short ones, the last of them times this.
fn nearly_equal(times: f64) -> (tempfile::TempDir, LoadedModel) {
    let (home, from) = (tempfile::tempdir().expect("a folder"), architecture("tiny-phi4").join("hf"));
    fs::copy(from.join("model.safetensors"), home.path().join("model.safetensors")).expect("it is copied");
    let stated = fs::read_to_string(from.join("config.json")).expect("it is there");
    let mut config: Value = serde_json::from_str(&stated).expect("JSON");
    let rope = &mut config["rope_parameters"];
    let mut factors = rope["short_factor"].clone();
    factors[3] = json!(factors[3].as_f64().expect("a number") * times);
    rope["long_factor"] = factors;
    fs::write(home.path().join("config.json"), config.to_string()).expect("it is written");
    let loaded = ModelFiles::open(home.path()).and_then(|files| files.load()).expect("it loads");
    (home, loaded)
}

#[test]
fn values_that_are_alike_under_both_rules_are_inconclusive_unless_the_factors_are_equal() {
    for (times, expected) in [(1.0 + 2e-7, Verdict::Inconclusive), (1.0, Verdict::Pass)] {
        let (home, loaded) = nearly_equal(times);
        let path = home.path().join("dump.safetensors");
        let manifest = real("generate").dump().manifest;
        let manifest =
            Manifest::new(manifest.producer, manifest.model, manifest.layout, manifest.input, Vec::new());
        let script = RunInput::greedy(&manifest.input.tokens, 6);
        let mut recorder = Recorder::create(&path, manifest).expect("a new dump");
        let transcript =
            engine::run(&*loaded.model, &Transformers::F32, &script, &mut recorder).expect("it runs");
        recorder.finish(transcript.passes, transcript.generated).expect("it is written");
        // Caches would tell by their bits.
        let clay = Clay::open(&path).with_only(&[Point::LastLogits]);
        let judge =
            |clay: &Clay| judged_of(&loaded, &clay.dump(), Mode::Both, Role::Candidate).expect("it runs");
        let outcome = judge(&clay);
        assert_eq!(outcome.verdict, expected, "{}", told(&outcome));
        let reason = outcome.reason.unwrap_or_default();
        assert_eq!(reason.contains("kept or recomputed keys"), expected == Verdict::Inconclusive, "{reason}");
        assert_passes(&judge(&stating(clay, "reread")));
    }
}

#[test]
fn a_dump_that_does_not_cross_is_judged_as_ever() {
    let before = |name: &str| {
        let passes = |manifest: &mut Value| {
            manifest["passes"].as_array_mut().expect("passes").truncate(3);
            manifest["generated"] = Value::Null;
        };
        real(name).keep(|site| site.pass.is_some_and(|pass| pass < 3)).say(passes)
    };
    for name in ["generate", "kept"] {
        let outcome = judge(&before(name));
        assert_passes(&outcome);
        assert!(!told(&outcome).contains("LongRoPE"), "{}", told(&outcome));
    }
}

#[test]
fn a_continuation_that_crosses_beyond_the_dumped_passes_is_judged_too() {
    let short = |name: &str| {
        let passes = |manifest: &mut Value| manifest["passes"].as_array_mut().expect("passes").truncate(2);
        real(name).keep(|site| site.pass.is_none_or(|pass| pass < 2)).say(passes)
    };
    assert_passes(&judge(&short("generate")));
    assert_kept(&judge(&short("kept")), Role::Candidate);
}

#[test]
fn our_phi_4_generates_what_generate_of_transformers_does() {
    let dump = real("generate").dump();
    let script = RunInput::greedy(&dump.manifest.input.tokens, dump.manifest.passes.len() - 1);
    let transcript = engine::run(&*model().model, &F32, &script, &mut ()).expect("it runs");
    assert_eq!(Some(transcript.generated), dump.manifest.generated);
}

#[test]
fn a_run_that_reads_its_tokens_again_is_one_unit() {
    let (loaded, selection) = (model(), Selection::everything());
    let of = |clay: &Clay| units(&*loaded.model, &clay.dump(), xcheck::weight::DType::F32, &selection);
    assert_eq!(of(&real("generate")), [Unit::Whole]);
    let dump = Clay::open(&architecture("tiny-phi4").join("dumps/transformers-f32.safetensors"));
    assert!(of(&dump).len() > 1);
}
