//! Output of `--format agent`: a report of at most 4 kB for a program that repairs the engine. It states the
//! fault first, then the correct taps before it, then the next commands. All other results are in
//! `report.json`.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::checkpoint::{Point, Site};
use crate::report::text::{self, fit};
use crate::report::{Comparison, Report, advice, headline};
use crate::verdict::{Finding, Outcome, Verdict};

const SCHEMA: &str = "xcheck-agent";
const VERSION: u32 = 1;
/// Maximum number of characters of a text or a command. Longer commands are omitted.
const LONGEST: usize = 300;
const LONGEST_COMMAND: usize = 500;
/// Maximum number of commands, of other causes and of wrong taps.
const COMMANDS: usize = 3;
const CAUSES: usize = 3;
const TAPS: usize = 8;
/// Maximum size of a report in bytes. The last entries of lists are omitted if it is larger.
const MOST: usize = 4096;

#[derive(Serialize)]
struct AgentReport {
    schema: &'static str,
    version: u32,
    verdict: &'static str,
    /// Reason for the verdict if it concerns no single dump, such as a server error; null after a pass.
    reason: Option<String>,
    /// The dump with the worst verdict.
    dump: Option<AgentDump>,
    /// Number of other dumps that do not pass.
    more: usize,
}

#[derive(Serialize)]
struct AgentDump {
    name: String,
    verdict: &'static str,
    /// The fault, or the reason why the verdict is inconclusive; null after a pass.
    sentence: Option<String>,
    first: Option<FirstWrongSite>,
    cause: Option<AgentCause>,
    /// Causes found at other wrong sites. An engine may have several faults.
    other_causes: Vec<OtherCause>,
    /// Each wrong tap with its layers and passes.
    wrong: Vec<String>,
    /// Summary such as "5 taps before it are correct".
    right_before: Option<String>,
    /// Numbers of compared and of expected taps.
    taps: [usize; 2],
    /// Number of compared passes; the prompt alone is one pass.
    passes: usize,
    /// Taps to record or settings to state, if the verdict is inconclusive.
    record: Option<String>,
    /// Commands to run next.
    next: Vec<String>,
}

/// The first wrong site.
#[derive(Serialize)]
struct FirstWrongSite {
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
    /// Key of config.json to check.
    key: Option<String>,
    what: String,
    /// First site that the cause explains. It differs from the first wrong site if no known cause explains the first
    /// wrong site.
    at: String,
    /// Verdict of a run with this cause supposed, if that was tried.
    confirmed: Option<&'static str>,
    confirm: Option<String>,
}

#[derive(Serialize)]
struct OtherCause {
    name: &'static str,
    supposed: Option<String>,
    what: String,
    at: String,
}

impl AgentReport {
    /// Removes the last entry of one of the report's lists, to make the report smaller. Returns false if no list can be
    /// shortened.
    fn shorten(&mut self) -> bool {
        let Some(dump) = &mut self.dump else { return false };
        (dump.next.len() > 1 && dump.next.pop().is_some())
            || dump.other_causes.pop().is_some()
            || dump.wrong.pop().is_some()
    }
}

/// Returns the report for a program that repairs the engine, with a trailing newline.
pub fn agent(report: &Report) -> String {
    let worst = report.results.iter().rev().max_by_key(|result| result.outcome.verdict);
    let bad = report.results.iter().filter(|result| !result.outcome.verdict.is_good()).count();
    let mut agent = AgentReport {
        schema: SCHEMA,
        version: VERSION,
        verdict: report.verdict().name(),
        reason: headline::of_no_dump(report).map(|reason| short(&reason)),
        dump: worst.map(|result| dump(report, result)),
        more: bad.saturating_sub(1),
    };
    loop {
        let text = serde_json::to_string_pretty(&agent).expect("the report can be written as JSON") + "\n";
        if text.len() <= MOST || !agent.shorten() {
            return text;
        }
    }
}

fn dump(report: &Report, result: &Comparison) -> AgentDump {
    let outcome = &result.outcome;
    let is_bad = !outcome.verdict.is_good();
    let first = outcome.first_divergence().filter(|_| is_bad);
    let right = outcome.before_divergence().len();
    let mut causes = outcome.findings.iter().filter(|finding| is_bad && finding.kind.is_cause());
    let cause = causes.next();
    let commands = advice::commands(report, result);
    let confirm = cause.and_then(|cause| headline::confirm_command(result, cause));
    let next = confirm.iter().cloned().chain(commands.iter().map(|command| advice::shell(command)));
    let passes: BTreeSet<usize> = outcome.rows.iter().filter_map(|row| row.site.pass).collect();
    let remedy = (outcome.verdict == Verdict::Inconclusive).then(|| advice::remedy(result));
    AgentDump {
        name: short(&outcome.subject.name),
        verdict: outcome.verdict.name(),
        sentence: is_bad.then(|| short(&headline::sentence(outcome))),
        first: first.map(|row| FirstWrongSite {
            tap: row.site.point.name(),
            checkpoint: row.checkpoint().to_string(),
            layer: row.site.layer,
            pass: row.site.pass,
            reason: short(row.reason.as_deref().unwrap_or_default()),
        }),
        cause: cause.map(|finding| AgentCause {
            name: finding.kind.name(),
            supposed: finding.supposed.clone(),
            key: finding.key.clone(),
            what: short(&finding.what),
            at: finding.site.to_string(),
            confirmed: finding.confirmed.map(Verdict::name),
            confirm: confirm.clone().filter(|command| command.len() <= LONGEST_COMMAND),
        }),
        other_causes: causes.take(CAUSES).map(other_cause).collect(),
        wrong: wrong(outcome),
        right_before: first.map(|_| {
            format!(
                "{} before it {} correct",
                text::count(right, "tap"),
                if right == 1 { "is" } else { "are" }
            )
        }),
        taps: [outcome.coverage.taps_compared, outcome.coverage.taps_expected],
        passes: passes.len(),
        record: remedy.filter(|remedy| !remedy.is_empty()).map(|remedy| short(&remedy)),
        next: next.filter(|command| command.len() <= LONGEST_COMMAND).take(COMMANDS).collect(),
    }
}

fn other_cause(finding: &Finding) -> OtherCause {
    let Finding { kind, site, supposed, what, .. } = finding;
    OtherCause { name: kind.name(), supposed: supposed.clone(), what: short(what), at: site.to_string() }
}

/// Returns a line for each failing tap in data-flow order, such as "q_rope: wrong in all 3 layers, only while
/// decoding".
fn wrong(outcome: &Outcome) -> Vec<String> {
    let sites: Vec<Site> =
        outcome.rows.iter().filter(|row| row.verdict == Verdict::Fail).map(|row| row.site).collect();
    let mut points: Vec<Point> = Vec::new();
    for site in &sites {
        if !points.contains(&site.point) {
            points.push(site.point);
        }
    }
    let of_tap = |point: &Point| {
        let own: Vec<Site> = sites.iter().copied().filter(|site| site.point == *point).collect();
        format!("{}: {}", point.name(), headline::extent(outcome, &[*point], &own))
    };
    points.iter().take(TAPS).map(of_tap).collect()
}

fn short(text: &str) -> String {
    fit(&text::clean(text), LONGEST)
}
