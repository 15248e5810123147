//! Points for the figures of the HTML page, and the tokens with the largest differences.

use serde::Serialize;

use super::pair_view::{PairView, rms};
use super::token_sample::ScoredToken;

/// Largest number of points in a figure.
const MOST_POINTS: usize = 3000;
/// Largest number of sequences in a figure.
const MOST_SEQUENCES: usize = 1000;
/// Number of listed tokens.
const WORST: usize = 20;

/// Points and tokens for the HTML page.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GapFigure {
    /// Probability, position, difference and rounding of evenly spaced tokens.
    points: Vec<[f64; 4]>,
    /// Index and scale of evenly spaced sequences.
    sequences: Vec<(usize, f64)>,
    /// Tokens with the largest differences, in units of rounding.
    pub worst: Vec<FarToken>,
}

/// A token with a large difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FarToken {
    sequence: usize,
    position: u32,
    /// Token id; `None` without tokens in the files.
    pub id: Option<u32>,
    rollout: f32,
    trainer: f32,
}

impl GapFigure {
    /// Returns the figures of a pair.
    pub(super) fn of(pair: &PairView) -> Self {
        let sigma = |token: &ScoredToken| pair.error.sigma(token, pair.limit());
        let tokens = &pair.sample.tokens;
        let point =
            |token: &ScoredToken| [token.logprob().exp(), token.position.into(), token.delta(), sigma(token)];
        let step = tokens.len().div_ceil(MOST_POINTS).max(1);
        let sequences = &pair.sample.sequences;
        let all = sequences.iter().step_by(sequences.len().div_ceil(MOST_SEQUENCES).max(1));
        let mut far: Vec<(f64, FarToken)> = Vec::with_capacity(2 * WORST);
        let keep_worst = |far: &mut Vec<(f64, FarToken)>| {
            far.sort_by(|one, other| other.0.total_cmp(&one.0));
            far.truncate(WORST);
        };
        for sequence in sequences {
            for token in pair.sample.of(sequence) {
                far.push((token.delta().abs() / sigma(token), FarToken::of(sequence.index, token)));
                if far.len() == 2 * WORST {
                    keep_worst(&mut far);
                }
            }
        }
        keep_worst(&mut far);
        Self {
            points: tokens.iter().step_by(step).map(point).collect(),
            sequences: all.map(|sequence| (sequence.index, rms(pair.scaled_of(sequence)))).collect(),
            worst: far.into_iter().map(|(_, token)| token).collect(),
        }
    }
}

impl FarToken {
    fn of(sequence: usize, token: &ScoredToken) -> Self {
        let ScoredToken { rollout, trainer, position, id } = *token;
        Self { sequence, position, id: (id != u32::MAX).then_some(id), rollout, trainer }
    }
}
