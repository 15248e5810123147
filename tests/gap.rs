//! Log-probabilities of a rollout engine and a trainer: correct pairs pass, planted faults are named, bad files are
//! refused in one message.
//!
//! `tests/data/gap` is made by `reference-scripts/gap/make_samples.sh`, with transformers.

mod experts;
mod parquet;

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;

use crate::common::terminal::Terminal;
use serde_json::{Map, Value, json};
use xcheck::gap::{GapAssessment, GapOptions, PolicySide, RecordSource, SequenceJoin, assess};
use xcheck::verdict::Verdict;

const MODELS: [&str; 2] = ["tiny-qwen3", "tiny-llama3"];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gap").join(name)
}

/// A sequence with the log-probabilities of both sides.
#[derive(Clone)]
struct SidePair {
    fields: Map<String, Value>,
    rollout: Vec<f64>,
    trainer: Vec<f64>,
}

/// Pairs of two columns of a committed file.
fn pairs(model: &str, rollout: &str, trainer: &str) -> Vec<SidePair> {
    let text = fs::read_to_string(data(&format!("{model}.jsonl"))).expect("it ships");
    let pair = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let column = |name: &str| {
            line[name].as_array().expect("a column").iter().map(|v| v.as_f64().expect("a number")).collect()
        };
        let fields = ["tokens", "prompt_length"].map(|name| (name.to_owned(), line[name].clone()));
        SidePair { fields: fields.into_iter().collect(), rollout: column(rollout), trainer: column(trainer) }
    };
    text.lines().map(pair).collect()
}

fn line(fields: &Map<String, Value>, logprobs: &[f64]) -> String {
    let mut line = fields.clone();
    line.insert("logprobs".into(), json!(logprobs));
    Value::Object(line).to_string() + "\n"
}

/// The two files of pairs, in a folder.
fn written(folder: &Path, pairs: &[SidePair]) -> [PathBuf; 2] {
    let paths = [folder.join("rollout.jsonl"), folder.join("trainer.jsonl")];
    let text = |of: fn(&SidePair) -> &[f64]| {
        pairs.iter().map(|pair| line(&pair.fields, of(pair))).collect::<String>()
    };
    fs::write(&paths[0], text(|pair| &pair.rollout)).expect("written");
    fs::write(&paths[1], text(|pair| &pair.trainer)).expect("written");
    paths
}

fn judged_files(
    [rollout, trainer]: [&Path; 2],
    columns: [Option<&str>; 2],
    dtypes: [&str; 2],
) -> GapAssessment {
    let open = |path, side, column| RecordSource::open(path, side, column).expect("it opens");
    let join = SequenceJoin::new(
        open(rollout, PolicySide::Rollout, columns[0]),
        open(trainer, PolicySide::Trainer, columns[1]),
    );
    let dtypes = dtypes.map(|dtype| (!dtype.is_empty()).then(|| dtype.to_owned()));
    assess(join, &GapOptions { dtypes, clip: 0.2, ..GapOptions::default() }).expect("it is read")
}

fn columns(model: &str, rollout: &str, trainer: &str) -> GapAssessment {
    let path = data(&format!("{model}.jsonl"));
    let of = |column: &str| {
        ["f32", "f16", "bf16"].into_iter().find(|name| column.starts_with(name)).unwrap_or("bf16")
    };
    judged_files([&path, &path], [Some(rollout), Some(trainer)], [of(rollout), of(trainer)])
}

fn judged(pairs: &[SidePair], dtype: &str) -> GapAssessment {
    let folder = tempfile::tempdir().expect("a folder");
    let [rollout, trainer] = written(folder.path(), pairs);
    judged_files([&rollout, &trainer], [None, None], [dtype, dtype])
}

fn cause(found: &GapAssessment) -> (Verdict, &str) {
    (found.verdict, found.findings.first().map_or("", |finding| finding.cause))
}

#[test]
fn correct_pairs_pass_in_each_type() {
    let sides = ["f32_cache", "f32_sdpa", "f16_cache", "bf16_cache", "bf16_sdpa"];
    for model in MODELS {
        for rollout in sides.iter().filter(|side| model == "tiny-qwen3" || !side.starts_with("f16")) {
            for trainer in sides.iter().filter(|side| model == "tiny-qwen3" || !side.starts_with("f16")) {
                let found = columns(model, rollout, trainer);
                assert_eq!(
                    cause(&found),
                    (Verdict::Pass, ""),
                    "{model} {rollout} {trainer}: {:?}",
                    found.findings
                );
            }
        }
    }
}

#[test]
fn faults_of_real_runs_are_named() {
    let real = [
        ("tiny-qwen3", "temperature_0.7", "temperature"),
        ("tiny-llama3", "temperature_1.2", "temperature"),
        ("tiny-qwen3", "top_p_0.9", "processed"),
        ("tiny-qwen3", "stale_prefix", "position-step"),
        ("tiny-llama3", "positions_from_25", "position-step"),
        ("tiny-qwen3", "packed", "outlier-sequences"),
        ("tiny-qwen3", "versions", "stale-weights"),
    ];
    for (model, column, name) in real {
        let found = columns(model, "bf16_cache", column);
        assert_eq!(cause(&found), (Verdict::Fail, name), "{model} {column}: {:?}", found.findings);
    }
    // Two tokens of the sequences are those of the greedy choice: too few for a pattern, and no pass.
    let few = columns("tiny-qwen3", "bf16_cache", "greedy_token");
    assert_eq!(cause(&few), (Verdict::Inconclusive, "far-tokens"), "{:?}", few.findings);
}

#[test]
fn the_numbers_of_a_cause_are_those_of_the_fault() {
    for (model, column, temperature) in
        [("tiny-qwen3", "temperature_0.7", 0.7), ("tiny-llama3", "temperature_1.2", 1.2)]
    {
        let found = columns(model, "bf16_cache", column);
        let value = found.findings[0].values["temperature"]["value"].as_f64().expect("a number");
        assert!((value / temperature - 1.0f64).abs() < 0.05, "{model}: {value}");
    }
    // Positions count from the first token; the fault starts with the log-probability of token 26.
    let found = columns("tiny-llama3", "bf16_cache", "positions_from_25");
    assert_eq!(found.findings[0].values["from_position"], 26);
    let found = columns("tiny-qwen3", "bf16_cache", "packed");
    assert_eq!(found.findings[0].sequences, [2, 5, 8, 11, 14]);
    assert!(found.explained < 0.01, "{}", found.explained);
    // The filter kept at least 0.9.
    let found = columns("tiny-qwen3", "bf16_cache", "top_p_0.9");
    let kept = found.findings[0].values["renormalised"]["least_kept"].as_f64().expect("a number");
    assert!((kept - 0.9).abs() < 0.02, "{kept}");
}

/// Plants a fault in the trainer's values.
fn with(pairs: &[SidePair], plant: impl Fn(usize, &[f64]) -> Vec<f64>) -> Vec<SidePair> {
    let planted =
        |(index, pair): (usize, &SidePair)| SidePair { trainer: plant(index, &pair.trainer), ..pair.clone() };
    pairs.iter().enumerate().map(planted).collect()
}

/// A number between 0 and 1 that depends on two indices.
fn chance(one: usize, other: usize) -> f64 {
    let mixed = (one as u64 * 1_000_003 + other as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

/// Replaces a few log-probabilities by those of tokens that were not sampled.
fn of_other_tokens(index: usize, values: &[f64]) -> Vec<f64> {
    let is_other = |at: usize| (40 * index + at) % 131 == 7;
    values.iter().enumerate().map(|(at, value)| if is_other(at) { value - 6.0 } else { *value }).collect()
}

/// The pairs with rollout and trainer exchanged.
fn swapped(pairs: &[SidePair]) -> Vec<SidePair> {
    let swap = |pair: &SidePair| SidePair {
        rollout: pair.trainer.clone(),
        trainer: pair.rollout.clone(),
        ..pair.clone()
    };
    pairs.iter().map(swap).collect()
}

#[test]
fn planted_faults_are_named_and_their_correct_twins_pass() {
    for model in MODELS {
        let right = pairs(model, "bf16_cache", "bf16_sdpa");
        assert_eq!(cause(&judged(&right, "bf16")), (Verdict::Pass, ""), "{model}");
        let trainers: Vec<Vec<f64>> = right.iter().map(|pair| pair.trainer.clone()).collect();
        let other = |index: usize| trainers[index].clone();
        let faults: Vec<(&str, Vec<SidePair>)> = vec![
            ("shifted", with(&right, |_, values| [&values[1..], &values[values.len() - 1..]].concat())),
            ("shifted", with(&right, |_, values| [&values[..1], &values[..values.len() - 1]].concat())),
            ("permuted", with(&right, |index, _| other((index + 1) % trainers.len()))),
            ("permuted", with(&right, |index, _| other(if index < 4 { 3 - index } else { index }))),
            ("prompt-included", with(&right, |_, values| [&[0.0; 5], &values[5..]].concat())),
            ("padding-included", with(&right, |_, values| [&values[..values.len() - 6], &[0.0; 6]].concat())),
            ("positive", with(&right, |_, values| values.iter().map(|value| -value).collect())),
            ("constant", with(&right, |_, values| vec![-1.0; values.len()])),
            ("constant", with(&right, |_, values| vec![0.0; values.len()])),
            (
                "vocabulary-range",
                with(&right, |index, values| {
                    let part = |at: usize| 0.02 + 0.3 * chance(index, at).powi(2);
                    values.iter().enumerate().map(|(at, value)| value - part(at)).collect()
                }),
            ),
            ("other-token", swapped(&with(&right, of_other_tokens))),
            (
                "outlier-sequences",
                with(&right, |index, values| {
                    let part = |at: usize| if index == 5 && at > 20 { 4.0 * chance(index, at) } else { 0.0 };
                    values.iter().enumerate().map(|(at, value)| value - part(at)).collect()
                }),
            ),
            (
                "logarithm-base",
                with(&right, |_, values| values.iter().map(|value| value / 10f64.ln()).collect()),
            ),
            (
                "logarithm-base",
                with(&right, |_, values| values.iter().map(|value| value / 2f64.ln()).collect()),
            ),
        ];
        for (name, planted) in &faults {
            let found = judged(planted, "bf16");
            assert_eq!(cause(&found), (Verdict::Fail, *name), "{model}: {:?}", found.findings);
        }
        // In a mixture of experts, flipped experts lower the trainer's log-probabilities of the sampled tokens.
        let open = judged(&with(&right, of_other_tokens), "bf16");
        assert_eq!(cause(&open), (Verdict::Inconclusive, "far-tokens"), "{model}: {:?}", open.findings);
    }
}

#[test]
fn a_shorter_type_than_stated_fails() {
    for model in MODELS {
        let found = judged(&pairs(model, "bf16_cache", "bf16_sdpa"), "f32");
        assert_eq!(cause(&found), (Verdict::Fail, "unexplained-size"), "{model}: {:?}", found.findings);
        let text = json!(found.findings[0])["text"].to_string();
        assert!(text.contains("Rounding of bf16 can be as large"), "{model}: {text}");
        let coarse = with(&pairs(model, "f32_cache", "f32_sdpa"), |_, values| {
            values.iter().map(|&value| f64::from(half::bf16::from_f64(value))).collect()
        });
        let found = judged(&coarse, "f32");
        assert_eq!(cause(&found), (Verdict::Fail, "coarse-numbers"), "{model}: {:?}", found.findings);
        let twin = judged(&pairs(model, "f32_cache", "f32_sdpa"), "f32");
        assert_eq!(cause(&twin), (Verdict::Pass, ""), "{model}");
        // Rounding to decimals is no fault, and its size is known from the digits.
        let decimals = with(&pairs(model, "bf16_cache", "bf16_sdpa"), |_, values| {
            values.iter().map(|value| (value * 100.0).round() / 100.0).collect()
        });
        assert_eq!(cause(&judged(&decimals, "bf16")), (Verdict::Pass, ""), "{model}");
    }
}

/// A log-sum-exp that leaves a rare token out moves few tokens, all to one side.
#[test]
fn differences_to_one_side_are_no_shorter_type() {
    for model in MODELS {
        let right = pairs(model, "f32_cache", "f32_sdpa");
        let moved = |sides: u64| {
            with(&right, |index, values| {
                let rare = |at: usize| 1e-2 * chance(index, at).powi(25);
                let sign = |at: usize| if sides == 2 && chance(at, index) < 0.5 { -1.0 } else { 1.0 };
                values.iter().enumerate().map(|(at, value)| value - sign(at) * rare(at)).collect()
            })
        };
        assert_eq!(cause(&judged(&right, "f32")), (Verdict::Pass, ""), "{model}");
        let found = judged(&moved(1), "f32");
        assert_eq!(cause(&found), (Verdict::Fail, "one-sided"), "{model}: {:?}", found.findings);
        assert_eq!(found.findings[0].values["larger"], "rollout", "{model}");
        let found = judged(&moved(2), "f32");
        assert_ne!(cause(&found), (Verdict::Fail, "one-sided"), "{model}: {:?}", found.findings);
        assert_ne!(found.verdict, Verdict::Pass, "{model}");
    }
}

/// In f32 the error of a softmax's sum has one sign and grows with the vocabulary. It may not fail, and hides no larger
/// fault, none to both sides, and none of a small vocabulary.
#[test]
fn another_order_of_the_softmax_sum_of_a_large_vocabulary_is_inconclusive() {
    for model in MODELS {
        let small = pairs(model, "f32_cache", "f32_sdpa");
        let larger = |id: &Value| json!(id.as_u64().expect("an id") + 151_000);
        let mut large = small.clone();
        for pair in &mut large {
            let ids = pair.fields["tokens"].as_array().expect("ids").iter().map(larger).collect::<Vec<_>>();
            pair.fields.insert("tokens".into(), json!(ids));
        }
        let moved = |of: &[SidePair], size: f64, sides: usize| {
            with(of, |index, values| {
                let sign = |at: usize| if sides == 2 && at % 2 == 1 { -1.0 } else { 1.0 };
                let part = |at: usize| size * sign(at) * (0.5 + 0.5 * chance(index, at));
                values.iter().enumerate().map(|(at, value)| value - part(at)).collect()
            })
        };
        let told = |of: &[SidePair]| {
            let found = judged(of, "f32");
            (found.verdict, found.findings.first().map_or("", |finding| finding.cause) == "softmax-sum")
        };
        assert_eq!(told(&large), (Verdict::Pass, false), "{model}");
        assert_eq!(told(&moved(&large, 2e-3, 1)), (Verdict::Inconclusive, true), "{model}");
        assert_eq!(told(&moved(&small, 2e-3, 1)), (Verdict::Fail, false), "{model}");
        assert_eq!(told(&moved(&large, 2e-3, 2)), (Verdict::Fail, false), "{model}");
        assert_eq!(told(&moved(&large, 5e-2, 1)), (Verdict::Fail, false), "{model}");
    }
}

#[test]
fn nothing_proven_is_no_pass() {
    let right = pairs("tiny-qwen3", "bf16_cache", "bf16_sdpa");
    assert_eq!(cause(&judged(&right, "")), (Verdict::Inconclusive, "unknown-type"));
    assert_eq!(cause(&judged(&right[..2], "bf16")), (Verdict::Inconclusive, "too-few-tokens"));
    // Tokens of probability 1 show no logit error.
    let mut certain = right.clone();
    for (index, pair) in certain.iter_mut().enumerate() {
        pair.rollout = (0..pair.rollout.len()).map(|at| -1e-8 * chance(index, at)).collect();
        pair.trainer = (0..pair.trainer.len()).map(|at| -1e-8 * chance(at, index)).collect();
    }
    assert_eq!(cause(&judged(&certain, "bf16")), (Verdict::Inconclusive, "too-few-tokens"));
    let folder = tempfile::tempdir().expect("a folder");
    let [rollout, _] = written(folder.path(), &right);
    let strangers: Vec<SidePair> = right
        .iter()
        .map(|pair| {
            let mut pair = pair.clone();
            let tokens = pair.fields["tokens"].as_array().expect("tokens").len();
            pair.fields["tokens"] = json!(vec![7; tokens]);
            pair
        })
        .collect();
    let other = tempfile::tempdir().expect("a folder");
    let [_, trainer] = written(other.path(), &strangers);
    let found = judged_files([&rollout, &trainer], [None, None], ["bf16", "bf16"]);
    assert_eq!(cause(&found), (Verdict::Inconclusive, "unmatched"));
    assert_eq!(found.values.compared, 0);
}

#[test]
fn values_that_are_not_compared_keep_the_verdict_open() {
    let right = pairs("tiny-qwen3", "bf16_cache", "bf16_sdpa");
    assert_eq!(cause(&judged(&right, "bf16")), (Verdict::Pass, ""));
    let mut overflowing = right.clone();
    for pair in &mut overflowing {
        (*pair.rollout.last_mut().unwrap(), *pair.trainer.last_mut().unwrap()) = (-1e300, -1e300);
        pair.trainer.iter_mut().take(9).for_each(|logprob| *logprob -= 5.0);
    }
    assert_eq!(cause(&judged(&overflowing, "bf16")), (Verdict::Fail, "infinite"));

    let folder = tempfile::tempdir().expect("a folder");
    let [rollout, trainer] = written(folder.path(), &right);
    let text = fs::read_to_string(&trainer).unwrap();
    let each = |change: &dyn Fn(usize, &mut Value)| {
        let lines = text.lines().enumerate().map(|(index, line)| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            change(index, &mut line);
            line.to_string() + "\n"
        });
        fs::write(&trainer, lines.collect::<String>()).unwrap();
        let dtypes = ["bf16", ""];
        let found = judged_files([&rollout, &trainer], [None, None], dtypes);
        (found.verdict, found.findings.iter().map(|finding| finding.cause).collect::<Vec<_>>())
    };
    let open = (Verdict::Inconclusive, vec!["partly-compared"]);
    assert_eq!(each(&|_, line| line["dtype"] = json!("bf16")), (Verdict::Pass, vec![]));
    let mixed = each(&|index, line| line["dtype"] = json!(if index == 0 { "bf16" } else { "f16" }));
    assert_eq!(mixed, open);
    let prompts = each(&|_, line| {
        line["dtype"] = json!("bf16");
        let prompt = line["prompt_length"].as_u64().unwrap() as usize;
        let unscored = vec![Value::Null; prompt];
        line["logprobs"] = [&unscored[..], line["logprobs"].as_array().unwrap()].concat().into();
        line["prompt_length"] = json!(prompt + 1);
    });
    assert_eq!(prompts, open);
    let unscored = each(&|_, line| {
        line["dtype"] = json!("bf16");
        *line["logprobs"].as_array_mut().unwrap().last_mut().unwrap() = Value::Null;
    });
    assert_eq!(unscored, open);
}

#[test]
fn one_column_is_not_compared_with_itself() {
    let right = pairs("tiny-qwen3", "bf16_cache", "bf16_sdpa");
    let terminal = Terminal::new();
    let [rollout, _] = written(terminal.path(), &right);
    let rollout = rollout.display().to_string();
    let (code, report) = terminal.json(&["gap", &rollout, "--dtype", "bf16"]);
    assert_eq!((code, &report["findings"][0]["cause"]), (3, &json!("partly-compared")), "{report}");
    let detour = terminal.path().join(".").join("rollout.jsonl").display().to_string();
    terminal.assert_refused(&["gap", &rollout, &detour, "--dtype", "bf16"], "is given twice");
}

#[test]
fn sequences_without_tokens_need_the_same_length() {
    let sequence = |count: usize| json!({"logprobs": vec![-0.5; count]}).to_string() + "\n";
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["rollout.jsonl", "trainer.jsonl"].map(|name| folder.path().join(name));
    fs::write(&paths[0], [sequence(30), sequence(20)].concat()).unwrap();
    fs::write(&paths[1], [sequence(9), sequence(8)].concat()).unwrap();
    let found = judged_files([&paths[0], &paths[1]], [None, None], ["f32", "f32"]);
    assert_eq!((found.sequences, found.join.only_rollout, found.verdict), (0, 2, Verdict::Inconclusive));
}

#[test]
fn sequences_in_another_order_are_matched_by_their_tokens() {
    let right = pairs("tiny-qwen3", "bf16_cache", "bf16_sdpa");
    let reversed: Vec<SidePair> = right.iter().rev().cloned().collect();
    let (one, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let [rollout, _] = written(one.path(), &right);
    let [_, trainer] = written(other.path(), &reversed);
    let found = judged_files([&rollout, &trainer], [None, None], ["bf16", "bf16"]);
    assert_eq!((found.verdict, found.sequences, found.join.at_other_index), (Verdict::Pass, 16, 16));
}

#[test]
fn batches_of_libraries_are_read() {
    let wanted = columns("tiny-qwen3", "bf16_cache", "bf16_sdpa");
    for name in ["verl.pt", "nemo_rl.npz", "trl.jsonl"] {
        let path = data(name);
        let found = judged_files([&path, &path], [None, None], ["bf16", "bf16"]);
        assert_eq!(
            (found.verdict, found.sequences, found.values.compared),
            (Verdict::Pass, 6, 240),
            "{name}"
        );
        assert!(found.scale > 0.0 && found.scale < 1.5 * wanted.scale, "{name}");
    }
}

#[test]
fn the_training_effect_is_that_of_torch() {
    let theirs: Value =
        serde_json::from_str(&fs::read_to_string(data("statistics.json")).expect("it ships")).expect("JSON");
    let ours = json!(columns("tiny-qwen3", "bf16_cache", "temperature_0.7").training);
    for (name, value) in theirs.as_object().expect("an object") {
        let (ours, theirs) = (ours[name].as_f64().expect("a number"), value.as_f64().expect("a number"));
        assert!((ours - theirs).abs() <= 1e-9 * theirs.abs(), "{name}: {ours}, expected {theirs}");
    }
}

#[test]
fn the_command_prints_the_verdict_and_its_exit_code() {
    let terminal = Terminal::new();
    let path = data("tiny-qwen3.jsonl").display().to_string();
    let gap =
        |columns: &str, dtype: &str| terminal.run(&["gap", &path, "--columns", columns, "--dtype", dtype]);
    let passed = gap("bf16_cache,bf16_sdpa", "bf16").succeeded();
    assert!(
        passed.starts_with("PASS  the gap is bf16 rounding") && passed.contains("effective sample size"),
        "{passed}"
    );
    let failed = gap("bf16_cache,packed", "bf16");
    assert_eq!(failed.code, 1);
    assert!(failed.stdout.contains("is in 5 sequences (2, 5, 8, 11, 14)"), "{}", failed.stdout);
    let unknown = terminal.run(&["gap", &path, "--columns", "bf16_cache,bf16_sdpa"]);
    assert_eq!(unknown.code, 3, "{}", unknown.stdout);
    let (code, document) =
        terminal.json(&["gap", &path, "--columns", "bf16_cache,temperature_0.7", "--dtype", "bf16"]);
    assert_eq!((code, document["verdict"].as_str()), (1, Some("fail")));
    assert_eq!(document["findings"][0]["cause"], "temperature");
}

#[test]
fn the_page_has_points_of_both_sides_and_the_text_of_the_worst_tokens() {
    let terminal = Terminal::new();
    let path = data("tiny-qwen3.jsonl").display().to_string();
    let words = ["gap", &path, "--columns", "bf16_cache,packed", "--dtype", "bf16", "--html", "gap.html"];
    let words = [&words[..], &["--model", "tiny-qwen3", "--model-tokens", "60"]].concat();
    assert_eq!(terminal.run(&words).code, 1);
    let page = fs::read_to_string(terminal.path().join("gap.html")).expect("it was written");
    assert!(page.contains("<title>xcheck gap FAIL</title>") && !page.contains("{{"));
    let start = page.find("id=\"report\">").expect("there is data") + "id=\"report\">".len();
    let packed = page[start..].split('<').next().expect("it ends");
    let packed = base64::engine::general_purpose::STANDARD.decode(packed.trim()).expect("base64");
    let document: Value =
        serde_json::from_reader(flate2::read::ZlibDecoder::new(&packed[..])).expect("deflated JSON");
    let figure = &document["figure"];
    assert_eq!(figure["points"].as_array().map(Vec::len), Some(640));
    assert_eq!(figure["sequences"].as_array().map(Vec::len), Some(16));
    let worst = figure["worst"].as_array().expect("tokens");
    assert_eq!(worst.len(), 20);
    assert!(worst.iter().all(|token| token["text"].is_string()
        && [2, 5, 8, 11, 14].contains(&token["sequence"].as_u64().unwrap_or(0))));
}

#[test]
fn the_model_tells_which_side_is_off() {
    let terminal = Terminal::new();
    let path = data("tiny-qwen3.jsonl").display().to_string();
    let against = |columns: &str| {
        let words = [
            "gap",
            &path,
            "--columns",
            columns,
            "--dtype",
            "bf16",
            "--model",
            "tiny-qwen3",
            "--model-tokens",
            "600",
        ];
        terminal.json(&words)
    };
    let (code, right) = against("bf16_cache,bf16_sdpa");
    assert_eq!((code, right["model"]["rollout"]["verdict"].as_str()), (0, Some("pass")), "{right}");
    let (code, wrong) = against("bf16_cache,temperature_0.7");
    assert_eq!(code, 1);
    assert_eq!(wrong["model"]["rollout"]["verdict"], "pass");
    assert_eq!(wrong["model"]["trainer"]["findings"][0]["cause"], "temperature");
    let (_, wrong) = against("stale_prefix,bf16_sdpa");
    assert_eq!(wrong["model"]["rollout"]["verdict"], "fail");
    assert_eq!(wrong["model"]["trainer"]["verdict"], "pass");
}

#[test]
fn the_model_applies_the_temperature_that_a_side_states() {
    let terminal = Terminal::new();
    let text = fs::read_to_string(data("tiny-qwen3.jsonl")).expect("it ships");
    let against = |temperature: f64| {
        let lines = text.lines().map(|line| {
            let mut line: Value = serde_json::from_str(line).expect("JSON");
            line["temperature"] = json!(temperature);
            line.to_string() + "\n"
        });
        let path = terminal.path().join("stated.jsonl");
        fs::write(&path, lines.collect::<String>()).expect("written");
        let words = ["gap", "stated.jsonl", "--columns", "temperature_0.7,bf16_sdpa", "--dtype", "bf16"];
        let words = [&words[..], &["--model", "tiny-qwen3", "--model-tokens", "600"]].concat();
        terminal.json(&words).1["model"]["rollout"]["verdict"].clone()
    };
    assert_eq!((against(0.7), against(1.0)), (json!("pass"), json!("fail")));
}

#[test]
fn bad_files_are_refused_in_one_message() {
    let terminal = Terminal::new();
    let good = r#"{"tokens": [1, 2, 3], "logprobs": [null, -0.5, -1.5]}"#;
    let bad: [(&str, &[&str]); 9] = [
        (r#"{"tokens": [1, 2, 3], "logprobs": [null, -0.5"#, &["line 2", "column", "EOF"]),
        (
            r#"{"tokens": [1, 2, 3], "logprobs": [null, NaN, -1.5]}"#,
            &["line 2", "column", "null where not scored"],
        ),
        (r#"{"tokens": [1, 2, 3], "logprobs": "none"}"#, &["line 2", "field `logprobs`", "list of numbers"]),
        (r#"{"tokens": [1, -2, 3], "logprobs": [null, -0.5, -1.5]}"#, &["line 2", "field `tokens`", "u32"]),
        (
            r#"{"tokens": [1, 2, 3], "logprobs": [-0.5, -1.5, -2.5, -3.5]}"#,
            &["line 2", "field `logprobs`", "4 values, expected 3"],
        ),
        (
            r#"{"tokens": [1, 2, 3], "logprobs": [null, -0.5, -1.5], "prompt_length": 9}"#,
            &["line 2", "field `prompt_length`", "9, expected at most 3"],
        ),
        (
            r#"{"tokens": [1, 2, 3], "logprobs": [null, -0.5, -1.5], "mask": [1]}"#,
            &["line 2", "field `mask`", "1 values, expected 3"],
        ),
        (r#"{"tokens": [1, 2, 3]}"#, &["line 2", "no field", "`logprobs`", "--columns"]),
        ("[1, 2]", &["line 2", "expected a JSON object"]),
    ];
    let right = terminal.path().join("right.jsonl");
    fs::write(&right, format!("{good}\n{good}\n")).expect("written");
    for (line, expected) in bad {
        let wrong = terminal.path().join("wrong.jsonl");
        fs::write(&wrong, format!("{good}\n{line}\n")).expect("written");
        terminal.run(&["gap", "wrong.jsonl", "right.jsonl"]).refused(expected);
    }
    terminal.run(&["gap", "right.jsonl", "right.jsonl"]).refused(&["given twice", "--columns"]);
    terminal.run(&["gap", "right.jsonl", "missing.jsonl"]).refused(&["missing.jsonl"]);
    terminal.run(&["gap", "right.jsonl", "--columns", "one"]).refused(&["--columns", "ROLLOUT,TRAINER"]);
    terminal.run(&["gap", "right.jsonl", "--columns", "a,b"]).refused(&["line 1", "no field `a`"]);
    terminal
        .run(&["gap", "right.jsonl", "--columns", "a,b", "--dtype", "int3"])
        .refused(&["--dtype int3", "f32, f16, bf16"]);
    terminal.run(&["gap", "right.jsonl", "--columns", "a,b", "--clip", "0"]).refused(&["--clip 0"]);
    fs::write(terminal.path().join("empty.jsonl"), "\n").expect("written");
    terminal.run(&["gap", "empty.jsonl", "right.jsonl"]).refused(&["no sequences"]);
    fs::write(terminal.path().join("rollout.parquet"), "PAR1\u{15}\u{4}PAR1").expect("written");
    terminal
        .run(&["gap", "rollout.parquet", "right.jsonl"])
        .refused(&["rollout.parquet", "the end is missing"]);
    fs::write(terminal.path().join("list.json"), "[{}]").expect("written");
    terminal.run(&["gap", "list.json", "right.jsonl"]).refused(&["JSON list", "one object in a line"]);
}
