//! What other programs read: JSON of every command, completions, manual pages; and what environments ask of the terminal.

use std::fs;

use crate::common::finished::Finished;
use crate::common::terminal::Terminal;
use assert_cmd::Command;
use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::Value;
use xcheck::cli::Cli;

/// What these print is for one program alone.
const OTHERWISE: [&str; 3] = ["completions", "man", "help"];

const DOCS: &str = include_str!("../docs/reference/json.md");

/// Without the hidden one that says which feature `serve` needs.
fn commands() -> Vec<clap::Command> {
    Cli::command().get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect()
}

fn judged() -> [&'static str; 5] {
    ["run", "--model", "tiny-llama2", "--reference", "llama.cpp-q8_0"]
}

/// With variables of the environment, and none of the caller's about colour.
fn coloured(variables: &[(&str, &str)]) -> bool {
    let terminal = Terminal::new();
    let mut command = Command::cargo_bin("xcheck").expect("it is built");
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command.current_dir(terminal.path()).args(judged()).arg("--no-report").envs(variables.iter().copied());
    Finished::of(command.output().expect("it starts")).succeeded().contains('\u{1b}')
}

// ---- JSON -------------------------------------------------------------------------------------------

#[test]
fn every_command_prints_json_and_its_page_says_what() {
    for command in commands().iter().filter(|command| !OTHERWISE.contains(&command.get_name())) {
        let name = command.get_name();
        let format = command.get_arguments().find(|argument| argument.get_id() == "format");
        let format = format.unwrap_or_else(|| panic!("{name} has no --format"));
        let values: Vec<_> =
            format.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        assert!(values.contains(&"json".to_owned()), "{name}: {values:?}");
        assert!(DOCS.contains(&format!("`xcheck {name}`")), "{name} is not in docs/reference/json.md");
    }
}

#[test]
fn every_command_prints_its_errors_as_json_and_for_a_person() {
    for command in commands().iter().filter(|command| !OTHERWISE.contains(&command.get_name())) {
        for wrong in [&["--format", "json", "--no-such-option"][..], &["--no-such-option", "--format=json"]] {
            let finished = Terminal::new().run(&[&[command.get_name()], wrong].concat());
            let told: Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
            assert!(told["error"].as_str().expect("a message").contains("--no-such-option"), "{told}");
            assert_eq!(finished.code, 2);
            assert!(finished.stderr.starts_with("error: "));
        }
    }
    let asked = ["run", "check --candidate x", "selfcheck", "dump --out x --tokens 1", "generate --tokens 1"];
    for line in asked.map(|line| format!("{line} --model no-such-model --format json")) {
        let finished = Terminal::new().run(&line.split(' ').collect::<Vec<_>>());
        let told: Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
        assert!(told["error"].as_str().expect("a message").contains("no-such-model"), "{line}: {told}");
        assert_eq!(finished.code, 2, "{line}");
    }
}

#[test]
fn errors_are_no_json_where_nobody_asked() {
    for words in [
        &["run", "--model", "no-such-model"][..],
        &["models", "--", "--format", "json"],
        &["run", "--nothing"],
    ] {
        let finished = Terminal::new().run(words);
        assert_eq!((finished.code, finished.stdout.as_str()), (2, ""), "{words:?}");
    }
}

#[test]
fn lists_are_the_same_in_json() {
    let terminal = Terminal::new();
    let of = |command: &str| terminal.json(&[command]).1;
    let (checkpoints, causes, models) = (of("checkpoints"), of("causes"), of("models"));
    let checkpoints = checkpoints["checkpoints"].as_array().expect("a list");
    assert_eq!((checkpoints.len(), &checkpoints[2]["checkpoint"]), (13, &"qkv".into()));
    let taps = checkpoints[2]["taps"].as_array().expect("a list").iter().map(|tap| &tap["tap"]);
    let projected: Vec<_> = taps.filter(|tap| ["q", "k", "v"].iter().any(|name| *tap == name)).collect();
    assert_eq!(projected, ["q", "k", "v"]);
    let causes = causes["causes"].as_array().expect("a list");
    let theta = causes.iter().find(|cause| cause["kind"] == "rope_theta").expect("it is known");
    assert_eq!(theta["suppose"][0]["at"], serde_json::json!(["q_rope", "k_rope"]));
    let shipped = &models["shipped"][0];
    assert_eq!(shipped["name"], "tiny-llama2");
    assert!(shipped["formats"][0]["bytes"].as_u64() > Some(1000) && models["public"][0]["gb"].is_number());
}

#[test]
fn what_is_looked_at_made_and_planned_is_told_in_json() {
    let terminal = Terminal::new();
    let dumped =
        ["dump", "--model", "tiny-llama2", "--tokens", "1,2", "--decode", "1", "--out", "d.safetensors"];
    let (code, dump) = terminal.json(&dumped);
    assert_eq!((code, &dump["path"], &dump["passes"]), (0, &"d.safetensors".into(), &2.into()));
    let (_, seen) = terminal.json(&["inspect", "d.safetensors", "--tap", "q", "--layer", "1"]);
    let seen = &seen["found"][0];
    assert_eq!((&seen["kind"], &seen["producer"]["name"]), (&"dump".into(), &"xcheck".into()));
    let taps = seen["taps"].as_array().expect("a list");
    assert_eq!((taps.len(), &taps[0]["layer"], &taps[1]["pass"]), (2, &1.into(), &1.into()));
    assert!(taps[0]["rms"].as_f64() > Some(0.0) && seen["generated"] == dump["generated"]);
    let (_, weights) = terminal.json(&["inspect", "tiny-llama2-q8_0"]);
    let weights = &weights["found"][0];
    assert_eq!(weights["metadata"]["general.architecture"], "llama");
    assert!(weights["metadata"]["llama.block_count"].is_u64(), "{}", weights["metadata"]);
    assert!(weights["tensors"].as_array().expect("a list").iter().any(|row| row["type"] == "q8_0"));
    let plan = ["plan", "--model", "tiny-llama2", "--reference", "llama.cpp-q8_0"];
    let (_, units) = terminal.json(&plan);
    assert_eq!(units["units"][0]["unit"], 1);
    let (_, shards) = terminal.json(&[&plan[..], &["--shards", "2"]].concat());
    assert_eq!(shards["shards"].as_array().map(Vec::len), Some(2));
}

// ---- help -------------------------------------------------------------------------------------------

#[test]
fn the_help_lists_each_command_once_and_the_exit_codes() {
    let help = Terminal::new().run(&["--help"]).succeeded();
    for command in commands() {
        let starts = format!("  {} ", command.get_name());
        assert_eq!(help.lines().filter(|line| line.starts_with(&starts)).count(), 1, "{starts}: {help}");
    }
    assert!(
        help.contains("Exit codes: 0 pass, 1 divergence, 2 bad input or usage, 3 inconclusive"),
        "{help}"
    );
}

#[test]
fn each_help_text_starts_with_a_short_line() {
    let is_short = |text: &str| (1..=75).contains(&text.chars().count()) && !text.ends_with('.');
    for command in commands() {
        let name = command.get_name();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(is_short(&about), "{name}: {about}");
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(is_short(&help), "{name} {}: {help}", argument.get_id());
        }
    }
}

#[test]
fn no_line_of_a_short_help_is_wider_than_100_columns() {
    let terminal = Terminal::new();
    let helps = commands().into_iter().map(|command| terminal.run(&[command.get_name(), "-h"]).succeeded());
    for help in helps.chain([terminal.run(&["-h"]).succeeded()]) {
        let wide: Vec<_> = help.lines().filter(|line| line.chars().count() > 100).collect();
        assert!(wide.is_empty(), "{wide:?}");
    }
}

// ---- shells and pages -------------------------------------------------------------------------------

#[test]
fn each_shell_completes_every_command() {
    use clap::ValueEnum;
    for shell in Shell::value_variants() {
        let script = Terminal::new().run(&["completions", &shell.to_string()]).succeeded();
        for command in commands() {
            assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
        }
        assert!(script.contains("from-reference"), "{shell}");
    }
}

#[test]
fn there_is_a_page_of_each_command_with_its_options() {
    let terminal = Terminal::new();
    assert_eq!(terminal.run(&["man", "pages"]).succeeded(), "");
    let read =
        |name: &str| fs::read_to_string(terminal.path().join("pages").join(name)).expect("it is there");
    assert!(read("xcheck.1").contains("xcheck\\-run(1)"));
    for command in commands() {
        let page = read(&format!("xcheck-{}.1", command.get_name()));
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(read("xcheck-run.1").contains("\\-\\-reference"));
    assert!(terminal.run(&["man"]).succeeded().contains(".TH xcheck 1"));
}

// ---- the terminal -----------------------------------------------------------------------------------

#[test]
fn colour_is_as_the_environment_asks() {
    assert!(!coloured(&[]), "what is no terminal has none");
    assert!(coloured(&[("CLICOLOR_FORCE", "1")]));
    assert!(!coloured(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
}

#[test]
fn a_failure_has_a_map_and_a_pass_where_it_is_asked_for() {
    let terminal = Terminal::new();
    let passed = terminal.run(&judged()).succeeded();
    assert!(!passed.contains("map of"), "{passed}");
    let shown = terminal.run(&[&judged()[..], &["--show", "map"]].concat()).succeeded();
    assert!(shown.contains("map of llama.cpp-q8_0\n"), "{shown}");
    let failed = terminal.run(&[&judged()[..], &["--numerics", "f32"]].concat());
    assert_eq!(failed.code, 1);
    let q = failed.stdout.lines().find(|line| line.starts_with("  q ")).expect("it has a line");
    assert!(q.trim_end().ends_with(" xxxx"), "{}", failed.stdout);
}

#[test]
fn quiet_prints_a_line_for_each_reference_and_errors() {
    let terminal = Terminal::new();
    let finished = terminal.run(&["run", "--model", "tiny-llama2", "--quiet", "--checkpoint", "1-3"]);
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!((finished.code, lines.len(), finished.stderr.as_str()), (0, 5, ""), "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with("pass  ")), "{lines:?}");
    terminal.assert_refused(&["run", "--model", "no-such-model", "-q"], "no-such-model");
}
