//! Hashes of weight files: computed for those who ask, remembered as long as the files are the same. Hashes of a dump's
//! arrays: held against them by whoever inspects it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use crate::common::hash::sha256;
use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;
use xcheck::disk_cache::{DiskCache, PinnedFile};

/// What changed later than this ago is not remembered.
const TICK: Duration = Duration::from_millis(2100);

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).expect("written");
        path
    }

    fn kept(&self) -> DiskCache {
        DiskCache::in_folder(self.0.path().join("cache"), 0)
    }

    fn answers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.path().join("cache/hashes")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

fn hash(kept: &DiskCache, path: &Path) -> String {
    kept.sha256(&[PinnedFile::at(path).expect("it is there")]).expect("it can be read")
}

#[test]
fn several_files_have_one_sha256() {
    let folder = Folder::new();
    let files = [folder.write("a", b"one"), folder.write("b", &[7; 3 << 20])];
    let pinned = files.each_ref().map(|path| PinnedFile::at(path).expect("there"));
    let found = DiskCache::nothing().sha256(&pinned).expect("readable");
    assert_eq!(found, sha256(&[b"one".to_vec(), vec![7; 3 << 20]].concat()));
}

#[test]
fn a_file_that_has_just_changed_is_not_remembered() {
    let folder = Folder::new();
    let file = folder.write("weights", b"fresh");
    let old = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(&file).expect("there").set_modified(old).expect("set"); // a date that lies
    assert_eq!(hash(&folder.kept(), &file), sha256(b"fresh"));
    assert!(folder.answers().is_empty());
}

#[cfg(unix)]
#[test]
fn a_sha256_is_remembered_until_the_file_or_the_stored_entry_changes() {
    let folder = Folder::new();
    let file = folder.write("weights", b"content");
    let modified = fs::metadata(&file).and_then(|file| file.modified()).expect("a time");
    sleep(TICK);
    let right = sha256(b"content");
    assert_eq!(hash(&folder.kept(), &file), right);
    let [answer] = folder.answers().try_into().expect("one answer");

    // That the file is not read again shows in an answer that nothing could have been read for.
    let kept = fs::read_to_string(&answer).expect("text");
    let planted = "0123456789abcdef".repeat(4);
    fs::write(&answer, kept.replace(&right, &planted)).expect("written");
    assert_eq!(hash(&folder.kept(), &file), planted);
    assert_eq!(hash(&DiskCache::nothing(), &file), right);

    for damaged in
        [&kept[..kept.len() - 2], "", &kept.replace("weights", "another"), &kept.replace(&right, "x")]
    {
        fs::write(&answer, damaged).expect("written");
        assert_eq!(hash(&folder.kept(), &file), right, "{damaged}");
    }

    // Changed in place to as many bytes, with the date it had.
    fs::write(&answer, kept.replace(&right, &planted)).expect("written");
    fs::write(&file, b"CONTENT").expect("written");
    File::options().write(true).open(&file).expect("there").set_modified(modified).expect("set");
    assert_eq!(hash(&folder.kept(), &file), sha256(b"CONTENT"));

    // Another file under its name.
    let other = folder.write("other", b"CoNtEnT");
    fs::rename(other, &file).expect("renamed");
    assert_eq!(hash(&folder.kept(), &file), sha256(b"CoNtEnT"));
}

#[test]
fn a_file_that_is_not_the_one_that_was_opened_is_refused() {
    let folder = Folder::new();
    let file = folder.write("weights", b"before");
    let pinned = PinnedFile::at(&file).expect("there");
    fs::rename(folder.write("new", b"behind"), &file).expect("renamed");
    let error = folder.kept().sha256(&[pinned]).expect_err("another file");
    assert!(error.to_string().contains("changed during the run"), "{error}");
}

// ---- commands -------------------------------------------------------------------------------------------

/// A copy of a shipped model, whose changes are long enough ago.
struct Machine(Folder);

impl Machine {
    fn new() -> Self {
        let folder = Folder::new();
        let shipped = shipped("tiny-llama2-q8_0.gguf");
        folder.write("m.gguf", &fs::read(shipped).expect("it ships"));
        sleep(TICK);
        Self(folder)
    }

    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.output(arguments);
        let text = String::from_utf8(output.stdout).expect("text");
        (output.status.code().expect("no signal"), text)
    }

    /// The message of a command that does not do what it is asked for.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("text")
    }

    fn output(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xcheck"));
        let cache = self.0.0.path().join("cache");
        let command = command.current_dir(self.0.0.path()).env("XCHECK_CACHE", cache).args(arguments);
        command.output().expect("it starts")
    }
}

fn shipped(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/tiny-llama2").join(file)
}

#[test]
fn commands_that_need_no_sha256_read_no_weights_for_one() {
    let machine = Machine::new();
    let generate = ["generate", "--model", "m.gguf", "--prompt", "Once", "--max-tokens", "2"];
    let (code, said) = machine.run(&generate);
    assert_eq!(code, 0, "{said}");
    assert!(machine.0.answers().is_empty());
}

#[test]
fn a_report_has_the_sha256_and_says_that_a_dump_was_made_from_other_weights() {
    let machine = Machine::new();
    let run = |dump: &str| {
        let dump = shipped(&format!("dumps/{dump}.safetensors"));
        let dump = dump.to_str().expect("plain");
        let (_, json) = machine.run(&["run", "--model", "m.gguf", "--reference", dump, "--format", "json"]);
        serde_json::from_str::<Value>(&json).expect("a report")
    };
    let right = sha256(&fs::read(shipped("tiny-llama2-q8_0.gguf")).expect("it ships"));
    let other = "the dump was made from other weights than m";
    let report = run("llama.cpp-q8_0");
    assert_eq!(report["model"]["sha256"], right);
    assert!(!report.to_string().contains(other), "{report}");
    let report = run("llama.cpp-f16");
    assert!(report.to_string().contains(other), "{report}");
    assert_eq!(machine.0.answers().len(), 1);
}

#[test]
fn our_dump_states_the_sha256_of_its_weights() {
    let machine = Machine::new();
    let (code, said) =
        machine.run(&["dump", "--model", "m.gguf", "--tokens", "1,2", "--decode", "1", "--out", "d"]);
    assert_eq!(code, 0, "{said}");
    let manifest = fs::read(machine.0.0.path().join("d/manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    assert_eq!(
        manifest["model"]["sha256"],
        sha256(&fs::read(shipped("tiny-llama2-q8_0.gguf")).expect("it ships"))
    );
}

/// Writes the hash of every array into a dump's manifest: the elements of a `.npy` file stand behind its header.
fn state_hashes(dump: &Path, wrong: Option<&str>) {
    let file = dump.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).expect("written")).expect("JSON");
    for row in manifest["tensors"].as_array_mut().expect("rows") {
        let name = row["file"].as_str().expect("a name").to_owned();
        let array = fs::read(dump.join(&name)).expect("written");
        let header = 10 + usize::from(u16::from_le_bytes([array[8], array[9]]));
        let is_wrong = wrong == Some(&name);
        row["sha256"] = if is_wrong { "0".repeat(64) } else { sha256(&array[header..]) }.into();
    }
    fs::write(file, manifest.to_string()).expect("written");
}

#[test]
fn inspect_compares_each_array_of_a_dump_with_the_sha256_in_its_manifest() {
    let machine = Machine::new();
    machine.run(&["dump", "--model", "m.gguf", "--tokens", "1,2", "--decode", "1", "--out", "d"]);
    let dump = machine.0.0.path().join("d");
    state_hashes(&dump, None);
    let (code, said) = machine.run(&["inspect", "d"]);
    assert!(code == 0 && said.contains("attn_norm"), "{said}");

    state_hashes(&dump, Some("p0/l01/q.npy"));
    let refused = machine.refused(&["inspect", "d"]);
    for expected in ["d: p0/l01/q.npy: damaged data: SHA-256 is", &"0".repeat(64)] {
        assert!(refused.contains(expected), "{refused}");
    }
    // What is not shown is not read.
    assert_eq!(machine.run(&["inspect", "d", "--layer", "2"]).0, 0);

    // The hashes are right again, and one element is another one.
    state_hashes(&dump, None);
    let mut array = fs::read(dump.join("p1/l02/v.npy")).expect("written");
    *array.last_mut().expect("it has elements") ^= 1;
    fs::write(dump.join("p1/l02/v.npy"), array).expect("written");
    let refused = machine.refused(&["inspect", "d"]);
    assert!(refused.contains("d: p1/l02/v.npy: damaged data: SHA-256 is"), "{refused}");
}
