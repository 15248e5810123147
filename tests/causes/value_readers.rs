//! Causes that are read from values: rows that were not written, hidden keys, shards of fused matrices, groups of
//! quantised weights, factors of rotated values. Each is planted in several models and types; the same engine without
//! the fault passes.

use std::path::Path;

use serde_json::Value;

use crate::common::architecture;
use crate::common::share::{one_of, pairs};
use crate::common::terminal::Terminal;

/// A model of the test data, with the type that its engine computes in.
type Engine = (&'static str, &'static str);

/// Dumps an engine with a fault, and judges the dump.
fn judged((model, dtype): Engine, supposed: &[&str]) -> (i32, Value) {
    let at = |folder: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let folders = [
        at("checkpoints").join(model).join("hf"),
        architecture(model).join("hf"),
        at("tests/data/quantised").join(model),
    ];
    let model = folders.iter().find(|folder| folder.is_dir()).expect("it is in the test data");
    let model = model.to_str().expect("a plain path");
    let terminal = Terminal::new();
    let faults: Vec<&str> = supposed.iter().flat_map(|one| ["--suppose", one]).collect();
    let tokens = "1,33,45,26,9,46,23,5,31,17,20,7,12,40";
    let options = ["--numerics", "transformers", "--dtype", dtype, "--tokens", tokens, "--decode", "3"];
    let dumped =
        terminal.run(&[&["dump", "--model", model, "--out", "d"], &options[..], &faults[..]].concat());
    assert_eq!(dumped.code, 0, "{model}, {supposed:?}: {}", dumped.stderr);
    terminal.json(&["check", "--model", model, "--candidate", "d", "--no-report", "--causes-limit", "none"])
}

/// Demands that a fault is the only cause, that a run confirms it, and that the engine without it passes.
fn assert_read(engines: &[Engine], supposed: &str) {
    for &engine in engines {
        let (code, report) = judged(engine, &[supposed]);
        let findings = report["references"][0]["findings"].as_array().cloned().unwrap_or_default();
        let [finding] = findings.as_slice() else { panic!("{engine:?}, {supposed}: {findings:#?}") };
        assert_eq!((code, &finding["supposed"]), (1, &supposed.into()), "{engine:?}: {finding:#}");
        assert_eq!(finding["confirmed"], "pass", "{engine:?}, {supposed}: {finding:#}");
        let (code, report) = judged(engine, &[]);
        let twin = &report["references"][0];
        assert_eq!((code, &twin["findings"]), (0, &Value::Array(Vec::new())), "{engine:?}: {twin:#}");
    }
}

#[test]
fn a_change_of_some_taps_is_named_with_them() {
    let scale = "weight_scale@attn_out=0.5 and weight_scale@ffn_out=0.5";
    let fused = "fused_order@ffn_gate=concatenated:2 and fused_order@ffn_up=concatenated:2";
    let engines = [("tiny-llama2", "f32"), ("tiny-qwen2", "bf16")];
    for (engine, typed) in one_of(2, pairs(engines, [scale, fused])) {
        let (code, report) = judged(engine, &typed.split(" and ").collect::<Vec<_>>());
        let finding = &report["references"][0]["findings"][0];
        assert_eq!((code, &finding["supposed"]), (1, &typed.into()), "{engine:?}: {finding:#}");
        assert_eq!(finding["confirmed"], "pass", "{engine:?}: {finding:#}");
    }
}

#[test]
fn keys_that_no_query_sees_are_named() {
    let engines = [("tiny-llama2", "f32"), ("tiny-mistral", "bf16")];
    assert_read(&engines, "mask_causal=without-latest:1");
    assert_read(&engines, "mask_causal=without:5-6");
}

#[test]
fn rows_that_were_not_written_are_named() {
    assert_read(&[("tiny-llama3", "f32"), ("tiny-qwen2", "bf16")], "row_source@ffn_up=zero:12-13");
}

/// A run with the cause has zeros on both sides, which are no evidence.
#[test]
fn experts_that_are_not_added_are_named() {
    for engine in [("tiny-qwen2moe", "f32"), ("tiny-qwen2moe", "bf16")] {
        let (code, report) = judged(engine, &["expert_weights@routed_out=zero"]);
        let finding = &report["references"][0]["findings"][0];
        assert_eq!(
            (code, &finding["supposed"]),
            (1, &"expert_weights=zero".into()),
            "{engine:?}: {finding:#}"
        );
        assert_eq!(finding["confirmed"], "inconclusive", "{engine:?}: {finding:#}");
    }
}

#[test]
fn shards_of_fused_projections_are_named() {
    assert_read(&[("tiny-llama2", "f32"), ("tiny-qwen2", "bf16")], "fused_order@ffn_up=concatenated:2");
}

#[test]
fn factors_of_rotated_values_and_other_ramps_of_yarn_are_named() {
    assert_read(&[("tiny-llama-yarn", "f32"), ("tiny-llama-yarn", "bf16")], "rope_scaling=truncated");
    assert_read(&[("tiny-llama-yarn", "f32"), ("tiny-qwen2", "f32")], "rope_scaling=magnitude:1.25");
}

#[test]
fn keys_that_are_rotated_in_the_cache_are_named() {
    assert_read(&[("tiny-llama2", "f32"), ("tiny-qwen2", "bf16")], "cache_rotation=stored-twice@pass-1");
}

#[test]
fn groups_of_quantised_checkpoints_are_named() {
    for word in ["zero-1", "zero+1", "next-in-row", "row-after"] {
        assert_read(&[("gptq", "f32"), ("w4a16", "f32")], &format!("weight_groups={word}"));
    }
    assert_read(&[("gptq", "bf16"), ("w4a16", "bf16")], "weight_groups=zero-1");
    assert_read(&[("fp8", "f32"), ("fp8", "bf16")], "weight_groups=transposed");
    assert_read(&[("gptq", "f32"), ("w4a16", "bf16")], "weight_layout=words-reversed");
}

#[test]
fn sums_that_are_squared_twice_and_logits_as_expert_weights_are_named() {
    assert_read(&[("tiny-llama3", "f32"), ("tiny-qwen2", "bf16")], "norm_variance=squared-twice:32");
    assert_read(&[("tiny-qwen2moe", "f32"), ("tiny-mixtral", "bf16")], "expert_weights=logits");
}

#[test]
fn tokens_of_another_prompt_fail_with_their_difference() {
    let prompt = "Once upon a time, there was";
    let tokens = "393,395,260,394,486,263,305,315";
    for (begins, code, kind) in [
        ("1,", 0, None),
        ("1,1,", 1, Some("tokens_bos")),
        ("", 1, Some("tokens_bos")),
        ("1,7,", 1, Some("tokens_prompt")),
    ] {
        let terminal = Terminal::new();
        let read = format!("{begins}{tokens}");
        let dumped = terminal.run(&["dump", "--model", "tiny-llama2", "--tokens", &read, "--out", "d"]);
        assert_eq!(dumped.code, 0, "{}", dumped.stderr);
        let check =
            ["check", "--model", "tiny-llama2", "--candidate", "d", "--no-report", "--prompt", prompt];
        let (found, report) = terminal.json(&check);
        let reference = &report["references"][0];
        assert_eq!((found, reference["findings"][0]["kind"].as_str()), (code, kind), "{reference:#}");
    }
}
