//! Likely tokens of two dumps: each names its own, in an order and number of its own.

use std::collections::{HashMap, HashSet};

use crate::compare::Grain;
use crate::compare::logprobs::{Agreement, likeliest, measure_ids};
use crate::compare::metrics::{Columns, Measurement, measure};
use crate::compare::sums::larger;
use crate::view::View;

/// What a dump names as the likeliest after each position: ids and log-probabilities, `[T, k]`.
pub(super) struct Ranks {
    pub(super) ids: View<'static>,
    pub(super) values: View<'static>,
}

impl Ranks {
    /// The ids of a row with their log-probabilities, the likeliest first, `k` of them.
    fn row(&self, row: usize, k: usize) -> Vec<(f64, f64)> {
        let width = self.ids.width();
        let flats = row * width..(row + 1) * width;
        let mut all: Vec<(f64, f64)> =
            flats.map(|flat| (self.ids.get(flat), self.values.get(flat))).collect();
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        all.truncate(k);
        all
    }
}

/// Both sides.
pub(super) struct Both {
    pub(super) candidate: Ranks,
    pub(super) reference: Ranks,
    /// The rows that both hold.
    pub(super) rows: Vec<usize>,
}

impl Both {
    /// Which ids the two name, of as many of the likeliest as both name.
    pub(super) fn of_ids(&self) -> Measurement {
        let k = self.k();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for row in 0..self.candidate.ids.rows() {
            let [one, other] = self.row(row).map(|row| row.iter().map(|(id, _)| *id).collect::<Vec<f64>>());
            let [ones, known] =
                [&one, &other].map(|ids| ids.iter().map(|id| id.to_bits()).collect::<HashSet<_>>());
            let mut others = other.iter().filter(|id| !ones.contains(&id.to_bits()));
            let in_place = one.iter().map(|id| match known.contains(&id.to_bits()) {
                true => *id,
                false => *others.next().unwrap_or(id),
            });
            theirs.extend(in_place);
            ours.extend(one);
        }
        let shape = [self.candidate.ids.rows(), k];
        measure_ids(&View::of(&shape, &ours), &View::of(&shape, &theirs), &self.rows)
    }

    /// How far what only one of the two names is above what the other leaves it, at most: no more than the least likely that it
    /// names, and than what all that it names leave. No number is further above than any.
    pub(super) fn margin(&self) -> f64 {
        let above = |one: &[(f64, f64)], other: &[(f64, f64)]| {
            let known: HashSet<u64> = other.iter().map(|(id, _)| id.to_bits()).collect();
            let left = left_by(other);
            let alone = one.iter().filter(|(id, _)| !known.contains(&id.to_bits()));
            alone.map(|(_, value)| value - left).fold(0.0, larger)
        };
        let of_row = |&row: &usize| {
            let [one, other] = self.row(row);
            let [all_of_one, all_of_other] =
                [&self.candidate, &self.reference].map(|ranks| ranks.row(row, usize::MAX));
            larger(above(&one, &all_of_other), above(&other, &all_of_one))
        };
        let margin = self.rows.iter().map(of_row).fold(0.0, larger);
        if margin.is_nan() { f64::INFINITY } else { margin }
    }

    /// The log-probabilities of ids that both name.
    pub(super) fn of_values(&self, grain: Grain) -> Measurement {
        let (candidate, width) = (&self.candidate.values, self.candidate.ids.width());
        let mut theirs = candidate.to_vec();
        let mut columns = vec![Vec::new(); candidate.rows()];
        for &row in &self.rows {
            let other = self.reference.row(row, usize::MAX);
            let other: HashMap<u64, f64> = other.iter().map(|(id, value)| (id.to_bits(), *value)).collect();
            for column in 0..width {
                let id = self.candidate.ids.get(row * width + column);
                if let Some(value) = other.get(&id.to_bits()) {
                    theirs[row * width + column] = *value;
                    columns[row].push(column);
                }
            }
        }
        let reference = View::owned(candidate.shape(), theirs);
        let common = |row: usize| Columns::These(columns[row].clone());
        let mut found = measure(candidate.clone(), reference.clone(), grain, common);
        let top = |ranks: &Ranks, row: usize| {
            likeliest(&ranks.values, row).map(|column| ranks.ids.get(row * ranks.ids.width() + column))
        };
        let same_top = |row: usize| Some(top(&self.candidate, row)? == top(&self.reference, row)?);
        let told: Vec<usize> = self.rows.iter().copied().filter(|&row| !columns[row].is_empty()).collect();
        found.agreement = Some(Agreement::of(candidate, &reference, &told, common, same_top));
        found
    }

    fn k(&self) -> usize {
        self.candidate.ids.width().min(self.reference.ids.width())
    }

    fn row(&self, row: usize) -> [Vec<(f64, f64)>; 2] {
        [&self.candidate, &self.reference].map(|ranks| ranks.row(row, self.k()))
    }
}

/// The log-probability that a token may have at most that these, with their own, do not name.
fn left_by(named: &[(f64, f64)]) -> f64 {
    const NOTHING: f64 = f32::EPSILON as f64;
    let least = named.last().map_or(0.0, |(_, value)| *value);
    let sum: f64 = named.iter().map(|(_, value)| value.exp()).sum();
    // Of what is left, no less than rounding leaves of nothing.
    let left = (1.0 - sum).max(NOTHING * (named.len() + 1) as f64).ln();
    if least.is_nan() || sum.is_nan() { f64::NAN } else { least.min(left) }
}
