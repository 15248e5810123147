//! Most likely tokens of both sides' logits, and the divergence of the distributions.

use crate::measure::agreement::no_less_than_zero;
use crate::measure::measurement::{Agreement, PositionAgreement, Tops};
use crate::measure::sums::larger;
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
            let pairs = candidate.logs.iter().zip(&reference.logs);
            PositionAgreement {
                row,
                delta: pairs.map(|(q, p)| if q == p { 0.0 } else { (q - p).abs() }).fold(0.0, larger),
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
    /// Lead of the reference's likeliest token over the candidate's likeliest token, in the reference's logits.
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
        let sum = max + logs.iter().map(|logit| (logit - max).exp()).sum::<f64>().ln();
        logs.iter_mut().for_each(|logit| *logit -= sum);
        Self { logs }
    }

    fn is_ordered(&self) -> bool {
        self.logs.iter().all(|log| !log.is_nan())
    }

    fn divergence_from(&self, reference: &Self) -> f64 {
        let of = |(q, p): (&f64, &f64)| if *p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) };
        no_less_than_zero(self.logs.iter().zip(&reference.logs).map(of).sum())
    }

    fn top(&self) -> Option<usize> {
        (0..self.logs.len()).rev().max_by(|&a, &b| self.logs[a].total_cmp(&self.logs[b]))
    }

    fn likeliest(&self) -> Vec<(u32, f64)> {
        let mut order: Vec<u32> = (0..self.logs.len() as u32).collect();
        let by = |a: &u32, b: &u32| self.logs[*b as usize].total_cmp(&self.logs[*a as usize]).then(a.cmp(b));
        let kept = KEPT.min(order.len());
        order.select_nth_unstable_by(kept - 1, by);
        order.truncate(kept);
        order.sort_by(by);
        order.into_iter().map(|id| (id, self.logs[id as usize].exp())).collect()
    }
}
