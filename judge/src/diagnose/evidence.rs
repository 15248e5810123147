//! The results of units: plain data, from which a verdict over any of them is made.

use std::collections::BTreeSet;

use crate::checkpoint::{Point, Site};
use crate::compare::{Selection, SiteResult};
use crate::diagnose::causes::Cause;
use crate::exact::IntegerProducts;
use crate::plan::Unit;

/// The name of our side in a comparison with a dump.
pub(super) const OUR_ENGINE: &str = "our engine";

/// A site that should have been compared and was not.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingSite {
    /// The site.
    pub site: Site,
    /// Reason, with the site.
    pub why: String,
}

/// The results of one unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// The unit.
    pub unit: Unit,
    /// Compared values in data-flow order, each judged separately. Empty in an outcome, which has the rows
    /// itself.
    pub rows: Vec<SiteResult>,
    /// Number of sites that should have been compared.
    pub expected: usize,
    /// Missing sites in data-flow order.
    pub missing: Vec<MissingSite>,
    /// Missing data without which nothing passes.
    pub lacking: Vec<String>,
    /// The tap points that each side has, by its name; none where nothing was run.
    pub sides: Vec<(String, BTreeSet<Point>)>,
    /// Facts that change no verdict.
    pub notes: Vec<String>,
    /// The 8-bit integer products of the dump's engine, if they explain most of the products that fail.
    pub integers: Option<IntegerProducts>,
    /// Causes of failing rows.
    pub causes: Vec<Cause>,
    /// Number of operations computed with a supposed change.
    pub made: usize,
    /// SHA-256 of what the dump holds where the unit begins, and where it ends: there the next one begins.
    pub edges: [Option<String>; 2],
}

/// The basis of a verdict besides rows, from which it can be made again for more units.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// The selection.
    pub selection: Selection,
    /// The units that the verdict is over, by their numbers in the plan.
    pub wanted: Vec<(usize, Unit)>,
    /// True if these are all units.
    pub is_whole: bool,
    /// True if only the tokens that the dump read state its choices.
    pub choices_are_read: bool,
    /// For each layer, true if it has a sliding window.
    pub slides: Vec<bool>,
    /// The results by unit number, without rows.
    pub evidence: Vec<(usize, Evidence)>,
}

impl Default for Basis {
    fn default() -> Self {
        Self {
            selection: Selection::everything(),
            wanted: vec![(0, Unit::Whole)],
            is_whole: true,
            choices_are_read: false,
            slides: Vec::new(),
            evidence: Vec::new(),
        }
    }
}
