//! Values of parameters that bring a run nearest to a row of a dump with few taps.

use std::collections::HashSet;

use crate::catalogue::{OperationChange, Supposition};
use crate::change::CauseKind;
use crate::check::ArrayComparison;
use crate::diagnose::causes::parameter_search::{Parameter, ParameterSearch};
use crate::diagnose::causes::rerun::{ChangeTrial, Rerun};
use crate::error::Result;

/// Factor by which a solved value must reduce the error of a row.
const EVIDENT: f64 = 10.0;

impl Rerun<'_> {
    /// Solves for parameters, one at a time, and for the scales of keys and values together. A solved value is evidence
    /// only if it removes nearly all of the error.
    pub(super) fn solved(&self, parameters: &[Parameter], is_long: bool) -> Result<Vec<ChangeTrial>> {
        let before = self.row.judged().map_or(f64::INFINITY, |found| found.errors.rel_l2);
        let is_tried = |parameter: &&Parameter| !(is_long && parameter.entry.is_local);
        let supposed = |changes: &[OperationChange]| -> Vec<Supposition> {
            changes.iter().map(|change| self.one(change, change.point)).collect()
        };
        let mut error = |changes: &[OperationChange]| self.error_with(&supposed(changes));
        let is_exhaustive = self.deadline.is_exhaustive();
        let mut search = ParameterSearch { error: &mut error, before, is_exhaustive };
        let mut solved = |set: &[Parameter]| -> Result<Vec<ChangeTrial>> {
            let found = search.solve(set)?.filter(|(_, error)| *error <= before / EVIDENT);
            self.tried(found.map(|(changes, _)| supposed(&changes)).into_iter())
        };
        let mut found = Vec::new();
        for parameter in parameters.iter().filter(is_tried) {
            found.extend(solved(&[*parameter])?);
        }
        let caches = parameters.iter().filter(|parameter| parameter.entry.kind == CauseKind::CacheScale);
        // The effect of values is linear, so they come first.
        let caches: Vec<Parameter> = caches.rev().copied().collect();
        // Scales of keys and values are independent faults unless neither explains the row.
        if caches.len() > 1 && self.fitting(&found)?.is_empty() {
            found.extend(solved(&caches)?);
            if let ([values, keys], true) = (&caches[..], self.fitting(&found)?.is_empty()) {
                found.extend(self.solved_from_first_token(values, keys)?);
            }
        }
        Ok(found)
    }

    /// Solves for the scale of values at the first token, which attends only to itself, and then for the scale of keys.
    /// A joint search for both scales does not converge, since large scales of keys saturate the softmax.
    fn solved_from_first_token(&self, values: &Parameter, keys: &Parameter) -> Result<Vec<ChangeTrial>> {
        let all = |changes: &[OperationChange]| -> Vec<Supposition> {
            changes.iter().map(|change| self.one(change, change.point)).collect()
        };
        let is_exhaustive = self.deadline.is_exhaustive();
        let Some(before) = self.error_of_first_token(&[])?.filter(|_| self.row.positions.start == 0) else {
            return Ok(Vec::new());
        };
        let mut error = |changes: &[OperationChange]| self.error_of_first_token(&all(changes));
        let mut search = ParameterSearch { error: &mut error, before, is_exhaustive };
        let found = search.solve(&[*values])?.filter(|(_, error)| *error <= before / EVIDENT);
        let Some((values, _)) = found else { return Ok(Vec::new()) };
        let mut error = |changes: &[OperationChange]| self.error_with(&all(&[&values, changes].concat()));
        let before = error(&[])?.unwrap_or(f64::INFINITY);
        let mut search = ParameterSearch { error: &mut error, before, is_exhaustive: true };
        let found = search.solve(&[*keys])?.filter(|(_, error)| *error <= before / EVIDENT);
        self.tried(found.map(|(keys, _)| all(&[values, keys].concat())).into_iter())
    }

    /// Returns the row's error with these changes. `None` if the time limit is reached or the row is not compared.
    fn error_with(&self, supposed: &[Supposition]) -> Result<Option<f64>> {
        if self.deadline.is_over() {
            return Ok(None);
        }
        Ok(match self.run(supposed, &mut ())? {
            Some(ArrayComparison::Measured(found)) => Some(found.errors.rel_l2),
            _ => None,
        })
    }

    /// Returns the error of the first token of the row's pass with these changes.
    fn error_of_first_token(&self, supposed: &[Supposition]) -> Result<Option<f64>> {
        if self.deadline.is_over() {
            return Ok(None);
        }
        let sites = HashSet::from([self.row.site]);
        let comparison = self.context.comparing_of(&self.selection, self.go_on).distributing(&sites);
        let checks = self.context.rerun(&self.part, self.passes(), supposed, comparison, &mut ())?;
        let check = checks.into_iter().find(|check| check.site == self.row.site);
        Ok(check.and_then(|check| check.distribution?.rows.first().copied()))
    }
}
