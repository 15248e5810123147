//! Guesses at what a divergence is, one per file, each tested on the reference's own values. What does not hold is not
//! said: a report without a finding says nothing about causes.

mod activation;

use std::fmt;

use crate::checkpoint::{Point, Site};
use crate::compare::{Heads, Role, Row, Verdict, aligned};
use crate::dump::Dump;
use crate::error::Result;
use crate::model::Model;
use crate::numerics::Numerics;
use crate::tensor::Tensor;

/// A guess that holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The row it explains, which failed.
    pub site: Site,
    /// What was computed there; one sentence.
    pub what: String,
}

/// The other side than the dump that a report is about.
pub(super) enum Other<'e> {
    /// Our engine.
    Model(&'e dyn Model, &'e dyn Numerics),
    /// Another engine, which left a dump, too.
    Dump(&'e Dump),
}

/// What reports call numerics: our engine's, or the producer of the dump.
impl fmt::Display for Other<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Other::Model(_, numerics) => f.write_str(numerics.name()),
            Other::Dump(dump) => {
                write!(f, "{} {}", dump.manifest.producer.name, dump.manifest.producer.version)
            }
        }
    }
}

/// What a hypothesis may look at.
pub(super) struct Evidence<'e> {
    /// Every judged row, in data-flow order.
    pub(super) rows: &'e [Row],
    /// The dump that the report is about.
    pub(super) dump: &'e Dump,
    /// What it is.
    pub(super) role: Role,
    /// The other side.
    pub(super) other: Other<'e>,
}

impl Evidence<'_> {
    /// What the two sides are called: the dump, and the other.
    fn names(&self) -> (&'static str, &'static str) {
        match self.role {
            Role::Candidate => ("candidate", "reference"),
            Role::Reference => ("reference", "candidate"),
        }
    }
}

/// What it says if it holds.
type Hypothesis = fn(&Evidence) -> Result<Option<Finding>>;

const ALL: &[Hypothesis] = &[activation::another];

impl Evidence<'_> {
    /// What holds, in the order of [`ALL`].
    ///
    /// # Errors
    /// If an array cannot be read.
    pub(super) fn findings(&self) -> Result<Vec<Finding>> {
        ALL.iter().filter_map(|hypothesis| hypothesis(self).transpose()).collect()
    }

    /// The first row of a tap point that fails.
    fn first_failure(&self, point: Point) -> Option<&Row> {
        self.rows.iter().find(|row| row.site.point == point && row.verdict == Verdict::Fail)
    }
}

/// The tensor that a dump holds at a place.
fn tensor(dump: &Dump, site: Site) -> Result<Option<Tensor>> {
    let values = aligned(dump, site, Heads::AS_THEY_ARE)?;
    Ok(values
        .map(|values| Tensor::new(&values.shape, values.data.iter().map(|&value| value as f32).collect())))
}
