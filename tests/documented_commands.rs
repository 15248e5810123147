//! Every command in the docs and skills is one that xcheck takes, and those of the tutorials are run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use clap::Parser;
use tempfile::TempDir;
use xcheck::cli::Cli;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The pages, by their path in the repository.
fn pages() -> BTreeMap<String, String> {
    let mut folders = vec![Path::new(ROOT).join("docs"), Path::new(ROOT).join("skills")];
    let mut paths: Vec<PathBuf> = vec![Path::new(ROOT).join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path if path.extension().is_some_and(|end| end == "md") => paths.push(path),
                _ => {}
            }
        }
    }
    let name = |path: &Path| path.strip_prefix(ROOT).expect("inside").display().to_string();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).expect("a text"))).collect()
}

/// The xcheck commands of the shell blocks of a page, each in one line; those with an ellipsis are no whole commands.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in page.split("\n```").skip(1).step_by(2) {
        let (language, body) = block.split_once('\n').unwrap_or_default();
        let is_shell = ["sh", "bash", "console"].contains(&language.trim());
        let is_session = language.trim() == "text";
        for line in body.replace("\\\n", " ").lines() {
            let line = match line.trim_start().strip_prefix("$ ") {
                Some(typed) => typed,
                None if is_session => continue,
                None => line.trim_start(),
            };
            let command = line.split(" | ").find(|part| part.trim_start().starts_with("xcheck "));
            let Some(command) = command.filter(|_| is_shell || is_session) else { continue };
            let command = command.split([';', '#', '>']).next().unwrap_or_default().split("&&").next();
            let command = command.unwrap_or_default().trim().trim_end_matches('&').to_owned();
            if !command.split_whitespace().any(|word| word == "...") {
                found.push(command);
            }
        }
    }
    found
}

fn words(command: &str) -> Vec<String> {
    shlex::split(command).unwrap_or_else(|| panic!("a shell reads it: {command}"))
}

#[test]
fn every_command_in_the_docs_is_one_that_xcheck_takes() {
    let mut count = 0;
    for (page, text) in pages() {
        for command in commands(&text) {
            let words: Vec<String> = words(&command).iter().map(|word| word.replace('$', "x")).collect();
            let parsed = Cli::try_parse_from(&words);
            let refused = parsed.err().filter(clap::Error::use_stderr);
            assert!(refused.is_none(), "{page}: {command}\n{}", refused.expect("it is refused"));
            count += 1;
        }
    }
    assert!(count > 60, "{count} commands");
}

#[test]
fn a_command_that_is_mistyped_is_seen() {
    let page = "Text\n```sh\nxcheck chekc --model m   # wrong\n```\n```text\n$ xcheck run -m m\nxcheck is told of\n```\n";
    assert_eq!(commands(page), ["xcheck chekc --model m", "xcheck run -m m"]);
    assert!(Cli::try_parse_from(words("xcheck chekc --model m")).is_err());
}

/// Bad usage or input ends with 2: a tutorial may show a failure, but no command that cannot be run.
#[test]
fn the_commands_of_the_tutorials_run() {
    let folder = TempDir::new().expect("a temporary directory");
    std::os::unix::fs::symlink(Path::new(ROOT).join("tests"), folder.path().join("tests")).expect("linked");
    let outputs = folder.path().display().to_string();
    let mut count = 0;
    for tutorial in ["first-verdict", "gate-ci"] {
        let text = fs::read_to_string(Path::new(ROOT).join(format!("docs/tutorials/{tutorial}.md")));
        for command in commands(&text.expect("it is there")) {
            let words: Vec<String> =
                words(&command).iter().skip(1).map(|word| word.replace("/tmp", &outputs)).collect();
            let mut xcheck = Command::cargo_bin("xcheck").expect("it is built");
            let output = xcheck.current_dir(folder.path()).args(&words).output().expect("it runs");
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.code().is_some_and(|code| [0, 1, 3].contains(&code)),
                "{tutorial}: {command}: {message}"
            );
            count += 1;
        }
    }
    assert!(count >= 8, "{count} commands");
}
