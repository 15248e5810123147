//! Data for `xcheck merge` in a shard's report, besides its rows.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::align::Selection;
use crate::checkpoint::Point;
use crate::plan::Unit;
use crate::report::{Comparison, ShardedComparison};
use crate::verdict::{Basis, Cause, Evidence, MissingSite};

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
            evidence: basis.evidence.iter().map(EvidenceRow::from).collect(),
        })
    }

    /// Returns the basis of the verdict, the whole comparison, the arguments that repeat it and those of
    /// `xcheck inspect`.
    ///
    /// # Errors
    /// If a unit number exceeds the plan, or the selection is invalid.
    pub fn read(self) -> Result<(Basis, ShardedComparison, Vec<String>, Option<String>), String> {
        let unit = |number: usize| {
            let unit = number.checked_sub(1).and_then(|index| Some((index, self.units.get(index)?.clone())));
            unit.ok_or_else(|| format!("invalid unit {number}, expected 1 to {}", self.units.len()))
        };
        let wanted = self.wanted.iter().map(|&number| unit(number)).collect::<Result<Vec<_>, _>>()?;
        let found = self.evidence.into_iter().map(|row| {
            let (index, unit) = unit(row.unit)?;
            Ok((index, row.evidence(unit)))
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

/// The results of a unit without its rows.
#[derive(Serialize, Deserialize)]
struct EvidenceRow {
    unit: usize,
    expected: usize,
    missing: Vec<MissingSite>,
    lacking: Vec<String>,
    sides: Vec<RecordedTapsRow>,
    notes: Vec<String>,
    causes: Vec<Cause>,
    made: usize,
    edges: [Option<String>; 2],
}

impl From<&(usize, Evidence)> for EvidenceRow {
    fn from((number, found): &(usize, Evidence)) -> Self {
        Self {
            unit: number + 1,
            expected: found.expected,
            missing: found.missing.clone(),
            lacking: found.lacking.clone(),
            sides: found.sides.iter().cloned().map(|(name, taps)| RecordedTapsRow { name, taps }).collect(),
            notes: found.notes.clone(),
            causes: found.causes.clone(),
            made: found.made,
            edges: found.edges.clone(),
        }
    }
}

impl EvidenceRow {
    fn evidence(self, unit: Unit) -> Evidence {
        Evidence {
            integers: None,
            unit,
            rows: Vec::new(),
            expected: self.expected,
            missing: self.missing,
            lacking: self.lacking,
            sides: self.sides.into_iter().map(|row| (row.name, row.taps)).collect(),
            notes: self.notes,
            causes: self.causes,
            made: self.made,
            edges: self.edges,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct RecordedTapsRow {
    name: String,
    taps: BTreeSet<Point>,
}
