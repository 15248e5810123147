//! Serialisation of a finding in `report.json`.

use serde::{Deserialize, Serialize};

use crate::change::CauseKind;
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::report::enum_name::EnumName;
use crate::report::rows::SiteRow;
use crate::report::{Comparison, headline};
use crate::verdict::{Finding, Verdict};

/// Explanation of a failure.
#[derive(Serialize, Deserialize)]
pub(super) struct FindingRow {
    kind: EnumName<CauseKind>,
    stage: EnumName<Checkpoint>,
    #[serde(flatten)]
    place: SiteRow,
    taps: Vec<EnumName<Point>>,
    layers: Vec<usize>,
    key: Option<String>,
    reference: Option<String>,
    candidate: Option<String>,
    what: String,
    #[serde(default)]
    places: Vec<SiteRow>,
    #[serde(default)]
    supposed: Option<String>,
    /// Command that judges again with the cause supposed.
    #[serde(default)]
    confirm: Option<String>,
    /// Verdict of that command, if it was tried.
    #[serde(default)]
    confirmed: Option<EnumName<Verdict>>,
    verified_on: Vec<String>,
    remaining: Vec<String>,
    excluded: Vec<String>,
}

impl FindingRow {
    /// Makes the row of a finding in a comparison.
    pub fn of(result: &Comparison, finding: &Finding) -> Self {
        Self { confirm: headline::confirm_command(result, finding), ..Self::from(finding) }
    }
}

impl From<&Finding> for FindingRow {
    fn from(finding: &Finding) -> Self {
        let finding = finding.clone();
        Self {
            kind: EnumName(finding.kind),
            stage: EnumName(finding.site.point.checkpoint()),
            place: SiteRow::from(finding.site),
            taps: finding.points.into_iter().map(EnumName).collect(),
            layers: finding.layers,
            key: finding.key,
            reference: finding.reference,
            candidate: finding.candidate,
            what: finding.what,
            places: finding.sites.into_iter().map(SiteRow::from).collect(),
            supposed: finding.supposed,
            confirm: None,
            confirmed: finding.confirmed.map(EnumName),
            verified_on: finding.verified_on,
            remaining: finding.remaining,
            excluded: finding.excluded,
        }
    }
}

impl From<FindingRow> for Finding {
    fn from(row: FindingRow) -> Self {
        Self {
            kind: row.kind.0,
            site: row.place.into(),
            points: row.taps.into_iter().map(|tap| tap.0).collect(),
            layers: row.layers,
            key: row.key,
            reference: row.reference,
            candidate: row.candidate,
            what: row.what,
            sites: row.places.into_iter().map(Site::from).collect(),
            supposed: row.supposed,
            confirmed: row.confirmed.map(|verdict| verdict.0),
            verified_on: row.verified_on,
            remaining: row.remaining,
            excluded: row.excluded,
        }
    }
}
