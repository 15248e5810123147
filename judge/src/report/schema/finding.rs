//! A finding in `report.json`.

use serde::{Deserialize, Serialize};

use crate::change::CauseKind;
use crate::checkpoint::{Checkpoint, Point};
use crate::report::schema::SiteRow;
use crate::report::schema::enum_name::EnumName;
use crate::report::schema::form::JsonForm;
use crate::verdict::{Finding, Verdict};

/// Explanation of a failure.
#[derive(Serialize, Deserialize)]
pub(crate) struct FindingRow {
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
    pub(crate) confirm: Option<String>,
    /// Verdict of that command, if it was tried.
    #[serde(default)]
    confirmed: Option<EnumName<Verdict>>,
    verified_on: Vec<String>,
    remaining: Vec<String>,
    excluded: Vec<String>,
}

impl JsonForm for FindingRow {
    type Value = Finding;

    fn of(finding: Finding) -> Self {
        Self {
            kind: EnumName(finding.kind),
            stage: EnumName(finding.site.point.checkpoint()),
            place: JsonForm::of(finding.site),
            taps: JsonForm::of(finding.points),
            layers: finding.layers,
            key: finding.key,
            reference: finding.reference,
            candidate: finding.candidate,
            what: finding.what,
            places: JsonForm::of(finding.sites),
            supposed: finding.supposed,
            confirm: None,
            confirmed: finding.confirmed.map(EnumName),
            verified_on: finding.verified_on,
            remaining: finding.remaining,
            excluded: finding.excluded,
        }
    }

    fn value(self) -> Finding {
        Finding {
            kind: self.kind.0,
            site: self.place.value(),
            points: self.taps.value(),
            layers: self.layers,
            key: self.key,
            reference: self.reference,
            candidate: self.candidate,
            what: self.what,
            sites: self.places.value(),
            supposed: self.supposed,
            confirmed: self.confirmed.value(),
            verified_on: self.verified_on,
            remaining: self.remaining,
            excluded: self.excluded,
        }
    }
}
