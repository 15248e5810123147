//! Rounding of a single log-probability, as in each pass of decoding. A few perturbed runs are few draws of
//! it and may all be small by chance. All logits of its row are draws of the same noise.

use std::collections::HashMap;

use crate::checkpoint::Site;
use crate::tensor::Tensor;

/// Minimum number of log-probabilities for which the maximum of a few runs is reliable.
const FEW: usize = 32;
/// Number of sigmas of the largest of some hundred draws.
const SIGMAS: f64 = 3.0;

/// Logits of the rows of few log-probabilities, and how far they were moved.
#[derive(Debug, Default)]
pub(super) struct LogprobNoise {
    still: HashMap<Site, Vec<(usize, Vec<f32>)>>,
    /// The sigma of the logits of each row in the last run.
    moved: HashMap<Site, Vec<(usize, f64)>>,
}

impl LogprobNoise {
    /// Reads the noise of logits, `[T, V]`, for the recorded rows of log-probabilities at a site.
    pub fn look_at(&mut self, site: Site, logits: &Tensor, rows: Option<&[usize]>) {
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

    /// Returns the noise of log-probabilities from that of logits: d log p = (1 - p)·(dz - dz of the others).
    pub fn of(&self, site: Site, still: &Tensor) -> Option<Tensor> {
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

/// The root mean square of what moved logits, but for what moved all alike: that is nothing to a softmax.
fn sigma(moved: &[f32], still: &[f32]) -> f64 {
    let by =
        || moved.iter().zip(still).map(|(a, b)| f64::from(*a) - f64::from(*b)).filter(|by| by.is_finite());
    let count = by().count().max(1) as f64;
    let mean = by().sum::<f64>() / count;
    (by().map(|by| (by - mean) * (by - mean)).sum::<f64>() / count).sqrt()
}
