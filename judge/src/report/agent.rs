//! `--format agent`: a report of at most 4 kB for a program that repairs the engine. It says what is wrong first, what is right before
//! that, and what to do next; everything else is in `report.json`.

use serde::Serialize;

use crate::compare::Verdict;
use crate::report::text::{self, fit};
use crate::report::{Comparison, Report, advice, headline};

const SCHEMA: &str = "xcheck-agent";
const VERSION: u32 = 1;
/// The most characters of a text, and of a command, which is left out if it is longer.
const LONGEST: usize = 300;
const LONGEST_COMMAND: usize = 500;
/// The most commands.
const COMMANDS: usize = 3;

#[derive(Serialize)]
struct Agent {
    schema: &'static str,
    version: u32,
    verdict: &'static str,
    /// The reason for a verdict other than pass that is of no dump: the server itself, or nothing that tests the model.
    reason: Option<String>,
    /// The worst dump.
    dump: Option<AgentDump>,
    /// The number of other dumps that do not pass.
    more: usize,
}

#[derive(Serialize)]
struct AgentDump {
    name: String,
    verdict: &'static str,
    /// The fault, or the reason why it could not be judged; null after a pass.
    sentence: Option<String>,
    first: Option<First>,
    cause: Option<AgentCause>,
    /// A text such as "5 taps before it right".
    right_before: Option<String>,
    /// Taps compared, of those expected.
    taps: [usize; 2],
    /// Taps to record or settings to state, if the verdict is inconclusive.
    record: Option<String>,
    /// Commands to run next.
    next: Vec<String>,
}

/// The first wrong site.
#[derive(Serialize)]
struct First {
    tap: &'static str,
    checkpoint: String,
    layer: Option<usize>,
    pass: Option<usize>,
    reason: String,
}

#[derive(Serialize)]
struct AgentCause {
    /// The name that `--suppose` takes.
    name: &'static str,
    supposed: Option<String>,
    /// The key of config.json to read.
    key: Option<String>,
    what: String,
    /// The verdict with the cause supposed, if that was tried.
    confirmed: Option<&'static str>,
    confirm: Option<String>,
}

/// The report for a program that repairs the engine, one line break at its end.
pub fn agent(report: &Report) -> String {
    let worst = report.results.iter().rev().max_by_key(|result| result.outcome.verdict);
    let bad = report.results.iter().filter(|result| !result.outcome.verdict.is_good()).count();
    let agent = Agent {
        schema: SCHEMA,
        version: VERSION,
        verdict: report.verdict().name(),
        reason: headline::of_no_dump(report).map(|reason| short(&reason)),
        dump: worst.map(|result| dump(report, result)),
        more: bad.saturating_sub(1),
    };
    serde_json::to_string_pretty(&agent).expect("it is plain data") + "\n"
}

fn dump(report: &Report, result: &Comparison) -> AgentDump {
    let outcome = &result.outcome;
    let is_bad = !outcome.verdict.is_good();
    let first = outcome.first_divergence().filter(|_| is_bad);
    let cause = outcome.cause();
    let confirm = cause.and_then(|cause| headline::confirm_command(result, cause));
    let commands = advice::commands(report, result);
    let next = confirm.iter().cloned().chain(commands.iter().map(|command| advice::shell(command)));
    let right = outcome.before_divergence().len();
    let remedy = (outcome.verdict == Verdict::Inconclusive).then(|| advice::remedy(result));
    AgentDump {
        name: short(&outcome.subject.name),
        verdict: outcome.verdict.name(),
        sentence: is_bad.then(|| short(&headline::sentence(outcome))),
        first: first.map(|row| First {
            tap: row.site.point.name(),
            checkpoint: row.checkpoint().to_string(),
            layer: row.site.layer,
            pass: row.site.pass,
            reason: short(row.reason.as_deref().unwrap_or_default()),
        }),
        cause: cause.or(outcome.findings.first()).filter(|_| is_bad).map(|finding| AgentCause {
            name: finding.kind.name(),
            supposed: finding.supposed.clone(),
            key: finding.key.clone(),
            what: short(&finding.what),
            confirmed: finding.confirmed.map(Verdict::name),
            confirm: confirm.clone().filter(|command| command.len() <= LONGEST_COMMAND),
        }),
        right_before: first.map(|_| format!("{} before it right", text::count(right, "tap"))),
        taps: [outcome.coverage.taps_compared, outcome.coverage.taps_expected],
        record: remedy.filter(|remedy| !remedy.is_empty()).map(|remedy| short(&remedy)),
        next: next.filter(|command| command.len() <= LONGEST_COMMAND).take(COMMANDS).collect(),
    }
}

fn short(text: &str) -> String {
    fit(&text::clean(text), LONGEST)
}
