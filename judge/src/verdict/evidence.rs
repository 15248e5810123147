//! The results of units as plain data. A verdict can be made from the results of any set of units.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::align::Selection;
use crate::checkpoint::{Point, Site};
use crate::ops::linear::exact::IntegerProducts;
use crate::plan::Unit;
use crate::verdict::cause::Cause;
use crate::verdict::site_result::SiteResult;

/// The name of our engine's side in a comparison with a dump.
pub(crate) const OUR_ENGINE: &str = "our engine";

/// A site that should have been compared but was not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MissingSite {
    #[serde(flatten)]
    pub(crate) site: Site,
    /// The reason, which names the site.
    pub(crate) why: String,
}

/// The taps of one side of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SideTaps {
    pub(crate) name: String,
    pub(crate) taps: BTreeSet<Point>,
}

/// The results of one unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The unit that was compared.
    #[serde(skip)]
    pub(crate) unit: Unit,
    /// Compared values in data-flow order, each judged separately. Empty inside an
    /// [`Outcome`](crate::verdict::Outcome), which stores the rows itself.
    #[serde(skip)]
    pub(crate) rows: Vec<SiteResult>,
    /// Number of sites that should have been compared.
    pub(crate) expected: usize,
    /// Missing sites in data-flow order.
    pub(crate) missing: Vec<MissingSite>,
    /// Reasons, apart from sites, why the unit cannot pass.
    pub(crate) lacking: Vec<String>,
    /// The taps that each side has. Empty if nothing was run.
    pub(crate) sides: Vec<SideTaps>,
    /// Facts that change no verdict.
    pub(crate) notes: Vec<String>,
    /// 8-bit integer products of the dump's engine, if they explain most failing products.
    #[serde(skip)]
    pub(crate) integers: Option<IntegerProducts>,
    /// Causes of failing rows.
    pub(crate) causes: Vec<Cause>,
    /// Number of operations computed with a change from `--suppose`.
    pub(crate) made: usize,
    /// SHA-256 of the dump's values at the start and the end of the unit. The end must match the next unit's
    /// start.
    pub(crate) edges: [Option<String>; 2],
}

/// All data of a verdict except rows. The verdict can be made again when more units are done.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    /// The values selected for comparison.
    pub(crate) selection: Selection,
    /// The requested units with their index in the plan.
    pub wanted: Vec<(usize, Unit)>,
    /// True if `wanted` contains all units of the plan.
    pub(crate) is_whole: bool,
    /// True if the dump's choices are known only from the tokens that it read.
    pub choices_are_read: bool,
    /// One entry per layer: true if the layer has a sliding window.
    pub(crate) slides: Vec<bool>,
    /// The results by unit index, without rows.
    pub(crate) evidence: Vec<(usize, Evidence)>,
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
