//! Tolerances per checkpoint, architecture and precision, with their sources.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::weight::DType;
use crate::{architecture, input};

/// The shipped table: the numbers of the specifications.
static SHIPPED: LazyLock<Arc<ToleranceTable>> = LazyLock::new(|| {
    let table = parse(include_str!("../../tolerances.toml"));
    Arc::new(table.expect("the shipped table is parsed by a test"))
});

/// Key of a table that matches every architecture or every precision.
const ANY: &str = "any";

/// The largest errors that pass.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Maximum of the largest absolute error.
    pub max_abs: f64,
    /// Maximum of the mean absolute error, if set.
    pub mean_abs: Option<f64>,
    /// Minimum cosine of the angle between both sides' values, if set.
    pub min_cosine: Option<f64>,
    /// Source of the numbers, e.g. a specification.
    pub source: String,
    /// True if the user gave this tolerance. It then decides the verdict alone.
    #[serde(skip)]
    pub is_asked: bool,
}

impl Tolerance {
    /// Returns the tolerance for a difference of two values. A log-probability is a logit minus a mean over
    /// all logits, so |d log p| ≤ |dz| + mean |dz|.
    pub(crate) fn twice(self) -> Self {
        Self {
            max_abs: 2.0 * self.max_abs,
            mean_abs: self.mean_abs.map(|bound| 2.0 * bound),
            source: format!("twice the tolerance of the logits ({})", self.source),
            ..self
        }
    }
}

/// Tolerances by architecture, precision and checkpoint.
type ToleranceTable = BTreeMap<String, BTreeMap<String, BTreeMap<String, Tolerance>>>;

/// Tolerance tables. The first table with a matching entry is used.
#[derive(Clone, Debug)]
pub struct Tolerances {
    tables: Vec<Arc<ToleranceTable>>,
}

impl Tolerances {
    /// Names of precisions in a table in addition to stored types: the torch dtype of weights and
    /// activations.
    const PRECISIONS: &'static [&'static str] = &[ANY, "torch-bf16", "torch-f16"];

    /// Returns the valid names of architectures in a table.
    pub(crate) fn architectures() -> Vec<&'static str> {
        [ANY].into_iter().chain(architecture::names()).collect()
    }

    /// Returns the valid names of precisions in a table.
    pub fn precisions() -> Vec<&'static str> {
        Self::PRECISIONS.iter().copied().chain(DType::ALL.iter().map(|dtype| dtype.name())).collect()
    }

    /// Returns the table that ships with xcheck.
    pub fn shipped() -> Self {
        Self { tables: vec![Arc::clone(&SHIPPED)] }
    }

    /// Puts the table in `file` before the existing tables.
    ///
    /// # Errors
    /// If the file cannot be read, is not TOML, or has an unknown key.
    pub fn overridden_by(mut self, file: &Path) -> Result<Self> {
        let text = input::text(file)?;
        let mut table =
            parse(&text).map_err(|problem| Error::Usage(format!("{}: {problem}", file.display())))?;
        let of_table = table.values_mut().flat_map(|precisions| precisions.values_mut());
        of_table
            .flat_map(|checkpoints| checkpoints.values_mut())
            .for_each(|tolerance| tolerance.is_asked = true);
        self.tables.insert(0, Arc::new(table));
        Ok(self)
    }

    /// Returns the tolerance of `checkpoint`: the most specific entry of the first table that has one.
    pub fn get(&self, architecture: &str, precision: &str, checkpoint: Checkpoint) -> &Tolerance {
        let keys = [(architecture, precision), (architecture, ANY), (ANY, precision), (ANY, ANY)];
        let candidates = self.tables.iter().flat_map(|table| keys.map(|key| (table, key)));
        candidates
            .filter_map(|(table, (architecture, precision))| {
                table.get(architecture)?.get(precision)?.get(checkpoint.name())
            })
            .next()
            .expect("a test checks that the shipped table has an entry for every checkpoint under any.any")
    }
}

fn parse(text: &str) -> Result<ToleranceTable, String> {
    let table: ToleranceTable =
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    for (architecture, precisions) in &table {
        known("architecture", architecture, &Tolerances::architectures())?;
        for (precision, checkpoints) in precisions {
            known("precision", precision, &Tolerances::precisions())?;
            for (checkpoint, tolerance) in checkpoints {
                checkpoint.parse::<Checkpoint>()?;
                check_bound(checkpoint, tolerance)?;
            }
        }
    }
    Ok(table)
}

fn known(what: &str, name: &str, names: &[&str]) -> Result<(), String> {
    if names.contains(&name) {
        return Ok(());
    }
    Err(format!("unknown {what} '{name}', expected one of: {}", names.join(", ")))
}

fn check_bound(checkpoint: &str, tolerance: &Tolerance) -> Result<(), String> {
    let bounds = [Some(tolerance.max_abs), tolerance.mean_abs];
    if bounds.into_iter().flatten().all(|bound| bound.is_finite() && bound >= 0.0) {
        let is_cosine = |cosine: f64| (-1.0..=1.0).contains(&cosine);
        return match tolerance.min_cosine.is_none_or(is_cosine) {
            true => Ok(()),
            false => Err(format!("invalid min_cosine of '{checkpoint}', expected a number from -1 to 1")),
        };
    }
    Err(format!("invalid tolerance of '{checkpoint}', expected a finite number of at least 0"))
}
