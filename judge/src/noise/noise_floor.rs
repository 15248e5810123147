//! The noise floor of a site: the largest change of its values in perturbed runs.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::check::RunPair;
use crate::checkpoint::{Point, Site};
use crate::json_number;
use crate::measure::{Errors, larger};
use crate::noise::excess;

/// The noise floor of a site: the largest change of its values in perturbed runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseFloor {
    /// Largest absolute change, as in [`crate::measure::Errors::max_abs`].
    #[serde(with = "json_number")]
    pub max_abs: f64,
    /// Largest change relative to the values, as in [`crate::measure::Errors::max_scaled`].
    #[serde(with = "json_number")]
    pub max_scaled: f64,
    /// Relative L2 change, as in [`crate::measure::Errors::rel_l2`].
    #[serde(with = "json_number")]
    pub rel_l2: f64,
}

impl NoiseFloor {
    /// Returns the larger of two noise floors, statistic by statistic.
    pub(crate) fn or(self, moved: &Errors) -> Self {
        Self {
            max_scaled: self.max_scaled.max(moved.max_scaled),
            rel_l2: self.rel_l2.max(moved.rel_l2),
            max_abs: self.max_abs.max(moved.max_abs),
        }
    }

    /// Returns true if rounding may have caused the error: neither its largest element nor the whole error is
    /// far above the noise floor.
    pub(crate) fn explains(&self, error: &Errors) -> bool {
        self.holds(error, Self::FAR)
    }

    /// Returns true if the error is as small as the noise floor predicts.
    pub(crate) fn is_near(&self, error: &Errors) -> bool {
        self.holds(error, Self::NEAR)
    }

    /// Returns true if an array of zeros would also be within the noise floor, so that a small error is no evidence.
    /// Log-probabilities of nearly certain tokens are near zero although they are correct. For log-probabilities,
    /// `NEAR` times the noise floor must therefore also be at least 1 nat.
    pub(crate) fn is_blind_at(&self, point: Point) -> bool {
        let is_of_logarithms = matches!(point, Point::TokenLogprobs | Point::TopLogprobs);
        Self::NEAR * self.rel_l2 >= 1.0 && !(is_of_logarithms && Self::NEAR * self.max_abs < 1.0)
    }

    fn holds(&self, error: &Errors, times: f64) -> bool {
        error.max_scaled <= times * self.max_scaled && error.rel_l2 <= times * self.rel_l2
    }

    /// Largest expected ratio between the change in one more perturbed run and the maximum change of the first few
    /// runs.
    pub const NEAR: f64 = excess::NEAR;

    /// Returns the ratio of the error to [`Self::NEAR`] times the noise floor. Up to 1, rounding explains the error.
    pub(crate) fn bound_ratio(&self, error: &Errors) -> f64 {
        let ratio = |error: f64, floor: f64| if error == 0.0 { 0.0 } else { error / (Self::NEAR * floor) };
        larger(ratio(error.max_scaled, self.max_scaled), ratio(error.rel_l2, self.rel_l2))
    }

    /// Ratio of an error to the noise floor from which rounding cannot explain the error.
    pub const FAR: f64 = excess::FAR;
}

/// Noise floors by site, for accumulated and for local errors.
pub(crate) type RunNoiseFloors = RunPair<HashMap<Site, NoiseFloor>>;
