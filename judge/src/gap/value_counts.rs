//! Counts of values that are not valid log-probabilities.

use super::field_names::PolicySide;
use super::finding::{GapFinding, counted};
use super::sequence_join::SequencePair;

/// Largest log-probability that rounding can cause, in any type.
const LARGEST: f64 = 0.02;

/// Counts over all tokens of both sides.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ValueCounts {
    /// Tokens that both sides score.
    pub compared: usize,
    /// Number of tokens of the prompt that both sides score. They are not compared.
    pub(crate) prompt: usize,
    /// Numbers of tokens that only one side scores: the rollout, the trainer.
    pub(crate) only: [usize; 2],
    /// Numbers of scored tokens that are NaN, for each side.
    pub(crate) nan: [usize; 2],
    /// Numbers of scored tokens with an infinite value, for each side.
    pub(crate) infinite: [usize; 2],
    /// Numbers of scored tokens above 0, for each side.
    pub(crate) positive: [usize; 2],
    /// Numbers of scored tokens that are exactly 0, for each side.
    pub(crate) zero: [usize; 2],
    /// Number of tokens whose two values are identical.
    pub(crate) identical: usize,
    #[serde(skip)]
    range: [Option<(f64, f64)>; 2],
}

impl ValueCounts {
    /// Adds the tokens of a pair.
    pub(super) fn add(&mut self, pair: &SequencePair) {
        let first = pair.prompt_length.unwrap_or(0);
        for side in 0..2 {
            self.nan[side] += pair.nan[side];
        }
        let mut has_begun = false;
        for (at, (&rollout, &trainer)) in pair.logprobs[0].iter().zip(&pair.logprobs[1]).enumerate() {
            let values = [rollout, trainer];
            let scored = values.map(|value| !value.is_nan());
            if at < first {
                self.prompt += usize::from(scored == [true; 2]);
                continue;
            }
            self.compared += usize::from(scored == [true; 2]);
            self.identical += usize::from(rollout == trainer);
            has_begun |= scored == [true; 2];
            // A trainer may score the prompt, too.
            let counts_only = [true, has_begun];
            for side in 0..2 {
                self.only[side] += usize::from(scored[side] && !scored[1 - side] && counts_only[side]);
                if scored[side] {
                    self.count(side, values[side]);
                }
            }
        }
    }

    fn count(&mut self, side: usize, value: f64) {
        self.infinite[side] += usize::from((value as f32).is_infinite());
        self.positive[side] += usize::from(value > LARGEST);
        self.zero[side] += usize::from(value == 0.0);
        let (least, largest) = self.range[side].unwrap_or((value, value));
        self.range[side] = Some((least.min(value), largest.max(value)));
    }

    /// Returns the findings about invalid values.
    pub(super) fn findings(&self) -> Vec<GapFinding> {
        let mut found = Vec::new();
        for (side, name) in
            [PolicySide::Rollout, PolicySide::Trainer].map(PolicySide::name).into_iter().enumerate()
        {
            if self.nan[side] > 0 {
                let text =
                    format!("{} of the {name} are NaN", counted(self.nan[side], "log-probability value"));
                found.push(GapFinding::fault("nan", text));
            }
            if self.infinite[side] > 0 {
                let text = format!(
                    "{} of the {name} are infinite: a filter such as top-k gave a sampled token the probability 0",
                    counted(self.infinite[side], "log-probability value")
                );
                found.push(GapFinding::fault("infinite", text));
            }
            if self.positive[side] > 0 {
                let text = format!(
                    "{} of the {name} are above 0, so they are not log-probabilities; probabilities, or values of the \
                     opposite sign?",
                    counted(self.positive[side], "value")
                );
                found.push(GapFinding::fault("positive", text));
            }
            found.extend(self.constant(side, name));
        }
        found
    }

    fn constant(&self, side: usize, name: &str) -> Option<GapFinding> {
        let (least, largest) = self.range[side]?;
        if least != largest || self.compared < 2 {
            return None;
        }
        let is_zero = if least == 0.0 { " (were they filled in?)" } else { "" };
        let text =
            format!("all log-probabilities of the {name} are {least}{is_zero}, so nothing was compared");
        Some(GapFinding::fault("constant", text))
    }
}
