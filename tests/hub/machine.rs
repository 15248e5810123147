//! A person's machine, on which the command is run against a hub of its own.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

use super::server::{COMMIT, Hub};
use crate::common::finished::Finished;

/// The smallest shipped model, as a folder of the hub and as GGUF files.
pub const TINY: &str = "tiny-org/tiny-llama2";
pub const TINY_GGUF: &str = "tiny-org/tiny-llama2-GGUF";

/// A person's machine: an empty directory, an empty cache, a hub.
pub struct Machine {
    pub folder: TempDir,
    pub hub: Hub,
    variables: Vec<(&'static str, String)>,
}

impl Machine {
    pub fn new() -> Self {
        let hub = Hub::new();
        hub.serve(TINY, &["tiny-llama2/hf"]);
        let gguf = ["f32", "f16", "q8_0"].map(|tag| format!("tiny-llama2/tiny-llama2-{tag}.gguf"));
        hub.serve(TINY_GGUF, &gguf.each_ref().map(String::as_str));
        Self { folder: TempDir::new().expect("a folder"), hub, variables: Vec::new() }
    }

    /// With a variable of the environment more.
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    pub fn home(&self) -> PathBuf {
        self.folder.path().join("hf")
    }

    pub fn repo(&self, repo: &str) -> PathBuf {
        self.home().join("hub").join(format!("models--{}", repo.replace('/', "--")))
    }

    pub fn snapshot(&self, repo: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(COMMIT)
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars().filter(|(name, _)| is_about_the_hub(name)) {
            command.env_remove(name);
        }
        command.current_dir(self.folder.path()).env("HF_HOME", self.home());
        command.env("XCHECK_CACHE", self.folder.path().join("xcheck"));
        command.env("HF_ENDPOINT", self.hub.endpoint()).env("NO_PROXY", "*");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Finished {
        let program = assert_cmd::cargo::cargo_bin!("xcheck").to_str().expect("plain");
        let output = self.command(program).args(arguments).output().expect("it starts");
        Finished::of(output)
    }

    #[track_caller]
    pub fn succeeds(&self, arguments: &[&str]) -> String {
        self.run(arguments).succeeded()
    }

    #[track_caller]
    pub fn refuses(&self, arguments: &[&str], expected: &[&str]) -> String {
        self.run(arguments).refused(expected)
    }

    /// Runs a model against the dump by transformers that ships, and gives back the report.
    #[track_caller]
    pub fn passes(&self, model: &str, more: &[&str]) -> Value {
        let reference = shipped("tiny-llama2/dumps/transformers-f32.safetensors");
        let reference = reference.to_str().expect("plain");
        let run =
            ["run", "--model", model, "--reference", reference, "--checkpoint", "all", "--format", "json"];
        let report: Value = serde_json::from_str(&self.succeeds(&[&run, more].concat())).expect("a report");
        let checkpoints = report["references"][0]["checkpoints"].as_array().expect("checkpoints");
        assert_eq!(checkpoints.len(), 13, "the input and twelve checkpoints");
        assert!(checkpoints.iter().all(|checkpoint| checkpoint["verdict"] == "pass"));
        report
    }

    pub fn requests(&self) -> Vec<String> {
        self.hub.seen().into_iter().map(|request| request.path).collect()
    }
}

fn is_about_the_hub(name: &str) -> bool {
    let name = name.to_uppercase();
    ["HF_", "HUGGING", "TRANSFORMERS_"].iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with("_PROXY")
}

pub fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints").join(path)
}

pub fn weights() -> Vec<u8> {
    fs::read(shipped("tiny-llama2/hf/model.safetensors")).expect("it ships")
}
