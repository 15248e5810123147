//! Routing replay data: flipped experts explain differences, and excuse no other fault.
//!
//! `make_routes.py` records the experts of transformers: a rollout in bf16, and a trainer in f32.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde_json::{Value, json};
use xcheck::gap::{GapAssessment, RouteReplay};
use xcheck::verdict::Verdict;

use super::parquet::parquet;
use super::{cause, data, judged_files};
use crate::common::terminal::Terminal;

/// Writes a pair of files for a model, from these columns of log-probabilities and of experts.
fn routed(folder: &Path, model: &str, columns: [&str; 2], experts: [&str; 2]) -> [PathBuf; 2] {
    let text = fs::read_to_string(data(&format!("{model}.jsonl"))).expect("it ships");
    let paths = [folder.join("rollout.jsonl"), folder.join("trainer.jsonl")];
    for ((path, column), experts) in paths.iter().zip(columns).zip(experts) {
        let lines = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let mut own = json!({"tokens": line["tokens"], "prompt_length": line["prompt_length"], "logprobs": line[column]});
            if !experts.is_empty() {
                own["routed_experts"] = line[experts].clone();
            }
            own.to_string() + "\n"
        });
        fs::write(path, lines.collect::<String>()).expect("written");
    }
    paths
}

const MIXTURES: [&str; 2] = ["tiny-qwen3moe", "tiny-mixtral"];
const OWN_ROUTES: [&str; 2] = ["rollout_routes", "trainer_routes"];

fn judged_routed(model: &str, columns: [&str; 2], experts: [&str; 2]) -> GapAssessment {
    let folder = tempfile::tempdir().expect("a folder");
    let [rollout, trainer] = routed(folder.path(), model, columns, experts);
    judged_files([&rollout, &trainer], [None, None], ["bf16", "f32"])
}

/// Changes the lines of a file of JSON.
fn edited(path: &Path, mut edit: impl FnMut(usize, &mut Value)) {
    let text = fs::read_to_string(path).expect("written");
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    lines.iter_mut().enumerate().for_each(|(index, line)| edit(index, line));
    fs::write(path, lines.iter().map(|line| line.to_string() + "\n").collect::<String>()).expect("written");
}

#[test]
fn flipped_experts_explain_differences_and_replayed_experts_pass() {
    for model in MIXTURES {
        let found = judged_routed(model, ["rollout", "trainer"], OWN_ROUTES);
        assert_eq!(
            cause(&found),
            (Verdict::Inconclusive, "flipped-experts"),
            "{model}: {:?}",
            found.findings
        );
        let experts = found.experts.expect("both sides have data");
        assert!(experts.other_tokens > 10 && experts.other_share > 0.9, "{model}: {experts:?}");
        assert!(experts.same_scale < 0.13, "{model}: {experts:?}");
        let replayed = judged_routed(model, ["rollout", "replayed"], ["rollout_routes"; 2]);
        assert_eq!(replayed.verdict, Verdict::Pass, "{model}: {:?}", replayed.findings);
        assert_eq!(replayed.experts.map(|experts| experts.other_tokens), Some(0));
        let unstated = judged_routed(model, ["rollout", "trainer"], ["", ""]);
        assert_ne!(unstated.verdict, Verdict::Pass);
        assert_eq!(unstated.experts, None);
    }
}

#[test]
fn flipped_experts_excuse_no_other_fault() {
    for model in MIXTURES {
        let found = judged_routed(model, ["rollout", "temperature"], OWN_ROUTES);
        assert_eq!(cause(&found), (Verdict::Fail, "temperature"), "{model}: {:?}", found.findings);
        // Tokens of other ids, in sequences whose experts are all the same.
        let folder = tempfile::tempdir().expect("a folder");
        let [rollout, trainer] = routed(folder.path(), model, ["rollout", "trainer"], OWN_ROUTES);
        let text = fs::read_to_string(&rollout).expect("written");
        let read: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let mut changed = 0;
        edited(&trainer, |index, line| {
            let [own, others] =
                [&*line, &read[index]].map(|line| line["routed_experts"].as_array().expect("lists").clone());
            let same = own.iter().zip(&others).take_while(|(own, other)| own == other).count();
            let prompt = line["prompt_length"].as_u64().expect("a number") as usize;
            for at in [2, 9].into_iter().filter(|at| prompt + at <= same) {
                line["logprobs"][at] = json!(line["logprobs"][at].as_f64().unwrap_or(0.0) - 6.0);
                changed += 1;
            }
        });
        assert!(changed > 6, "{model}");
        let found = judged_files([&rollout, &trainer], [None, None], ["bf16", "f32"]);
        assert_eq!(cause(&found), (Verdict::Fail, "other-token"), "{model}: {:?}", found.findings);
    }
}

#[test]
fn a_wrong_router_is_no_flip_of_experts() {
    for model in MIXTURES {
        let found = judged_routed(model, ["rollout", "router"], ["rollout_routes", "router_routes"]);
        assert_eq!(found.verdict, Verdict::Fail, "{model}: {:?}", found.findings);
    }
}

/// A router that is wrong in three sequences flips as many choices in all as rounding may.
#[test]
fn a_wrong_router_in_some_sequences_is_no_flip_of_experts() {
    let folder = tempfile::tempdir().expect("a folder");
    for model in MIXTURES {
        let right = ["trainer", "trainer_routes"];
        let judged = |wrong: [&str; 2]| {
            let [rollout, trainer] = routed(folder.path(), model, ["rollout", right[0]], OWN_ROUTES);
            let text = fs::read_to_string(data(&format!("{model}.jsonl"))).expect("it ships");
            let all: Vec<Value> =
                text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            edited(&trainer, |index, line| {
                if index < 3 {
                    line["logprobs"] = all[index][wrong[0]].clone();
                    line["routed_experts"] = all[index][wrong[1]].clone();
                }
            });
            judged_files([&rollout, &trainer], [None, None], ["bf16", "f32"])
        };
        let found = judged(["router", "router_routes"]);
        assert_eq!(found.verdict, Verdict::Fail, "{model}: {:?}", found.findings);
        assert_eq!(cause(&judged(right)), (Verdict::Inconclusive, "flipped-experts"), "{model}");
    }
}

/// With its own experts, a side with a wrong router agrees with the model.
#[test]
fn replayed_experts_excuse_as_few_other_choices_as_rounding_flips() {
    for model in MIXTURES {
        let joined = |other_choices: usize| {
            let own = judged_routed(model, ["rollout", "router"], ["", ""]);
            let replayed = judged_routed(model, ["rollout", "replayed"], ["", ""]);
            own.with_replay(replayed, RouteReplay { choices: 100, other_choices, ..RouteReplay::default() })
        };
        assert_eq!(joined(60).verdict, Verdict::Fail, "{model}");
        assert_eq!(cause(&joined(3)), (Verdict::Inconclusive, "flipped-experts"), "{model}");
    }
}

#[test]
fn routes_of_other_tokens_contradict_log_probabilities_that_agree() {
    for model in MIXTURES {
        let found = judged_routed(model, ["rollout", "replayed"], ["rollout_routes", "router_routes"]);
        assert_eq!(
            cause(&found),
            (Verdict::Inconclusive, "contradictory-experts"),
            "{model}: {:?}",
            found.findings
        );
    }
}

/// Of 24 sequences, the first four have routes; the other ones have a fault.
#[test]
fn tokens_without_routes_are_not_excused() {
    let folder = tempfile::tempdir().expect("a folder");
    for model in MIXTURES {
        let [rollout, trainer] = routed(folder.path(), model, ["rollout", "trainer"], OWN_ROUTES);
        for (path, is_faulty) in [(&rollout, false), (&trainer, true)] {
            edited(path, |index, line| {
                if index < 4 {
                    return;
                }
                line.as_object_mut().expect("an object").remove("routed_experts");
                let values = line["logprobs"].as_array_mut().expect("a list");
                for value in values.iter_mut().filter(|value| is_faulty && value.is_number()) {
                    *value = json!(value.as_f64().expect("a number") - 0.7);
                }
            });
        }
        let found = judged_files([&rollout, &trainer], [None, None], ["bf16", "f32"]);
        assert!(
            found.experts.as_ref().is_some_and(|experts| experts.other_tokens > 0),
            "{:?}",
            found.experts
        );
        assert_eq!(found.verdict, Verdict::Fail, "{model}: {:?}", found.findings);
    }
}

/// A known flip also changes later tokens whose own experts are not recorded.
#[test]
fn unknown_experts_after_a_flip_are_excused() {
    let folder = tempfile::tempdir().expect("a folder");
    for model in MIXTURES {
        let [rollout, trainer] = routed(folder.path(), model, ["rollout", "trainer"], OWN_ROUTES);
        let text = fs::read_to_string(&rollout).expect("written");
        let others: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        edited(&trainer, |index, line| {
            let tokens = line["routed_experts"].as_array_mut().expect("lists");
            let theirs = others[index]["routed_experts"].as_array().expect("lists");
            let same = tokens.iter().zip(theirs).take_while(|(own, other)| own == other).count();
            for experts in
                tokens.iter_mut().skip(same + 1).flat_map(|token| token.as_array_mut().expect("layers"))
            {
                experts.as_array_mut().expect("experts").iter_mut().for_each(|expert| *expert = json!(-1));
            }
        });
        let found = judged_files([&rollout, &trainer], [None, None], ["bf16", "f32"]);
        assert_eq!(
            cause(&found),
            (Verdict::Inconclusive, "flipped-experts"),
            "{model}: {:?}",
            found.findings
        );
    }
}

#[test]
fn experts_without_a_side_in_one_file_are_the_rollouts() {
    let terminal = Terminal::new();
    let text = fs::read_to_string(data("tiny-mixtral.jsonl")).expect("it ships");
    let both = |own: &str, trainer: &str| {
        let lines = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let mut both = json!({"tokens": line["tokens"], "prompt_length": line["prompt_length"]});
            both["rollout_logprobs"] = line["rollout"].clone();
            both["trainer_logprobs"] = line["trainer"].clone();
            both[own] = line["rollout_routes"].clone();
            if !trainer.is_empty() {
                both[trainer] = line["trainer_routes"].clone();
            }
            both.to_string() + "\n"
        });
        fs::write(terminal.path().join("both.jsonl"), lines.collect::<String>()).expect("written");
        terminal.json(&["gap", "both.jsonl", "--dtype", "bf16,f32"]).1
    };
    assert_eq!(both("routed_experts", "")["experts"], Value::Null);
    for own in ["routed_experts", "rollout_routed_experts"] {
        let found = both(own, "trainer_routed_experts");
        assert!(found["experts"]["other_tokens"].as_u64() > Some(10), "{own}: {found}");
    }
}

#[test]
fn experts_are_read_from_parquet_and_batches() {
    let wanted = judged_routed("tiny-qwen3moe", ["rollout", "trainer"], OWN_ROUTES);
    for name in ["parquet/routes.parquet", "routes.npz"] {
        let path = data(name);
        let found = judged_files([&path, &path], [None, None], ["bf16", "f32"]);
        assert_eq!(found.sequences, 24, "{name}");
        assert_eq!(json!(found.experts), json!(wanted.experts), "{name}");
    }
}

#[test]
fn the_model_computes_with_the_experts_of_a_side() {
    let terminal = Terminal::new();
    for model in MIXTURES {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/architectures").join(model).join("hf");
        let path = path.display().to_string();
        let against = |columns, experts| {
            let [rollout, trainer] = routed(terminal.path(), model, columns, experts);
            let (rollout, trainer) = (rollout.display().to_string(), trainer.display().to_string());
            let words = ["gap", &rollout, &trainer, "--dtype", "bf16,f32", "--model", &path];
            terminal.json(&words)
        };
        let (code, found) = against(["rollout", "trainer"], OWN_ROUTES);
        let rollout = &found["model"]["rollout"];
        assert_eq!((code, &found["model"]["trainer"]["verdict"]), (3, &json!("pass")), "{model}: {found}");
        assert_eq!(rollout["findings"][0]["cause"], "flipped-experts", "{model}: {rollout}");
        assert!(rollout["replay"]["explained"].as_f64() > Some(0.9), "{model}: {rollout}");
        assert!(rollout["replay"]["other_choices"].as_u64() > Some(10), "{model}: {rollout}");
        let (code, found) = against(["rollout", "replayed"], ["rollout_routes"; 2]);
        assert_eq!((code, &found["verdict"]), (3, &json!("inconclusive")), "{model}: {found}");
        assert_eq!(found["model"]["trainer"]["findings"][0]["cause"], "flipped-experts");
        let (code, found) = against(["rollout", "trainer"], ["rollout_routes", "router_routes"]);
        let trainer = &found["model"]["trainer"];
        assert_eq!(
            (code, &trainer["findings"][0]["cause"]),
            (3, &json!("contradictory-experts")),
            "{model}: {trainer}"
        );
        let (code, found) = against(["rollout", "router"], ["rollout_routes", "router_routes"]);
        assert_eq!((code, &found["model"]["trainer"]["verdict"]), (1, &json!("fail")), "{model}: {found}");
    }
}

/// An empty `.npy` file of int16 with a shape, in base64.
fn npy_of_shape(shape: &str) -> String {
    let header = format!("{{'descr': '<i2', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{header:<117}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn experts_that_cannot_be_used_are_refused() {
    let terminal = Terminal::new();
    let line = |experts: Value| {
        json!({"tokens": [1, 2, 3], "logprobs": [null, -0.5, -1.5], "routed_experts": experts}).to_string()
    };
    let cases: [(Value, &[&str]); 7] = [
        (json!([[[0, 1]], [[0, 1]], [[0, 1]], [[0, 1]]]), &["`routed_experts`", "4 tokens, expected 2 or 3"]),
        (json!([[[0, 1]], [[0]]]), &["`routed_experts`", "token 1 has another shape than token 0"]),
        (json!([[0, 1], [0, 1]]), &["`routed_experts`", "expected a sequence"]),
        (json!([[[0, 70000]], [[0, 1]]]), &["70000, expected the index of an expert"]),
        (json!("AAAAAAEAAAA="), &["base64 without a shape", ".reshape(-1, layers, experts)"]),
        (json!([]), &["shape [0, 0, 0]"]),
        (json!(npy_of_shape("(0, 4294967296, 4294967296)")), &["an array of another shape or type"]),
    ];
    for (experts, expected) in cases {
        fs::write(terminal.path().join("routes.jsonl"), line(experts)).expect("written");
        terminal.run(&["gap", "routes.jsonl", &parquet("pandas")]).refused(expected);
    }
    let [rollout, trainer] = routed(terminal.path(), "tiny-mixtral", ["rollout", "trainer"], OWN_ROUTES)
        .map(|path| path.display().to_string());
    let words = ["gap", &rollout, &trainer, "--dtype", "bf16", "--model", "tiny-qwen3"];
    terminal.run(&words).refused(&["routed_experts", "the model has 0 layers with experts"]);
}
