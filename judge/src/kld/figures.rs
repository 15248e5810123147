//! Statistics of llama-perplexity over all tokens, computed in its arithmetic, with confidence intervals by
//! chunk.

use serde::Serialize;

use crate::kld::interval::interval;
use crate::measure::PredictionDifference;

/// Minimum number of tokens for statistics, as in llama-perplexity.
pub const LEAST: usize = 100;

/// The differences between two predictions at each token, grouped by chunk.
#[derive(Clone, Debug, Default)]
pub struct TokenDivergences {
    chunks: Vec<Vec<PredictionDifference>>,
    /// Number of base tokens for which the other side has no prediction.
    pub left_out: usize,
}

/// A mean with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean over all tokens.
    pub value: f64,
    /// Standard error under the assumption that tokens are independent, as in llama-perplexity.
    pub(crate) as_if_independent: f64,
    /// 95 % confidence interval by chunk; `None` for a single chunk.
    pub interval: Option<[f64; 2]>,
}

/// A distribution over tokens: its mean and percentiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenStatistics {
    /// Mean over tokens, with its uncertainty.
    pub mean: Estimate,
    /// The median. For an even number of tokens: the mean of the two middle values.
    pub(crate) median: f64,
    /// Maximum, percentiles and minimum, in descending order, as (percent, value).
    pub(crate) percentiles: Vec<(f64, f64)>,
}

/// The figures of llama-perplexity's table, with intervals.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KldFigures {
    /// Perplexity of Q.
    pub(crate) ppl: Estimate,
    /// Perplexity of the base.
    pub(crate) ppl_base: Estimate,
    /// Correlation between the -log p of both sides.
    pub(crate) correlation: f64,
    /// ln(PPL(other)/PPL(base)).
    pub(crate) ln_ratio: Estimate,
    /// PPL(other)/PPL(base).
    pub(crate) ratio: Estimate,
    /// PPL(other) - PPL(base). No interval, since it is not a mean over tokens.
    pub(crate) difference: Estimate,
    /// KL(base‖other), nats.
    pub kld: TokenStatistics,
    /// Difference in the probability of the next token, as a fraction.
    pub(crate) p_diff: TokenStatistics,
    /// Root mean square of the probability difference.
    pub(crate) p_diff_rms: Estimate,
    /// Share of tokens at which both sides have the same top token, as a fraction.
    pub(crate) same_top: Estimate,
}

const KLD_PERCENTS: [f64; 10] = [100.0, 99.9, 99.0, 95.0, 90.0, 10.0, 5.0, 1.0, 0.1, 0.0];
const P_DIFF_PERCENTS: [f64; 12] = [100.0, 99.9, 99.0, 95.0, 90.0, 75.0, 25.0, 10.0, 5.0, 1.0, 0.1, 0.0];

/// Sums over all tokens of a quantity and of its square, and the sum of the quantity per chunk.
struct Moments {
    count: usize,
    sum: f64,
    squares: f64,
    chunks: Vec<f64>,
    counts: Vec<usize>,
}

impl Moments {
    /// Computes the sums of a quantity. `squared` computes its square as llama-perplexity does, mostly in `f32`.
    fn of(
        tally: &TokenDivergences,
        value: impl Fn(&PredictionDifference) -> f64,
        squared: impl Fn(&PredictionDifference) -> f64,
    ) -> Self {
        let tokens = || tally.chunks.iter().flatten();
        let chunks = tally.chunks.iter();
        Self {
            count: tally.count(),
            sum: tokens().map(&value).sum(),
            squares: tokens().map(squared).sum(),
            chunks: chunks.clone().map(|chunk| chunk.iter().map(&value).sum()).collect(),
            counts: chunks.map(Vec::len).collect(),
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    fn error(&self) -> f64 {
        let variance = self.squares / self.count as f64 - self.mean().powi(2);
        if variance > 0.0 { (variance / (self.count as f64 - 1.0)).sqrt() } else { 0.0 }
    }

    fn interval(&self) -> Option<[f64; 2]> {
        interval(&self.chunks, &self.counts)
    }

    fn estimate(&self) -> Estimate {
        Estimate { value: self.mean(), as_if_independent: self.error(), interval: self.interval() }
    }
}

impl Estimate {
    /// Returns the estimate of exp(x).
    fn exp(self) -> Self {
        let value = self.value.exp();
        Self {
            value,
            as_if_independent: value * self.as_if_independent,
            interval: self.interval.map(|ends| ends.map(f64::exp)),
        }
    }

    /// Returns the estimate of the root mean square, from an estimate of the mean square.
    fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        let as_if_independent = if value > 0.0 { 0.5 / value * self.as_if_independent } else { 0.0 };
        let interval = self.interval.map(|ends| ends.map(|end| end.max(0.0).sqrt()));
        Self { value, as_if_independent, interval }
    }
}

impl TokenDivergences {
    /// Adds the tokens of a chunk.
    pub(crate) fn add(&mut self, chunk: Vec<PredictionDifference>) {
        self.chunks.push(chunk);
    }

    /// Returns the number of tokens.
    pub fn count(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the mean KL divergence of each chunk, to spot outliers.
    pub fn klds(&self) -> Vec<f64> {
        let mean = |chunk: &Vec<PredictionDifference>| {
            chunk.iter().map(|token| token.kld).sum::<f64>() / chunk.len() as f64
        };
        self.chunks.iter().map(mean).collect()
    }

    /// Returns the number of tokens at which the base file's rounding explains all differences, and the
    /// largest difference of log-probabilities.
    pub fn within(&self) -> (usize, f32) {
        let tokens = || self.chunks.iter().flatten();
        let largest = tokens().map(|token| token.apart).fold(0.0, f32::max);
        (tokens().filter(|token| token.is_within).count(), largest)
    }

    /// Returns the statistics; `None` for fewer than [`LEAST`] tokens.
    pub fn figures(&self) -> Option<KldFigures> {
        if self.count() < LEAST {
            return None;
        }
        let n = self.count() as f64;
        let single = |value: f32| f64::from(value);
        let nll = Moments::of(self, |t| single(t.nll), |t| single(t.nll * t.nll));
        let base = Moments::of(self, |t| single(t.base_nll), |t| single(t.base_nll * t.base_nll));
        let products: f64 = self.chunks.iter().flatten().map(|t| single(t.nll * t.base_nll)).sum();
        let covariance = (products / n - nll.mean() * base.mean()) / (n - 1.0);
        let ratio_error = (nll.error().powi(2) + base.error().powi(2) - 2.0 * covariance).max(0.0).sqrt();
        let apart = Moments::of(self, |t| single(t.nll) - single(t.base_nll), |_| 0.0);
        let ln_ratio = Estimate {
            value: nll.mean() - base.mean(),
            as_if_independent: ratio_error,
            interval: apart.interval(),
        };
        let (ppl, ppl_base) = (nll.estimate().exp(), base.estimate().exp());
        let [error, base_error] = [ppl, ppl_base].map(|ppl| ppl.as_if_independent);
        let difference_error =
            error.powi(2) + base_error.powi(2) - 2.0 * ppl.value * ppl_base.value * covariance;
        let difference = Estimate {
            value: ppl.value - ppl_base.value,
            as_if_independent: difference_error.max(0.0).sqrt(),
            interval: None,
        };
        let p_diff = Moments::of(self, |t| single(t.p_diff), |t| single(t.p_diff * t.p_diff));
        let squares =
            Moments::of(self, |t| single(t.p_diff * t.p_diff), |t| single(t.p_diff * t.p_diff).powi(2));
        let kld = Moments::of(self, |t| t.kld, |t| t.kld.powi(2));
        let same = |t: &PredictionDifference| f64::from(u8::from(t.same_top));
        let same_top = Moments::of(self, same, same);
        let in_bounds = |ends: [f64; 2]| ends.map(|end| end.clamp(0.0, 1.0));
        let same_top = same_top.estimate();
        Some(KldFigures {
            ppl,
            ppl_base,
            correlation: covariance / (nll.error() * base.error()),
            ln_ratio,
            ratio: ln_ratio.exp(),
            difference,
            kld: self.tokens(kld.estimate(), |t| t.kld as f32, &KLD_PERCENTS),
            p_diff: self.tokens(p_diff.estimate(), |t| t.p_diff, &P_DIFF_PERCENTS),
            p_diff_rms: squares.estimate().sqrt(),
            same_top: Estimate { interval: same_top.interval.map(in_bounds), ..same_top },
        })
    }

    fn tokens(
        &self,
        mean: Estimate,
        value: impl Fn(&PredictionDifference) -> f32,
        percents: &[f64],
    ) -> TokenStatistics {
        let mut sorted: Vec<f32> = self.chunks.iter().flatten().map(value).collect();
        sorted.sort_by(f32::total_cmp);
        let percentile = |&percent: &f64| (percent, f64::from(percentile(&sorted, (percent / 100.0) as f32)));
        let half = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => 0.5 * (sorted[half] + sorted[half - 1]),
            _ => sorted[half],
        };
        TokenStatistics {
            mean,
            median: median.into(),
            percentiles: percents.iter().map(percentile).collect(),
        }
    }
}

/// Returns a percentile, with linear interpolation between neighbouring values.
fn percentile(sorted: &[f32], fraction: f32) -> f32 {
    let place = fraction.clamp(0.0, 1.0) * (sorted.len() - 1) as f32;
    let below = (place as usize).min(sorted.len() - 1);
    let above = (below + 1).min(sorted.len() - 1);
    let part = place - below as f32;
    (1.0 - part) * sorted[below] + part * sorted[above]
}
