//! A person's machine, with a cache of its own, and a server of the models that ship.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::server::Server;
use crate::common::finished::Finished;

pub struct Machine {
    pub folder: TempDir,
    pub server: Server,
    variables: Vec<(&'static str, String)>,
    /// What stands before the paths of files, where they are in a bucket.
    bucket: Option<String>,
}

/// The most that is read of a file which is only opened.
pub const BLOCK: usize = 1 << 16;

impl Machine {
    pub fn new(models: &[&str]) -> Self {
        let server = Server::new();
        models.iter().for_each(|model| server.serve(model));
        Self { folder: TempDir::new().expect("a folder"), server, variables: Vec::new(), bucket: None }
    }

    /// With a variable of the environment more.
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// With the files in a bucket that goes by this address.
    #[cfg(feature = "cloud")]
    pub fn in_bucket(mut self, address: &str) -> Self {
        self.bucket = Some(address.to_owned());
        self
    }

    pub fn url(&self, path: &str) -> String {
        self.bucket.as_ref().map_or_else(|| self.server.url(path), |bucket| format!("{bucket}/{path}"))
    }

    pub fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("xcheck"));
        command.current_dir(self.folder.path()).args(arguments).env("XCHECK_CACHE", self.cache());
        command.env("HF_HOME", self.folder.path().join("hf")).env("NO_PROXY", "*");
        command.env_remove("HF_TOKEN").env_remove("HF_HUB_OFFLINE").env_remove("HF_ENDPOINT");
        let is_of_a_cloud =
            |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|start| name.starts_with(start));
        let names = std::env::vars().map(|(name, _)| name).filter(|name| is_of_a_cloud(name));
        names.for_each(|name| _ = command.env_remove(name));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    }

    pub fn run(&self, arguments: &[&str]) -> Finished {
        let output = self.command(arguments).output().expect("it starts");
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

    /// The report of a run.
    #[track_caller]
    pub fn report(&self, model: &str, reference: &str, more: &[&str]) -> Value {
        let run = ["run", "--model", model, "--reference", reference, "--format", "json"];
        let finished = self.run(&[&run, more].concat());
        let text = format!("{}{}", finished.stdout, finished.stderr);
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// A folder of the machine as one archive.
    pub fn npz(&self, folder: &str) -> Vec<u8> {
        let root = self.folder.path().join(folder);
        let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for file in self.files().iter().filter(|file| file.starts_with(&root)) {
            let name = file.strip_prefix(&root).expect("below it").to_str().expect("plain").to_owned();
            archive.start_file(name, zip::write::SimpleFileOptions::default()).expect("begun");
            archive.write_all(&fs::read(file).expect("readable")).expect("written");
        }
        archive.finish().expect("whole").into_inner()
    }

    /// All files of the machine below its folder.
    pub fn files(&self) -> Vec<PathBuf> {
        let (mut found, mut folders) = (Vec::new(), vec![self.folder.path().to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("listed").flatten() {
                let kind = if entry.path().is_dir() { &mut folders } else { &mut found };
                kind.push(entry.path());
            }
        }
        found
    }
}

pub fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints").join(path)
}
