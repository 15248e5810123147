//! Text after the terminal's table: one verdict per dump, and for each divergence its site, the findings and
//! the next command.

use std::iter::{once, repeat};

use crate::check::Gate;
use crate::report::terminal_style::TerminalStyle;
use crate::report::text::{self, WIDTH, bound, clean, count, fit, value};
use crate::report::{Comparison, Report, advice, likelihoods};
use crate::verdict::{Outcome, SiteResult, Verdict};

/// Returns a verdict line for every dump, and a paragraph for each one that does not pass.
pub(crate) fn lines(report: &Report, paint: TerminalStyle) -> Vec<String> {
    if report.results.is_empty() {
        return verdicts(report, paint);
    }
    let mut lines = vec![String::new()];
    let widths = Widths::of(report);
    for Comparison { outcome, .. } in &report.results {
        lines.extend(verdict(outcome, &widths, paint));
        lines.extend(notes(outcome, &widths));
    }
    lines.extend(whole(report));
    lines.extend(report.results.iter().flat_map(|result| details(report, result, paint)));
    lines
}

/// Returns the verdict lines only.
pub fn verdicts(report: &Report, paint: TerminalStyle) -> Vec<String> {
    let widths = Widths::of(report);
    let each = report.results.iter().flat_map(|result| verdict(&result.outcome, &widths, paint));
    each.chain(whole(report)).collect()
}

/// Returns a message about the run as a whole, if there is one.
fn whole(report: &Report) -> Option<String> {
    let served = report.served.as_ref().map(|served| {
        let verdict = Verdict::over(served.verdicts());
        let worst = served.worst().map_or("every check of the server itself", |check| &check.check);
        format!("{}  {}: {worst}", verdict_word(verdict), clean(&served.url))
    });
    report.reason().map(|reason| format!("{}  {reason}", report.verdict())).or(served)
}

/// Widths of the verdict column and the name column.
struct Widths {
    verdict: usize,
    name: usize,
}

impl Widths {
    const LONGEST_NAME: usize = 30;

    fn of(report: &Report) -> Self {
        let outcomes = || report.results.iter().map(|result| &result.outcome);
        let names = outcomes().map(|outcome| text::width(&short_name(outcome)));
        Self {
            verdict: outcomes().map(|outcome| verdict_word(outcome.verdict).len()).max().unwrap_or_default(),
            name: names.max().unwrap_or_default(),
        }
    }
}

/// Returns the shortened name of a dump. The sequence of a batch, after the last `#`, is never cut.
fn short_name(outcome: &Outcome) -> String {
    let (name, longest) = (clean(&outcome.subject.name), Widths::LONGEST_NAME);
    let (dump, sequence) = name.split_at(name.rfind('#').unwrap_or(name.len()));
    match text::width(sequence) {
        taken if 2 * taken < longest => fit(dump, longest - taken) + sequence,
        _ => fit(&name, longest),
    }
}

fn verdict_word(verdict: Verdict) -> &'static str {
    if verdict == Verdict::Fail { "FAIL" } else { verdict.name() }
}

/// Returns a verdict line such as "pass  llama.cpp-q8_0  412 taps explained by rounding".
fn verdict(outcome: &Outcome, widths: &Widths, paint: TerminalStyle) -> Vec<String> {
    let word = verdict_word(outcome.verdict);
    let name = short_name(outcome);
    let indent = |text: &str, width: usize| " ".repeat(width.saturating_sub(text::width(text)) + 2);
    let head = [word, &indent(word, widths.verdict), &name, &indent(&name, widths.name)].concat();
    let mut lines = text::wrap(&head, &sentence(outcome), WIDTH);
    // Coloured last, because escape sequences would count as width.
    lines[0] = lines[0].replacen(word, &paint.verdict(outcome.verdict, word), 1);
    lines
}

fn notes(outcome: &Outcome, widths: &Widths) -> Vec<String> {
    let margin = " ".repeat(widths.verdict + 2);
    let head = format!("{margin}note: ");
    let likelihoods = likelihoods::lines(outcome);
    let measured = likelihoods.iter().flat_map(|line| text::wrap(&margin, line, WIDTH));
    measured.chain(outcome.notes.iter().flat_map(|note| text::wrap(&head, note, WIDTH))).collect()
}

/// Returns the verdict in a sentence. Details follow below.
fn sentence(outcome: &Outcome) -> String {
    let taps = count(outcome.rows.len(), "tap");
    let of_taps = |verdict| Some(outcome.count(verdict)).filter(|&count| count > 0);
    match (outcome.verdict, of_taps(outcome.verdict), &outcome.reason) {
        (Verdict::Fail, Some(failed), _) => match outcome.subject.gate {
            Gate::Rounding => format!("{failed} of {taps} not explained by rounding"),
            Gate::Tolerance => format!("{failed} of {taps} out of tolerance"),
        },
        (Verdict::Inconclusive, Some(doubtful), _) => format!("{doubtful} of {taps} could not be judged"),
        (Verdict::Fail | Verdict::Inconclusive, _, reason) => reason.clone().unwrap_or_default(),
        _ => {
            let known = outcome.count(Verdict::Known);
            let fine = count(outcome.rows.len() - known, "tap");
            let more = [(outcome.count(Verdict::Tie), "tie"), (known, "waived failure")];
            let more = more.iter().filter(|(number, _)| *number > 0);
            let more: String = more.map(|(number, what)| format!(", {}", count(*number, what))).collect();
            format!("{fine} {}{more}{}", text::fine(outcome), text::in_part(&outcome.coverage))
        }
    }
}

/// Returns a titled list of facts about the first failure, and the next commands.
fn details(report: &Report, result: &Comparison, paint: TerminalStyle) -> Vec<String> {
    let outcome = &result.outcome;
    let name = short_name(outcome);
    let (title, mut facts) = match (outcome.verdict, outcome.first_divergence()) {
        (Verdict::Fail, Some(row)) => (text::heading(outcome, &name), divergence(outcome, row)),
        (Verdict::Inconclusive, _) => (format!("could not be judged: {name}"), doubt(result)),
        _ => return Vec::new(),
    };
    facts.retain(|(_, fact)| !fact.is_empty());
    let mut lines = vec![String::new(), paint.strong(&title)];
    lines.extend(facts.iter().flat_map(|(name, fact)| text::wrap(&label(name), fact, WIDTH)));
    // Commands are not wrapped, so that they can be copied.
    let commands = advice::commands(report, result);
    let labels = once("next").chain(repeat("")).map(label);
    lines.extend(labels.zip(&commands).map(|(label, command)| label + &advice::shell(command)));
    lines
}

fn label(name: &str) -> String {
    format!("  {name:<10}")
}

fn divergence(outcome: &Outcome, row: &SiteResult) -> Vec<(&'static str, String)> {
    let worst = row.judged().and_then(|found| found.worst.as_ref());
    let because = outcome.findings.iter().map(|finding| text::finding(finding, row.site));
    let facts = [
        // The index of the worst value appears once: with the exact value, if that is known.
        ("tap", if text::exactly(row).1.is_empty() { text::place(row) } else { text::site(row) }),
        ("candidate", worst.map_or_else(String::new, |worst| value(worst.candidate))),
        ("reference", worst.map_or_else(String::new, |worst| value(worst.reference))),
        ("error", text::fault(row)),
        text::exactly(row),
        (text::bound_name(row), text::allowed(row)),
        ("before", before(outcome.before_divergence())),
    ];
    facts.into_iter().chain(because).collect()
}

/// Returns the first undetermined row, the coverage, and the remedy.
fn doubt(result: &Comparison) -> Vec<(&'static str, String)> {
    let outcome = &result.outcome;
    let row = text::in_doubt(outcome);
    vec![
        ("tap", row.map_or_else(String::new, text::place)),
        ("why", row.map_or_else(String::new, text::fault)),
        ("covered", text::covered(outcome)),
        ("remedy", advice::remedy(result)),
    ]
}

/// Describes the accumulated error just before the first divergence.
fn before(rows: &[SiteResult]) -> String {
    if rows.is_empty() {
        return "nothing: this is the first tap compared".into();
    }
    if rows.iter().all(|row| row.accumulated.is_none()) {
        return "accumulated error not measured".into();
    }
    let is_fine = |row: &&SiteResult| row.accumulated.is_some() && row.verdict.is_good() && !row.has_grown();
    let fine = rows.iter().filter(is_fine).count();
    let taps = count(rows.len(), "tap");
    let all = format!("accumulated error within tolerance at {fine} of {taps}");
    match rows.iter().find_map(grown) {
        None => all,
        Some(grown) => format!("{all}; first above it at {grown}"),
    }
}

/// Returns the site and error of a row whose accumulated error is above the spec tolerance.
fn grown(row: &SiteResult) -> Option<String> {
    let error = row.accumulated.as_ref().filter(|_| row.has_grown())?.errors.max_abs;
    Some(format!("{}: {error:.2e}, {} allowed", text::site(row), bound(row.tolerance.max_abs)))
}
