//! What goes out: to a terminal, to a full disk, to nobody.

use serde_json::json;

use super::machine::Machine;

/// Names that would clear a screen, set its title, and begin a line of their own.
const EVIL: &str = "p\u{1b}[2J\u{1b}]0;pwned\u{7}\u{9b}31m\u{202e}\nerror: none";

/// A dump by a producer of that name, with an array of that name.
fn evil(machine: &Machine) {
    let file = machine.dump("evil").join("manifest.json");
    let text = std::fs::read_to_string(&file).expect("it is there");
    let mut manifest: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    manifest["producer"] = json!({"name": EVIL, "version": EVIL, "settings": {EVIL: EVIL}});
    manifest["model"]["name"] = json!(EVIL);
    machine.put("evil/manifest.json", manifest.to_string());
    manifest["tensors"][0]["file"] = json!(format!("{EVIL}.npy"));
    machine.put("lost/manifest.json", manifest.to_string());
    manifest["tensors"][0]["tap"] = json!(EVIL);
    machine.put("odd/manifest.json", manifest.to_string());
}

fn is_harmless(text: &str) -> bool {
    text.chars()
        .all(|c| c == '\n' || c == '\t' || !(c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)))
}

#[test]
fn no_name_in_a_file_sends_a_terminal_escape_sequence() {
    let machine = Machine::new();
    evil(&machine);
    machine.dump("plain");
    let commands: [&[&str]; 9] = [
        &["inspect", "evil"],
        &["inspect", "evil", "--format", "json"],
        &["inspect", "lost"],
        &["inspect", "odd"],
        &["compare", "evil", "plain", "--report", "r"],
        &["compare", "plain", "evil", "--no-report", "--format", "github"],
        &["compare", "plain", "evil", "--no-report", "--format", "json"],
        &["run", "--model", "tiny-llama2", "--reference", "evil", "--no-report", "--show", "map"],
        &["check", "--model", "tiny-llama2", "--candidate", "lost", "--no-report"],
    ];
    for command in commands {
        let said = machine.run(command);
        for text in [&said.stdout, &said.stderr] {
            assert!(is_harmless(text), "{command:?}: {text:?}");
            assert!(!text.lines().any(|line| line.starts_with("error: none")), "{command:?}: {text:?}");
        }
        if command.contains(&"json") {
            serde_json::from_str::<serde_json::Value>(&said.stdout).expect("it is still JSON");
        }
    }
    for file in ["report.md", "report.html", "junit.xml"] {
        let text = std::fs::read_to_string(machine.path("r").join(file)).expect("it is there");
        assert!(is_harmless(&text), "{file}");
    }
}

#[test]
fn no_name_in_a_file_is_markup_in_a_report() {
    let machine = Machine::new();
    let file = machine.dump("d").join("manifest.json");
    let text = std::fs::read_to_string(&file).expect("it is there");
    let mut manifest: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let markup = "</script><script>alert(1)</script><img src=x onerror=alert(1)> ![x](http://x/) @all";
    manifest["producer"] = json!({"name": markup, "version": markup, "settings": {markup: markup}});
    machine.put("d/manifest.json", manifest.to_string());
    machine.run(&["compare", "d", "d", "--report", "r"]);
    let read = |name| std::fs::read_to_string(machine.path("r").join(name)).expect("it is there");
    let page = read("report.html");
    assert!(
        !page.contains("<script>alert") && !page.contains("<img src=x"),
        "the page holds markup of a name"
    );
    let markdown = read("report.md");
    let plain = markdown.replace("\\<", "");
    assert!(!plain.contains("![x](") && !plain.contains("<img") && !plain.contains("@all"), "{markdown}");
    assert!(!read("junit.xml").contains("<img"));
}

#[test]
fn output_that_cannot_be_written_is_said_and_is_no_pass() {
    let machine = Machine::new();
    machine.dump("d");
    let commands = [
        "checkpoints",
        "causes",
        "models",
        "inspect d",
        "inspect d --format json",
        "tokenize --model tiny-llama2 hello",
        "generate --model tiny-llama2 --prompt hello",
        "completions bash",
        "man",
        "plan --model tiny-llama2 --reference d",
        "compare d d --no-report",
        "run --model tiny-llama2 --no-report",
        "selfcheck --model tiny-llama2",
        "audit d --model tiny-llama2 --no-report",
        "identify d/p0/embed.npy --model tiny-llama2 --tokens 1,5,9",
        "kld d d",
        "dump --model tiny-llama2 --tokens 1 --out e",
        "--help",
        "help run",
        "--version",
    ];
    for command in commands {
        let ended = machine.shell(&format!("exec xcheck {command} > /dev/full")).output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{command}: {said}");
        assert!(
            said.contains("cannot write standard output") && !said.contains("panicked"),
            "{command}: {said}"
        );
    }
}

#[test]
fn who_has_seen_enough_takes_no_verdict_back() {
    let machine = Machine::new();
    let line =
        "set -o pipefail; xcheck checkpoints | true; xcheck run --model tiny-llama2 --no-report | head -1";
    let ended = machine.shell(line).output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && said.is_empty(), "{said}");
}

#[test]
fn words_that_are_not_utf_8_are_a_path_or_a_message() {
    let machine = Machine::new();
    machine.dump("d");
    for (line, code) in [
        ("exec xcheck compare d d --report $'r\\xff'", 0),
        ("exec xcheck inspect $'d\\xff'", 2),
        ("exec xcheck compare $'d\\xff' d --no-report", 2),
        ("exec xcheck run --model $'m\\xff'", 2),
    ] {
        let ended = machine.shell(line).output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code() == Some(code) && !said.contains("panicked"), "{line}: {said}");
    }
}
