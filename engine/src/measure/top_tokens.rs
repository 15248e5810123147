//! Most likely tokens of both sides' logits, and the divergence of the distributions.

use multiversion::multiversion;

use crate::exponential::exp;
use crate::measure::agreement::no_less_than_zero;
use crate::measure::measurement::{Agreement, LikelyToken, PositionAgreement, Tops};
use crate::parallel;
use crate::view::View;

/// Number of tokens that are kept.
const KEPT: usize = 5;

impl Tops {
    /// Compares a row of logits `[V]`; `None` if it is empty or contains NaN.
    pub fn of(candidate: &View, reference: &View) -> Option<Self> {
        let [candidate, reference] = [candidate, reference].map(|view| TokenLogs::of(view, 0));
        let is_told =
            !reference.logs.is_empty() && [&candidate, &reference].iter().all(|row| row.is_ordered());
        is_told.then(|| Self {
            divergence: candidate.divergence_from(&reference),
            candidate: candidate.likeliest(),
            reference: reference.likeliest(),
        })
    }
}

impl Agreement {
    /// Compares logits `[T, V]` at these rows.
    pub fn of_logits(candidate: &View, reference: &View, rows: &[usize]) -> Self {
        let place = |index: usize| {
            let row = rows[index];
            let [candidate, reference] = [candidate, reference].map(|view| TokenLogs::of(view, row));
            PositionAgreement {
                row,
                delta: largest_difference(&candidate.logs, &reference.logs),
                divergence: candidate.divergence_from(&reference),
                covered: 1.0,
                same_top: Some(candidate.top() == reference.top()),
                is_over: None,
            }
        };
        Self { places: parallel::map(rows.len(), 16 * candidate.width(), place) }
    }
}

/// Difference between the predictions of two rows of logits.
#[derive(Clone, Copy)]
pub(super) struct PredictionDivergence {
    /// KL(reference‖candidate) in nats.
    pub(crate) kl: f64,
    /// Difference, in the reference's logits, between the reference's likeliest token and the candidate's likeliest
    /// token.
    pub(crate) lost_lead: f64,
}

impl PredictionDivergence {
    pub(crate) fn of(candidate: &[f64], reference: &[f64]) -> Self {
        let [candidate, reference] =
            [candidate, reference].map(|logits| TokenLogs::of_logits(logits.to_vec()));
        let tops = reference.top().zip(candidate.top());
        let lost_lead = tops.map_or(0.0, |(own, theirs)| reference.logs[own] - reference.logs[theirs]);
        Self { kl: candidate.divergence_from(&reference), lost_lead }
    }
}

/// Log-probabilities of every token.
struct TokenLogs {
    logs: Vec<f64>,
}

impl TokenLogs {
    fn of(view: &View, row: usize) -> Self {
        let mut logs = vec![0.0; view.width()];
        if !logs.is_empty() {
            view.read(row, 0..view.width(), &mut logs);
        }
        Self::of_logits(logs)
    }

    fn of_logits(mut logs: Vec<f64>) -> Self {
        let max = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = max + sum_of_exponentials(&logs, max).ln();
        logs.iter_mut().for_each(|logit| *logit -= sum);
        Self { logs }
    }

    fn is_ordered(&self) -> bool {
        self.logs.iter().all(|log| !log.is_nan())
    }

    fn divergence_from(&self, reference: &Self) -> f64 {
        no_less_than_zero(divergence(&self.logs, &reference.logs))
    }

    fn top(&self) -> Option<usize> {
        first_largest(&self.logs)
    }

    fn likeliest(&self) -> Vec<LikelyToken> {
        let mut order: Vec<u32> = (0..self.logs.len() as u32).collect();
        let by = |a: &u32, b: &u32| self.logs[*b as usize].total_cmp(&self.logs[*a as usize]).then(a.cmp(b));
        let kept = KEPT.min(order.len());
        order.select_nth_unstable_by(kept - 1, by);
        order.truncate(kept);
        order.sort_by(by);
        let likely = |token: u32| LikelyToken { token, probability: self.logs[token as usize].exp() };
        order.into_iter().map(likely).collect()
    }
}

const LANES: usize = 8;

/// Returns Σ e^(logit - max).
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn sum_of_exponentials(logits: &[f64], max: f64) -> f64 {
    let mut sums = [0.0f64; LANES];
    let (whole, rest) = logits.as_chunks::<LANES>();
    for logits in whole {
        for lane in 0..LANES {
            sums[lane] += exp(logits[lane] - max);
        }
    }
    rest.iter().map(|logit| exp(logit - max)).sum::<f64>() + sums.iter().sum::<f64>()
}

/// Returns Σ p · (log p - log q), where `candidate` has log q and `reference` log p.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn divergence(candidate: &[f64], reference: &[f64]) -> f64 {
    let of = |q: f64, p: f64| if p == f64::NEG_INFINITY { 0.0 } else { exp(p) * (p - q) };
    let mut sums = [0.0f64; LANES];
    let ((q, q_rest), (p, p_rest)) = (candidate.as_chunks::<LANES>(), reference.as_chunks::<LANES>());
    for (q, p) in q.iter().zip(p) {
        for lane in 0..LANES {
            sums[lane] += of(q[lane], p[lane]);
        }
    }
    q_rest.iter().zip(p_rest).map(|(&q, &p)| of(q, p)).sum::<f64>() + sums.iter().sum::<f64>()
}

/// Returns the largest distance of two values at the same index; NaN if any distance is NaN.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn largest_difference(candidate: &[f64], reference: &[f64]) -> f64 {
    let (mut largest, mut unordered) = ([0.0f64; LANES], [false; LANES]);
    let mut meet = |lane: usize, q: f64, p: f64| {
        let difference = if q == p { 0.0 } else { (q - p).abs() };
        unordered[lane] |= difference.is_nan();
        largest[lane] = if difference > largest[lane] { difference } else { largest[lane] };
    };
    let ((q, q_rest), (p, p_rest)) = (candidate.as_chunks::<LANES>(), reference.as_chunks::<LANES>());
    for (q, p) in q.iter().zip(p) {
        for lane in 0..LANES {
            meet(lane, q[lane], p[lane]);
        }
    }
    q_rest.iter().zip(p_rest).enumerate().for_each(|(lane, (&q, &p))| meet(lane, q, p));
    if unordered.contains(&true) { f64::NAN } else { largest.into_iter().fold(0.0, f64::max) }
}

/// Returns the first index of the largest value in the total order of floats.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn first_largest(values: &[f64]) -> Option<usize> {
    // The integers of this order; see `f64::total_cmp`.
    let place = |value: &f64| {
        let bits = value.to_bits().cast_signed();
        bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
    };
    let most = values.iter().map(place).fold(i64::MIN, i64::max);
    values.iter().position(|value| place(value) == most)
}
