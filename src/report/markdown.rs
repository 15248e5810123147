//! `report.md`: the report for a person, as a comment on a pull request.

use std::iter::once;

use crate::compare::{Row, Verdict};
use crate::diagnose::{Coverage, Mode, Outcome, Summary};
use crate::report::text::{self, NOTHING, bound, largest, value};
use crate::report::{Comparison, ModelRecord, Report, advice};

/// The report as GitHub-flavoured Markdown.
pub fn markdown(report: &Report) -> String {
    let references = report.results.iter().map(|result| reference(report, result));
    once(head(report)).chain(references).collect::<Vec<_>>().join("\n")
}

fn head(report: &Report) -> String {
    let mut text = format!("# xcheck: {}\n\n", report.verdict().name().to_uppercase());
    for Comparison { outcome, .. } in &report.results {
        text += &format!("- {}: {}\n", escape(&outcome.name), emphasised(outcome.verdict));
    }
    if report.results.is_empty() {
        text += "There was no reference to compare with.\n";
    }
    text + &format!("\nxcheck {}, called as:\n\n{}", env!("CARGO_PKG_VERSION"), code(&[&report.command[..]]))
}

fn reference(report: &Report, result: &Comparison) -> String {
    let Comparison { model, outcome, .. } = result;
    let mut text = format!("## {}: {}\n\n", escape(&outcome.name), outcome.verdict);
    if let Some(reason) = &outcome.reason {
        text += &format!("{}\n\n", escape(reason));
    }
    text += &outcome.first_divergence().map(|row| divergence(outcome, row)).unwrap_or_default();
    text += &facts(model, outcome);
    text += &table(&outcome.summaries(&report.checkpoints));
    let commands = advice::commands(report, result);
    if !commands.is_empty() {
        let lines: Vec<_> = commands.iter().map(Vec::as_slice).collect();
        text += &format!("\nTo look closer:\n\n{}", code(&lines));
    }
    text + &list("Notes", &outcome.notes)
}

fn facts(model: &ModelRecord, outcome: &Outcome) -> String {
    let settings = outcome.producer.settings.iter().map(|(key, value)| match value.as_str() {
        Some(value) => format!("{key} {value}"),
        None => format!("{key} {value}"),
    });
    let producer = once(text::producer(outcome)).chain(settings).collect::<Vec<_>>().join(", ");
    let mut model = [&*model.name, &model.architecture, &model.format, &model.quantisation].to_vec();
    model.retain(|word| !word.is_empty());
    format!(
        "- reference: {}\n- model: {}\n- numerics: {}\n- errors measured: {}\n- coverage: {}\n",
        escape(&producer),
        escape(&model.join(", ")),
        escape(&outcome.numerics),
        errors_measured(outcome.mode),
        coverage(&outcome.coverage),
    )
}

fn errors_measured(mode: Mode) -> &'static str {
    match mode {
        Mode::Both => "introduced and total",
        Mode::Total => "total",
        Mode::Introduced => "introduced",
        Mode::Layers => "introduced since the start of each layer",
    }
}

fn coverage(coverage: &Coverage) -> String {
    let Coverage { taps_compared, taps_expected, elements, skipped, .. } = coverage;
    let skipped: String =
        skipped.iter().map(|what| format!("\n  - not compared: {}", escape(what))).collect();
    format!(
        "{taps_compared} of {}, {}; {}{skipped}",
        text::count(*taps_expected, "tap"),
        text::count(*elements, "value"),
        text::identical(coverage)
    )
}

fn table(summaries: &[Summary]) -> String {
    let mut text =
        "\n| # | checkpoint | verdict | introduced | total | allowed | worst | cosine |\n".to_owned();
    text += "|--:|---|---|--:|--:|--:|---|--:|\n";
    for summary in summaries {
        text += &format!("| {} |\n", cells(summary).join(" | "));
    }
    text
}

fn cells(summary: &Summary) -> [String; 8] {
    let judged = summary.introduced.or(summary.total).filter(|_| !text::is_of_tokens(summary));
    [
        summary.checkpoint.number().to_string(),
        summary.checkpoint.to_string(),
        emphasised(summary.verdict),
        largest(summary, summary.introduced),
        largest(summary, summary.total),
        summary.worst.map_or(NOTHING.into(), |row| bound(row.tolerance.max_abs)),
        summary.worst.map_or(NOTHING.into(), |row| row.site.to_string()),
        judged.map_or(NOTHING.into(), |errors| format!("{:.7}", errors.cosine)),
    ]
}

fn divergence(outcome: &Outcome, row: &Row) -> String {
    let mut text = format!("First divergence: **{}**\n\n", escape(&text::place(row)));
    if let Some(worst) = row.judged().and_then(|found| found.worst.as_ref()) {
        let (candidate, reference) = (value(worst.candidate), value(worst.reference));
        text += &format!("- candidate: {candidate}\n- reference: {reference}\n");
    }
    text += &format!("- error: {}\n- allowed: {}\n", escape(&text::fault(row)), escape(&text::allowed(row)));
    for finding in &outcome.findings {
        text += &format!("- because: {}\n", escape(&text::finding(finding, row.site)));
    }
    text + "\n"
}

fn list(title: &str, items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: String = items.iter().map(|item| format!("- {}\n", escape(item))).collect();
    format!("\n{title}:\n\n{items}")
}

fn code(commands: &[&[String]]) -> String {
    commands.iter().map(|command| format!("    {}\n", advice::shell(command))).collect()
}

/// What is not good stands out.
fn emphasised(verdict: Verdict) -> String {
    if verdict.is_good() { verdict.to_string() } else { format!("**{verdict}**") }
}

/// Text from a dump or a file, with no meaning in Markdown and no line breaks.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text::clean(text).chars() {
        if r"\`*[]<>|".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
