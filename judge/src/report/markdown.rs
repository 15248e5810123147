//! `report.md`: the report for people, as a comment on a pull request.

use std::iter::once;

use crate::check::{Gate, Mode, Role};
use crate::report::escaping::escape;
use crate::report::result_map::{LEGEND, ResultMap};
use crate::report::terminal_style::TerminalStyle;
use crate::report::text::{self, NOTHING, bound, largest, value};
use crate::report::{ArchitectureSummary, Comparison, Report, RunFailure, ServerReport, advice, likelihoods};
use crate::verdict::{CheckpointSummary, Coverage, Outcome, SiteResult, Verdict};

/// Maximum length of the report in characters. A GitHub comment can have 65,536; the rest is for text that a
/// script adds.
const MOST: usize = 60_000;
/// Maximum length of texts and names; `report.json` has the full text.
const LONGEST_TEXT: usize = 600;
const LONGEST_NAME: usize = 100;
const LONGEST_LIST: usize = 12;
/// Maximum number of lines and columns of a map that is shown unfolded.
const LARGEST_MAP: usize = 26;
const WIDTH: usize = 80;

/// Returns the report as GitHub-flavoured Markdown of at most 60 kB: findings first, details folded below.
/// Sections that do not fit are omitted from the end, with a note.
pub fn markdown(report: &Report) -> String {
    let head = head(report);
    let sections: Vec<[String; 2]> =
        report.results.iter().map(|result| [found(report, result), details(report, result)]).collect();
    let mut order: Vec<usize> = (0..sections.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(report.results[index].outcome.verdict));
    let kept = kept(head.len(), &sections, &order);
    let mut text = head;
    for index in order {
        let parts = sections[index].iter().zip(kept[index]).filter(|(_, kept)| *kept);
        parts.for_each(|(part, _)| text += part);
    }
    text + &left_out(report, &kept)
}

/// Returns which sections fit into the report. Findings of all dumps have priority over details.
fn kept(head: usize, sections: &[[String; 2]], order: &[usize]) -> Vec<[bool; 2]> {
    const LAST_WORDS: usize = 1000;
    let mut left = MOST.saturating_sub(head + LAST_WORDS);
    let mut kept = vec![[false; 2]; sections.len()];
    for part in 0..2 {
        for &index in order {
            let (section, kept) = (&sections[index], &mut kept[index]);
            let fits = section[part].len() <= left && (part == 0 || kept[0]);
            if fits {
                (kept[part], left) = (true, left - section[part].len());
            }
        }
    }
    kept
}

fn left_out(report: &Report, kept: &[[bool; 2]]) -> String {
    let lacking = |part: usize| kept.iter().filter(|kept| !kept[part]).count();
    let lacks = [(lacking(0), "the findings of"), (lacking(1), "the details of")];
    let lacks = lacks.iter().filter(|(count, _)| *count > 0);
    let lacks: Vec<_> =
        lacks.map(|(count, what)| format!("{what} {}", text::count(*count, "reference"))).collect();
    let rows = report.results.iter().any(|result| is_long(&result.outcome));
    match lacks.is_empty() && !rows {
        true => String::new(),
        false if lacks.is_empty() => format!("\n{IN_FULL}\n"),
        false => format!("\nOmitted here to fit into a comment: {}. {IN_FULL}\n", lacks.join(", ")),
    }
}

const IN_FULL: &str = "The full results are in `report.json` and `report.html`, next to this file.";

/// Returns true if a list of the outcome was cut.
fn is_long(outcome: &Outcome) -> bool {
    let lists = [outcome.notes.len(), outcome.findings.len(), outcome.coverage.skipped.len()];
    lists.into_iter().any(|length| length > LONGEST_LIST)
}

/// Returns a run error as GitHub-flavoured Markdown.
pub(crate) fn refused(refusal: &RunFailure) -> String {
    let error = escape(&text::fit(&refusal.error, MOST / 8));
    format!("# xcheck: {}\n\n{error}\n{}", RunFailure::WORD.to_uppercase(), called_as(&refusal.command))
}

/// Returns the verdicts, failures first.
fn head(report: &Report) -> String {
    const MOST_VERDICTS: usize = 40;
    let mut text = format!("# xcheck: {}\n\n", report.verdict().name().to_uppercase());
    let mut results: Vec<_> = report.results.iter().map(|result| &result.outcome).collect();
    results.sort_by_key(|outcome| std::cmp::Reverse(outcome.verdict));
    for outcome in results.iter().take(MOST_VERDICTS) {
        text += &format!("- {}: {}\n", name(outcome), in_a_line(outcome));
    }
    let more = results.len().saturating_sub(MOST_VERDICTS);
    if more > 0 {
        let verdict = results[MOST_VERDICTS].verdict;
        text += &format!("- and {}, none worse than {verdict}\n", text::count(more, "reference"));
    }
    if let Some(reason) = report.reason() {
        text += &format!("\n{}\n", sentence(reason));
    }
    text += &report.served.as_ref().map(ServerReport::markdown).unwrap_or_default();
    text += &architectures(&report.rollup());
    text + &called_as(&report.command)
}

/// Returns a table per architecture, in a report of several models.
pub fn architectures(rollup: &[ArchitectureSummary]) -> String {
    let table = |summary: &ArchitectureSummary| {
        format!("\n### {}\n{}", escape(&summary.title()), table(&summary.checkpoints))
    };
    rollup.iter().map(table).collect()
}

/// Returns a table cell with the verdict, the first divergence, the wrong side and the cause.
fn in_a_line(outcome: &Outcome) -> String {
    let verdict = emphasised(outcome.verdict);
    let Some(row) = outcome.first_divergence().filter(|_| !outcome.verdict.is_good()) else { return verdict };
    let beyond =
        beyond(row).map(|whose| format!(", {whose} are not explained by rounding")).unwrap_or_default();
    let because = outcome.findings.first().map(|finding| format!(": {}", finding.what)).unwrap_or_default();
    format!("{verdict} at {}{beyond}{}", escape(&text::site(row)), told(&because))
}

/// Returns the side with values that rounding cannot explain, if error bounds were computed.
fn beyond(row: &SiteResult) -> Option<&'static str> {
    let explained = row.explained.as_ref()?;
    let is_over = |role| !explained.side(role).is_explained();
    match (is_over(Role::Candidate), is_over(Role::Reference)) {
        (true, true) => Some("the values of both sides"),
        (true, false) => Some("the candidate's values"),
        (false, true) => Some("the reference's values"),
        (false, false) => None,
    }
}

fn name(outcome: &Outcome) -> String {
    escape(&text::fit(&text::clean(&outcome.subject.name), LONGEST_NAME))
}

/// Cuts external text to a maximum length and escapes it for Markdown.
fn told(text: &str) -> String {
    escape(&text::fit(text, LONGEST_TEXT))
}

fn called_as(command: &[String]) -> String {
    format!("\nxcheck {}, called as:\n\n{}", env!("CARGO_PKG_VERSION"), code(&[command]))
}

/// Returns the findings about a dump: the first divergence or the reason for an undetermined verdict, and the
/// next step.
fn found(report: &Report, result: &Comparison) -> String {
    let outcome = &result.outcome;
    let mut text = format!("\n## {}: {}\n\n", name(outcome), outcome.verdict);
    text += &match outcome.first_divergence() {
        Some(row) => divergence(outcome, row),
        None => doubt(result),
    };
    if !outcome.verdict.is_good() {
        text += &map(outcome);
    }
    let commands = advice::commands(report, result);
    if !commands.is_empty() {
        let lines: Vec<_> = commands.iter().map(Vec::as_slice).collect();
        text += &format!("To look closer:\n\n{}\n", code(&lines));
    }
    text
}

/// Returns the comparison as a table by checkpoint.
fn details(report: &Report, result: &Comparison) -> String {
    let outcome = &result.outcome;
    let text = facts(result)
        + &table(&CheckpointSummary::of(outcome, &report.checkpoints))
        + &list("Log-probabilities", &likelihoods::lines(outcome))
        + &notes(outcome);
    folded("What was compared, checkpoint by checkpoint", &text)
}

fn folded(title: &str, text: &str) -> String {
    format!("<details><summary>{title}</summary>\n\n{}\n\n</details>\n", text.trim_end())
}

/// Returns the result map: one line per tap, one column per layer.
fn map(outcome: &Outcome) -> String {
    let map = ResultMap::of(outcome);
    let lines = map.lines(WIDTH, TerminalStyle { colour: false });
    if !map.has_layers() {
        return String::new();
    }
    let is_large = lines.len() > LARGEST_MAP;
    let text = format!("```text\n{}\n\n{LEGEND}\n```\n", lines.join("\n"));
    if is_large { folded("Map of taps and layers", &text) + "\n" } else { text + "\n" }
}

/// Returns the reason for an undetermined verdict, the coverage, and the remedy; empty after a pass.
fn doubt(result: &Comparison) -> String {
    let outcome = &result.outcome;
    if outcome.verdict.is_good() {
        return String::new();
    }
    let why = text::in_doubt(outcome).map(text::told).or_else(|| outcome.reason.clone()).unwrap_or_default();
    let remedy = advice::remedy(result);
    let facts = [("why", why), ("covered", text::covered(outcome)), ("remedy", remedy)];
    let facts = facts.iter().filter(|(_, fact)| !fact.is_empty());
    let told: String = facts.map(|(name, fact)| format!("- {name}: {}\n", told(fact))).collect();
    format!("Could not be judged.\n\n{told}\n")
}

/// Returns a description of both sides and of the comparison mode.
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
        told(&candidate),
        told(&reference),
        told(&model.to_string()),
        errors_measured(outcome.subject.mode),
        decided_by(outcome.subject.gate),
        coverage(&outcome.coverage),
    )
}

/// Returns the producer of the dump with all settings.
fn producer(outcome: &Outcome) -> String {
    let settings = outcome.subject.producer.settings.iter().map(|(key, value)| match value.as_str() {
        Some(value) => format!("{key} {value}"),
        None => format!("{key} {value}"),
    });
    once(text::producer(outcome)).chain(settings).collect::<Vec<_>>().join(", ")
}

fn errors_measured(mode: Mode) -> &'static str {
    match mode {
        Mode::Both => "local and accumulated",
        Mode::Accumulated => "accumulated",
        Mode::Local => "local",
        Mode::Layers => "local, from the start of each layer",
    }
}

fn decided_by(gate: Gate) -> &'static str {
    match gate {
        Gate::Rounding => "the error bound of each operation",
        Gate::Tolerance => "the tolerance table",
    }
}

fn coverage(coverage: &Coverage) -> String {
    let Coverage { taps_compared, taps_expected, elements, skipped, .. } = coverage;
    let items = skipped.iter().take(LONGEST_LIST).map(|what| format!("\n  - not compared: {}", told(what)));
    let skipped = items.collect::<String>() + &more(skipped.len(), "\n  - not compared: ");
    format!(
        "{taps_compared} of {}, {}; {}{skipped}",
        text::count(*taps_expected, "tap"),
        text::count(*elements, "value"),
        text::identical(coverage)
    )
}

fn table(shown: &[CheckpointSummary]) -> String {
    let mut text =
        "\n| # | checkpoint | verdict | worst site | max abs | mean abs | cosine | err/bound | over | accumulated | spec tol |\n".to_owned();
    text += "|--:|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n";
    for shown in shown {
        text += &format!("| {} |\n", cells(shown).join(" | "));
    }
    text
}

fn cells(shown: &CheckpointSummary) -> [String; 11] {
    let [mean, cosine] = text::mean_and_cosine(shown);
    let first = if shown.is_culprit { " (first divergence)" } else { "" };
    [
        shown.number.to_string(),
        shown.checkpoint.to_string(),
        shown.site.map_or("not compared".into(), |_| emphasised(shown.verdict)),
        shown.site.map_or(NOTHING.into(), |site| format!("{site}{first}")),
        largest(shown, shown.errors()),
        mean,
        cosine,
        text::bound_ratio(shown.bound_ratio),
        text::over(shown.over),
        largest(shown, shown.accumulated),
        shown.tolerance.map_or(NOTHING.into(), bound),
    ]
}

fn divergence(outcome: &Outcome, row: &SiteResult) -> String {
    let heading = text::heading(outcome, &text::fit(&text::clean(&outcome.subject.name), LONGEST_NAME));
    let mut text = format!("{}: **{}**\n\n", sentence(&escape(&heading)), escape(&text::place(row)));
    if let Some(worst) = row.judged().and_then(|found| found.worst.as_ref()) {
        let (candidate, reference) = (value(worst.candidate), value(worst.reference));
        text += &format!("- candidate's value: {candidate}\n- reference's value: {reference}\n");
    }
    let facts =
        [("error", text::fault(row)), text::exactly(row), (text::bound_name(row), text::allowed(row))];
    let facts = facts.iter().filter(|(_, fact)| !fact.is_empty());
    facts.for_each(|(name, fact)| text += &format!("- {name}: {}\n", told(fact)));
    text += &beyond(row).map(|whose| format!("- not explained by rounding: {whose}\n")).unwrap_or_default();
    let found = outcome.findings.iter().map(|finding| text::finding(finding, row.site));
    let notes = outcome.notes.iter().map(|note| ("note", note.clone()));
    let facts: Vec<_> = found.chain(notes).collect();
    for (name, what) in facts.iter().take(LONGEST_LIST) {
        text += &format!("- {name}: {}\n", told(what));
    }
    let more = more(facts.len(), "- ");
    text + &more + if more.is_empty() { "\n" } else { "\n\n" }
}

/// Returns the notes, unless they are shown with a divergence.
fn notes(outcome: &Outcome) -> String {
    let are_told = outcome.first_divergence().is_some();
    if are_told { String::new() } else { list("Notes", &outcome.notes) }
}

fn list(title: &str, items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let shown: String = items.iter().take(LONGEST_LIST).map(|item| format!("- {}\n", told(item))).collect();
    format!("\n{title}:\n\n{shown}{}\n", more(items.len(), "- ").trim_start())
}

/// Returns a list entry with the number of omitted entries, if a list was cut.
fn more(length: usize, bullet: &str) -> String {
    match length.saturating_sub(LONGEST_LIST) {
        0 => String::new(),
        more => format!("{bullet}{more} more, in `report.json`"),
    }
}

fn code(commands: &[&[String]]) -> String {
    const LONGEST: usize = 4000;
    let line = |command: &&[String]| text::fit(&text::clean(&advice::shell(command)), LONGEST);
    commands.iter().map(|command| format!("    {}\n", line(command))).collect()
}

/// Capitalises the first letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Returns the verdict in bold if it is not good.
fn emphasised(verdict: Verdict) -> String {
    if verdict.is_good() { verdict.to_string() } else { format!("**{verdict}**") }
}
