//! Detects log-probabilities that belong to another sequence of the batch.

use crate::gap::finding::{GapFinding, counted};
use crate::gap::pair_view::PairView;
use crate::gap::token_sample::ScoredToken;

/// Minimum number of tokens of a sequence that is compared with others.
const LEAST: usize = 8;
/// Maximum number of sequences for which a partner is searched.
const MOST_LOOKED_FOR: usize = 64;
/// Maximum number of sequences among which a partner is searched.
const MOST_AMONG: usize = 50_000;
/// Minimum share of the searched sequences that must have a partner.
const SHARE: f64 = 0.8;

/// Finds sequences of the rollout that agree with another sequence of the trainer instead of their own.
pub(super) fn find(pair: &PairView) -> Option<GapFinding> {
    let sequences: Vec<_> =
        pair.sequences().filter(|(_, tokens)| tokens.len() >= LEAST).take(MOST_AMONG).collect();
    let wrong: Vec<usize> =
        (0..sequences.len()).filter(|&at| !agree(pair, sequences[at].1, sequences[at].1)).collect();
    let (mut found, mut partners) = (0, Vec::new());
    let looked_for = wrong.len().min(MOST_LOOKED_FOR);
    for &at in &wrong[..looked_for] {
        let partner =
            wrong.iter().find(|&&other| other != at && agree(pair, sequences[at].1, sequences[other].1));
        if let Some(&other) = partner {
            found += 1;
            partners.push((sequences[at].0.index, sequences[other].0.index));
        }
    }
    if found < 2 || (found as f64) < SHARE * looked_for as f64 {
        return None;
    }
    let (one, other) = partners[0];
    let text = format!(
        "permuted in the batch: {} have the trainer's log-probabilities of other sequences; sequence {one} has those \
         of sequence {other}",
        counted(wrong.len(), "sequence")
    );
    let indices: Vec<usize> = wrong.iter().map(|&at| sequences[at].0.index).collect();
    let share = pair.share_of(wrong.iter().map(|&at| sequences[at].0.tokens.clone()));
    Some(GapFinding::fault("permuted", text).at(indices, share))
}

/// Returns true if most tokens of a rollout sequence agree with a trainer sequence up to rounding.
fn agree(pair: &PairView, rollout: &[ScoredToken], trainer: &[ScoredToken]) -> bool {
    let length = rollout.len().min(trainer.len());
    let mut missed = 0;
    for (one, other) in rollout.iter().zip(trainer) {
        let token = ScoredToken { trainer: other.trainer, ..*one };
        missed += usize::from(!pair.is_rounding(&token));
        if missed * 8 > length {
            return false;
        }
    }
    true
}
