//! What was found in the units of a comparison: plain data, from which the verdict over any of them is made.

use std::collections::BTreeSet;

use crate::checkpoint::{Point, Site};
use crate::compare::{Row, Selection};
use crate::diagnose::causes::Cause;
use crate::exact::IntegerProducts;
use crate::plan::Unit;

/// What our side is called where a dump is the other.
pub(super) const OUR_ENGINE: &str = "our engine";

/// A place that should have been compared and was not.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// Where.
    pub site: Site,
    /// Why, with the place.
    pub why: String,
}

/// What was found in one unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// Of what.
    pub unit: Unit,
    /// Every compared value in data-flow order, each judged by itself. Those of an outcome stand there, and not here.
    pub rows: Vec<Row>,
    /// How many places should have been compared.
    pub expected: usize,
    /// Those that were not, in data-flow order.
    pub missing: Vec<Missing>,
    /// What is missing of the dump, without which nothing passes.
    pub lacking: Vec<String>,
    /// The tap points that each side has, by its name; none where nothing was run.
    pub sides: Vec<(String, BTreeSet<Point>)>,
    /// What is worth knowing.
    pub notes: Vec<String>,
    /// The 8-bit integer products of the dump's engine, if they explain most of the products that fail.
    pub integers: Option<IntegerProducts>,
    /// What explains rows that fail.
    pub causes: Vec<Cause>,
    /// How many stages were computed otherwise, as was supposed.
    pub made: usize,
    /// SHA-256 of what the dump holds where the unit begins, and where it ends: there the next one begins.
    pub edges: [Option<String>; 2],
}

/// What a verdict rests on besides rows: with these, it can be made again, of more units.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// What was asked for.
    pub selection: Selection,
    /// The units that the verdict is over, by their numbers in the plan.
    pub wanted: Vec<(usize, Unit)>,
    /// Whether these are all there are.
    pub is_whole: bool,
    /// Whether the dump tells its choices by nothing but the tokens that it read.
    pub choices_are_read: bool,
    /// Of each layer of the model, whether it sees no more than a window.
    pub slides: Vec<bool>,
    /// What was found, by the numbers of the units, without rows.
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
