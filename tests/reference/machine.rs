//! A machine where every other program is one shell script, and what it does is said by variables.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::finished::Finished;

/// Python, its venv and pip, uv, bash and llama.cpp's program. `FAKE` says how it fails: `pip-fails`, `pip-hangs`,
/// `dump-fails`, `dump-hangs`, `dump-dies`, `dump-is-none`; `worker-dies`, `worker-killed`, `worker-hangs`; `FAKE_DUMP` is what it writes, `FAKE_ANSWERS` the folder
/// with the evaluator's answer to each request, `FAKE_MISSING` what it lacks, and
/// `FAKE_MEANWHILE` where somebody else writes while it works.
const PROGRAM: &str = r#"#!/bin/sh
PATH=/usr/bin:/bin
name=$(basename "$0"); home=$(dirname "$0")
[ -z "$PYTHONPATH$PYTHONHOME" ] || [ "$2" = xcheck.evaluator ] || echo "$name $1 looks elsewhere" >> "$FAKE_LOG"
echo "$name $*" | tr '\n' ' ' >> "$FAKE_LOG"; echo >> "$FAKE_LOG"
environment() { mkdir -p "$1/bin"; cp "$FAKE_PROGRAM" "$1/bin/python"; }
install() {
    case $FAKE in
        pip-fails) echo "Collecting torch"; echo "ERROR: No matching distribution found for torch" >&2; echo "bye"; exit 1;;
        pip-hangs) echo half > "$1/half"; touch "$FAKE_LOG.reached"; exec sleep 20;;
    esac
    echo whole > "$1/installed"
}
dump() {
    while [ $# -gt 0 ]; do case $1 in --out) out=$2;; esac; shift; done
    case $FAKE in
        dump-fails) echo "Traceback (most recent call last):"; echo "ValueError: rope_type" >&2; exit 1;;
        dump-hangs) echo half > "$out"; touch "$FAKE_LOG.reached"; exec sleep 20;;
        dump-dies) echo half > "$out"; kill -9 $$;;
        dump-is-none) echo none > "$out"; exit 0;;
    esac
    [ -z "$FAKE_MEANWHILE" ] || echo theirs > "$FAKE_MEANWHILE"
    printf 'loading\rloaded\n'; cp "$FAKE_DUMP" "$out"
}
evaluate() {
    ls "$PYTHONPATH/xcheck/evaluator/__main__.py" >> "$FAKE_LOG"
    while read -r request; do
        echo "$request" >> "$FAKE_LOG"
        [ "$FAKE" != worker-dies ] || { echo "MemoryError: 3 GB" >&2; exit 1; }
        [ "$FAKE" != worker-killed ] || kill -9 $$
        [ "$FAKE" != worker-hangs ] || { head -c 100 "$FAKE_ANSWERS/evaluate.bin"; exec sleep 60; }
        kind=${request#*'"request":"'}; cat "$FAKE_ANSWERS/${kind%%'"'*}.bin"
    done
}
case "$name $1 $2" in
    *" -m xcheck.evaluator") evaluate;;
    "uv venv "*) environment "$4";;
    "uv pip "*) install "$(dirname "$4")/..";;
    *" -c "*) [ ! -e "$FAKE_PROGRAM.old" ] || { echo "error: it is Python 3.8, 3.11 or newer is needed" >&2; exit 1; }
        case $home in */environment/bin|*/environments/*) [ -e "$home/../installed" ] || { echo torch; exit 0; };; esac
        echo "$FAKE_MISSING";;
    *" -m venv") environment "$3";;
    *" -m pip") install "$home/..";;
    bash*) mkdir -p "$2/bin"; install "$2"; cp "$FAKE_PROGRAM" "$2/bin/dump_llama_cpp";;
    "dump_llama_cpp --help "*) ;;
    *) dump "$@";;
esac
"#;

pub struct Machine {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

pub const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-qwen3");

impl Machine {
    /// With these programs on the PATH, and the model in `hf` and `model.gguf`.
    pub fn new(programs: &[&str]) -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let variables = Vec::new();
        let machine = Self { folder, variables };
        for folder in ["bin", "hf"] {
            fs::create_dir(machine.at(folder)).expect("a folder");
        }
        fs::write(machine.at("program"), PROGRAM).expect("it is written");
        fs::set_permissions(machine.at("program"), Permissions::from_mode(0o755)).expect("it may be run");
        for program in programs {
            symlink(machine.at("program"), machine.at("bin").join(program)).expect("it is linked");
        }
        for file in ["config.json", "model.safetensors"] {
            fs::copy(Path::new(SHIPPED).join("hf").join(file), machine.at("hf").join(file))
                .expect("it is copied");
        }
        fs::copy(Path::new(SHIPPED).join("tiny-qwen3-f32.gguf"), machine.at("model.gguf"))
            .expect("it is copied");
        machine.with("FAKE_DUMP", &format!("{SHIPPED}/dumps/transformers-f32.safetensors"))
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.set(name, value);
        self
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("xcheck"));
        command.current_dir(self.folder.path()).args(arguments).stdin(Stdio::null());
        command.env("PATH", self.at("bin")).env("XCHECK_CACHE", self.at("cache"));
        command.env("FAKE_LOG", self.at("log")).env("FAKE_PROGRAM", self.at("program"));
        command.envs(self.variables.iter().cloned());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Finished {
        Finished::of(self.command(arguments).output().expect("it starts"))
    }

    /// Starts it, waits until another program hangs, and kills it as nothing can be prepared for.
    pub fn run_and_kill(&self, arguments: &[&str]) {
        let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = quiet(&mut self.command(arguments)).expect("it starts");
        let started = Instant::now();
        while !self.at("log.reached").exists() {
            assert!(started.elapsed() < Duration::from_secs(60), "it never came to what hangs");
            sleep(Duration::from_millis(10));
        }
        child.kill().expect("it is there");
        child.wait().expect("it is gone");
        fs::remove_file(self.at("log.reached")).expect("it was there");
    }

    /// Starts it; the other end is for the test to wait for.
    pub fn start(&self, arguments: &[&str]) -> std::process::Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    }

    /// What the other programs were told, one line each.
    pub fn told(&self) -> String {
        fs::read_to_string(self.at("log")).unwrap_or_default()
    }

    /// The names in a folder; none if there is no such folder.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(folder)).into_iter().flatten();
        let names = entries.map(|entry| entry.expect("it can be listed").file_name());
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// No environment, no dump and nothing of either is there.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.names("cache/environments"), Vec::<String>::new());
        assert!(!self.at("hf/dumps").exists(), "{:?}", self.names("hf/dumps"));
    }
}
