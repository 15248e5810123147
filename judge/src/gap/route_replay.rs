//! A side against our engine, which computes with the side's choices of experts.

use serde::Serialize;

use super::assessment::{GapAssessment, is_fault};
use super::finding::GapFinding;
use crate::verdict::Verdict;

/// A side's choices of experts against those of our engine, each from the same hidden states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RouteReplay {
    /// Choices, one for each token and layer.
    pub choices: usize,
    /// Choices that our engine would make otherwise.
    pub other_choices: usize,
    /// Largest difference between the scores of our engine's experts and of the side's in their place.
    pub largest_gap: f64,
    /// Root mean square difference of the log-odds with the side's experts.
    pub scale: f64,
    /// Share of the squared differences that disappears with the side's experts.
    pub explained: f64,
}

impl RouteReplay {
    /// Adds the choices of another sequence.
    pub fn add(&mut self, other: &Self) {
        self.choices += other.choices;
        self.other_choices += other.other_choices;
        self.largest_gap = self.largest_gap.max(other.largest_gap);
    }

    /// Describes the effect of the side's experts.
    pub fn sentence(&self) -> String {
        format!(
            "with its experts: scale {:.2e}, so other experts explain {:.1} % of the squared gap; {} of {} choices are not \
             the model's, and their scores differ by up to {:.2e}",
            self.scale,
            100.0 * self.explained,
            self.other_choices,
            self.choices,
            self.largest_gap
        )
    }
}

impl GapAssessment {
    /// Joins an assessment with our engine's choices of experts and one with the side's own. Other experts are an excuse,
    /// but no proof: with their own experts, wrong engines differ from the model, too.
    #[must_use]
    pub fn with_replay(self, replayed: Self, replay: RouteReplay) -> Self {
        let explained = 1.0 - (replayed.scale / self.scale.max(f64::MIN_POSITIVE)).powi(2);
        let replay = RouteReplay { scale: replayed.scale, explained: explained.max(0.0), ..replay };
        if self.verdict == Verdict::Pass || replay.other_choices == 0 {
            return Self { replay: Some(replay), ..self };
        }
        if replayed.findings.iter().any(is_fault) {
            return Self { replay: Some(replay), ..replayed };
        }
        let doubt = GapFinding::doubt("flipped-experts", replay.sentence()).at(Vec::new(), replay.explained);
        let findings = [vec![doubt], replayed.findings].concat();
        let mut found = Self { replay: Some(replay), verdict: Verdict::Inconclusive, findings, ..self };
        found.sentence = found.said();
        found
    }
}
