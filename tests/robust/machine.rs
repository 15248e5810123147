//! An empty folder in which the command is run, with as much memory as is allowed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::finished::Finished;

/// A shipped model's file, to be damaged.
const GGUF: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/tiny-llama2-f32.gguf"));

/// The memory in which each hostile file must be handled or refused, in kilobytes: what `ulimit -v` takes.
const ROOM: usize = 512 * 1024;

/// And the time: two seconds with `--release`, one test at a time, and more otherwise and beside each other.
pub fn time() -> Duration {
    let is_released =
        Path::new(env!("CARGO_BIN_EXE_xcheck")).parent().is_some_and(|at| at.ends_with("release"));
    Duration::from_secs(if is_released { 2 } else { 20 })
}

pub struct Machine {
    folder: TempDir,
}

impl Machine {
    pub fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("made");
        fs::write(path, bytes).expect("written");
        self
    }

    /// A dump of two layers' worth of our own, by name.
    pub fn dump(&self, name: &str) -> PathBuf {
        self.run(&["dump", "--model", "tiny-llama2", "--tokens", "1,5,9", "--decode", "1", "--out", name])
            .succeeded();
        self.path(name)
    }

    /// A command line of the shell, in which `xcheck` is the program; everything else of the environment is left alone.
    pub fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", line]).current_dir(self.folder.path()).stdin(Stdio::null());
        let programs = PathBuf::from(env!("CARGO_BIN_EXE_xcheck"));
        let programs = programs.parent().expect("it is in a folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{programs}:{path}")).env("XCHECK_CACHE", self.path("cache"));
        command.env("XCHECK_CHECKPOINTS", concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints"));
        command.env("HF_HOME", self.path("hf")).env("HF_HUB_OFFLINE", "1").env("RUST_BACKTRACE", "0");
        command
    }

    fn of(arguments: &[&str]) -> String {
        let quoted = arguments.iter().map(|word| format!(" '{word}'"));
        std::iter::once("exec xcheck".to_owned()).chain(quoted).collect()
    }

    pub fn run(&self, arguments: &[&str]) -> Finished {
        Finished::of(self.shell(&Self::of(arguments)).output().expect("it runs"))
    }

    /// Starts it; its output is thrown away.
    pub fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.shell(&Self::of(arguments));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
    }

    /// Runs it with little memory, for a short time.
    #[track_caller]
    pub fn bounded(&self, arguments: &[&str]) -> Finished {
        self.within(time(), arguments)
    }

    /// The same, for a time that the work takes.
    #[track_caller]
    pub fn within(&self, time: Duration, arguments: &[&str]) -> Finished {
        let line = format!("ulimit -v {ROOM}; {}", Self::of(arguments));
        let begun = Instant::now();
        let limit = format!("timeout {} bash -c \"$0\"", 3 * time.as_secs());
        let mut command = self.shell(&limit);
        let finished = Finished::of(command.arg(line).output().expect("it runs"));
        let taken = begun.elapsed();
        println!("{:.2} s: xcheck {}", taken.as_secs_f64(), arguments.join(" "));
        assert!(taken < time, "{arguments:?} took {taken:?}");
        finished
    }

    /// Refused with little memory, in one message with these words, and not for want of memory.
    #[track_caller]
    pub fn refuses(&self, arguments: &[&str], expected: &[&str]) {
        let said = self.bounded(arguments).refused(expected);
        assert!(!said.contains("out of memory"), "only the last net has caught it: {said}");
    }

    /// What lies in the folder that nobody asked for.
    pub fn left_over(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                match name.starts_with(".xcheck-") || name.starts_with(".tmp") {
                    true => left.push(name),
                    false if entry.path().is_dir() => folders.push(entry.path()),
                    false => {}
                }
            }
        }
        left
    }
}

/// The shipped model, which says of itself that it was trained for 16 million tokens.
pub fn with_long_context() -> Vec<u8> {
    let mut model = GGUF.to_vec();
    let key = b"llama.context_length";
    let at = model.windows(key.len()).position(|window| window == key).expect("it says so") + key.len() + 4;
    model[at..at + 4].copy_from_slice(&(1u32 << 24).to_le_bytes());
    model
}
