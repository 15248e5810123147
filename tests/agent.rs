//! `--format agent`: a few facts for a program that repairs an engine.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::terminal::Terminal;

const WRONG: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engines/tiny-llama3/mlx-lm-f32.safetensors");

fn agent(arguments: &[&str]) -> (i32, Value) {
    let finished = Terminal::new().run(&[arguments, &["--format", "agent", "--no-report"]].concat());
    assert!(finished.stdout.len() <= 4096, "{} bytes", finished.stdout.len());
    (finished.code, serde_json::from_str(&finished.stdout).expect("one JSON document"))
}

#[test]
fn a_fault_has_a_sentence_a_site_a_cause_and_a_next_command() {
    let (code, report) = agent(&["check", "--model", "tiny-llama3", "--candidate", WRONG]);
    let dump = &report["dump"];
    assert_eq!((code, &report["schema"], &report["verdict"]), (1, &"xcheck-agent".into(), &"fail".into()));
    assert_eq!(dump["sentence"], "mlx-lm-f32 computes with the wrong RoPE base.");
    assert_eq!((&dump["first"]["tap"], &dump["first"]["layer"]), (&"q_rope".into(), &0.into()));
    let cause = &dump["cause"];
    assert_eq!((&cause["name"], &cause["key"]), (&"rope_theta".into(), &"rope_theta".into()));
    assert_eq!(
        (&cause["supposed"], &cause["confirmed"]),
        (&"rope_theta=10000 and rope_scaling=none".into(), &"pass".into())
    );
    // The first command is the one that confirms the cause, and it can be typed.
    let next = dump["next"][0].as_str().expect("a command");
    let words: Vec<&str> = next.split(' ').skip(1).collect();
    assert_eq!(Terminal::new().run(&words).code, 0, "{next}");
    assert_eq!(dump["right_before"], "5 taps before it are correct");
}

/// Dumps our engine on tiny-llama3 with faults supposed: the prompt and a decoded token.
fn dump(path: &Path, faults: &[&str]) {
    let out = path.to_str().expect("UTF-8");
    let run =
        ["dump", "--model", "tiny-llama3", "--tokens", "1,393,395,260,394", "--decode", "1", "--out", out];
    let supposed = faults.iter().flat_map(|fault| ["--suppose", fault]);
    let finished = Terminal::new().run(&run.into_iter().chain(supposed).collect::<Vec<_>>());
    assert_eq!(finished.code, 0, "{}", finished.stderr);
}

#[test]
fn several_faults_have_a_cause_and_a_place_each() {
    let folder = TempDir::new().expect("a temporary directory");
    let path = folder.path().join("two.safetensors");
    dump(&path, &["rope_theta=10000", "gate_up_swap=operands"]);
    let candidate = path.to_str().expect("UTF-8");
    let (_, report) = agent(&["check", "--model", "tiny-llama3", "--candidate", candidate]);
    let dump = &report["dump"];
    assert_eq!(
        (&dump["cause"]["supposed"], &dump["cause"]["at"]),
        (&"rope_theta=10000".into(), &"q_rope, layer 0, pass 0".into())
    );
    let other = &dump["other_causes"][0];
    assert_eq!(
        (&other["supposed"], &other["at"]),
        (&"gate_up_swap=operands".into(), &"ffn_act, layer 0, pass 0".into())
    );
    let wrong: Vec<&str> =
        dump["wrong"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let inside =
        ["q_rope", "k_rope", "ffn_act"].map(|tap| format!("{tap}: wrong in all 3 layers, prompt and decode"));
    assert_eq!(wrong[..3], inside);
    assert_eq!(dump["passes"], 2);
}

#[test]
fn what_passes_names_nothing_wrong() {
    let (code, report) = agent(&["run", "--model", "tiny-gpt2"]);
    let dump = &report["dump"];
    assert_eq!((code, &report["verdict"], &report["more"]), (0, &"pass".into(), &0.into()));
    for field in ["sentence", "first", "cause", "record"] {
        assert_eq!(dump[field], Value::Null, "{field}");
    }
    let taps = dump["taps"][0].as_u64().expect("a number");
    assert!(taps > 0 && dump["taps"][1] == taps, "{dump}");
}

#[test]
fn what_is_not_decided_is_no_pass_and_says_what_to_record() {
    let check = ["check", "--model", "tiny-llama3", "--candidate", WRONG, "--checkpoint", "scores"];
    let (code, report) = agent(&check);
    assert_eq!((code, &report["verdict"]), (3, &"inconclusive".into()));
    assert!(report["dump"]["record"].is_string() && report["dump"]["sentence"].is_string(), "{report:#}");
    let refused =
        Terminal::new().run(&["check", "--model", "nothing", "--candidate", WRONG, "--format", "agent"]);
    let document: Value = serde_json::from_str(&refused.stdout).expect("one JSON document");
    assert!(refused.code == 2 && document["error"].is_string(), "{document}");
}
