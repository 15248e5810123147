//! What to type next, depending on what was found and on what was typed already.

use std::iter::once;

use crate::checkpoint::{Checkpoint, Site};
use crate::compare::Verdict;
use crate::report::{Comparison, Report};

/// The commands worth running after this outcome, without the program's name; none after a pass.
pub fn commands(report: &Report, result: &Comparison) -> Vec<Vec<String>> {
    let commands = match (result.outcome.verdict, result.outcome.first_divergence()) {
        (Verdict::Fail, Some(row)) => vec![Some(narrowed(result, row.site)), inspect(result, Some(row.site))],
        (Verdict::Inconclusive, _) => vec![inspect(result, None)],
        _ => Vec::new(),
    };
    commands.into_iter().flatten().filter(|command| *command != report.command).collect()
}

/// The command as a shell takes it, program name first.
pub fn shell(command: &[String]) -> String {
    let words = once("xcheck").chain(command.iter().map(String::as_str));
    // Only a NUL byte cannot be quoted, and no argument of a process holds one.
    shlex::try_join(words).unwrap_or_else(|_| format!("xcheck {}", command.join(" ")))
}

/// The same comparison, of the one stage that failed.
fn narrowed(result: &Comparison, site: Site) -> Vec<String> {
    let checkpoint = match site.point.checkpoint() {
        Checkpoint::Input => Checkpoint::Input.to_string(),
        other => other.number().to_string(),
    };
    let checkpoint = ["--checkpoint".to_owned(), checkpoint];
    result.again.iter().cloned().chain(checkpoint).chain(place(site)).collect()
}

/// The reference's own values at the place that failed, or all that it holds.
fn inspect(result: &Comparison, site: Option<Site>) -> Option<Vec<String>> {
    let mut command = vec!["inspect".to_owned(), result.reference.clone()?];
    if let Some(site) = site {
        command.extend(["--tap".to_owned(), site.point.to_string()]);
        command.extend(place(site));
    }
    Some(command)
}

fn place(site: Site) -> impl Iterator<Item = String> {
    option("--layer", site.layer).chain(option("--pass", site.pass))
}

fn option(name: &str, value: Option<usize>) -> impl Iterator<Item = String> {
    let words = value.map(|value| [name.to_owned(), value.to_string()]);
    words.into_iter().flatten()
}
