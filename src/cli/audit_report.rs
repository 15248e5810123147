//! Report of `xcheck probe --audit`.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use crate::verdict::Verdict;

/// Result for one state of the server.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AuditedState {
    /// Name of the state; the first is the claimed one.
    pub name: String,
    /// Description of the state in one line.
    pub meaning: String,
    /// Number of answers after which the state was rejected; `None` if it was not rejected.
    pub rejected_after: Option<usize>,
    /// True if rounding explains the answers' differences from the state, and there were enough answers to reject a
    /// state that is not in the list.
    pub agrees: bool,
    /// Logarithm of the evidence against the state; 3 is needed to reject it.
    pub log10_evidence: f64,
    /// Root mean square of the answers' differences from the state, in log-odds.
    pub residual: f64,
    /// Largest root mean square that rounding explains.
    pub bound: f64,
    /// Number of answers needed to distinguish the state from the claimed one; `None` if rounding hides the difference.
    pub expected_requests: Option<usize>,
}

/// Result of an audit.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AuditReport {
    pub url: String,
    pub server: String,
    pub version: String,
    pub served_model: String,
    /// Largest probability with which a true state is rejected.
    pub alpha: f64,
    pub seed: u64,
    /// Number of answers that were compared.
    pub answers: usize,
    /// Number of requests, including those that identified the server.
    pub requests: usize,
    /// Minimum number of answers for a state to pass.
    pub least_answers: usize,
    /// Number of tokens compared in each answer.
    pub tokens: usize,
    pub states: Vec<AuditedState>,
    /// Reason why the server's values cannot distinguish states, if any.
    pub doubt: Option<String>,
    /// Prompts, answers and predictions of the claimed state.
    pub evidence: Vec<Value>,
}

impl AuditReport {
    /// Returns the verdict: fail if the claimed state is rejected, pass if the answers agree with it and all states that
    /// can be distinguished from it are rejected.
    pub(super) fn verdict(&self) -> Verdict {
        let is_open = |state: &AuditedState| state.rejected_after.is_none();
        let (Some(claimed), others) = (self.states.first(), self.states.get(1..).unwrap_or_default()) else {
            return Verdict::Inconclusive;
        };
        let is_undecided = others.iter().any(|state| is_open(state) && state.expected_requests.is_some());
        let excludes_any = others.iter().any(|state| !is_open(state));
        match () {
            () if self.doubt.is_some() => Verdict::Inconclusive,
            () if !is_open(claimed) => Verdict::Fail,
            () if is_undecided || !excludes_any || !claimed.agrees => Verdict::Inconclusive,
            () => Verdict::Pass,
        }
    }

    /// Returns the result in one sentence.
    pub(super) fn sentence(&self) -> String {
        let open: Vec<&AuditedState> =
            self.states.iter().filter(|state| state.rejected_after.is_none()).collect();
        let names = open.iter().map(|state| state.name.as_str()).collect::<Vec<_>>().join(", ");
        let after = self.states.first().and_then(|claimed| claimed.rejected_after).unwrap_or(self.answers);
        if let Some(doubt) = &self.doubt {
            return format!("undecided: {doubt}");
        }
        match (self.verdict(), open.as_slice()) {
            (Verdict::Pass, [_]) => {
                format!("the server serves this model: all other states were rejected within {after} answers")
            }
            (Verdict::Pass, [_, ..]) => format!(
                "the server serves this model ({after} answers), or a state that rounding makes indistinguishable: {}",
                open[1..].iter().map(|state| state.name.as_str()).collect::<Vec<_>>().join(", ")
            ),
            (Verdict::Fail, []) => format!(
                "the server does not serve this model (rejected after {after} answers), nor any listed state: another \
                 model, adapter or quantisation"
            ),
            (Verdict::Fail, [one]) if one.agrees => format!(
                "the server serves {} ({}), not this model, which was rejected after {after} answers",
                one.name, one.meaning
            ),
            (Verdict::Fail, _) => format!(
                "the server does not serve this model (rejected after {after} answers); not rejected after {} answers: \
                 {names}",
                self.answers
            ),
            _ => format!("undecided after {} answers; not rejected: {names}{}", self.answers, self.needed()),
        }
    }

    /// Returns text about the number of requests after which each remaining state should be rejected.
    fn needed(&self) -> String {
        let open = self.states.iter().skip(1).filter(|state| state.rejected_after.is_none());
        let needs = open.filter_map(|state| Some((&state.name, state.expected_requests?)));
        needs.map(|(name, needed)| format!("; about {needed} requests are needed to reject {name}")).collect()
    }

    /// Returns the table for the terminal.
    pub(super) fn table(&self) -> String {
        let mut text = format!("{}  {}\n\n", self.verdict().name().to_uppercase(), self.sentence());
        _ = writeln!(
            text,
            "  {} {} at {}, model {}: {} tokens in each answer, {} requests, a true state is rejected with a \
             probability of at most {}, --seed {}\n",
            self.server,
            self.version,
            self.url,
            self.served_model,
            self.tokens,
            self.requests,
            self.alpha,
            self.seed
        );
        _ = writeln!(
            text,
            "  {:<18} {:>9} {:>9} {:>9} {:>9}  ",
            "state", "rms diff", "rounding", "evidence", "rejected"
        );
        for state in &self.states {
            let rejected = match (state.rejected_after, state.expected_requests) {
                (Some(after), _) => format!("after {after}"),
                (None, None)
                    if self.states[0].rejected_after.is_none() && state.name != self.states[0].name =>
                {
                    "hidden by rounding".to_owned()
                }
                (None, _) => "no".to_owned(),
            };
            _ = writeln!(
                text,
                "  {:<18} {:>9.2e} {:>9.2e} {:>9} {:>9}",
                state.name,
                state.residual,
                state.bound,
                format!("10^{:.1}", state.log10_evidence),
                rejected
            );
        }
        text
    }

    /// Returns the report as JSON.
    pub(super) fn json(&self) -> Value {
        let mut document = json!(self);
        document["verdict"] = json!(self.verdict().name());
        document["sentence"] = json!(self.sentence());
        document
    }
}
