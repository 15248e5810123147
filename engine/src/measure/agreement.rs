//! Agreement of two engines on log-probabilities of the same ids, position by position.

use std::collections::HashSet;

use crate::measure::array_pair::ColumnSelection;
use crate::measure::measurement::{Agreement, PositionAgreement};
use crate::measure::precision::ValuePrecision;
use crate::measure::sums::larger;
use crate::view::View;

impl Agreement {
    /// Compares both sides' log-probabilities of the same ids, `[T]` or `[T, k]`, in these rows. `columns` returns the
    /// entries of a row that both sides have.
    pub fn of(
        candidate: &View,
        reference: &View,
        rows: &[usize],
        precision: ValuePrecision,
        columns: impl Fn(usize) -> ColumnSelection,
        same_top: impl Fn(usize) -> Option<bool>,
    ) -> Self {
        let width = reference.shape().get(1).copied().unwrap_or(1);
        let place = |&row: &usize| {
            let pairs: Vec<(f64, f64)> = indices(&columns(row), width)
                .map(|column| row * width + column)
                .map(|flat| (candidate.get(flat), reference.get(flat)))
                .collect();
            let delta = pairs.iter().map(|(q, p)| (q - p).abs());
            PositionAgreement {
                row,
                delta: delta.fold(0.0, larger),
                divergence: divergence(&pairs, precision.steps),
                covered: pairs.iter().map(|(_, p)| p.exp()).sum(),
                same_top: same_top(row),
                is_over: None,
            }
        };
        Self { places: rows.iter().map(place).collect() }
    }

    /// Returns the start of a drift. It is chosen so that, from there to the end, violations outnumber other positions
    /// by the largest number. A single violation is not a drift, and a single correct position does not end one.
    pub fn drift(&self, is_over: impl Fn(&PositionAgreement) -> bool) -> Option<usize> {
        let (mut sum, mut best) = (0i64, None);
        for place in self.places.iter().rev() {
            sum += if is_over(place) { 1 } else { -1 };
            if sum > 0 && best.is_none_or(|(most, _)| sum >= most) {
                best = Some((sum, place.row));
            }
        }
        best.map(|(_, row)| row)
    }

    /// Returns the mean and the largest divergence.
    pub fn divergence(&self) -> [f64; 2] {
        let all = || self.places.iter().map(|place| place.divergence);
        [all().sum::<f64>() / self.places.len().max(1) as f64, all().fold(0.0, larger)]
    }

    /// Returns the number of positions with the same most likely token on both sides; `None` if undetermined.
    pub fn same_top(&self) -> Option<usize> {
        let told = self.places.iter().filter_map(|place| place.same_top);
        self.places.iter().any(|place| place.same_top.is_some()).then(|| told.filter(|same| *same).count())
    }

    /// Marks the positions with values that rounding does not explain. `flats` are their indices in an array with rows
    /// of `width`.
    pub fn mark_over(&mut self, flats: &[usize], width: usize) {
        let rows: HashSet<usize> = flats.iter().map(|flat| flat / width).collect();
        self.places.iter_mut().for_each(|place| place.is_over = Some(rows.contains(&place.row)));
    }
}

fn indices(columns: &ColumnSelection, width: usize) -> Box<dyn Iterator<Item = usize> + '_> {
    match columns {
        ColumnSelection::All => Box::new(0..width),
        ColumnSelection::Range(range) => Box::new(range.clone()),
        ColumnSelection::These(columns) => Box::new(columns.iter().copied()),
    }
}

/// Returns the KL divergence Σ p·(log p - log q) over the listed ids, plus the same term for the remaining
/// probability. It is infinite if the candidate leaves no probability for the unlisted tokens but the reference
/// does. Remainders within rounding count as zero.
fn divergence(pairs: &[(f64, f64)], steps: [f64; 2]) -> f64 {
    const NOTHING: f64 = f32::EPSILON as f64;
    let of = |&(q, p): &(f64, f64)| if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) };
    let left = |sum: f64, count: usize| {
        let left = 1.0 - sum;
        if left.abs() <= NOTHING * (count + 1) as f64 + steps[0].max(steps[1]) / 2.0 {
            0.0
        } else {
            no_less_than_zero(left)
        }
    };
    let q = left(pairs.iter().map(|(q, _)| q.exp()).sum(), pairs.len());
    let p = left(pairs.iter().map(|(_, p)| p.exp()).sum(), pairs.len());
    let tail = if p == 0.0 { 0.0 } else { p * (p / q).ln() };
    no_less_than_zero(pairs.iter().map(of).sum::<f64>() + tail)
}

/// Raises a divergence that rounding made negative to 0. NaN is kept, whereas `max` would drop it.
pub(super) fn no_less_than_zero(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}
