//! `report.md`: the report for a person, as a comment on a pull request.

use std::iter::once;

use crate::compare::{Gate, Role, Row, Verdict};
use crate::diagnose::{Coverage, Mode, Outcome};
use crate::report::shown::Shown;
use crate::report::text::{self, NOTHING, bound, largest, value};
use crate::report::{Comparison, ModelRecord, Refusal, Report, advice};

/// The report as GitHub-flavoured Markdown.
pub fn markdown(report: &Report) -> String {
    let references = report.results.iter().map(|result| reference(report, result));
    once(head(report)).chain(references).collect::<Vec<_>>().join("\n")
}

/// The error as GitHub-flavoured Markdown.
pub fn refused(refusal: &Refusal) -> String {
    let error = escape(&refusal.error);
    format!("# xcheck: {}\n\n{error}\n{}", Refusal::WORD.to_uppercase(), called_as(&refusal.command))
}

fn head(report: &Report) -> String {
    let mut text = format!("# xcheck: {}\n\n", report.verdict().name().to_uppercase());
    for Comparison { outcome, .. } in &report.results {
        text += &format!("- {}: {}\n", escape(&outcome.subject.name), emphasised(outcome.verdict));
    }
    if let Some(reason) = report.reason() {
        text += &format!("\n{}\n", sentence(reason));
    }
    text + &called_as(&report.command)
}

fn called_as(command: &[String]) -> String {
    format!("\nxcheck {}, called as:\n\n{}", env!("CARGO_PKG_VERSION"), code(&[command]))
}

fn reference(report: &Report, result: &Comparison) -> String {
    let outcome = &result.outcome;
    let mut text = format!("## {}: {}\n\n", escape(&outcome.subject.name), outcome.verdict);
    text += &match outcome.first_divergence() {
        Some(row) => divergence(outcome, row),
        None => doubt(result),
    };
    text += &facts(result);
    text += &table(&Shown::of(outcome, &report.checkpoints));
    let commands = advice::commands(report, result);
    if !commands.is_empty() {
        let lines: Vec<_> = commands.iter().map(Vec::as_slice).collect();
        text += &format!("\nTo look closer:\n\n{}", code(&lines));
    }
    text + &list("Notes", &outcome.notes)
}

/// Why there is no verdict, how much was judged, and what helps; nothing after a pass.
fn doubt(result: &Comparison) -> String {
    let outcome = &result.outcome;
    if outcome.verdict.is_good() {
        return String::new();
    }
    let why = text::in_doubt(outcome).map(text::told).or_else(|| outcome.reason.clone()).unwrap_or_default();
    let remedy = advice::remedy(result);
    let facts = [("why", why), ("covered", text::covered(outcome)), ("remedy", remedy)];
    let told = facts.iter().filter(|(_, fact)| !fact.is_empty());
    let told: String = told.map(|(name, fact)| format!("- {name}: {}\n", escape(fact))).collect();
    format!("Could not be judged.\n\n{told}\n")
}

/// The two sides, and how they were compared.
fn facts(result: &Comparison) -> String {
    let Comparison { model, outcome, .. } = result;
    let engine = format!("xcheck, numerics {}", outcome.subject.numerics);
    let (candidate, reference) = match outcome.subject.role {
        _ if result.is_of_dumps() => (outcome.subject.numerics.clone(), producer(outcome)),
        Role::Reference => (engine, producer(outcome)),
        Role::Candidate => (producer(outcome), engine),
    };
    format!(
        "What was compared:\n\n- candidate: {}\n- reference: {}\n- model: {}\n- errors measured: {}\n- decided by: {}\n\
         - coverage: {}\n",
        escape(&candidate),
        escape(&reference),
        escape(&words(model)),
        errors_measured(outcome.subject.mode),
        decided_by(outcome.subject.gate),
        coverage(&outcome.coverage),
    )
}

/// Who made the dump, with every setting.
fn producer(outcome: &Outcome) -> String {
    let settings = outcome.subject.producer.settings.iter().map(|(key, value)| match value.as_str() {
        Some(value) => format!("{key} {value}"),
        None => format!("{key} {value}"),
    });
    once(text::producer(outcome)).chain(settings).collect::<Vec<_>>().join(", ")
}

fn words(model: &ModelRecord) -> String {
    let mut words = [&*model.name, &model.architecture, &model.format, &model.quantisation].to_vec();
    words.retain(|word| !word.is_empty());
    words.join(", ")
}

fn errors_measured(mode: Mode) -> &'static str {
    match mode {
        Mode::Both => "introduced and total",
        Mode::Total => "total",
        Mode::Introduced => "introduced",
        Mode::Layers => "introduced since the start of each layer",
    }
}

fn decided_by(gate: Gate) -> &'static str {
    match gate {
        Gate::Rounding => "what rounding can do to each stage",
        Gate::Tolerance => "the table of tolerances",
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

fn table(shown: &[Shown]) -> String {
    let mut text =
        "\n| # | checkpoint | verdict | introduced | headroom | beyond | total | specified | worst | cosine |\n".to_owned();
    text += "|--:|---|---|--:|--:|--:|--:|--:|---|--:|\n";
    for shown in shown {
        text += &format!("| {} |\n", cells(shown).join(" | "));
    }
    text
}

fn cells(shown: &Shown) -> [String; 10] {
    let judged = shown.introduced.or(shown.total).filter(|_| !text::is_of_tokens(shown));
    let first = if shown.is_culprit { " (first divergence)" } else { "" };
    [
        shown.checkpoint.number().to_string(),
        shown.checkpoint.to_string(),
        shown.row.map_or("not compared".into(), |_| emphasised(shown.verdict)),
        largest(shown, shown.introduced),
        text::headroom(shown.headroom),
        text::beyond(shown.beyond),
        largest(shown, shown.total),
        shown.row.map_or(NOTHING.into(), |row| bound(row.tolerance.max_abs)),
        shown.row.map_or(NOTHING.into(), |row| format!("{}{first}", row.site)),
        judged.map_or(NOTHING.into(), |errors| format!("{:.7}", errors.cosine)),
    ]
}

fn divergence(outcome: &Outcome, row: &Row) -> String {
    let heading = sentence(&escape(&text::heading(outcome, &outcome.subject.name)));
    let mut text = format!("{heading}: **{}**\n\n", escape(&text::place(row)));
    if let Some(worst) = row.judged().and_then(|found| found.worst.as_ref()) {
        let (candidate, reference) = (value(worst.candidate), value(worst.reference));
        text += &format!("- candidate's value: {candidate}\n- reference's value: {reference}\n");
    }
    let allowed = if row.is_gated_by_tolerance() { "allowed" } else { "specified" };
    let facts = [("error", text::fault(row)), ("exactly", text::exactly(row)), (allowed, text::allowed(row))];
    let told = facts.iter().filter(|(_, fact)| !fact.is_empty());
    told.for_each(|(name, fact)| text += &format!("- {name}: {}\n", escape(fact)));
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

/// With a capital letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// What is not good stands out.
fn emphasised(verdict: Verdict) -> String {
    if verdict.is_good() { verdict.to_string() } else { format!("**{verdict}**") }
}

/// Text from a dump or a file, with no meaning in Markdown and no line breaks.
pub fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text::clean(text).chars() {
        if r"\`*[]<>|".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
