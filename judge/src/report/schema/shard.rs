//! Data for `xcheck merge` in a shard's report, besides its rows.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::align::Selection;
use crate::change::CauseKind;
use crate::checkpoint::{Checkpoint, Point};
use crate::plan::Unit;
use crate::report::schema::enum_name::EnumName;
use crate::report::schema::finding::FindingRow;
use crate::report::schema::form::{JsonForm, forms};
use crate::report::schema::rows::SiteRow;
use crate::report::{Comparison, ShardedComparison};
use crate::verdict::{Basis, Cause, CauseContent, CauseSearch, Evidence, FittingChange, MissingSite};

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
            selection: SelectionRow::from(&basis.selection),
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
            selection: self.selection.read()?,
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
    checkpoints: Vec<EnumName<Checkpoint>>,
    explicit: bool,
    layers: Option<String>,
    passes: Option<String>,
    positions: Option<String>,
    /// Always true. Older reports may have false if steps after a tie were not judged.
    follow_reference: bool,
}

impl From<&Selection> for SelectionRow {
    fn from(selection: &Selection) -> Self {
        Self {
            checkpoints: JsonForm::of(selection.checkpoints.clone()),
            explicit: selection.explicit,
            layers: selection.layers.as_ref().map(ToString::to_string),
            passes: selection.passes.as_ref().map(ToString::to_string),
            positions: selection.positions.as_ref().map(ToString::to_string),
            follow_reference: true,
        }
    }
}

impl SelectionRow {
    fn read(self) -> Result<Selection, String> {
        let ranges = |text: Option<String>| text.map(|text| text.parse()).transpose();
        Ok(Selection {
            checkpoints: self.checkpoints.value(),
            explicit: self.explicit,
            layers: ranges(self.layers)?,
            passes: ranges(self.passes)?,
            positions: ranges(self.positions)?,
        })
    }
}

/// The results of a unit without its rows.
#[derive(Serialize, Deserialize)]
struct EvidenceRow {
    unit: usize,
    expected: usize,
    missing: Vec<MissingRow>,
    lacking: Vec<String>,
    sides: Vec<RecordedTapsRow>,
    notes: Vec<String>,
    causes: Vec<CauseRow>,
    made: usize,
    edges: [Option<String>; 2],
}

impl From<&(usize, Evidence)> for EvidenceRow {
    fn from((number, found): &(usize, Evidence)) -> Self {
        Self {
            unit: number + 1,
            expected: found.expected,
            missing: JsonForm::of(found.missing.clone()),
            lacking: found.lacking.clone(),
            sides: JsonForm::of(found.sides.clone()),
            notes: found.notes.clone(),
            causes: JsonForm::of(found.causes.clone()),
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
            missing: self.missing.value(),
            lacking: self.lacking,
            sides: self.sides.value(),
            notes: self.notes,
            causes: self.causes.value(),
            made: self.made,
            edges: self.edges,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct RecordedTapsRow {
    name: String,
    taps: Vec<EnumName<Point>>,
}

impl JsonForm for RecordedTapsRow {
    type Value = (String, BTreeSet<Point>);

    fn of((name, taps): Self::Value) -> Self {
        Self { name, taps: taps.into_iter().map(EnumName).collect() }
    }

    fn value(self) -> Self::Value {
        (self.name, self.taps.into_iter().map(|tap| tap.0).collect())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CauseContentRow {
    Changes(#[serde(deserialize_with = "filled")] Vec<FittingChangeRow>),
    Nothing { kind: EnumName<CauseKind>, what: String },
    Described { kind: EnumName<CauseKind>, what: String },
    Misread { kind: EnumName<CauseKind>, what: [String; 2], wrong: [usize; 2] },
    Once(Box<FindingRow>),
}

impl JsonForm for CauseContentRow {
    type Value = CauseContent;

    fn of(told: CauseContent) -> Self {
        match told {
            CauseContent::Changes(fits) => Self::Changes(JsonForm::of(fits)),
            CauseContent::Nothing { kind, what } => Self::Nothing { kind: EnumName(kind), what },
            CauseContent::Described { kind, what } => Self::Described { kind: EnumName(kind), what },
            CauseContent::Misread { kind, what, wrong } => {
                Self::Misread { kind: EnumName(kind), what, wrong }
            }
            CauseContent::Once(finding) => Self::Once(Box::new(JsonForm::of(*finding))),
        }
    }

    fn value(self) -> CauseContent {
        match self {
            Self::Changes(fits) => CauseContent::Changes(fits.value()),
            Self::Nothing { kind, what } => CauseContent::Nothing { kind: kind.0, what },
            Self::Described { kind, what } => CauseContent::Described { kind: kind.0, what },
            Self::Misread { kind, what, wrong } => CauseContent::Misread { kind: kind.0, what, wrong },
            Self::Once(finding) => CauseContent::Once(Box::new(finding.value())),
        }
    }
}

/// Reads a list that must not be empty.
fn filled<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() { Err(D::Error::custom("a cause has no site or no change")) } else { Ok(list) }
}

forms! {
    /// A site that a unit should have compared.
    MissingRow of MissingSite {
        #[serde(flatten)]
        site: SiteRow,
        why: String,
    }

    /// A cause found in one unit, before the units are combined.
    CauseRow of Cause {
        sought: EnumName<CauseSearch>,
        #[serde(deserialize_with = "filled")]
        sites: Vec<SiteRow>,
        told: CauseContentRow,
        excluded: Vec<String>,
    }

    /// A change that explains the failures.
    FittingChangeRow of FittingChange {
        typed: String,
        kind: EnumName<CauseKind>,
        key: Option<String>,
        reference: Option<String>,
        candidate: Option<String>,
        what: String,
        remedy: String,
    }
}
