//! Top tokens of two dumps. Each dump lists its own tokens, in its own order and number.

use std::collections::{HashMap, HashSet};

use crate::measure::{
    Agreement, ColumnSelection, LogprobPrecision, Measurement, NO_TOKEN, ValuePrecision, larger, measure,
    measure_placed,
};
use crate::view::View;

/// The top tokens that a dump lists after each position: ids and log-probabilities, `[T, k]`.
pub(super) struct Ranks {
    pub(super) ids: View<'static>,
    pub(super) values: View<'static>,
    /// Number of listed tokens per row. Later entries are padding.
    pub(super) widths: Vec<usize>,
    /// Precision of the log-probabilities.
    pub(super) slack: LogprobPrecision,
}

impl Ranks {
    /// Returns the `k` most likely ids of a row with their log-probabilities, in descending order.
    fn row(&self, row: usize, k: usize) -> Vec<(f64, f64)> {
        let first = row * self.ids.width();
        let flats = first..first + self.widths[row];
        let mut all: Vec<(f64, f64)> =
            flats.map(|flat| (self.ids.get(flat), self.values.get(flat))).collect();
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        all.truncate(k);
        all
    }

    /// Returns an upper bound on the log-probability of an unlisted token. It is at most the lowest listed
    /// one, and at most the remaining probability. The remainder uses the listed values' lower limits,
    /// because a confident prediction leaves little.
    fn left(&self, named: &[(f64, f64)]) -> f64 {
        let least = named.last().map_or(0.0, |(_, value)| *value);
        let sum: f64 = named.iter().map(|(_, value)| (value - self.slack.at(*value)).exp()).sum();
        let left = (1.0 - sum).max(0.0).ln();
        if least.is_nan() || sum.is_nan() { f64::NAN } else { least.min(left) }
    }
}

/// The top tokens of both sides at the same positions.
pub(super) struct RankPair {
    pub(super) candidate: Ranks,
    pub(super) reference: Ranks,
    /// The rows that both dumps record.
    pub(super) rows: Vec<usize>,
    /// The types of both sides' log-probabilities.
    pub(super) precision: ValuePrecision,
}

impl RankPair {
    /// Compares the listed ids, as many per row as both sides list.
    pub(super) fn of_ids(&self) -> Measurement {
        let (mut ours, mut theirs, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for &row in &self.rows {
            let [one, other] = self.row(row).map(|row| row.iter().map(|(id, _)| *id).collect::<Vec<f64>>());
            let [ones, known] =
                [&one, &other].map(|ids| ids.iter().map(|id| id.to_bits()).collect::<HashSet<_>>());
            let mut others = other.iter().filter(|id| !ones.contains(&id.to_bits()));
            let in_place = one.iter().map(|id| match known.contains(&id.to_bits()) {
                true => *id,
                false => others.next().copied().unwrap_or(NO_TOKEN),
            });
            theirs.extend(in_place);
            places.extend((0..one.len()).map(|rank| [row, rank]));
            ours.extend(one);
        }
        measure_placed(&ours, &theirs, &places)
    }

    /// Returns the largest margin by which a token listed on one side exceeds its upper bound on the other
    /// side, which does not list it. The bound is the lowest listed probability, or the remaining one if
    /// smaller. NaN counts as the largest margin.
    pub(super) fn margin(&self) -> f64 {
        let above = |one: &[(f64, f64)], ranks: &Ranks, other: &[(f64, f64)]| {
            let known: HashSet<u64> = other.iter().map(|(id, _)| id.to_bits()).collect();
            let left = ranks.left(other);
            let alone = one.iter().filter(|(id, _)| !known.contains(&id.to_bits()));
            alone.map(|(_, value)| value - left).fold(0.0, larger)
        };
        let of_row = |&row: &usize| {
            let [one, other] = self.row(row);
            let [all_of_one, all_of_other] =
                [&self.candidate, &self.reference].map(|ranks| ranks.row(row, usize::MAX));
            larger(above(&one, &self.reference, &all_of_other), above(&other, &self.candidate, &all_of_one))
        };
        let margin = self.rows.iter().map(of_row).fold(0.0, larger);
        if margin.is_nan() { f64::INFINITY } else { margin }
    }

    /// Compares the log-probabilities of ids that both sides list.
    pub(super) fn of_values(&self) -> Measurement {
        let (candidate, width) = (&self.candidate.values, self.candidate.ids.width());
        let mut theirs = candidate.to_vec();
        let mut columns = vec![Vec::new(); candidate.rows()];
        for &row in &self.rows {
            let other = self.reference.row(row, usize::MAX);
            let other: HashMap<u64, f64> = other.iter().map(|(id, value)| (id.to_bits(), *value)).collect();
            for column in 0..self.candidate.widths[row] {
                let id = self.candidate.ids.get(row * width + column);
                if let Some(value) = other.get(&id.to_bits()) {
                    theirs[row * width + column] = *value;
                    columns[row].push(column);
                }
            }
        }
        let reference = View::owned(candidate.shape(), theirs);
        let common = |row: usize| ColumnSelection::These(columns[row].clone());
        let mut found = measure(candidate.clone(), reference.clone(), self.precision, common);
        let top = |ranks: &Ranks, row: usize| ranks.row(row, 1).first().map(|(id, _)| *id);
        let same_top = |row: usize| Some(top(&self.candidate, row)? == top(&self.reference, row)?);
        let told: Vec<usize> = self.rows.iter().copied().filter(|&row| !columns[row].is_empty()).collect();
        found.agreement = Some(Agreement::of(candidate, &reference, &told, self.precision, common, same_top));
        found
    }

    /// Returns a row of both sides, cut to the length of the shorter list.
    fn row(&self, row: usize) -> [Vec<(f64, f64)>; 2] {
        let k = self.candidate.widths[row].min(self.reference.widths[row]);
        [&self.candidate, &self.reference].map(|ranks| ranks.row(row, k))
    }
}
