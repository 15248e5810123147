//! Solves for the value of a parameter that a dump with few taps does not show: a scale, an epsilon, a base.
//!
//! The error of a row is a function of the parameter. Its minimum is found by evaluating the row at a few values. The
//! parameter is named only if its minimum explains the row.

use std::f64::consts::LN_2;

use crate::catalogue::{OperationChange, PassRestriction};
use crate::change::{CatalogueEntry, CauseKind, ChangeValue};
use crate::checkpoint::Point;
use crate::error::Result;

/// Values that are tried first: the model's own value times these powers of 2.
const POWERS: [i32; 8] = [-7, -5, -3, -1, 1, 3, 5, 7];

/// Number of values that are tried around the best of the first values.
const STEPS: usize = 14;

/// A parameter is dropped if its first steps leave more than this share of the error.
const HALFWAY: f64 = 0.7;
const FIRST_STEPS: usize = 4;

/// Powers of 2 that are tried first for each parameter if there are several.
const COARSE: [i32; 12] = [-9, -7, -5, -3, -2, -1, 1, 2, 3, 4, 6, 9];

/// Number of rounds in which several parameters are computed, one after the other.
const ROUNDS: usize = 8;

/// The search ends if the logarithm of the value is known to this precision.
const PRECISE: f64 = 1e-7;

/// Solving stops if several parameters leave at most this share of the error.
const SOLVED: f64 = 1e-6;

/// A parameter is pursued only if one of its first values reduces the error to this share.
const SHARE: f64 = 0.9;

/// A parameter of the model, with the model's value.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pub(super) entry: &'static CatalogueEntry,
    /// Tap that the change applies to; `None` for all taps of the entry.
    pub(super) point: Option<Point>,
    /// Passes that the change applies to; `None` for all.
    pub(super) passes: Option<PassRestriction>,
    pub(super) own: f64,
}

impl Parameter {
    pub(super) fn with(&self, value: ChangeValue) -> OperationChange {
        OperationChange { point: self.point, passes: self.passes, ..OperationChange::new(self.entry, value) }
    }

    /// Returns the factor between the first steps. Epsilons and bases differ by orders of magnitude, so their steps are
    /// larger.
    fn stretch(&self) -> f64 {
        if matches!(self.entry.kind, CauseKind::NormEps | CauseKind::RopeTheta) { 2.0 } else { 1.0 }
    }

    fn at(&self, log: f64) -> OperationChange {
        self.with(ChangeValue::Number(self.own * log.exp()))
    }

    /// Returns round numbers near a solution, those with the fewest digits first. Engines divide cached values by a
    /// scale, so the inverse may be the round number.
    fn plain(&self, log: f64) -> Vec<ChangeValue> {
        let number = self.own * log.exp();
        let digits = |digits: i32, number: f64| {
            let unit = 10f64.powi(digits - 1 - number.abs().log10().floor() as i32);
            (number * unit).round() / unit
        };
        let mut values = Vec::new();
        for count in 1..=6 {
            values.push(ChangeValue::Number(digits(count, number)));
            if self.entry.kind == CauseKind::CacheScale && (2..=4).contains(&count) {
                values.push(ChangeValue::Word(format!("1/{}", digits(count - 1, number.recip()))));
            }
        }
        values
    }
}

/// Minimises the error of a row over the logarithms of parameters. `error` computes the error with these changes.
pub(super) struct ParameterSearch<'e> {
    pub(super) error: &'e mut dyn FnMut(&[OperationChange]) -> Result<Option<f64>>,
    /// Error of the unchanged operation.
    pub(super) before: f64,
    /// True if no parameter is given up after the first steps.
    pub(super) is_exhaustive: bool,
}

impl ParameterSearch<'_> {
    /// Returns the changes, with round values, that give the smallest error, and this error. `None` if no value reduces
    /// the error much.
    pub(super) fn solve(&mut self, parameters: &[Parameter]) -> Result<Option<(Vec<OperationChange>, f64)>> {
        let (mut logs, mut best) = (vec![0.0; parameters.len()], self.before);
        for round in 0..ROUNDS {
            // A single parameter is known after one round.
            if round > 0 && parameters.len() == 1 {
                break;
            }
            for index in 0..parameters.len() {
                let first: Vec<f64> = match round {
                    0 if parameters.len() == 1 => POWERS
                        .iter()
                        .map(|power| f64::from(*power) * parameters[index].stretch() * LN_2)
                        .collect(),
                    0 => COARSE.iter().map(|power| f64::from(*power) * LN_2).collect(),
                    _ => [-1.0, 1.0].map(|step| step / (1.0 + round as f64).powi(2)).into(),
                };
                let center = logs[index];
                let Some((log, error)) =
                    self.minimum(parameters, &mut logs, index, (center, best), &first)?
                else {
                    continue;
                };
                (logs[index], best) = (log, error);
            }
            if best > SHARE * self.before && (parameters.len() == 1 || round > 1) {
                return Ok(None);
            }
            if best < SOLVED * self.before {
                break;
            }
        }
        self.plain(parameters, &mut logs, best)
    }

    fn error_at(&mut self, parameters: &[Parameter], logs: &[f64]) -> Result<f64> {
        // A parameter at its own value is no change.
        let moved = parameters.iter().zip(logs).filter(|(_, log)| **log != 0.0);
        let changes: Vec<OperationChange> = moved.map(|(parameter, log)| parameter.at(*log)).collect();
        if changes.is_empty() {
            return Ok(self.before);
        }
        Ok((self.error)(&changes)?.unwrap_or(f64::INFINITY))
    }

    /// Returns the logarithm of one parameter with the smallest error, found from steps around a known value.
    fn minimum(
        &mut self,
        parameters: &[Parameter],
        logs: &mut [f64],
        index: usize,
        (center, at_center): (f64, f64),
        steps: &[f64],
    ) -> Result<Option<(f64, f64)>> {
        let mut points = vec![(center, at_center)];
        for step in steps {
            logs[index] = center + step;
            points.push((center + step, self.error_at(parameters, logs)?));
        }
        for step in 0..STEPS {
            let least = points.iter().map(|(_, error)| *error).fold(f64::INFINITY, f64::min);
            let is_hopeless = least > HALFWAY * self.before && !self.is_exhaustive;
            if step == FIRST_STEPS && parameters.len() == 1 && is_hopeless {
                break;
            }
            points.retain(|(_, error)| error.is_finite());
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let Some(next) = next_point(&points) else { break };
            logs[index] = next;
            let error = self.error_at(parameters, logs)?;
            points.push((next, error));
        }
        logs[index] = center;
        Ok(points.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)))
    }

    /// Replaces each value by the roundest number that does not raise the error much.
    fn plain(
        &mut self,
        parameters: &[Parameter],
        logs: &mut [f64],
        best: f64,
    ) -> Result<Option<(Vec<OperationChange>, f64)>> {
        let mut changes: Vec<OperationChange> =
            parameters.iter().zip(logs.iter()).map(|(parameter, log)| parameter.at(*log)).collect();
        // The error of a solution is limited by the precision of the search, and by that of the model's numbers.
        let most = (3.0 * best).max(1e-6).max(1e-4 * self.before);
        let mut error = best;
        for (index, parameter) in parameters.iter().enumerate() {
            for value in parameter.plain(logs[index]) {
                let mut tried = changes.clone();
                tried[index] = parameter.with(value);
                let Some(found) = (self.error)(&tried)?.filter(|found| *found <= most) else { continue };
                (changes, error) = (tried, found);
                break;
            }
        }
        Ok(Some((changes, error)))
    }
}

/// Returns the next value to try: the vertex of the parabola through the squared errors of the best value and its
/// neighbours. `None` if the best value has no neighbours, or they are near enough.
fn next_point(points: &[(f64, f64)]) -> Option<f64> {
    let best = (0..points.len()).min_by(|&a, &b| points[a].1.total_cmp(&points[b].1))?;
    let (left, middle, right) = (points.get(best.checked_sub(1)?)?, points[best], points.get(best + 1)?);
    if right.0 - left.0 < PRECISE {
        return None;
    }
    let square = |point: (f64, f64)| point.1 * point.1;
    let (before, after) = (middle.0 - left.0, right.0 - middle.0);
    let (rise, fall) = (square(*left) - square(middle), square(*right) - square(middle));
    let down = 2.0 * (before * fall + after * rise);
    let vertex = middle.0 + (after * after * rise - before * before * fall) / down;
    let is_inside = vertex > left.0 && vertex < right.0 && (vertex - middle.0).abs() > PRECISE / 4.0;
    let larger_half = if after > before { middle.0 + 0.382 * after } else { middle.0 - 0.382 * before };
    Some(if is_inside { vertex } else { larger_half })
}
