//! llama.cpp with flash attention, as its CPU backend computes it: dumps of a real run (tests/data/flash/README.md).

use crate::common::terminal::Terminal;
use serde_json::Value;

/// A prompt of 12 tokens, of which values are added up in f16, and two passes of one, with a cache of either type; and one of
/// 64, in tiles.
const DUMPS: [(&str, &str); 3] = [
    ("checkpoints/tiny-llama3/tiny-llama3-f32.gguf", "tests/data/flash/tiny-llama3-f32.safetensors"),
    (
        "checkpoints/tiny-llama3/tiny-llama3-f32.gguf",
        "tests/data/flash/tiny-llama3-f32-f32-cache.safetensors",
    ),
    ("checkpoints/tiny-gpt2/tiny-gpt2-f32.gguf", "tests/data/flash/tiny-gpt2-f32-tiled.safetensors"),
];

fn here(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn judged(model: &str, dump: &str, more: &[&str]) -> (i32, Value) {
    let (model, dump) = (here(model), dump.to_owned());
    let arguments = ["run", "--model", &model, "--reference", &dump, "--no-report"];
    let (code, mut report) = Terminal::new().json(&[&arguments, more].concat());
    (code, report["references"][0].take())
}

#[test]
fn the_values_of_a_real_flash_attention_run_are_computed_again() {
    for (model, dump) in DUMPS {
        let (code, found) = judged(model, &here(dump), &[]);
        assert_eq!(code, 0, "{dump}: {found:#}");
        assert_eq!(found["numerics"], "llama.cpp-flash", "{dump}");
        let rows = found["results"].as_array().expect("rows");
        let contexts: Vec<&Value> = rows.iter().filter(|row| row["tap"] == "attn_context").collect();
        assert!(!contexts.is_empty(), "{dump}");
        for row in contexts {
            let error = row["local"]["rel_l2"].as_f64().expect("it was compared");
            // Half a unit in the last place of f16 is 5e-4: nothing was rounded otherwise but here and there.
            assert!(error < 1e-4, "{dump}: {row:#}");
        }
    }
}

#[test]
fn without_flash_attention_the_same_is_further_off_and_still_explained() {
    let (model, dump) = DUMPS[0];
    let terminal = Terminal::new();
    let plain = terminal.path().join("plain.safetensors").display().to_string();
    let made = ["dump", "--model", &here(model), "--tokens", "1,393,395,260,394,486,263", "--decode", "2"];
    let numerics = ["--numerics", "llama.cpp", "--out", &plain];
    assert_eq!(terminal.run(&[&made[..], &numerics[..]].concat()).code, 0);
    let (code, found) = judged(model, &plain, &["--numerics", "llama.cpp-flash"]);
    assert_eq!(code, 0, "{dump}: {found:#}");
    let rows = found["results"].as_array().expect("rows");
    let contexts = rows.iter().filter(|row| row["tap"] == "attn_context");
    let far = contexts.filter(|row| row["local"]["rel_l2"].as_f64() > Some(1e-4)).count();
    assert!(far > 0, "f16 sums are not seen: {found:#}");
}

#[test]
fn a_fault_beside_flash_attention_fails() {
    let (model, _) = DUMPS[0];
    for change in ["attn_scale=1", "rope_theta=10000", "mask_causal=strict"] {
        let terminal = Terminal::new();
        let wrong = terminal.path().join("wrong.safetensors").display().to_string();
        let made =
            ["dump", "--model", &here(model), "--tokens", "1,393,395,260,394,486,263", "--decode", "2"];
        let how = ["--numerics", "llama.cpp-flash", "--suppose", change, "--out", &wrong];
        let done = terminal.run(&[&made[..], &how[..]].concat());
        assert_eq!(done.code, 0, "{change}: {}", done.stderr);
        let (code, found) = judged(model, &wrong, &["--numerics", "llama.cpp-flash"]);
        assert_eq!(code, 1, "{change}: {found:#}");
    }
}
