//! Mistakes of engines that nobody of this project wrote: named from what their dumps hold, mostly logits alone.

use std::path::Path;

use crate::common::share::one_of;
use crate::common::terminal::Terminal;

/// The dump, the kind, and the values of the candidate and the model.
const FOUND: [(&str, &str, Option<&str>, Option<&str>); 10] = [
    ("tiny-llama3/mlx-lm-f32", "rope_theta", Some("10000"), Some("500000")),
    ("tiny-llama3/candle-f32", "rope_theta", Some("10000"), Some("500000")),
    ("tiny-llama3/candle-bf16", "rope_theta", Some("10000"), Some("500000")),
    ("tiny-llama3/candle-gguf-f32", "rope_scaling", Some("none"), Some("factors of the file")),
    ("tiny-llama3/ctranslate2-f32", "rope_scaling", Some("none"), Some("llama3:8:1:4:64")),
    ("tiny-llama3/onnxruntime-f32", "rope_theta", Some("10000"), Some("500000")),
    ("tiny-gemma3/candle-f32-older-keys", "mask_window", Some("6"), Some("5")),
    ("tiny-gemma3/candle-gguf-f32", "mask_window", Some("6"), Some("5")),
    ("tiny-gemma3/mlx-lm-f32", "embed_scale", Some("5.65625"), Some("5.656854")),
    ("tiny-qwen3/candle-gguf-f32", "rope_precision", Some("tables-f16"), None),
];

#[test]
fn what_other_engines_have_wrong_has_its_name() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engines");
    for (name, kind, candidate, reference) in one_of(3, FOUND) {
        let (model, _) = name.split_once('/').expect("a folder and a file");
        let file = home.join(format!("{name}.safetensors")).display().to_string();
        let (code, report) =
            Terminal::new().json(&["check", "--model", model, "--candidate", &file, "--no-report"]);
        let finding = &report["references"][0]["findings"][0];
        assert_eq!((code, finding["kind"].as_str()), (1, Some(kind)), "{name}: {finding:#}");
        if candidate.is_some() {
            assert_eq!(finding["candidate"].as_str(), candidate, "{name}: {finding:#}");
        }
        if reference.is_some() {
            assert_eq!(finding["reference"].as_str(), reference, "{name}: {finding:#}");
        }
    }
}
