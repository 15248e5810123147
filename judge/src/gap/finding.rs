//! A finding about a pair: the cause, and where it is.

use serde::Serialize;

use crate::verdict::Verdict;

/// A finding about a pair of files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GapFinding {
    /// Name of the cause, or of the structure of the differences.
    pub cause: &'static str,
    /// One sentence with the numbers.
    pub(crate) text: String,
    /// Further values by name, such as the temperature.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub values: serde_json::Map<String, serde_json::Value>,
    /// Indices of the affected sequences. Empty if all are affected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<usize>,
    /// Share of the squared differences that belongs to the tokens of the finding.
    pub(crate) share: f64,
    /// Fail, or inconclusive if a correct engine may also cause the finding.
    #[serde(serialize_with = "verdict_name")]
    pub(crate) verdict: Verdict,
}

fn verdict_name<S: serde::Serializer>(verdict: &Verdict, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(verdict.name())
}

impl GapFinding {
    /// Creates a fault that concerns all sequences.
    pub(super) fn fault(cause: &'static str, text: String) -> Self {
        let values = serde_json::Map::new();
        Self { cause, text, values, sequences: Vec::new(), share: 1.0, verdict: Verdict::Fail }
    }

    /// Creates a finding that makes the verdict inconclusive.
    pub(super) fn doubt(cause: &'static str, text: String) -> Self {
        Self { verdict: Verdict::Inconclusive, ..Self::fault(cause, text) }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.values.insert(name.to_owned(), value.into());
        self
    }

    /// Multiplies the finding's share by `part`, the share of all squared differences that belongs to the judged
    /// tokens.
    pub(super) fn within(self, part: f64) -> Self {
        Self { share: self.share * part, ..self }
    }

    /// Sets the sequences and the share of squared differences.
    pub(super) fn at(self, sequences: Vec<usize>, share: f64) -> Self {
        Self { sequences, share, ..self }
    }
}

/// Lists at most six indices for a message.
pub(super) fn listed(indices: &[usize]) -> String {
    let shown = indices.iter().take(6).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if indices.len() > 6 { format!("{shown}, …") } else { shown }
}

/// Counts things: "1 sequence", "3 sequences".
pub(super) fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
