//! What to type next, depending on what was found and on what was typed already.

use crate::checkpoint::Site;
use crate::compare::Verdict;
use crate::diagnose::Outcome;
use crate::report::{ModelRecord, Report};

/// Options that narrow a run down, or say where its output goes: set anew, or dropped.
const REPLACED: [&str; 6] = ["--reference", "--checkpoint", "--layer", "--pass", "--report", "--format"];

/// The commands worth running after this outcome, without the program's name; none after a pass.
pub fn commands(report: &Report, model: &ModelRecord, outcome: &Outcome) -> Vec<Vec<String>> {
    match (outcome.verdict, outcome.first_divergence()) {
        (Verdict::Fail, Some(row)) => {
            let narrowed = narrowed(report, model, outcome, row.site);
            let inspect = inspect(outcome, Some(row.site));
            if was_typed(&narrowed, &report.command) { vec![inspect] } else { vec![narrowed, inspect] }
        }
        (Verdict::Inconclusive, _) => vec![inspect(outcome, None)],
        _ => Vec::new(),
    }
}

/// The command as a shell takes it, program name first.
pub fn shell(command: &[String]) -> String {
    let words = std::iter::once("xcheck").chain(command.iter().map(String::as_str));
    // Only a NUL byte cannot be quoted, and no argument of a process holds one.
    shlex::try_join(words).unwrap_or_else(|_| format!("xcheck {}", command.join(" ")))
}

/// What was typed, for the one stage that failed.
fn narrowed(report: &Report, model: &ModelRecord, outcome: &Outcome, site: Site) -> Vec<String> {
    let mut command = match report.command.first().map(String::as_str) {
        Some("run" | "compare") => kept(&report.command),
        _ => ["run", "--model", &model.name].map(str::to_owned).to_vec(),
    };
    let mut set = |option: &str, value: Option<String>| {
        command.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
    };
    let compares_dumps = report.command.first().is_some_and(|name| name == "compare");
    set("--reference", (!compares_dumps).then(|| outcome.name.clone()));
    set("--checkpoint", Some(site.point.checkpoint().number().to_string()));
    set("--layer", site.layer.map(|layer| layer.to_string()));
    set("--pass", site.pass.map(|pass| pass.to_string()));
    command
}

/// The command without the options that are replaced, and their values.
fn kept(command: &[String]) -> Vec<String> {
    let mut words = words(command).into_iter();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if REPLACED.contains(&word.as_str()) {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept
}

/// Whether every option of `command` was typed with the same value.
fn was_typed(command: &[String], typed: &[String]) -> bool {
    let typed = words(typed);
    let mut options = command.windows(2).filter(|pair| pair[0].starts_with("--"));
    options.all(|pair| typed.windows(2).any(|typed| typed == pair))
}

/// The arguments, with `--option=value` as two.
fn words(command: &[String]) -> Vec<String> {
    let split = |argument: &String| match argument.split_once('=') {
        Some((option, value)) if option.starts_with("--") => vec![option.to_owned(), value.to_owned()],
        _ => vec![argument.clone()],
    };
    command.iter().flat_map(split).collect()
}

/// The reference itself: what it holds, or the values of one tap.
fn inspect(outcome: &Outcome, site: Option<Site>) -> Vec<String> {
    let mut command = vec!["inspect".to_owned(), outcome.name.clone()];
    let Some(Site { point, layer, pass }) = site else { return command };
    command.extend(["--tap".to_owned(), point.to_string()]);
    command.extend(layer.into_iter().flat_map(|layer| ["--layer".to_owned(), layer.to_string()]));
    command.extend(pass.into_iter().flat_map(|pass| ["--pass".to_owned(), pass.to_string()]));
    command
}
