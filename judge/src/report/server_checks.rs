//! Results of a server's own checks, which need no model.

use serde::{Deserialize, Serialize};

use crate::report::escaping::escape;
use crate::report::terminal_style::TerminalStyle;
use crate::report::text::{WIDTH, clean, wrap};
use crate::verdict::Verdict;

/// A server with the results of its own checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// Address of the server.
    pub url: String,
    /// Protocol of the server.
    pub kind: String,
    /// Version, if stated.
    pub version: String,
    /// Name of the model, as the server gives it.
    pub model: String,
    /// Type of the computation, as stated by the server.
    pub dtype: Option<String>,
    /// Maximum number of requests that xcheck may send.
    pub allowed: usize,
    /// Number of requests sent.
    pub requests: usize,
    /// Noise floor of log-probabilities for this model and text, measured with our engine; null without a
    /// model.
    pub rounding: Option<f64>,
    /// Results of the checks, in order.
    pub checks: Vec<ServerCheck>,
}

/// The result of one check of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerCheck {
    /// Subject: `tokens`, `answer`, `self` or `model`.
    pub about: String,
    /// Name of the check.
    pub check: String,
    /// Verdict; `None` if the check is not available.
    #[serde(deserialize_with = "Option::deserialize")]
    pub verdict: Option<Verdict>,
    /// Result, or the reason why the check is not available.
    pub found: String,
}

impl ServerReport {
    /// Returns the verdicts of all available checks.
    pub(super) fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.checks.iter().filter_map(|check| check.verdict)
    }

    /// Returns true if only texts and their tokens were compared, which does not test the model.
    pub(super) fn is_of_texts_alone(&self) -> bool {
        self.checks.iter().filter(|check| check.verdict.is_some()).all(|check| check.about == "tokens")
    }

    /// Returns the first check that does not pass; it determines the verdict.
    pub(super) fn worst(&self) -> Option<&ServerCheck> {
        let bad = |wanted: Verdict| self.checks.iter().find(move |check| check.verdict == Some(wanted));
        bad(Verdict::Fail).or_else(|| bad(Verdict::Inconclusive))
    }

    fn title(&self) -> String {
        let parts = [&self.kind, &self.version, &self.model].map(|part| clean(part));
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!(
            "{}  ·  {}  ·  {} of {} requests",
            clean(&self.url),
            parts.join(" "),
            self.requests,
            self.allowed
        )
    }

    pub(super) fn lines(&self, paint: TerminalStyle) -> Vec<String> {
        let mut lines = vec![paint.strong(&self.title())];
        for check in &self.checks {
            let word = word(check.verdict);
            let head = format!("  {word:<13}{}", check.check);
            lines.push(
                check
                    .verdict
                    .map_or(head.clone(), |verdict| head.replacen(word, &paint.verdict(verdict, word), 1)),
            );
            lines.extend(wrap(&" ".repeat(17), &clean(&check.found), WIDTH));
        }
        lines.push(String::new());
        lines
    }

    /// Returns a Markdown table for a pull request.
    pub(super) fn markdown(&self) -> String {
        let mut text = format!(
            "\n## {}\n\n| verdict | about | check | found |\n|---|---|---|---|\n",
            escape(&self.title())
        );
        for check in &self.checks {
            let cells = [word(check.verdict), &check.about, &check.check, &check.found]
                .map(|cell| escape(&clean(cell)));
            text += &format!("| {} |\n", cells.join(" | "));
        }
        text
    }
}

fn word(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        None => "-",
        Some(Verdict::Fail) => "FAIL",
        Some(verdict) => verdict.name(),
    }
}
