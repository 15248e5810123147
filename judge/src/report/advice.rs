//! Suggestions for the next step, based on the results and the command line.

use std::iter::once;

use crate::check::Mode;
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::report::command_line::same_command;
use crate::report::{Comparison, Report, text};
use crate::verdict::{SiteResult, Verdict};

/// Returns commands worth running after this result, without the program name; empty after a pass.
pub(crate) fn commands(report: &Report, result: &Comparison) -> Vec<Vec<String>> {
    let outcome = &result.outcome;
    let commands = match (outcome.verdict, outcome.first_divergence()) {
        (Verdict::Fail, Some(row)) => vec![Some(narrowed(result, row.site)), inspect(result, Some(row.site))],
        (Verdict::Inconclusive, _) => match text::in_doubt(outcome) {
            Some(row) => vec![introduced(result, row), inspect(result, Some(row.site))],
            None => vec![inspect(result, None)],
        },
        _ => Vec::new(),
    };
    commands.into_iter().flatten().filter(|command| !same_command(command, &report.command)).collect()
}

/// Returns a remedy for an undetermined comparison; empty if none is known.
pub(crate) fn remedy(result: &Comparison) -> String {
    let outcome = &result.outcome;
    let Some(row) = text::in_doubt(outcome) else { return remedy_of_gaps(result) };
    let is_mixture = outcome.rows.iter().any(|row| row.site.point.is_of_experts());
    let is_shared = outcome.rows.iter().any(|row| row.site.point.is_of_shared_expert());
    let lacking = between(row, is_mixture, is_shared);
    match row.floor {
        None => String::new(),
        Some(_) if introduced(result, row).is_some() => {
            "measure the local error too: less rounding adds up in it than in the accumulated error"
                .to_owned()
        }
        Some(_) if lacking.is_empty() => {
            "the tolerance is below the noise floor: use --tolerance FILE to set another".to_owned()
        }
        Some(_) => format!("record {} too, so that each operation there is judged by itself", list(&lacking)),
    }
}

/// Returns the command quoted for a shell, with the program name.
pub fn shell(command: &[String]) -> String {
    quoted(once("xcheck").chain(command.iter().map(String::as_str)))
}

/// Quotes words for a shell.
pub fn quoted<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    let quoted = |word: &'w str| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        // Only NUL bytes cannot be quoted, and process arguments cannot contain them.
        false => shlex::try_quote(word).map_or_else(|_| word.to_owned(), Into::into),
    };
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Returns a remedy if all compared values pass but some taps are missing.
fn remedy_of_gaps(result: &Comparison) -> String {
    match result.outcome.coverage.skipped.as_slice() {
        [] => "record more than the input, or select other checkpoints".to_owned(),
        _ => "record the missing taps, or select the recorded ones with --checkpoint, --layer and --pass"
            .to_owned(),
    }
}

/// Returns the taps between a row and the recorded values it was judged from, in data-flow order. Recording them
/// would locate the first error more precisely. Lists only taps that exist in every architecture. `is_mixture` adds
/// the taps of all mixtures of experts; `is_shared` adds those of all mixtures with a shared expert.
fn between(row: &SiteResult, is_mixture: bool, is_shared: bool) -> Vec<Point> {
    let exists = |point: &&Point| match is_mixture {
        true => !point.is_of_one_block() && (is_shared || !point.is_of_shared_expert()),
        false => !point.is_of_experts(),
    };
    let mut found = Vec::new();
    let mut ahead = vec![row.site.point];
    while let Some(point) = ahead.pop() {
        for inputs in point.inputs() {
            let is_held = inputs.iter().any(|input| row.since.iter().any(|start| start.point == *input));
            // Blocks whose halves both read the input have no stream between them.
            let stream = inputs.iter().find(|point| **point == Point::AttnResidual);
            let Some(&nearest) = stream.or_else(|| inputs.iter().rfind(exists)) else { continue };
            let of_another_layer = matches!(nearest, Point::Embed | Point::BlockOut);
            if !is_held && !of_another_layer && !found.contains(&nearest) {
                found.push(nearest);
                ahead.push(nearest);
            }
        }
    }
    found.retain(|point| !point.is_derived());
    found.sort_unstable();
    found
}

/// Joins taps to a phrase such as "q, k and v".
fn list(points: &[Point]) -> String {
    match points {
        [] => String::new(),
        [only] => only.to_string(),
        [rest @ .., last] => {
            let rest: Vec<_> = rest.iter().map(|point| point.name()).collect();
            format!("{} and {last}", rest.join(", "))
        }
    }
}

/// Returns the command that also measures local errors, if only the accumulated error of a row was measured
/// and it is undetermined.
fn introduced(result: &Comparison, row: &SiteResult) -> Option<Vec<String>> {
    let is_total = result.outcome.subject.mode == Mode::Accumulated && row.site.point != Point::Generated;
    let can_run = !result.is_of_dumps() && !result.outcome.subject.is_case;
    (is_total && can_run && row.floor.is_some()).then(|| narrowed(result, row.site))
}

/// Returns the command limited to the operation of one site.
fn narrowed(result: &Comparison, site: Site) -> Vec<String> {
    let checkpoint = match site.point.checkpoint() {
        Checkpoint::Input => Checkpoint::Input.to_string(),
        other => other.number().to_string(),
    };
    let checkpoint = ["--checkpoint".to_owned(), checkpoint];
    result.again.iter().cloned().chain(checkpoint).chain(place(site)).collect()
}

/// Returns the command that shows the dump's values at one site, or at all sites.
fn inspect(result: &Comparison, site: Option<Site>) -> Option<Vec<String>> {
    let mut command = vec!["inspect".to_owned(), result.reference.clone()?];
    if let Some(site) = site.filter(|site| site.point.name().parse::<Point>().is_ok()) {
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
