//! `junit.xml`: the report for continuous integration, with one suite per reference and one case per
//! checkpoint. It contains failures or errors exactly if the exit code is not 0. The file is valid by both
//! schemas used with Jenkins: jenkins-junit.xsd, and junit-10.xsd of its xunit plugin.

use std::time::Duration;

use chrono::{DateTime, Utc};
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

use crate::format::commands;
use crate::report::text::{
    allowed, bound_name, exactly, excused, fault, finding, heading, place, site, told, value,
};
use crate::report::{Comparison, Report, RunFailure, ServerReport, Timing};
use crate::verdict::{CheckpointSummary, Outcome, SiteResult, Verdict};

/// Returns the report as JUnit XML.
pub fn junit(report: &Report) -> String {
    let mut suites: Vec<TestSuite> = report.results.iter().map(|result| suite(report, result)).collect();
    suites.extend(report.served.as_ref().map(served));
    if let Some(reason) = report.reason() {
        let mut whole = TestSuite::new("xcheck");
        whole.add_test_case(case(WHOLE, "xcheck", inconclusive(reason)));
        suites.push(whole);
    }
    xml(suites)
}

/// Returns a run error as JUnit XML.
pub(crate) fn refused(refusal: &RunFailure) -> String {
    let mut suite = timed(&refusal.name(), refusal.timing);
    let error = non_success(NonSuccessKind::Error, RunFailure::WORD, &refusal.error);
    suite.add_test_case(case(WHOLE, "xcheck", error));
    xml(vec![suite])
}

/// Name of the test case for a failure of the whole comparison.
const WHOLE: &str = "verdict";

fn xml(suites: Vec<TestSuite>) -> String {
    let mut file = quick_junit::Report::new("xcheck");
    file.set_time(suites.iter().filter_map(|suite| suite.time).sum::<Duration>());
    file.add_test_suites(suites);
    let text = file.to_string().expect("writing to memory does not fail");
    let plain = |c: char| if commands(c) && !"\n\t".contains(c) { ' ' } else { c };
    let text: String = text.chars().map(plain).collect();
    // Jenkins' schemas allow this attribute on a suite only.
    let text = text.replacen(&format!(" skipped=\"{}\"", file.skipped), "", 1);
    // XML cannot contain these characters, not even as a reference.
    text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

fn timed(name: &str, timing: Timing) -> TestSuite {
    let mut suite = TestSuite::new(name);
    suite.set_timestamp(DateTime::<Utc>::from(timing.started)).set_time(timing.took);
    suite
}

fn suite(report: &Report, result: &Comparison) -> TestSuite {
    let outcome = &result.outcome;
    let class = class(result);
    let mut suite = timed(&format!("{}: {}", result.model.name, outcome.subject.name), result.timing);
    let shown = CheckpointSummary::of(outcome, &report.checkpoints);
    suite.add_test_cases(
        shown.iter().map(|shown| case(shown.checkpoint.name(), &class, status(outcome, shown))),
    );
    // A failure of the whole dump that belongs to no checkpoint must also fail the suite.
    if !outcome.verdict.is_good() && suite.failures + suite.errors == 0 {
        suite.add_test_case(case(WHOLE, &class, status_of_whole(outcome)));
    }
    suite
}

/// Returns the suite of a server's own checks, one case per check.
fn served(served: &ServerReport) -> TestSuite {
    let mut suite = TestSuite::new(format!("server: {}", served.url));
    suite.add_test_cases(served.checks.iter().map(|check| {
        let status = match check.verdict {
            None => skipped(&check.found),
            Some(Verdict::Fail) => non_success(NonSuccessKind::Failure, "divergence", &check.found),
            Some(Verdict::Inconclusive) => inconclusive(&check.found),
            Some(_) => TestCaseStatus::success(),
        };
        case(&check.check, &format!("server.{}", check.about), status)
    }));
    suite
}

/// Returns the class name of a case. Jenkins treats dots as package separators, so there is exactly one dot,
/// between model and reference.
fn class(result: &Comparison) -> String {
    [&result.model.name, &result.outcome.subject.name].map(|name| name.replace('.', "_")).join(".")
}

fn case(name: &str, class: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(class);
    case
}

fn status(outcome: &Outcome, shown: &CheckpointSummary) -> TestCaseStatus {
    let row = outcome.rows.iter().find(|row| Some(row.site) == shown.site);
    let Some(row) = row else { return skipped("not compared") };
    match shown.verdict {
        Verdict::Pass | Verdict::Tie => TestCaseStatus::success(),
        Verdict::Known => skipped(&format!("waived failure: {}", excused(row))),
        Verdict::Inconclusive => inconclusive(&told(row)),
        Verdict::Fail => divergence(outcome, row),
    }
}

/// Returns the status of a skipped case with a reason: as text, which both schemas allow, not as an attribute.
fn skipped(reason: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::skipped();
    status.set_description(reason);
    status
}

fn status_of_whole(outcome: &Outcome) -> TestCaseStatus {
    match outcome.first_divergence() {
        Some(row) => divergence(outcome, row),
        None => inconclusive(outcome.reason.as_deref().unwrap_or("not everything was compared")),
    }
}

/// Returns the status of a failing row. The message names the first divergence if it is at another row.
fn divergence(outcome: &Outcome, row: &SiteResult) -> TestCaseStatus {
    let heading = heading(outcome, &outcome.subject.name);
    let message = match outcome.first_divergence() {
        Some(first) if first.site != row.site => format!("{}; {heading}: {}", told(row), site(first)),
        _ => format!("{heading}: {}", told(row)),
    };
    let mut status = non_success(NonSuccessKind::Failure, "divergence", &message);
    status.set_description(description(outcome, row));
    status
}

fn description(outcome: &Outcome, row: &SiteResult) -> String {
    let worst = row.judged().and_then(|found| found.worst.as_ref());
    let values = worst
        .into_iter()
        .flat_map(|worst| [("candidate", value(worst.candidate)), ("reference", value(worst.reference))]);
    let judged = [("error", fault(row)), exactly(row), (bound_name(row), allowed(row))];
    let judged = judged.into_iter().filter(|(_, fact)| !fact.is_empty());
    let own = outcome.findings.iter().filter(|finding| finding.sites.contains(&row.site));
    let facts = values.chain(judged).chain(own.map(|own| finding(own, row.site)));
    let facts = facts.map(|(name, fact)| format!("{name}: {fact}\n"));
    format!("{}\n{}", place(row), facts.collect::<String>())
}

fn inconclusive(reason: &str) -> TestCaseStatus {
    non_success(NonSuccessKind::Error, Verdict::Inconclusive.name(), reason)
}

fn non_success(kind: NonSuccessKind, what: &str, message: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(kind);
    status.set_type(what).set_message(message);
    status
}
