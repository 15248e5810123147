//! The report as annotations of a GitHub job: one workflow command for each reference that does not pass, and
//! one for the whole run.

use crate::report::text::{self, clean};
use crate::report::{Comparison, Report};
use crate::verdict::{Outcome, SiteResult, Verdict};

/// Maximum number of causes and notes in an annotation, which is a single line. The other reports contain all
/// causes and notes.
const MOST: usize = 4;

/// Returns workflow commands that GitHub's runner shows as annotations: errors for divergences, warnings for
/// inconclusive results. Returns nothing after a pass.
pub fn github(report: &Report) -> String {
    let whole = report.reason().map(|reason| command("warning", "xcheck: inconclusive", reason));
    let served =
        report.served.iter().flat_map(|served| &served.checks).filter_map(|check| match check.verdict? {
            Verdict::Fail => Some(command("error", &format!("xcheck: {}", check.check), &check.found)),
            Verdict::Inconclusive => Some(command(
                "warning",
                &format!("xcheck: {} could not be judged", check.check),
                &check.found,
            )),
            _ => None,
        });
    report.results.iter().filter_map(of).chain(served).chain(whole).collect()
}

fn of(result: &Comparison) -> Option<String> {
    let outcome = &result.outcome;
    let name = &outcome.subject.name;
    let first = outcome.first_divergence();
    match (outcome.verdict, first) {
        (Verdict::Fail, Some(row)) => Some(command(
            "error",
            &format!("xcheck: {}", text::heading(outcome, name)),
            &divergence(outcome, row),
        )),
        (Verdict::Fail, None) => Some(command(
            "error",
            &format!("xcheck: {name} fails"),
            outcome.reason.as_deref().unwrap_or_default(),
        )),
        (Verdict::Inconclusive, _) => {
            let why = text::in_doubt(outcome).map(text::told).or_else(|| outcome.reason.clone());
            let why = why.unwrap_or_else(|| text::covered(outcome));
            Some(command("warning", &format!("xcheck: {name} could not be judged"), &why))
        }
        (Verdict::Pass | Verdict::Tie | Verdict::Known, _) => None,
    }
}

fn divergence(outcome: &Outcome, row: &SiteResult) -> String {
    let place = format!("{}: {}", text::place(row), text::fault(row));
    let exactly = Some(text::exactly(row).1).filter(|exactly| !exactly.is_empty());
    let found = outcome.findings.iter().map(|finding| text::finding(finding, row.site));
    let found = found.map(|(name, what)| format!("{name}: {what}"));
    let notes = outcome.notes.iter().map(|note| format!("note: {note}"));
    let more = found.chain(notes).take(MOST);
    [place].into_iter().chain(exactly).chain(more).collect::<Vec<_>>().join("; ")
}

/// Formats a workflow command with the escapes of GitHub's toolkit.
fn command(kind: &str, title: &str, message: &str) -> String {
    let message = clean(message).replace('%', "%25");
    let title = clean(title).replace('%', "%25").replace(':', "%3A").replace(',', "%2C");
    format!("::{kind} title={title}::{message}\n")
}
