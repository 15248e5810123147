//! Meta's original files: `params.json` and `consolidated.*.pth`, against a dump of Meta's own code.
//!
//! `tests/data/meta` is made by `reference-scripts/make/make_meta_models.py`.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::{json, root, with};
use crate::common::terminal::Terminal;
use crate::common::torch;
use xcheck::format::{FileBytes, TensorFile};
use xcheck::weight::{DType, StoredTensor};

const DUMP: &str = "tests/data/meta/llama-models-f32.safetensors";

/// A folder of files by their new names.
fn folder(terminal: &Terminal, files: &[(&str, &str)]) -> String {
    let folder = terminal.path().join("meta");
    _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).expect("a folder");
    for (from, to) in files {
        fs::copy(root("tests/data/meta").join(from), folder.join(to)).expect("it ships");
    }
    folder.display().to_string()
}

fn checked(terminal: &Terminal, model: &str) -> i32 {
    let dump = root(DUMP).display().to_string();
    terminal.run(&["check", "--model", model, "--candidate", &dump, "--no-report"]).code
}

#[test]
fn meta_files_whole_and_in_parts_compute_as_meta_code() {
    let terminal = Terminal::new();
    for name in ["whole", "parts"] {
        assert_eq!(
            checked(&terminal, &root("tests/data/meta").join(name).display().to_string()),
            0,
            "{name}"
        );
    }
    let part = |number: u8| format!("parts/consolidated.0{number}.pth");
    let (first, second) = (part(0), part(1));
    let swapped = [
        ("parts/params.json", "params.json"),
        (&second, "consolidated.00.pth"),
        (&first, "consolidated.01.pth"),
    ];
    assert_eq!(checked(&terminal, &folder(&terminal, &swapped)), 1, "parts in another order");
    let other = folder(
        &terminal,
        &[("whole/params.json", "params.json"), ("whole/consolidated.00.pth", "consolidated.00.pth")],
    );
    let params = Path::new(&other).join("params.json");
    let unscaled = with(json(&params), &json!({"rope_theta": 10000.0}));
    fs::write(&params, unscaled.to_string()).expect("written");
    assert_eq!(checked(&terminal, &other), 1, "another RoPE base");
}

#[test]
fn meta_files_that_cannot_be_read_are_refused() {
    let terminal = Terminal::new();
    let dump = root(DUMP).display().to_string();
    let check = |model: &str| terminal.run(&["check", "--model", model, "--candidate", &dump]);
    let one = [("parts/params.json", "params.json"), ("parts/consolidated.00.pth", "consolidated.00.pth")];
    check(&folder(&terminal, &one))
        .refused(&["'vocab_size' is 64", "are all consolidated.*.pth parts there"]);
    check(&folder(&terminal, &one[..1])).refused(&["params.json without consolidated.00.pth"]);
    let mixed = [one[0], one[1], ("whole/consolidated.00.pth", "consolidated.01.pth")];
    check(&folder(&terminal, &mixed)).refused(&["parts of different shapes"]);
    // 2^60 rows without columns.
    let empty = |part| {
        let name = "layers.0.attention.wq.weight";
        let tensor = StoredTensor { dtype: DType::F32, shape: vec![1 << 60, 0], data: Vec::new().into() };
        let list = FileBytes { path: "empty".into(), data: Vec::new().into() };
        let tensors = TensorFile::joined(&list, vec![(name.to_owned(), tensor)]).expect("one tensor");
        fs::write(part, torch::checkpoint(&tensors)).expect("written");
    };
    for files in [1, 2] {
        let model = folder(&terminal, &one[..1]);
        (0..files).for_each(|part| empty(Path::new(&model).join(format!("consolidated.0{part}.pth"))));
        check(&model).refused(&["attention.wq", "empty"]);
    }
}

#[test]
fn params_of_other_models_are_refused() {
    let terminal = Terminal::new();
    let whole = [("whole/params.json", "params.json"), ("whole/consolidated.00.pth", "consolidated.00.pth")];
    let model = folder(&terminal, &whole);
    let params = Path::new(&model).join("params.json");
    let sound = json(&params);
    let changed = |change: &serde_json::Value| {
        fs::write(&params, with(sound.clone(), change).to_string()).expect("written");
    };
    for change in [
        json!({"vocab_size": -1, "max_seq_len": 2048, "max_batch_size": 32}),
        json!({"vocab_size": null, "quantization_args": null, "sliding_window": null}),
    ] {
        changed(&change);
        assert_eq!(checked(&terminal, &model), 0, "{change}");
    }
    let dump = root(DUMP).display().to_string();
    for (change, problem) in [
        (json!({"quantization_args": {"group_size": 256}}), ["quantization_args", "without quantisation"]),
        (json!({"sliding_window": 4096}), ["sliding_window", "known keys here"]),
        (json!({"hidden_dim": 64}), ["hidden_dim", "known keys here"]),
        (json!({"vocab_size": 65}), ["vocab_size", "64, the number of embeddings"]),
        (json!({"rope_theta": "500000"}), ["rope_theta", "a positive number"]),
        (json!({"rope_theta": 1e39}), ["rope_theta", "a positive number"]),
        (json!({"norm_eps": "1e-5"}), ["norm_eps", "a positive number"]),
        (json!({"use_scaled_rope": 1}), ["use_scaled_rope", "true or false"]),
        (json!({"n_heads": 0}), ["n_heads", "1 to"]),
        (json!({"n_kv_heads": "2"}), ["n_kv_heads", "a whole number"]),
        (json!({"dim": null}), ["dim", "every params.json"]),
    ] {
        changed(&change);
        terminal.run(&["check", "--model", &model, "--candidate", &dump]).refused(&problem);
    }
}
