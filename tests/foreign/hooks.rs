//! What hooks saved (reference-scripts/dump/hook_everything.py, and engines/ of vLLM and SGLang), by the commands that a person
//! types.

use std::fs;
use std::path::PathBuf;

use crate::common::architecture;
use crate::common::terminal::Terminal;

const TOKENS: &str = "1,5,9,12,3,7";

fn hooked(model: &str) -> String {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "tests/data/foreign", &format!("{model}-hooked.pt")].iter().collect();
    path.display().to_string()
}

#[test]
fn what_hooks_saved_is_judged_without_a_word() {
    for model in ["tiny-qwen3", "tiny-gemma3", "tiny-gpt2"] {
        let terminal = Terminal::new();
        let (code, report) =
            terminal.json(&["check", "--model", model, "--candidate", &hooked(model), "--tokens", TOKENS]);
        assert_eq!(code, 0, "{model}: {report}");
        let notes = report.to_string();
        assert!(notes.contains("read with the map transformers"), "{model}: {notes}");
    }
}

/// The same modules have other values where an architecture multiplies, caps or norms elsewhere.
#[test]
fn what_hooks_saved_of_other_architectures_is_judged_by_what_it_is_there() {
    let of_models: [(&str, &[&str], &[&str]); 3] = [
        ("tiny-gemma2", &["embed", "attn_post_norm", "ffn_norm", "ffn_post_norm"], &["logits"]),
        ("tiny-olmo2", &["q_norm", "k_norm", "attn_post_norm", "ffn_post_norm", "logits"], &["ffn_norm"]),
        ("tiny-granite", &["attn_norm", "ffn_norm", "final_norm"], &["embed", "logits"]),
    ];
    for (model, held, not_held) in of_models {
        let files = architecture(model).join("hf").display().to_string();
        let words = ["check", "--model", &files, "--candidate", &hooked(model), "--tokens", TOKENS];
        let (code, report) = Terminal::new().json(&words);
        assert_eq!(code, 0, "{model}: {report}");
        let rows = report["references"][0]["results"].as_array().expect("rows");
        let has = |tap: &&&str| rows.iter().any(|row| row["tap"] == **tap && row["verdict"] == "pass");
        assert!(held.iter().all(|tap| has(&tap)), "{model}: {report}");
        assert!(!not_held.iter().any(|tap| has(&tap)), "{model}: {report}");
    }
}

/// What real vLLM and SGLang gave, with the maps made for them. One module of RoPE serves all layers there, so under each
/// layer's name is what the last one had: a map that takes it for the layer's must fail.
#[test]
fn what_vllm_and_sglang_gave_is_judged_and_rope_under_a_layers_name_is_not() {
    for engine in ["vllm", "sglang"] {
        let (terminal, file) = (Terminal::new(), hooked("tiny-qwen3").replace("hooked", engine));
        let words = ["check", "--model", "tiny-qwen3", "--candidate", &file];
        let (code, report) = terminal.json(&[&words[..], &["--map", engine]].concat());
        assert_eq!(code, 0, "{engine}: {report}");
        let shipped = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("judge/maps/{engine}.toml"));
        let map = fs::read_to_string(shipped).expect("it is there").replace("\"*rotary_emb*\", ", "");
        let rule = "\n[[rule]]\nname = \"layers.{layer}.self_attn.rotary_emb.0\"\ntap = \"q_rope\"\n";
        fs::write(terminal.path().join("wrong.toml"), map + rule).expect("it is written");
        let (code, report) = terminal.json(&[&words[..], &["--map", "wrong.toml", "--no-causes"]].concat());
        assert_eq!(code, 1, "{engine}: {report}");
    }
}

/// A mixture's router gives logits, weights and numbers: each has its place, and those of another layer are no rounding.
#[test]
fn what_a_moe_router_passes_on_is_judged_and_another_layers_is_not() {
    let (terminal, file) = (Terminal::new(), hooked("tiny-qwen3moe"));
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let model = architecture("tiny-qwen3moe").join("hf").display().to_string();
    let words = ["check", "--model", &model, "--candidate", &file, "--tokens", TOKENS];
    let (code, report) = terminal.json(&words);
    assert_eq!(code, 0, "{report}");
    let rows = report["references"][0]["results"].as_array().expect("rows");
    for tap in ["router_logits", "expert_weights", "experts"] {
        let compared = rows.iter().filter(|row| row["tap"] == tap && row["verdict"] == "pass");
        assert_eq!(compared.count(), 2, "{tap} of two layers: {report}");
    }
    let map = fs::read_to_string(root.join("judge/maps/transformers.toml")).expect("it is there");
    let right = "name = \"layers.{layer}.mlp.gate.0\"\ntap = \"router_logits\"";
    let wrong = "name = \"layers.1.mlp.gate.0\"\ntap = \"router_logits\"\nlayer = 0";
    assert!(map.contains(right), "{map}");
    fs::write(terminal.path().join("wrong.toml"), map.replace(right, wrong)).expect("it is written");
    let (code, report) = terminal.json(&[&words[..], &["--map", "wrong.toml"]].concat());
    assert_eq!(code, 1, "{report}");
}

#[test]
fn audit_run_inspect_and_compare_take_it_too() {
    let (terminal, file) = (Terminal::new(), hooked("tiny-qwen3"));
    let with = ["--map", "transformers", "--tokens", TOKENS];
    let run = |words: &[&str]| terminal.run(&[words, &with].concat());
    for words in [
        ["audit", &file, "--model", "tiny-qwen3"].as_slice(),
        &["run", "--model", "tiny-qwen3", "--reference", &file],
        &["inspect", &file, "--model", "tiny-qwen3"],
        &["compare", &file, &file, "--model", "tiny-qwen3"],
    ] {
        let finished = run(words);
        assert_eq!(finished.code, 0, "{words:?}: {}{}", finished.stdout, finished.stderr);
    }
}

/// Two files whose names have other meanings: neither is to be read by the map of the other.
#[test]
fn of_several_maps_each_file_has_the_one_that_places_most_of_it() {
    let (terminal, file) = (Terminal::new(), hooked("tiny-qwen3"));
    let other = file.replace("hooked", "vllm");
    let compared = |maps: &[&str]| {
        let named: Vec<&str> = maps.iter().flat_map(|map| ["--map", map]).collect();
        // Without a model, how many heads there are is not known.
        let of_heads = ["--ignore", "*.self_attn.*_proj", "--ignore", "*.self_attn.qkv_proj*"];
        terminal
            .json(&[&["compare", &file, &other, "--tokens", TOKENS], named.as_slice(), &of_heads].concat())
    };
    for maps in [["transformers", "vllm"], ["vllm", "transformers"]] {
        let (code, report) = compared(&maps);
        assert_eq!(code, 0, "{maps:?}: {report}");
        let notes = report["references"][0]["notes"].to_string();
        assert!(maps.iter().all(|map| notes.contains(&format!("read with the map {map}"))), "{notes}");
    }
    let both = ["--map", "transformers", "--map", "vllm"];
    let words = [&["compare", &file, &other, "--tokens", TOKENS], &both[..]].concat();
    assert_eq!(terminal.json(&words).0, 3, "queries and keys were not compared");
    let (code, report) = compared(&["transformers"]);
    assert_eq!(code, 1, "names of vLLM have other meanings: {report}");
    let words = ["compare", &file, &other, "--tokens", TOKENS, "--map", "candle", "--map", "llama.cpp"];
    terminal.assert_refused(&words, "none of the given maps matches half");
}

#[test]
fn identify_tells_every_module_and_its_map_reads_the_file() {
    for (model, untold) in [("tiny-qwen3", 5), ("tiny-gemma3", 12), ("tiny-gpt2", 2)] {
        let (terminal, file) = (Terminal::new(), hooked(model));
        let words = ["identify", &file, "--model", model, "--tokens", TOKENS, "--map-out", "found.toml"];
        let finished = terminal.run(&[words.as_slice(), &["--format", "json"]].concat());
        let rows: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
        let rows = rows.as_array().expect("a list");
        let none: Vec<&str> =
            rows.iter().filter(|row| row["tap"].is_null()).filter_map(|row| row["name"].as_str()).collect();
        // What has no tap: tables of RoPE, the activation without its product, GPT-2's two embeddings.
        let is_no_tap = |name: &&str| {
            name.contains("rotary_emb")
                || name.ends_with("act_fn")
                || name.contains(".wte")
                || name.contains(".wpe")
        };
        assert!(none.iter().all(is_no_tap) && none.len() <= untold, "{model}: {none:?}");
        assert_eq!(finished.code, if none.is_empty() { 0 } else { 3 }, "{model}");
        let map = fs::read_to_string(terminal.path().join("found.toml")).expect("it was written");
        assert!(map.contains("{layer}"), "{map}");
        let (code, report) =
            terminal.json(&["check", "--model", model, "--candidate", &file, "--map", "found.toml"]);
        assert_eq!(code, 0, "{model}: {report}\n{map}");
        let notes = report.to_string();
        assert!(notes.contains("read with the map") && !notes.contains("match no array"), "{notes}\n{map}");
    }
}

#[test]
fn a_map_that_cannot_be_written_is_told_before_the_work() {
    let (terminal, file) = (Terminal::new(), hooked("tiny-qwen3"));
    let words = |out| ["identify", &file, "--model", "tiny-qwen3", "--tokens", TOKENS, "--map-out", out];
    terminal.assert_refused(&words("nowhere/found.toml"), "nowhere/found.toml");
    fs::write(terminal.path().join("mine.toml"), "mine").expect("it is written");
    terminal.assert_refused(&words("mine.toml"), "already exists");
    let left = fs::read_dir(terminal.path()).expect("it is there").count();
    assert_eq!(left, 1, "nothing is left behind");
}

#[test]
fn a_module_of_another_layer_is_a_divergence() {
    let (terminal, file) = (Terminal::new(), hooked("tiny-qwen3"));
    fs::write(
        terminal.path().join("wrong.toml"),
        "architecture = \"qwen3\"\n[[rule]]\nname = \"model.layers.{layer}\"\ntap = \"block_out\"\n[[rule]]\nname = \"model.layers.2.input_layernorm\"\ntap = \"attn_norm\"\nlayer = 1\n",
    )
    .expect("it is written");
    let finished = terminal.run(&[
        "check",
        "--model",
        "tiny-qwen3",
        "--candidate",
        &file,
        "--map",
        "wrong.toml",
        "--tokens",
        TOKENS,
        "--no-report",
    ]);
    assert_eq!(finished.code, 1, "{}", finished.stdout);
}

#[test]
fn other_tokens_than_those_that_were_read_are_what_is_asked_about() {
    let terminal = Terminal::new();
    let file = hooked("tiny-qwen3");
    let command = ["check", "--model", "tiny-qwen3", "--candidate", &file, "--no-report", "--tokens"];
    let told = "45 array names match the map transformers, but their shapes do not";
    terminal.assert_refused(&[&command[..], &["1,5"]].concat(), told);
    assert_eq!(terminal.run(&[&command[..], &[TOKENS]].concat()).code, 0);
}
