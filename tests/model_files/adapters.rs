//! LoRA adapters of peft, against the logits of peft.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use xcheck::format::Disk;
use xcheck::model::{AdapterFiles, LoadedModel, ModelFiles};
use xcheck::{Error, error::Result};

use super::{Cases, assert_close, folder_with, last_logits, read_cases, root, with};
use crate::common::terminal::Terminal;

const BASE: &str = "checkpoints/tiny-llama2/hf";

fn adapter(name: &str) -> std::path::PathBuf {
    root("tests/data/model-files/adapter").join(name)
}

fn load_with(adapter: &Path) -> Result<LoadedModel> {
    let files = ModelFiles::open(&root(BASE))?;
    files.with_adapter(AdapterFiles::open(&Disk, adapter)?)?.load()
}

/// A copy of the plain adapter with other settings.
fn changed(changes: &Value) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let config = with(super::json(&adapter("plain").join("adapter_config.json")), changes);
    fs::write(folder.path().join("adapter_config.json"), config.to_string()).expect("it is written");
    let weights = "adapter_model.safetensors";
    fs::copy(adapter("plain").join(weights), folder.path().join(weights)).expect("it is committed");
    folder
}

fn refusal(loaded: Result<LoadedModel>) -> String {
    match loaded {
        Ok(_) => panic!("it must be refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn lora_adapters_have_the_logits_of_peft() {
    let Cases { tokens, cases, .. } = read_cases();
    let mut compared = 0;
    for case in cases.iter().filter(|case| case.adapter.is_some()) {
        let name = if case.adapter.as_deref() == Some("saved") { "saved" } else { "plain" };
        let loaded = load_with(&adapter(name)).expect("it fits");
        assert_close(&last_logits(&loaded, &tokens), &case.logits, &case.name);
        assert!(loaded.notes.iter().any(|note| note.contains("LoRA adapter")), "{:?}", loaded.notes);
        compared += 1;
    }
    assert_eq!(compared, 4);
}

/// Injects faults: without the adapter, and with another scale, the logits are other ones.
#[test]
fn a_dropped_or_rescaled_lora_adapter_changes_the_logits() {
    let Cases { tokens, cases, .. } = read_cases();
    let case = cases.iter().find(|case| case.adapter.as_deref() == Some("apart")).expect("it is there");
    let without = super::load(&root(BASE)).expect("it ships");
    let rescaled = load_with(changed(&json!({"lora_alpha": 16})).path()).expect("it fits");
    let stabilised = load_with(changed(&json!({"use_rslora": true})).path()).expect("it fits");
    for loaded in [without, rescaled, stabilised] {
        let logits = last_logits(&loaded, &tokens);
        assert!((logits[0] - case.logits[0]).abs() > 0.01, "{logits:?}");
    }
}

#[test]
fn a_lora_adapter_beside_the_weights_is_merged() {
    let Cases { tokens, cases, .. } = read_cases();
    let case = cases.iter().find(|case| case.adapter.as_deref() == Some("beside")).expect("it is there");
    let folder = folder_with(&["config.json", "model.safetensors"]);
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(adapter("plain").join(file), folder.path().join(file)).expect("it is committed");
    }
    let loaded = super::load(folder.path()).expect("it fits");
    assert_close(&last_logits(&loaded, &tokens), &case.logits, &case.name);
    fs::remove_file(folder.path().join("adapter_model.safetensors")).expect("it was there");
    assert!(refusal(super::load(folder.path())).contains("adapter_model.safetensors"));
}

#[test]
fn unsupported_lora_adapters_are_refused_with_their_key() {
    for (changes, part) in [
        (json!({"use_dora": true}), "'use_dora' is true"),
        (json!({"bias": "all"}), "'bias' is \"all\""),
        (json!({"peft_type": "IA3"}), "'peft_type' is \"IA3\""),
        (json!({"alpha_pattern": {"q_proj": 2}}), "'alpha_pattern'"),
        (json!({"target_modules": ["q_proj", "v_proj", "down_proj", "wq"]}), "'target_modules' is wq"),
        (json!({"r": 8}), "expected rank 8"),
        (json!({"r": null}), "'r' is missing"),
    ] {
        let message = refusal(load_with(changed(&changes).path()));
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_lora_adapter_of_another_model_is_refused() -> Result<(), Error> {
    let files = ModelFiles::open(&root("checkpoints/tiny-qwen3/hf"))?;
    let message = refusal(files.with_adapter(AdapterFiles::open(&Disk, &adapter("plain"))?)?.load());
    assert!(message.contains("layers.3"), "{message}");
    let gguf = ModelFiles::open(&root("checkpoints/tiny-llama2/tiny-llama2-f32.gguf"))?;
    let refused = gguf.with_adapter(AdapterFiles::open(&Disk, &adapter("plain"))?);
    assert!(refused.expect_err("no directory").to_string().contains("Hugging Face directory"));
    Ok(())
}

/// Engines round an adapter in a short type in more than one way, so such a run is refused.
#[test]
fn a_model_with_a_lora_adapter_runs_in_f32_only() {
    let adapter = adapter("plain").display().to_string();
    let base = root(BASE).display().to_string();
    let run = ["generate", "--model", &base, "--adapter", &adapter, "--tokens", "1,5,9", "-n", "2"];
    let terminal = Terminal::new();
    let finished = terminal.run(&run);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stderr.contains("is merged into the weights"), "{}", finished.stderr);
    let short = [&run[..], &["--numerics", "transformers", "--dtype", "bf16"]].concat();
    let refused = terminal.run(&short);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("judged in f32 only, not in bf16"), "{}", refused.stderr);
}
