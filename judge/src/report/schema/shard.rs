//! Data for `xcheck merge` in a shard's report, besides its rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::align::Selection;
use crate::plan::Unit;
use crate::report::{Comparison, ShardedComparison};
use crate::verdict::{Basis, Evidence};

/// The field `shard` of a reference.
#[derive(Serialize, Deserialize)]
pub(crate) struct ShardRow {
    /// SHA-256 of the plan.
    plan: String,
    /// All units of the plan.
    units: Vec<Unit>,
    /// Numbers of the units in this shard, counted from 1.
    wanted: Vec<usize>,
    /// Settings that must be equal in all shards.
    asked: BTreeMap<String, String>,
    selection: SelectionRow,
    choices_are_read: bool,
    /// For each layer, true if it has a sliding window.
    slides: Vec<bool>,
    /// Arguments that repeat the comparison, and those of `xcheck inspect`.
    again: Vec<String>,
    inspect: Option<String>,
    /// Notes that do not belong to a unit.
    remarks: Vec<String>,
    evidence: Vec<EvidenceRow>,
}

impl ShardRow {
    /// Makes the row for the comparison of a shard.
    pub(crate) fn of(result: &Comparison) -> Option<Self> {
        let ShardedComparison { plan, units, asked, remarks } = result.sharded.as_ref()?;
        let basis = &result.outcome.basis;
        let row =
            |(number, found): &(usize, Evidence)| EvidenceRow { unit: number + 1, found: found.clone() };
        Some(Self {
            plan: plan.clone(),
            units: units.clone(),
            wanted: basis.wanted.iter().map(|(number, _)| number + 1).collect(),
            asked: asked.clone(),
            selection: SelectionRow { selection: basis.selection.clone(), follow_reference: true },
            choices_are_read: basis.choices_are_read,
            slides: basis.slides.clone(),
            again: result.again.clone(),
            inspect: result.reference.clone(),
            remarks: remarks.clone(),
            evidence: basis.evidence.iter().map(row).collect(),
        })
    }

    /// Returns the basis of the verdict, the whole comparison, the arguments that repeat it and those of
    /// `xcheck inspect`.
    ///
    /// # Errors
    /// If a unit number exceeds the plan, or the selection is invalid.
    pub(crate) fn read(self) -> Result<(Basis, ShardedComparison, Vec<String>, Option<String>), String> {
        let unit = |number: usize| {
            let unit = number.checked_sub(1).and_then(|index| Some((index, self.units.get(index)?.clone())));
            unit.ok_or_else(|| format!("invalid unit {number}, expected 1 to {}", self.units.len()))
        };
        let wanted = self.wanted.iter().map(|&number| unit(number)).collect::<Result<Vec<_>, _>>()?;
        let found = self.evidence.into_iter().map(|row| {
            let (index, unit) = unit(row.unit)?;
            Ok((index, Evidence { unit, ..row.found }))
        });
        let basis = Basis {
            selection: self.selection.selection,
            is_whole: wanted.len() == self.units.len(),
            wanted,
            choices_are_read: self.choices_are_read,
            slides: self.slides,
            evidence: found.collect::<Result<_, String>>()?,
        };
        let sharded = ShardedComparison {
            plan: self.plan,
            units: self.units,
            asked: self.asked,
            remarks: self.remarks,
        };
        Ok((basis, sharded, self.again, self.inspect))
    }
}

#[derive(Serialize, Deserialize)]
struct SelectionRow {
    #[serde(flatten)]
    selection: Selection,
    /// Always true. Older reports may have false if steps after a tie were not judged.
    follow_reference: bool,
}

/// The results of a unit, whose rows are those of the report.
#[derive(Serialize, Deserialize)]
struct EvidenceRow {
    /// Number of the unit, counted from 1.
    unit: usize,
    #[serde(flatten)]
    found: Evidence,
}
