//! `junit.xml`: the report for continuous integration. One suite per reference, one case per checkpoint;
//! it is red exactly where the report's verdict is not a pass.

use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

use crate::compare::{Row, Verdict};
use crate::diagnose::{Outcome, Summary};
use crate::report::Report;
use crate::report::text::{allowed, fault, place, value};

/// The report as JUnit XML.
pub fn junit(report: &Report) -> String {
    let mut file = quick_junit::Report::new("xcheck");
    file.add_test_suites(report.results.iter().map(|result| suite(report, &result.outcome)));
    if report.results.is_empty() {
        let mut nothing = TestSuite::new("xcheck");
        nothing.add_test_case(case("references", "xcheck", inconclusive("there was no reference")));
        file.add_test_suite(nothing);
    }
    file.to_string().expect("writing to memory does not fail")
}

fn suite(report: &Report, outcome: &Outcome) -> TestSuite {
    let summaries = outcome.summaries(&report.checkpoints);
    let mut suite = TestSuite::new(&outcome.name);
    suite.add_test_cases(
        summaries.iter().map(|summary| case(summary.checkpoint.name(), &outcome.name, status(summary))),
    );
    // What is wrong with the whole, and with no checkpoint of it, must not be green.
    if !outcome.verdict.is_good() && suite.failures + suite.errors == 0 {
        let reason = outcome.reason.as_deref().unwrap_or("not everything was compared");
        suite.add_test_case(case("coverage", &outcome.name, inconclusive(reason)));
    }
    suite
}

fn case(name: &str, reference: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(reference);
    case
}

fn status(summary: &Summary) -> TestCaseStatus {
    let Some(row) = summary.worst else {
        let mut status = TestCaseStatus::skipped();
        status.set_message("not compared");
        return status;
    };
    match summary.verdict {
        Verdict::Pass | Verdict::Tie => TestCaseStatus::success(),
        Verdict::Inconclusive => inconclusive(&message(row)),
        Verdict::Fail => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_type("divergence").set_message(message(row)).set_description(description(row));
            status
        }
    }
}

/// "v, layer 2, pass 0: max |error| 2.90e-1 exceeds 1e-4".
fn message(row: &Row) -> String {
    let reason = row.reason.as_deref().unwrap_or(row.verdict.name());
    format!("{}: {reason}", row.site)
}

fn description(row: &Row) -> String {
    let mut text = format!("{}\nerror: {}\nallowed: {}\n", place(row), fault(row), allowed(row));
    if let Some(worst) = row.judged().and_then(|found| found.worst.as_ref()) {
        text += &format!("candidate: {}\nreference: {}\n", value(worst.candidate), value(worst.reference));
    }
    text
}

fn inconclusive(reason: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
    status.set_type("inconclusive").set_message(reason);
    status
}
