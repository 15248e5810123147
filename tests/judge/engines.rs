//! Dumps by engines that nobody of this project wrote: the right ones never fail, the wrong ones do, and where taps are
//! held, at the tap that is wrong. `tests/data/engines/README.md` says which are which, and how that was found out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use xcheck::check::{Mode, Role};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{Scene, of_pass, site, told};
use crate::common::terminal::Terminal;

/// Right, by arithmetic that nobody here reproduces: one rounds activations to 8 bits in its own way, which its manifest
/// does not tell, as does another of all that it is given, the others weights that are f32 in the file, and say so.
const OPEN: [(&str, &str); 4] = [
    ("tiny-llama2/candle-gguf-q8_0", "tiny-llama2-q8_0"),
    ("tiny-llama2/ctranslate2-int8", "tiny-llama2"),
    ("tiny-llama2/mistralrs-gguf-q8_0", "tiny-llama2-q8_0"),
    ("tiny-qwen3/onnxruntime-int8-older-keys", "tiny-qwen3"),
];

/// It has an f16 cache and says so, and queries and results of attention in f16, of which it says nothing.
const SHORT: &str = "tiny-qwen3/mistralrs-f32-older-keys";

const RIGHT: &[&str] = &[
    "tiny-llama2/mlx-lm-f32",
    "tiny-llama2/mlx-lm-f32-one-by-one",
    "tiny-llama2/mlx-lm-bf16",
    "tiny-llama2/candle-f32",
    "tiny-llama2/candle-f32-one-by-one",
    "tiny-llama2/candle-bf16",
    "tiny-llama2/ctranslate2-f32",
    "tiny-llama2/transformers-sdpa-f32",
    "tiny-llama2/transformers-sdpa-bf16",
    "tiny-llama2/transformers-tp4-bf16",
    "tiny-llama3/transformers-autocast-bf16",
    "tiny-qwen3/transformers-autocast-f16",
    "tiny-gemma3/transformers-autocast-bf16",
    "tiny-gemma3/transformers-compiled-bf16",
    "tiny-qwen3/transformers-compiled-f16",
    "tiny-llama2/vllm-tp4-bf16",
    "tiny-qwen3/vllm-tp2-f16",
    "tiny-llama3/mlx-lm-f32-older-keys",
    "tiny-llama3/candle-f32-older-keys",
    "tiny-llama3/candle-bf16-older-keys",
    "tiny-qwen3/candle-f32-older-keys",
    "tiny-qwen3/ctranslate2-f32",
    "tiny-gemma3/mlx-lm-bf16",
    "tiny-gpt2/onnxruntime-f32",
    "tiny-gemma3/onnxruntime-f32",
    "tiny-llama3/onnxruntime-f32-older-keys",
    "tiny-llama3/onnxruntime-f32-older-keys-off",
    "tiny-llama3/onnxruntime-f32-older-keys-exp",
    "tiny-qwen3/vllm-f32",
    "tiny-qwen3/vllm-bf16",
    "tiny-qwen3/sglang-bf16",
    "tiny-qwen3/sglang-f32",
    "tiny-qwen3/mistralrs-f32-older-keys-kv-f32",
    "tiny-llama2/mistralrs-bf16-older-keys",
];

/// With the first value that is wrong, of those that the dump holds.
const WRONG: &[(&str, Site)] = &[
    ("tiny-llama3/mlx-lm-f32", site(Point::QRope, 0, 0)),
    ("tiny-llama3/candle-f32", of_pass(Point::LastLogits, 0)),
    ("tiny-llama3/candle-bf16", of_pass(Point::LastLogits, 0)),
    ("tiny-llama3/candle-gguf-f32", of_pass(Point::LastLogits, 0)),
    ("tiny-llama3/ctranslate2-f32", of_pass(Point::Logits, 0)),
    ("tiny-llama3/onnxruntime-f32", site(Point::QRope, 0, 0)),
    ("tiny-gemma3/candle-f32-older-keys", of_pass(Point::LastLogits, 0)),
    ("tiny-gemma3/candle-gguf-f32", of_pass(Point::LastLogits, 0)),
    ("tiny-gemma3/mlx-lm-f32", of_pass(Point::Embed, 0)),
    ("tiny-qwen3/candle-gguf-f32", of_pass(Point::LastLogits, 0)),
];

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engines")
}

fn scene(name: &str) -> Scene {
    let (model, _) = name.split_once('/').expect("a folder and a file");
    let file = home().join(format!("{name}.safetensors"));
    Scene::of(model, Dump::open(&file).expect("it is a sound dump"))
}

/// Whether our engine or theirs is what is judged.
fn both_ways(scene: &Scene) -> [Outcome; 2] {
    [Role::Candidate, Role::Reference].map(|role| scene.judge_dump(&scene.dump, Mode::Both, role, &mut ()))
}

#[test]
fn every_dump_is_in_one_of_the_lists() {
    let listed = RIGHT.iter().chain(WRONG.iter().map(|(name, _)| name)).copied();
    let listed = listed.chain(OPEN.map(|(name, _)| name)).chain([SHORT]);
    let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
    let mut there = BTreeSet::new();
    for folder in std::fs::read_dir(home()).expect("it can be listed") {
        let folder = folder.expect("it can be listed").path();
        for file in folder.read_dir().into_iter().flatten() {
            let file = file.expect("it can be listed").path();
            let [folder, file] = [folder.file_name(), file.file_stem()]
                .map(|name| name.expect("a name").to_string_lossy().into_owned());
            there.insert(format!("{folder}/{file}"));
        }
    }
    assert_eq!(there, listed);
}

#[test]
fn what_another_engine_has_right_never_fails() {
    for name in RIGHT {
        let scene = scene(name);
        for outcome in both_ways(&scene) {
            assert_ne!(
                outcome.verdict,
                Verdict::Fail,
                "{name} {}: {}",
                outcome.subject.role.name(),
                told(&outcome)
            );
            assert!(outcome.coverage.taps_compared > 0, "{name}");
        }
    }
}

/// What has all its taps in f32 leaves nothing open.
#[test]
fn what_is_right_in_f32_and_holds_its_taps_everywhere_passes() {
    let mut judged = 0;
    for name in RIGHT.iter().filter(|name| name.contains("f32")) {
        let scene = scene(name);
        let points = scene.dump.points();
        let passes = scene.dump.manifest.passes.len();
        let holds = |point| (0..passes).all(|pass| scene.dump.holds(of_pass(point, pass)));
        if points.contains(&Point::Logits) && !holds(Point::Logits) {
            continue;
        }
        judged += 1;
        for outcome in both_ways(&scene) {
            assert_eq!(
                outcome.verdict,
                Verdict::Pass,
                "{name} {}: {}",
                outcome.subject.role.name(),
                told(&outcome)
            );
        }
    }
    assert_eq!(judged, 15, "three have the logits of some passes alone");
}

#[test]
fn what_another_engine_has_wrong_fails_where_it_is_wrong_whoever_is_judged() {
    for (name, first) in WRONG {
        for outcome in both_ways(&scene(name)) {
            let found = outcome.first_divergence().map(|row| row.site);
            assert_eq!(found, Some(*first), "{name} {}: {}", outcome.subject.role.name(), told(&outcome));
            assert_eq!(outcome.verdict, Verdict::Fail, "{name}");
        }
    }
}

/// A dump that holds logits of an arithmetic of 8 bits that nobody reproduces shows too little: no fault is shown, nor that there is
/// none.
#[test]
fn what_computes_in_fewer_bits_than_is_known_is_inconclusive() {
    for (name, model) in OPEN {
        let file = home().join(format!("{name}.safetensors")).display().to_string();
        let (code, report) =
            Terminal::new().json(&["check", "--model", model, "--candidate", &file, "--no-report"]);
        let reason = report["references"][0]["reason"].to_string();
        assert_eq!(code, 3, "{name}: {reason}");
        assert!(reason.contains("8-bit integers"), "{name}: {reason}");
    }
}

/// What only a type explains of which a dump says nothing is told and does not pass; if it says so, it passes, and a fault
/// does not.
#[test]
fn attention_in_the_dtype_of_the_kv_cache_must_be_stated() {
    let scene = scene(SHORT);
    let judged = |rounding: Value, suppose: &[&str]| {
        let clay = Clay::of(&scene.dump).say(|manifest| manifest["producer"]["rounding"] = rounding.clone());
        let home = tempfile::tempdir().expect("a temporary directory");
        let path = home.path().join("dump.safetensors");
        clay.save(&path);
        let path = path.display().to_string();
        let check = ["check", "--model", "tiny-qwen3", "--candidate", &path, "--no-report"];
        Terminal::new().json(&[&check, suppose].concat())
    };
    let (code, report) = judged(Value::Null, &[]);
    assert_eq!(code, 3, "{}", report["references"][0]["reason"]);
    let reason = report["references"][0]["reason"].to_string();
    assert!(reason.contains("only if attention is computed in f16 like the cache"), "{reason}");
    let stated = json!({"queries": "f16", "attention": "f16"});
    let (code, report) = judged(stated.clone(), &[]);
    assert_eq!(code, 0, "{}", report["references"][0]["reason"]);
    for rounding in [Value::Null, stated] {
        let (code, report) = judged(rounding, &["--suppose", "rope_theta=900000"]);
        assert_eq!(code, 1, "{}", report["references"][0]["reason"]);
    }
}

#[test]
fn int8_products_excuse_no_other_rope() {
    // As CTranslate2's weights of 8 bits are told of in a manifest, and with the scaling of RoPE left out.
    let home_of_copy = tempfile::tempdir().expect("a temporary directory");
    let copy = home_of_copy.path().join("int8.safetensors");
    let bytes = std::fs::read(home().join("tiny-llama3/ctranslate2-f32.safetensors")).expect("it is there");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).expect("JSON");
    let stated = header.replace(r#"\"dtype\": \"f32\""#, r#"\"dtype\": \"f32\", \"weights\": \"int8\""#);
    assert_ne!(stated, header, "the settings say the dtype");
    let stated = stated.clone() + &" ".repeat(stated.len().next_multiple_of(8) - stated.len());
    let changed = [&(stated.len() as u64).to_le_bytes(), stated.as_bytes(), &bytes[8 + length..]].concat();
    std::fs::write(&copy, changed).expect("it is written");
    let candidate = copy.display().to_string();
    let (code, report) =
        Terminal::new().json(&["check", "--model", "tiny-llama3", "--candidate", &candidate, "--no-report"]);
    assert_eq!(code, 1, "{}", report["references"][0]["reason"]);
}

/// What an engine does in its own way excuses what comes of that, and no more.
#[test]
fn an_arithmetic_of_its_own_excuses_nothing_beside_it() {
    let next = |value: &mut f64| *value = f64::from(f32::from_bits((*value as f32).to_bits() + (1 << 16)));
    let larger = |value: &mut f64| *value *= 1.0 + 1e-5;
    type Change<'c> = &'c dyn Fn(&mut f64);
    let changed: [(&str, Point, Change); 3] = [
        ("tiny-qwen3/vllm-bf16", Point::FfnNorm, &next),
        ("tiny-qwen3/sglang-bf16", Point::FfnNorm, &next),
        ("tiny-llama3/onnxruntime-f32-older-keys", Point::FfnAct, &larger),
    ];
    for (name, point, change) in changed {
        let (scene, place) = (scene(name), site(point, 1, 0));
        let largest = |values: &mut Vec<f64>| {
            change(values.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs())).expect("a value"));
        };
        let dump = Clay::of(&scene.dump).edit(place, largest).dump();
        let outcome = scene.judge_dump(&dump, Mode::Local, Role::Candidate, &mut ());
        assert_eq!(outcome.first_divergence().map(|row| row.site), Some(place), "{name}: {}", told(&outcome));
    }
}
