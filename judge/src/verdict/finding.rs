//! The explanation of a failure in reports.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize, Serializer};

use crate::catalogue::OperationChange;
use crate::change::CauseKind;
use crate::checkpoint::{Checkpoint, Point, Site};
use crate::verdict::site_result::Verdict;

/// The explanation of a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind of cause; the most likely one if several are possible.
    pub kind: CauseKind,
    /// The first failing row that the cause explains.
    #[serde(flatten, serialize_with = "with_checkpoint")]
    pub site: Site,
    /// All taps that the cause explains.
    #[serde(rename = "taps")]
    pub points: Vec<Point>,
    /// The layers of the explained sites.
    pub layers: Vec<usize>,
    /// Key of the setting in the model's configuration.
    pub key: Option<String>,
    /// The reference's value of the setting.
    pub reference: Option<String>,
    /// The candidate's value of the setting.
    pub candidate: Option<String>,
    /// The description, one sentence.
    pub what: String,
    /// Explained sites in data-flow order.
    #[serde(default, rename = "places")]
    pub sites: Vec<Site>,
    /// Changes in the syntax of `--suppose`. `None` if `--suppose` has no such change.
    #[serde(default)]
    pub supposed: Option<String>,
    /// The command that judges again with these changes applied, in a report.
    #[serde(skip_deserializing)]
    pub confirm: Option<String>,
    /// The verdict of that command. `None` if it was not run.
    #[serde(default)]
    pub confirmed: Option<Verdict>,
    /// Sites at which every value is explained, as text for reports.
    pub verified_on: Vec<String>,
    /// Other changes that explain the failure equally well.
    pub remaining: Vec<String>,
    /// Kinds of causes that were tried and do not explain the failure.
    pub excluded: Vec<String>,
}

/// Writes a site with its checkpoint, which `report.json` calls `stage`.
fn with_checkpoint<S: Serializer>(site: &Site, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct CheckpointSite {
        stage: Checkpoint,
        #[serde(flatten)]
        site: Site,
    }
    CheckpointSite { stage: site.point.checkpoint(), site: *site }.serialize(serializer)
}

/// Text between the names of changes that are applied together.
const AND: &str = " and ";

/// Returns the changes as one text in the syntax of `--suppose`.
pub(crate) fn joined(changes: &[OperationChange]) -> String {
    changes.iter().map(OperationChange::to_string).collect::<Vec<_>>().join(AND)
}

/// Returns the changes of several findings in the syntax of `--suppose`, each once and in order; `None` if `--suppose`
/// cannot express a finding.
pub fn changes_of<'f>(findings: impl IntoIterator<Item = &'f Finding>) -> Option<Vec<&'f str>> {
    let mut changes: Vec<&str> = Vec::new();
    for finding in findings {
        for change in finding.changes()? {
            if !changes.contains(&change) {
                changes.push(change);
            }
        }
    }
    Some(changes)
}

impl Finding {
    /// Returns the changes, each in the syntax of `--suppose`. `None` if `--suppose` has no such change.
    pub(crate) fn changes(&self) -> Option<impl Iterator<Item = &str>> {
        Some(self.supposed.as_ref()?.split(AND))
    }

    /// Returns the changes restricted to the finding's layers, and to its taps where a change takes them, in the syntax of
    /// `--suppose`. `layers` are all layers with the finding's taps.
    pub fn narrowed(&self, layers: &BTreeSet<usize>) -> Option<String> {
        let own: BTreeSet<usize> = self.layers.iter().copied().collect();
        let of_layers: Vec<String> = own.iter().map(usize::to_string).collect();
        let of_layers = match own.is_empty() || own == *layers {
            true => String::new(),
            false => format!("@layer-{}", of_layers.join("+")),
        };
        let at_taps = |change: &str| -> Vec<String> {
            let (key, value) =
                change.split_once('=').map_or((change, ""), |(key, _)| (key, &change[key.len()..]));
            let points = self.points.iter().filter(|_| !key.contains('@') && !self.has_all_taps(change));
            let at_each = points.map(|point| format!("{key}@{point}{value}"));
            let known: Vec<String> =
                at_each.filter(|change| OperationChange::named(change).is_ok()).collect();
            if known.is_empty() { vec![change.to_owned()] } else { known }
        };
        let changes = self.changes()?.flat_map(at_taps);
        Some(changes.map(|change| format!("{change}{of_layers}")).collect::<Vec<_>>().join(AND))
    }

    /// Returns true if the finding has several taps, and a change applies to no others.
    fn has_all_taps(&self, change: &str) -> bool {
        let changes = OperationChange::named(change).unwrap_or_default();
        let mut taps = changes.iter().flat_map(OperationChange::taps);
        self.points.len() > 1 && taps.all(|tap| self.points.contains(tap))
    }

    /// Makes a finding for one site without details.
    pub(crate) fn new(kind: CauseKind, site: Site, what: String) -> Self {
        Self {
            kind,
            site,
            points: vec![site.point],
            layers: site.layer.into_iter().collect(),
            key: None,
            reference: None,
            candidate: None,
            what,
            sites: vec![site],
            supposed: None,
            confirm: None,
            confirmed: None,
            verified_on: Vec::new(),
            remaining: Vec::new(),
            excluded: Vec::new(),
        }
    }

    /// Sets the explained sites and sorts them in data-flow order.
    pub(crate) fn of(self, mut sites: Vec<Site>) -> Self {
        sites.sort_by_key(|site| (site.flow_order(), site.pass));
        Self { sites, ..self }
    }
}
