//! Meta's original files: `params.json` and `consolidated.*.pth`, against a dump of Meta's own code.
//!
//! `tests/data/meta` is made by `reference-scripts/make/make_meta_models.py`.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::{json, root, with};
use crate::common::terminal::Terminal;

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
    check(&folder(&terminal, &one)).refused(&["q_proj", "shape"]);
    check(&folder(&terminal, &one[..1])).refused(&["params.json without consolidated.00.pth"]);
    let mixed = [one[0], one[1], ("whole/consolidated.00.pth", "consolidated.01.pth")];
    check(&folder(&terminal, &mixed)).refused(&["parts of different shapes"]);
    let model = folder(&terminal, &one);
    let params = Path::new(&model).join("params.json");
    let quantised = with(json(&params), &json!({"quantization_args": {"group_size": 256}}));
    fs::write(&params, quantised.to_string()).expect("written");
    check(&model).refused(&["quantization_args", "without quantisation"]);
}
