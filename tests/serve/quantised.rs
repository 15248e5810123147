//! Servers of quantised checkpoints, probed against their directories.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::server::Server;
use crate::common::terminal::Terminal;

/// A copy of a quantised model of `tests/data/quantised`, with a tokenizer of its 48 ids.
fn with_tokenizer(name: &str) -> TempDir {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/quantised").join(name);
    let copy = TempDir::new().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(folder.join(file), copy.path().join(file)).expect("it is copied");
    }
    fs::write(copy.path().join("tokenizer.json"), tokenizer().to_string()).expect("it is written");
    copy
}

/// A space, full stop, comma, the letters, pairs of them, and an end token.
fn tokenizer() -> Value {
    let pairs = "th he in er an re on at en nd ti es or te of ed is it".split(' ');
    let letters = ["Ġ", ".", ","].map(str::to_owned).into_iter().chain(('a'..='z').map(String::from));
    let words = letters.chain(pairs.clone().map(str::to_owned)).chain(["<|endoftext|>".to_owned()]);
    let vocabulary: Map<String, Value> = words.enumerate().map(|(id, word)| (word, json!(id))).collect();
    let merges: Vec<[&str; 2]> = pairs.map(|pair| [&pair[..1], &pair[1..]]).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "normalizer": null,
        "post_processor": null,
        "added_tokens": [{"id": vocabulary.len() - 1, "content": "<|endoftext|>", "special": true,
                          "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocabulary, "merges": merges},
    })
}

fn probed(server: &Server, model: &Path) -> (i32, Value) {
    let model = model.display().to_string();
    let prompt = ["--prompt", "the hen is in it", "--decode", "6", "--no-report", "--no-causes"];
    Terminal::new().json(&[&["probe", &server.url, "--model", &model], &prompt[..]].concat())
}

#[test]
fn a_server_of_awq_gptq_or_fp8_agrees_with_its_directory_and_not_with_another_quantisation() {
    for (name, other) in [("awq", "gptq"), ("gptq", "awq"), ("fp8", "awq")] {
        let [folder, others] = [name, other].map(with_tokenizer);
        let server = Server::start(&["--model", &folder.path().display().to_string()]);
        let (code, report) = probed(&server, folder.path());
        assert_eq!(code, 0, "{name}: {report:#}");
        assert_eq!(report["references"][0]["verdict"], "pass", "{name}: {report:#}");
        let (code, report) = probed(&server, others.path());
        assert_eq!(code, 1, "{name} against {other}: {report:#}");
    }
}
