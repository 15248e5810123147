//! How far a reference is from itself: measured, per architecture, type of the weights and tap.

use std::collections::BTreeMap;

use crate::checkpoint::Point;

/// What was measured of llama.cpp; the file says how.
const SHIPPED: &str = include_str!("../../checkpoints/spread.toml");

/// The largest total difference between runs of the reference's own builds.
#[derive(Clone, Debug)]
pub(super) struct Spread(BTreeMap<String, BTreeMap<String, BTreeMap<String, f64>>>);

impl Spread {
    /// The producer whose freedom this is.
    pub(super) const OF: &'static str = "llama.cpp";

    /// What was measured and ships.
    pub(super) fn shipped() -> Self {
        Self(toml::from_str(SHIPPED).expect("the shipped table is parsed by every test"))
    }

    /// The spread of a tap, where one was seen.
    pub(super) fn get(&self, architecture: &str, precision: &str, point: Point) -> Option<f64> {
        self.0.get(architecture)?.get(precision)?.get(point.name()).copied()
    }
}
