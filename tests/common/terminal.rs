//! The commands as a person or a CI job runs them.

use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

use super::finished::Finished;

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// `xcheck` in an empty directory: what ships must be enough.
pub struct Terminal(TempDir);

impl Terminal {
    pub fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn run(&self, arguments: &[&str]) -> Finished {
        self.run_with(arguments, &[])
    }

    /// With these variables in the environment.
    pub fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Finished {
        let mut command = Command::cargo_bin("xcheck").expect("it is built");
        let command = command.current_dir(self.path()).args(arguments).timeout(PATIENCE);
        let command = command.env("XCHECK_CAUSES_LIMIT", "none"); // causes do not depend on the machine's load
        let output = command.envs(variables.iter().copied()).output().expect("it starts");
        Finished::of(output)
    }

    pub fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let finished = self.run(&[arguments, &["--format", "json"]].concat());
        (finished.code, serde_json::from_str(&finished.stdout).expect("report.json is printed"))
    }

    /// One line on stderr, nothing on stdout, exit code 2.
    #[track_caller]
    pub fn assert_refused(&self, arguments: &[&str], expected: &str) {
        let finished = self.run(arguments);
        assert_eq!((finished.code, finished.stdout.as_str()), (2, ""), "{}", finished.stderr);
        assert!(finished.stderr.starts_with("error: "), "{}", finished.stderr);
        assert!(finished.stderr.contains(expected), "{}", finished.stderr);
    }
}
