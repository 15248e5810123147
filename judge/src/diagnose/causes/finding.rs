//! A cause, as reports tell it.

use crate::change::{CauseKind, OperationChange};
use crate::checkpoint::{Point, Site};
use crate::compare::Verdict;

/// The explanation of a failure.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The kind of cause; the most likely one if several are possible.
    pub kind: CauseKind,
    /// The row it explains, which failed.
    pub site: Site,
    /// All the tap points that it explains.
    pub points: Vec<Point>,
    /// The layers.
    pub layers: Vec<usize>,
    /// Key of the setting in the model's configuration.
    pub key: Option<String>,
    /// Setting of the reference.
    pub reference: Option<String>,
    /// Behaviour of the candidate.
    pub candidate: Option<String>,
    /// One sentence.
    pub what: String,
    /// Explained sites in data-flow order.
    pub sites: Vec<Site>,
    /// Changes as `--suppose` takes them; `None` if they cannot be supposed.
    pub supposed: Option<String>,
    /// The verdict of a run with these changes supposed; `None` if none was made.
    pub confirmed: Option<Verdict>,
    /// Sites whose every value is explained, for people.
    pub verified_on: Vec<String>,
    /// Other changes that explain the failure equally well.
    pub remaining: Vec<String>,
    /// Kinds that were tried and do not explain it.
    pub excluded: Vec<String>,
}

/// Joins changes that are supposed together.
const AND: &str = " and ";

/// Returns changes as one text, as `--suppose` takes it.
pub(super) fn joined(changes: &[OperationChange]) -> String {
    changes.iter().map(OperationChange::to_string).collect::<Vec<_>>().join(AND)
}

impl Finding {
    /// Returns the changes, each as `--suppose` takes it; `None` if they cannot be supposed.
    pub fn changes(&self) -> Option<impl Iterator<Item = &str>> {
        Some(self.supposed.as_ref()?.split(AND))
    }

    /// Makes a finding for one site without details.
    pub(super) fn new(kind: CauseKind, site: Site, what: String) -> Self {
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
            confirmed: None,
            verified_on: Vec::new(),
            remaining: Vec::new(),
            excluded: Vec::new(),
        }
    }

    /// Sets the sites.
    pub(super) fn of(self, mut sites: Vec<Site>) -> Self {
        sites.sort_by_key(|site| (site.flow_order(), site.pass));
        Self { sites, ..self }
    }
}
