//! What to type next, depending on what was found and on what was typed already.

use std::iter::once;
use std::path::Path;

use crate::checkpoint::Site;
use crate::compare::Verdict;
use crate::diagnose::Outcome;
use crate::report::{ModelRecord, Report};

/// Options with a short form.
const SHORT: [(&str, &str); 5] =
    [("-m", "--model"), ("-r", "--reference"), ("-c", "--checkpoint"), ("-l", "--layer"), ("-p", "--pass")];
/// Options that are set anew, or left out because they say where the output of the first run went.
const REPLACED: [&str; 6] = ["--reference", "--checkpoint", "--layer", "--pass", "--report", "--format"];
/// Without it, a run tells which stage made an error from those that inherited it.
const PROPAGATE: &str = "--propagate";

/// The commands worth running after this outcome, without the program's name; none after a pass.
pub fn commands(report: &Report, model: &ModelRecord, outcome: &Outcome) -> Vec<Vec<String>> {
    let typed = words(&report.command);
    match (outcome.verdict, outcome.first_divergence()) {
        (Verdict::Fail, Some(row)) => {
            let narrowed = narrowed(&typed, model, outcome, row.site);
            let narrowed = (!was_typed(&narrowed, &typed)).then_some(narrowed);
            narrowed.into_iter().chain(inspect(&typed, outcome, Some(row.site))).collect()
        }
        (Verdict::Inconclusive, _) => inspect(&typed, outcome, None).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The command as a shell takes it, program name first.
pub fn shell(command: &[String]) -> String {
    let words = once("xcheck").chain(command.iter().map(String::as_str));
    // Only a NUL byte cannot be quoted, and no argument of a process holds one.
    shlex::try_join(words).unwrap_or_else(|_| format!("xcheck {}", command.join(" ")))
}

/// What was typed, for the one stage that failed.
fn narrowed(typed: &[String], model: &ModelRecord, outcome: &Outcome, site: Site) -> Vec<String> {
    let (mut command, reference) = match typed.first().map(String::as_str) {
        Some("compare") => (kept(typed), None),
        Some("run") => (kept(typed), Some(reference(typed, outcome))),
        _ => (["run", "--model", &model.name].map(String::from).to_vec(), Some(outcome.name.clone())),
    };
    command.extend(option("--reference", reference));
    command.extend(option("--checkpoint", Some(site.point.checkpoint().number().to_string())));
    command.extend(place(site));
    command
}

/// The reference's own values at the place that failed, or what it holds; `None` where its path is not known.
fn inspect(typed: &[String], outcome: &Outcome, site: Option<Site>) -> Option<Vec<String>> {
    let mut command = vec!["inspect".to_owned(), typed_path(typed, outcome)?];
    if let Some(site) = site {
        command.extend(option("--tap", Some(site.point.to_string())));
        command.extend(place(site));
    }
    Some(command)
}

fn place(Site { layer, pass, .. }: Site) -> Vec<String> {
    let number = |number: usize| number.to_string();
    [option("--layer", layer.map(number)), option("--pass", pass.map(number))].concat()
}

fn option(name: &str, value: Option<String>) -> Vec<String> {
    value.map_or_else(Vec::new, |value| vec![name.to_owned(), value])
}

/// The reference as it was typed, else its name.
fn reference(typed: &[String], outcome: &Outcome) -> String {
    typed_path(typed, outcome).unwrap_or_else(|| outcome.name.clone())
}

/// The argument that is the path of the reference; a bare name may be one only where names mean nothing else.
fn typed_path(typed: &[String], outcome: &Outcome) -> Option<String> {
    let names_are_paths = typed.first().is_some_and(|command| command == "compare");
    let is_path = |argument: &&String| {
        let file = Path::new(argument).file_name()?.to_str()?;
        let extension = file.strip_prefix(outcome.name.as_str())?;
        let bare = **argument == outcome.name;
        Some(["", ".safetensors", ".npz"].contains(&extension) && (names_are_paths || !bare))
    };
    typed.iter().rfind(|argument| is_path(argument).unwrap_or(false)).cloned()
}

/// The command without the options that are replaced, and their values.
fn kept(typed: &[String]) -> Vec<String> {
    let mut words = typed.iter();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            PROPAGATE => {}
            replaced if REPLACED.contains(&replaced) => drop(words.next()),
            _ => kept.push(word.clone()),
        }
    }
    kept
}

/// Whether `typed` already holds every option of `command` with the same value.
fn was_typed(command: &[String], typed: &[String]) -> bool {
    let mut options = command.windows(2).filter(|pair| pair[0].starts_with("--"));
    let has = |pair: &[String]| typed.windows(2).any(|typed| typed == pair);
    options.all(has) && !typed.iter().any(|word| word == PROPAGATE)
}

/// The arguments, with `--option=value`, `-o value` and `-ovalue` all as `--option` `value`.
fn words(command: &[String]) -> Vec<String> {
    command.iter().flat_map(|argument| split(argument)).collect()
}

fn split(argument: &str) -> Vec<String> {
    if let Some((option, value)) = argument.split_once('=').filter(|(option, _)| option.starts_with("--")) {
        return vec![option.to_owned(), value.to_owned()];
    }
    let short = SHORT.iter().find_map(|(short, long)| Some((long, argument.strip_prefix(short)?)));
    match short {
        Some((long, "")) => vec![(*long).to_owned()],
        Some((long, value)) => vec![(*long).to_owned(), value.trim_start_matches('=').to_owned()],
        None => vec![argument.to_owned()],
    }
}
