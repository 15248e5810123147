//! Log-probability of a token, given the logits before it.

use crate::error::{Result, RunError};
use crate::numerics::Numerics;
use crate::ops::log_probabilities::Picks;
use crate::ops::sampling::likeliest;
use crate::tensor::Tensor;

/// Log-probability and rank of a token, with the most likely tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// Log-softmax of the logits, without temperature or filters. Computed in `f64` and rounded once, as in a dump.
    pub logprob: f32,
    /// Rank of the token, counted from 1.
    pub rank: usize,
    /// The most likely tokens with their log-probabilities; equally likely tokens by ascending id.
    pub top: Vec<(u32, f32)>,
}

impl TokenScore {
    /// Computes the log-probability of the token `id` from a row of logits, `[1, V]`, and the `k` most likely tokens.
    ///
    /// # Errors
    /// If the log-probability is NaN.
    pub fn of(numerics: &dyn Numerics, logits: &Tensor, id: u32, k: usize) -> Result<Self> {
        let row = logits.row(0);
        let mut ids = likeliest(row, k);
        ids.push(id);
        let found = numerics.log_probabilities(logits, &Picks::new(&[1, ids.len()], ids.clone()), 1.0);
        let (top, own) = found.data().split_at(ids.len() - 1);
        if own[0].is_nan() {
            let problem = format!("the log-probability of token {id} is NaN");
            return Err(RunError::BadLogits { problem }.into());
        }
        let rank = 1 + row.iter().filter(|&&logit| logit > row[id as usize]).count();
        Ok(Self { logprob: own[0], rank, top: ids.into_iter().zip(top.iter().copied()).collect() })
    }
}
