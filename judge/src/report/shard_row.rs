//! Data for `xcheck merge` in a shard's report, besides its rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::align::Selection;
use crate::change::CauseKind;
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::plan::Unit;
use crate::report::enum_name::EnumName;
use crate::report::finding::FindingRow;
use crate::report::rows::SiteRow;
use crate::report::{Comparison, ShardedComparison};
use crate::verdict::{Basis, Cause, CauseContent, CauseSearch, Evidence, FittingChange, MissingSite};

/// The field `shard` of a reference.
#[derive(Serialize, Deserialize)]
pub struct ShardRow {
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
    pub fn of(result: &Comparison) -> Option<Self> {
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
            Ok((index, row.evidence(unit)?))
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
            checkpoints: selection.checkpoints.iter().copied().map(EnumName).collect(),
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
            checkpoints: self.checkpoints.into_iter().map(|checkpoint| checkpoint.0).collect(),
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
        let side = |(name, points): &(String, _)| RecordedTapsRow {
            name: name.clone(),
            taps: std::collections::BTreeSet::iter(points).copied().map(EnumName).collect(),
        };
        let missing =
            |missing: &MissingSite| MissingRow { place: missing.site.into(), why: missing.why.clone() };
        Self {
            unit: number + 1,
            expected: found.expected,
            missing: found.missing.iter().map(missing).collect(),
            lacking: found.lacking.clone(),
            sides: found.sides.iter().map(side).collect(),
            notes: found.notes.clone(),
            causes: found.causes.iter().map(CauseRow::from).collect(),
            made: found.made,
            edges: found.edges.clone(),
        }
    }
}

impl EvidenceRow {
    fn evidence(self, unit: Unit) -> Result<Evidence, String> {
        let missing = |row: MissingRow| MissingSite { site: row.place.into(), why: row.why };
        let side = |row: RecordedTapsRow| (row.name, row.taps.into_iter().map(|tap| tap.0).collect());
        Ok(Evidence {
            integers: None,
            unit,
            rows: Vec::new(),
            expected: self.expected,
            missing: self.missing.into_iter().map(missing).collect(),
            lacking: self.lacking,
            sides: self.sides.into_iter().map(side).collect(),
            notes: self.notes,
            causes: self.causes.into_iter().map(CauseRow::cause).collect::<Result<_, _>>()?,
            made: self.made,
            edges: self.edges,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct MissingRow {
    #[serde(flatten)]
    place: SiteRow,
    why: String,
}

#[derive(Serialize, Deserialize)]
struct RecordedTapsRow {
    name: String,
    taps: Vec<EnumName<Point>>,
}

/// A cause found in one unit, before the units are combined.
#[derive(Serialize, Deserialize)]
struct CauseRow {
    sought: EnumName<CauseSearch>,
    sites: Vec<SiteRow>,
    told: CauseContentRow,
    excluded: Vec<String>,
    of_the_prompt: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CauseContentRow {
    Changes(Vec<FittingChangeRow>),
    Nothing { kind: EnumName<CauseKind>, what: String },
    Misread { kind: EnumName<CauseKind>, what: [String; 2], wrong: [usize; 2] },
    Once(Box<FindingRow>),
}

#[derive(Serialize, Deserialize)]
struct FittingChangeRow {
    typed: String,
    kind: EnumName<CauseKind>,
    key: Option<String>,
    reference: Option<String>,
    candidate: Option<String>,
    what: String,
    remedy: String,
}

impl From<&Cause> for CauseRow {
    fn from(cause: &Cause) -> Self {
        let told = match cause.told.clone() {
            CauseContent::Changes(fits) => {
                CauseContentRow::Changes(fits.into_iter().map(FittingChangeRow::from).collect())
            }
            CauseContent::Nothing { kind, what } => CauseContentRow::Nothing { kind: EnumName(kind), what },
            CauseContent::Misread { kind, what, wrong } => {
                CauseContentRow::Misread { kind: EnumName(kind), what, wrong }
            }
            CauseContent::Once(finding) => CauseContentRow::Once(Box::new(FindingRow::from(&*finding))),
        };
        Self {
            sought: EnumName(cause.sought),
            sites: cause.sites.iter().copied().map(SiteRow::from).collect(),
            told,
            excluded: cause.excluded.clone(),
            of_the_prompt: cause.of_the_prompt,
        }
    }
}

impl CauseRow {
    fn cause(self) -> Result<Cause, String> {
        let sites: Vec<Site> = self.sites.into_iter().map(Site::from).collect();
        if sites.is_empty() {
            return Err("a cause has no site".to_owned());
        }
        let told = match self.told {
            CauseContentRow::Changes(fits) if fits.is_empty() => {
                return Err("a cause has no change".to_owned());
            }
            CauseContentRow::Changes(fits) => {
                CauseContent::Changes(fits.into_iter().map(FittingChange::from).collect())
            }
            CauseContentRow::Nothing { kind, what } => CauseContent::Nothing { kind: kind.0, what },
            CauseContentRow::Misread { kind, what, wrong } => {
                CauseContent::Misread { kind: kind.0, what, wrong }
            }
            CauseContentRow::Once(finding) => CauseContent::Once(Box::new((*finding).into())),
        };
        let (sought, excluded, of_the_prompt) = (self.sought.0, self.excluded, self.of_the_prompt);
        Ok(Cause { sought, sites, told, excluded, of_the_prompt })
    }
}

impl From<FittingChange> for FittingChangeRow {
    fn from(fit: FittingChange) -> Self {
        let FittingChange { typed, kind, key, reference, candidate, what, remedy } = fit;
        Self { typed, kind: EnumName(kind), key, reference, candidate, what, remedy }
    }
}

impl From<FittingChangeRow> for FittingChange {
    fn from(row: FittingChangeRow) -> Self {
        let FittingChangeRow { typed, kind, key, reference, candidate, what, remedy } = row;
        Self { typed, kind: kind.0, key, reference, candidate, what, remedy }
    }
}
