//! Rounding noise of a single log-probability, e.g. in one pass of decoding. A few perturbed runs give too
//! few samples of one value. The noise is estimated from all logits of its row, which have the same
//! distribution.

use std::collections::HashMap;

use crate::checkpoint::Site;
use crate::tensor::Tensor;

/// Up to this many log-probabilities, the maximum over a few runs is unreliable and the noise of the logits
/// is used.
const FEW: usize = 32;
/// Multiple of the standard deviation that counts as noise: about the largest deviation in a few hundred samples.
const SIGMAS: f64 = 3.0;

/// The unperturbed logits of a few rows, and the size of their perturbation.
#[derive(Debug, Default)]
pub(crate) struct LogprobNoise {
    still: HashMap<Site, Vec<(usize, Vec<f32>)>>,
    /// The standard deviation of each row's logits in the last perturbed run, by site and row.
    moved: HashMap<Site, Vec<(usize, f64)>>,
}

impl LogprobNoise {
    /// Stores the first run's logits, `[T, V]`, and measures how later runs differ from them. `rows` are the recorded
    /// rows.
    pub(crate) fn look_at(&mut self, site: Site, logits: &Tensor, rows: Option<&[usize]>) {
        let rows = rows.map_or_else(|| (0..logits.rows()).collect(), <[usize]>::to_vec);
        if rows.len() > FEW {
            return;
        }
        match self.still.get(&site) {
            None => {
                let kept = rows.iter().map(|&row| (row, logits.row(row).to_vec()));
                self.still.insert(site, kept.collect());
            }
            Some(still) => {
                let sigma = |(row, still): &(usize, Vec<f32>)| (*row, sigma(logits.row(*row), still));
                self.moved.insert(site, still.iter().map(sigma).collect());
            }
        }
    }

    /// Computes perturbed log-probabilities from the noise of the logits: d log p = (1 - p)·(dz - dz of the
    /// others).
    pub(crate) fn of(&self, site: Site, still: &Tensor) -> Option<Tensor> {
        let moved = self.moved.get(&site)?;
        let mut values = still.data().to_vec();
        for &(row, sigma) in moved {
            let value = values.get_mut(row)?;
            let left = -f64::from(*value).exp_m1();
            *value += (SIGMAS * 2f64.sqrt() * sigma * left) as f32;
        }
        Some(Tensor::new(still.shape(), values))
    }
}

/// Returns the standard deviation of the logits' differences. Subtracting the mean ignores a common shift,
/// which a softmax ignores too.
fn sigma(moved: &[f32], still: &[f32]) -> f64 {
    let by =
        || moved.iter().zip(still).map(|(a, b)| f64::from(*a) - f64::from(*b)).filter(|by| by.is_finite());
    let count = by().count().max(1) as f64;
    let mean = by().sum::<f64>() / count;
    (by().map(|by| (by - mean) * (by - mean)).sum::<f64>() / count).sqrt()
}
