//! PortBugs (`portbugs/`): its lists are complete, and its checker refuses a wrong submission.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use xcheck::change::CauseKind;
use xcheck::checkpoint::Point;

use crate::common::skip::skip;
use crate::common::terminal::Terminal;
use crate::judge::clay::Clay;
use crate::judge::scene::{of_pass, site};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// A change of a submission.
type Change = fn(&mut Value);

const LEVELS: [&str; 4] = ["taps", "blocks", "logits", "logprobs"];

fn folder() -> PathBuf {
    Path::new(ROOT).join("portbugs")
}

/// Reads the list of `faults.json` or `variants.json`.
fn list(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder().join(format!("{name}.json"))).expect("the file is there");
    let whole: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(whole["version"], 1);
    whole[name].as_array().expect("a list").clone()
}

fn text<'v>(case: &'v Value, key: &str) -> &'v str {
    case[key].as_str().filter(|text| !text.is_empty()).unwrap_or_else(|| panic!("{}: no {key}", case["id"]))
}

#[test]
fn every_fault_has_a_source_a_patch_and_a_right_answer() {
    let patches = ["patches.py", "modules.py"]
        .map(|file| fs::read_to_string(folder().join(file)).expect("the file is there"))
        .concat();
    let causes: BTreeSet<_> = CauseKind::ALL.iter().map(|kind| kind.name()).collect();
    let faults = list("faults");
    assert!(faults.len() >= 100, "{} faults", faults.len());
    assert!(faults.iter().filter(|case| case.get("torch").is_some()).count() >= 25);
    for case in &faults {
        let id = text(case, "id");
        for key in ["title", "kind", "mechanism", "model", "dtype"] {
            text(case, key);
        }
        let sources = case["sources"].as_array().expect("a list");
        assert!(!sources.is_empty(), "{id}: no source");
        for source in sources {
            assert!(text(source, "repository").split('/').count() == 2, "{id}");
            assert!(source["number"].as_u64().is_some_and(|number| number > 0), "{id}");
            assert!((2023..=2026).contains(&source["year"].as_u64().unwrap_or_default()), "{id}");
        }
        assert!(
            case.get("wrong_tokens").is_some() || patches.contains(&format!("\"{id}\"")),
            "{id} has no patch"
        );
        text(&case["site"], "tap");
        assert!(case["site"]["pass"].as_u64().is_some() && !case["passes"].is_null(), "{id}: no passes");
        let levels = case["levels"].as_array().expect("a list");
        assert!(
            levels.iter().all(|level| LEVELS.contains(&level.as_str().unwrap_or_default()))
                && !levels.is_empty(),
            "{id}"
        );
        let named = case["causes"].as_array().expect("a list");
        for cause in named {
            assert!(causes.contains(cause.as_str().expect("a text")), "{id}: no cause is called {cause}");
        }
        assert!(
            !named.is_empty() || !text(case, "outside").is_empty(),
            "{id}: neither a cause nor why there is none"
        );
    }
}

#[test]
fn every_variant_has_a_reason() {
    let variants = list("variants");
    assert_eq!(variants.len(), 500);
    for case in &variants {
        for key in ["kind", "reason", "model", "dtype"] {
            text(case, key);
        }
    }
}

#[test]
fn ids_are_unique() {
    let cases = [list("faults"), list("variants")].concat();
    let ids: BTreeSet<_> = cases.iter().map(|case| text(case, "id")).collect();
    assert_eq!(ids.len(), cases.len());
}

/// The answer of a judge that says pass to everything, at one level.
fn submission() -> Value {
    let row = |case: &Value, role: &str| json!({"id": case["id"], "role": role, "level": "blocks", "verdict": "pass"});
    let mut results = Vec::new();
    for case in list("faults") {
        results.extend(["fault", "twin"].map(|role| row(&case, role)));
    }
    results.extend(list("variants").iter().map(|case| row(case, "variant")));
    json!({"tool": "yes", "version": "1", "set": 1, "levels": ["blocks"], "results": results})
}

/// Runs the checker; returns its exit code and output.
fn checked(submission: &Value) -> (Option<i32>, String) {
    let folder_of_file = tempfile::tempdir().expect("a folder");
    let file = folder_of_file.path().join("submission.json");
    fs::write(&file, submission.to_string()).expect("it is written");
    let output = Command::new("python3")
        .arg("-B")
        .arg(folder().join("submission.py"))
        .arg(&file)
        .output()
        .expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn the_checker_refuses_a_wrong_submission() {
    let is_recent = "import sys; sys.exit(sys.version_info < (3, 10))";
    if !Command::new("python3").args(["-c", is_recent]).status().is_ok_and(|status| status.success()) {
        skip("no python3 of 3.10 or newer");
        return;
    }
    let right = submission();
    let (code, text) = checked(&right);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("| yes | block outputs and logits | 0 of"), "{text}");
    let wrong: &[(&str, Change)] = &[
        ("verdicts are missing", |s| _ = s["results"].as_array_mut().expect("a list").pop()),
        ("a second verdict of the same run", |s| s["results"][1] = s["results"][0].clone()),
        ("no such run", |s| s["results"][0]["id"] = json!("of-nobody")),
        ("verdict 'maybe'", |s| s["results"][0]["verdict"] = json!("maybe")),
        ("has no site and no causes", |s| s["results"][0]["causes"] = json!(["rope_theta"])),
        ("'set' is 2", |s| s["set"] = json!(2)),
        ("'site' must be", |s| s["results"][0]["site"] = json!({"tap": "q", "layer": true, "pass": 0})),
        ("'site' must be", |s| s["results"][0]["site"] = json!({"tap": "q", "pass": 0})),
        ("'seconds' must be", |s| s["results"][0]["seconds"] = json!("fast")),
        ("each at most once", |s| s["levels"] = json!(["blocks", ["blocks"]])),
        ("each at most once", |s| s["levels"] = json!(["blocks", "blocks"])),
    ];
    for (message, change) in wrong {
        let mut changed = right.clone();
        change(&mut changed);
        let (code, text) = checked(&changed);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(message), "{message}: {text}");
    }
}

/// Judges a dump: the exit code, and the first wrong tap.
fn judged(dump: &Path, model: &str) -> (i32, String) {
    let (dump, model) = (dump.display().to_string(), format!("{ROOT}/{model}/hf"));
    let (code, report) = Terminal::new().json(&[
        "check",
        "--model",
        &model,
        "--candidate",
        &dump,
        "--no-report",
        "--no-causes",
    ]);
    (code, report["references"][0]["first_divergence"]["tap"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn correct_variants_pass_and_fail_with_a_wrong_value() {
    for (name, model, point) in [
        ("fused-kernels-gemma2-f16", "tests/data/architectures/tiny-gemma2", Point::Logits),
        ("tensor-parallelism-gpt2-f16-2", "checkpoints/tiny-gpt2", Point::AttnOut),
        ("tensor-parallelism-qwen3-bias-bf16-2", "tests/data/architectures/tiny-qwen3-bias", Point::AttnOut),
        ("tf32-gemma2-f32-tf32", "tests/data/architectures/tiny-gemma2", Point::AttnScores),
    ] {
        let path = Path::new(ROOT).join("tests/data/portbugs").join(format!("{name}.safetensors"));
        assert_eq!(judged(&path, model), (0, String::new()), "{name}");
        let dump = Clay::open(&path);
        let site = if point == Point::Logits { of_pass(point, 0) } else { site(point, 0, 0) };
        let wrong = dump.edit(site, |values| values[0] *= 1.02);
        let folder = Terminal::new();
        let file = folder.path().join("wrong.safetensors");
        wrong.save(&file);
        assert_eq!(judged(&file, model), (1, point.name().to_owned()), "{name}");
    }
}
