//! A folder with a model, dumps and a file of cells.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::finished::Finished;
use crate::common::terminal::Terminal;

/// Checks one dump by one model, a small part of it.
pub const CHECK: &str = r#"command = ["check", "--model", "tiny-llama2", "--candidate", "{dump}", "--layer", "0", "--checkpoint", "1-2"]"#;

pub struct Bed(pub Terminal);

impl Bed {
    /// With two dumps, both right: `right` and `other`.
    pub fn new() -> Self {
        let bed = Self(Terminal::new());
        fs::copy(engine("tiny-llama2/mlx-lm-f32"), bed.path("right.safetensors")).expect("it is copied");
        fs::copy(engine("tiny-llama2/transformers-sdpa-f32"), bed.path("other.safetensors"))
            .expect("it is copied");
        bed
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("it is made");
        fs::write(path, text).expect("it is written");
    }

    /// Goes through the cells of a file; where each is, its matrix.
    pub fn matrix(&self, text: &str, more: &[&str]) -> (Finished, Value) {
        self.matrix_with(text, more, &[])
    }

    /// With these variables in the environment.
    pub fn matrix_with(&self, text: &str, more: &[&str], variables: &[(&str, &str)]) -> (Finished, Value) {
        self.write("cells.toml", text);
        let words = [&["matrix", "cells.toml", "--report", "out"], more].concat();
        let finished = self.0.run_with(&words, variables);
        let matrix = fs::read_to_string(self.path("out/matrix.json"));
        let matrix = matrix.unwrap_or_else(|_| panic!("no matrix.json: {}", finished.stderr));
        (finished, serde_json::from_str(&matrix).expect("it is JSON"))
    }

    /// One refusal that says where and what.
    #[track_caller]
    pub fn assert_refused(&self, text: &str, expected: &[&str]) {
        self.write("cells.toml", text);
        self.0.run(&["matrix", "cells.toml", "--report", "out"]).refused(expected);
        assert!(!self.path("out/matrix.json").exists());
    }
}

/// A dump by another engine.
pub fn engine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/engines/{name}.safetensors"))
}

/// A field of each cell.
pub fn each<'m>(matrix: &'m Value, field: &str) -> Vec<&'m Value> {
    matrix["cells"].as_array().expect("a list").iter().map(|cell| &cell[field]).collect()
}

/// The names of those that were run.
pub fn run(matrix: &Value) -> Vec<&str> {
    let cells = matrix["cells"].as_array().expect("a list").iter();
    cells.filter(|cell| cell["was_run"] == true).map(|cell| cell["name"].as_str().expect("a name")).collect()
}

/// A number of a value somewhere in the middle is another.
pub fn damage(file: &Path) {
    let mut bytes = fs::read(file).expect("it is there");
    let at = bytes.len() - 4;
    bytes[at] ^= 1;
    fs::write(file, bytes).expect("it is written");
}
