//! Comparison of a side with our engine, which computes with the side's choices of experts.

use serde::Serialize;

use super::finding::GapFinding;
use super::route_effect::{MOST_FLIPPED, MOST_OF_GAP};

/// Comparison of a side's choices of experts with those of our engine, both made from the same hidden states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RouteReplay {
    /// Choices, one for each token and layer.
    pub choices: usize,
    /// Choices that differ from those of our engine.
    pub other_choices: usize,
    /// Largest difference in score between the expert that our engine chose and the one that the side chose instead.
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

    /// Sets the scales of the differences with and without the side's experts.
    pub(super) fn with_scales(self, own: f64, replayed: f64) -> Self {
        let explained = 1.0 - (replayed / own.max(f64::MIN_POSITIVE)).powi(2);
        Self { scale: replayed, explained: explained.max(0.0), ..self }
    }

    /// Returns true if other experts explain most of the gap, and are as few as rounding may flip.
    pub(super) fn is_excuse(&self) -> bool {
        let is_rare = self.other_choices as f64 <= MOST_FLIPPED * self.choices as f64;
        self.other_choices > 0 && is_rare && self.explained >= MOST_OF_GAP
    }

    /// Returns the finding that a side computes correctly, but with other experts than the model chooses.
    pub(super) fn finding(&self) -> GapFinding {
        GapFinding::doubt("flipped-experts", self.sentence()).at(Vec::new(), self.explained)
    }

    /// Returns the finding that a side's log-probabilities do not follow from its stated experts.
    pub(super) fn contradiction(&self) -> GapFinding {
        let text = format!(
            "the side's log-probabilities fail against the model only with the side's routed_experts ({}): these \
             experts belong to other tokens, layers or requests",
            self.sentence()
        );
        GapFinding::doubt("contradictory-experts", text)
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
