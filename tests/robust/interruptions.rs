//! Signals, and what they leave.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use super::machine::{Machine, with_long_context};
use crate::common::share::one_of;

/// A text that takes a while to read.
fn long() -> String {
    let tokens: Vec<String> = (0..900).map(|index| (3 + index % 400).to_string()).collect();
    tokens.join(",")
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// Waits for something to happen.
fn until(mut happens: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A machine on which a program was ended by a signal in the middle of its work. On a loaded one the work may be done before the
/// signal comes: then another begins.
fn ended_by(name: &str, arguments: &[&str]) -> Machine {
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        let machine = Machine::new();
        machine.put("m.gguf", with_long_context());
        let mut child = machine.start(arguments);
        let is_over = |child: &mut Child| child.try_wait().expect("it can be asked").is_some();
        until(|| !machine.left_over().is_empty() || is_over(&mut child));
        if !is_over(&mut child) {
            signal(&child, name);
        }
        if !child.wait().expect("it ends").success() {
            return machine;
        }
    }
    panic!("{name} was too late {TRIES} times");
}

#[test]
fn a_dump_has_its_name_when_it_is_whole_whatever_ends_it() {
    let ends =
        [("INT", "d"), ("TERM", "d.safetensors"), ("HUP", "d"), ("KILL", "d.safetensors"), ("KILL", "d")];
    for (name, ending) in one_of(2, ends) {
        let tokens = long();
        let arguments = ["dump", "--model", "m.gguf", "--tokens", &tokens, "--decode", "4", "--out", ending];
        let machine = ended_by(name, &arguments);
        assert!(!machine.path(ending).exists(), "{name}");
        // Into a folder somebody may write to the last; then the next run removes it.
        if name != "KILL" && ending != "d" {
            assert_eq!(machine.left_over(), Vec::<String>::new(), "{name}");
        }
        machine.run(&arguments).succeeded();
        assert_eq!(machine.run(&["inspect", ending]).code, 0);
    }
}

/// A file of logits is as others are: removed by the next program when its own was killed, and for whom the umask says.
#[cfg(unix)]
#[test]
fn a_file_of_logits_that_was_killed_is_removed_by_the_next() {
    use std::os::unix::fs::PermissionsExt;

    let tokens = long();
    let arguments = ["dump", "--model", "m.gguf", "--tokens", &tokens, "--kld", "k", "--ctx", "300"];
    let machine = ended_by("KILL", &arguments);
    machine.put("plain", "");
    let left = machine.left_over();
    assert_eq!(left.len(), 1, "{left:?}");
    File::options()
        .write(true)
        .open(machine.path(&left[0]))
        .and_then(|file| file.set_modified(std::time::SystemTime::now() - Duration::from_secs(60)))
        .expect("set");
    machine.run(&arguments).succeeded();
    assert_eq!(machine.left_over(), Vec::<String>::new());
    let mode = |name: &str| fs::metadata(machine.path(name)).expect("there").permissions().mode();
    assert_eq!(mode("k"), mode("plain"));
}

#[test]
fn a_file_of_log_probabilities_has_its_name_when_it_is_whole() {
    let tokens = long();
    let arguments = ["dump", "--model", "m.gguf", "--tokens", &tokens, "--ctx", "64", "--kld", "k"];
    let [_, machine] = ["TERM", "KILL"].map(|name| {
        let machine = ended_by(name, &arguments);
        assert!(!machine.path("k").exists(), "{name}");
        assert_eq!(machine.left_over().is_empty(), name == "TERM");
        machine
    });
    // What was killed just now might still be begun by somebody.
    thread::sleep(Duration::from_millis(2100));
    machine.run(&arguments).succeeded();
    assert_eq!(machine.left_over(), Vec::<String>::new());
}

#[test]
fn what_a_killed_program_has_left_is_removed_by_the_next() {
    let machine = Machine::new();
    let [dead, folder, alive] =
        [".xcheck-0dEad0.unfinished", ".xcheck-fOlder.unfinished", ".xcheck-aLive0.unfinished"];
    // What others have named alike.
    const THEIRS: [&str; 3] = [".xcheck-backup", ".xcheck-notes.md", ".xcheck-notes-of-mine.unfinished"];
    machine.put(dead, "half").put(&format!("{folder}/p0/q.npy"), "half").put(alive, "half");
    THEIRS.iter().for_each(|name| _ = machine.put(name, "whole"));
    let held = File::open(machine.path(alive)).expect("it is there");
    held.lock().expect("locked");
    let old = std::time::SystemTime::now() - Duration::from_secs(60);
    for name in [dead, alive].into_iter().chain(THEIRS) {
        File::options().write(true).open(machine.path(name)).expect("there").set_modified(old).expect("set");
    }
    let touched = Command::new("touch").args(["-d", "1 minute ago"]).arg(machine.path(folder)).status();
    assert!(touched.expect("touch runs").success());
    machine.dump("next");
    let mut left = machine.left_over();
    left.sort_unstable();
    let mut expected: Vec<&str> = [alive].into_iter().chain(THEIRS).collect();
    expected.sort_unstable();
    assert_eq!(left, expected, "what somebody works on stays, and what is not ours");
}

#[test]
fn a_report_that_is_interrupted_leaves_none_and_the_next_is_whole() {
    let machine = Machine::new();
    let arguments = ["run", "--model", "tiny-llama2", "--report", "r"];
    for wait in [5, 30, 80, 200] {
        let mut child = machine.start(&arguments);
        thread::sleep(Duration::from_millis(wait));
        _ = child.kill();
        child.wait().expect("it ends");
        let report = machine.path("r").join("report.json");
        let is_whole = |path: &Path| {
            let text = fs::read_to_string(path).expect("it is there");
            serde_json::from_str::<serde_json::Value>(&text).is_ok()
        };
        assert!(!report.exists() || is_whole(&report), "after {wait} ms");
    }
    machine.run(&arguments).succeeded();
    assert!(machine.path("r").join("report.html").exists());
}

#[test]
fn a_file_that_is_cut_short_while_it_is_read_ends_in_a_message() {
    let machine = Machine::new();
    machine.put("m.gguf", with_long_context());
    let tokens = long();
    let line = format!("exec xcheck dump --model m.gguf --tokens {tokens} --decode 200 --out d 2> said");
    let mut child = machine.shell(&line).spawn().expect("it starts");
    until(|| machine.left_over().iter().any(|name| name.starts_with(".xcheck-")));
    signal(&child, "STOP");
    File::options()
        .write(true)
        .open(machine.path("m.gguf"))
        .expect("it is there")
        .set_len(8192)
        .expect("cut");
    signal(&child, "CONT");
    let status = child.wait().expect("it ends");
    let said = fs::read_to_string(machine.path("said")).expect("it said something");
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.starts_with("error: ") && said.contains("truncated"), "{said}");
    assert!(!machine.path("d").exists());
}

#[test]
fn a_few_random_moments_disturb_no_next_run() {
    let machine = Machine::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/robust/kill-at-random.sh");
    let output =
        machine.shell(&format!("exec bash {script} 4 $(command -v xcheck) work")).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("nothing was disturbed"), "{said}{output:?}");
}
