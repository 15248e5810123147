//! The first line of a report: one sentence about the whole difference.

use super::assessment::GapAssessment;
use super::finding::{counted, listed};
use crate::verdict::Verdict;

impl GapAssessment {
    /// Returns one sentence about the whole difference.
    pub(super) fn said(&self) -> String {
        let rounding = match &self.dtypes {
            [Some(one), Some(other)] if one == other => format!("{one} rounding"),
            [Some(one), Some(other)] => format!("rounding of {one} and {other}"),
            _ => "rounding".to_owned(),
        };
        let percent = 100.0 * self.explained;
        match (self.verdict, self.findings.first()) {
            (Verdict::Pass, _) if self.values.identical == self.values.compared => {
                format!("the log-probabilities of all {} tokens are identical", self.values.compared)
            }
            (Verdict::Pass, _) => format!(
                "the gap is {rounding}: scale {:.2e}, limit {:.2e}",
                self.scale,
                self.rounding_scale.unwrap_or_default()
            ),
            (Verdict::Fail, Some(finding)) if finding.share < 1.0 => {
                let place = match (finding.sequences.len(), finding.values.get("from_position")) {
                    (0, Some(position)) => format!("from position {position} on"),
                    (count, Some(position)) => {
                        format!("in {} from position {position} on", some(count, finding))
                    }
                    (count, None) => format!("in {}", some(count, finding)),
                };
                format!("{percent:.1} % of the gap is {rounding}; {:.1} % is {place}", 100.0 - percent)
            }
            (Verdict::Fail, Some(finding)) => format!("the gap is not rounding: {}", finding.cause),
            (_, Some(finding)) => format!("undetermined: {}", finding.cause),
            (_, None) => "undetermined".to_owned(),
        }
    }
}

fn some(count: usize, finding: &super::GapFinding) -> String {
    format!("{} ({})", counted(count, "sequence"), listed(&finding.sequences))
}
