//! Causes found in one unit, and their combination over several units.

use std::collections::BTreeSet;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::change::CauseKind;
use crate::checkpoint::{Point, Site};
use crate::verdict::finding::Finding;
use crate::verdict::site_description::SiteDescription;

/// Maximum number of causes to search for. Each search tries the whole catalogue.
pub(crate) const MOST: usize = 6;

/// Maximum number of searches that run a part of the model again. These are slow.
pub(crate) const MOST_PARTS: usize = 2;

/// The cause of failing rows of one unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cause {
    /// The search that found the cause.
    pub(crate) sought: CauseSearch,
    /// Sites that the cause explains, in data-flow order.
    #[serde(deserialize_with = "filled")]
    pub(crate) sites: Vec<Site>,
    pub(crate) told: CauseContent,
    /// Kinds of causes that were tried and do not explain the sites.
    pub(crate) excluded: Vec<String>,
}

/// The search that found a cause, in reporting order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CauseSearch {
    /// Comparison of the prompt's tokens.
    Prompt,
    /// Search for NaN and infinity.
    Nonfinite,
    /// Changes of single operations.
    Stages,
    /// Parts of the model, run again with changes.
    Parts,
    /// Rules by which tokens are chosen.
    Choices,
}

impl CauseSearch {
    /// Returns the position in reports. Operations and parts share one position.
    fn rank(self) -> u8 {
        match self {
            CauseSearch::Prompt => 0,
            CauseSearch::Nonfinite => 1,
            CauseSearch::Stages | CauseSearch::Parts => 2,
            CauseSearch::Choices => 3,
        }
    }

    /// Returns the maximum number of causes to report.
    fn most(self) -> usize {
        match self {
            CauseSearch::Stages => MOST,
            CauseSearch::Parts => MOST_PARTS,
            CauseSearch::Nonfinite => 1,
            CauseSearch::Prompt | CauseSearch::Choices => usize::MAX,
        }
    }
}

/// The content of a cause: changes of operations, a misread dump, or a description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CauseContent {
    /// Alternative changes of operations, the most likely first. Each alternative explains the cause by
    /// itself.
    Changes(#[serde(deserialize_with = "filled")] Vec<FittingChange>),
    /// No known change explains the failure. The fields describe what is known.
    Nothing {
        /// The kind: unknown, partly known, or search not finished.
        kind: CauseKind,
        /// The description, one sentence.
        what: String,
    },
    /// One sentence describes the cause: no change of `--suppose` expresses it.
    Described {
        /// The kind of the cause.
        kind: CauseKind,
        /// The description, one sentence.
        what: String,
    },
    /// The dump misstates its values. With the corrected reading, fewer operations are wrong.
    Misread {
        /// The kind of misreading.
        kind: CauseKind,
        /// The report sentence, split before and after the count of wrong operations.
        what: [String; 2],
        /// The number of operations that are still wrong, and the number of all operations. Both are 0 if the
        /// sentence needs no count.
        wrong: [usize; 2],
    },
    /// A finding from a single site.
    Once(Box<Finding>),
}

/// Reads a list that must not be empty.
fn filled<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() { Err(D::Error::custom("a cause has no site or no change")) } else { Ok(list) }
}

/// An alternative explanation of a cause: one or more changes of operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FittingChange {
    /// The changes in the syntax of `--suppose`.
    pub(crate) typed: String,
    /// The kind of the first change.
    pub(crate) kind: CauseKind,
    /// The key of the setting in the model's configuration.
    pub(crate) key: Option<String>,
    /// The reference's value of the setting.
    pub(crate) reference: Option<String>,
    /// The candidate's value of the setting.
    pub(crate) candidate: Option<String>,
    /// The description, one sentence without the sites.
    pub(crate) what: String,
    /// The recommended fix.
    pub(crate) remedy: String,
}

impl Cause {
    pub(crate) fn new(sought: CauseSearch, sites: Vec<Site>, told: CauseContent) -> Self {
        Self { sought, sites, told, excluded: Vec::new() }
    }

    /// Makes a cause that one sentence describes.
    pub(crate) fn described(sought: CauseSearch, kind: CauseKind, sites: Vec<Site>, what: String) -> Self {
        Self::new(sought, sites, CauseContent::Described { kind, what })
    }

    /// Makes a cause from a finding at a single site.
    pub(crate) fn once(sought: CauseSearch, finding: Finding) -> Self {
        Self::new(sought, vec![finding.site], CauseContent::Once(Box::new(finding)))
    }

    /// Returns true if no known change explains the failure.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self.told, CauseContent::Nothing { .. })
    }

    fn fits(&self) -> &[FittingChange] {
        if let CauseContent::Changes(fits) = &self.told { fits } else { &[] }
    }

    fn explains_as(&self, typed: &str) -> bool {
        self.fits().iter().any(|fit| fit.typed == typed)
    }

    /// Merges another cause into this one if both describe the same fault. Returns true if merged.
    fn take_up(&mut self, other: &Self) -> bool {
        let (first, others) = (self.sites[0].point, other.sites[0].point);
        let is_same = self.sought == other.sought
            && match (&mut self.told, &other.told) {
                (CauseContent::Changes(fits), CauseContent::Changes(_))
                    if other.fits()[0].typed == fits[0].typed =>
                {
                    fits.retain(|fit| other.explains_as(&fit.typed));
                    true
                }
                // A search that ran out of time is reported once.
                (CauseContent::Nothing { kind, .. }, CauseContent::Nothing { kind: other, .. })
                    if [*kind, *other].contains(&CauseKind::Unfinished) =>
                {
                    *kind == *other
                }
                // Unexplained failures are reported once per tap. After a search over several operations,
                // they are reported once in all.
                (CauseContent::Nothing { .. }, CauseContent::Nothing { .. }) => {
                    return self.sought == CauseSearch::Parts || first == others;
                }
                (
                    CauseContent::Described { kind, what },
                    CauseContent::Described { kind: other, what: told },
                ) => (&*kind, &*what) == (other, told),
                (
                    CauseContent::Misread { kind, what, wrong },
                    CauseContent::Misread { kind: k, what: w, wrong: more },
                ) => {
                    let is_same = (&*kind, &*what) == (k, w);
                    if is_same {
                        *wrong = [wrong[0] + more[0], wrong[1] + more[1]];
                    }
                    is_same
                }
                _ => false,
            };
        if is_same {
            self.sites.extend(&other.sites);
        }
        is_same
    }

    fn finding(self, places: &SiteDescription) -> Finding {
        let Self { sites, told, excluded, .. } = self;
        let layers: Vec<usize> =
            sites.iter().filter_map(|site| site.layer).collect::<BTreeSet<_>>().into_iter().collect();
        let points: Vec<Point> =
            sites.iter().map(|site| site.point).collect::<BTreeSet<_>>().into_iter().collect();
        match told {
            CauseContent::Once(finding) => *finding,
            CauseContent::Nothing { kind, what } => {
                Finding { excluded, ..Finding::new(kind, sites[0], what) }.of(sites)
            }
            CauseContent::Described { kind, what } => {
                Finding { points, layers, ..Finding::new(kind, sites[0], what) }.of(sites)
            }
            CauseContent::Misread { kind, what: [before, after], wrong } => {
                let what = format!("{before}{}{after}", of_stages(wrong));
                let is_of_a_tap = matches!(kind, CauseKind::DumpTap | CauseKind::DumpAxes);
                let points = if is_of_a_tap { vec![sites[0].point] } else { points };
                Finding { points, layers, ..Finding::new(kind, sites[0], what) }.of(sites)
            }
            CauseContent::Changes(fits) => {
                let (first, others) = fits.split_first().expect("a cause has at least one change");
                let remaining: Vec<String> = others.iter().map(|fit| fit.typed.clone()).collect();
                let mut what = format!("{}; seen at {}{}", first.what, places.told(&sites), first.remedy);
                if others.iter().any(|other| other.kind != first.kind) {
                    what = format!(
                        "{what}; or {}: these values cannot distinguish them",
                        remaining.join(", or ")
                    );
                }
                Finding {
                    points,
                    layers,
                    key: first.key.clone(),
                    reference: first.reference.clone(),
                    candidate: first.candidate.clone(),
                    supposed: Some(first.typed.clone()),
                    verified_on: places.by_tap(&sites),
                    remaining,
                    excluded,
                    ..Finding::new(first.kind, sites[0], what)
                }
                .of(sites)
            }
        }
    }
}

fn of_stages([wrong, of]: [usize; 2]) -> String {
    match (wrong, of) {
        (_, 0) => String::new(),
        (0, _) => "every operation is correct".to_owned(),
        _ => format!("{wrong} of {of} operations are wrong"),
    }
}

/// Merges equal causes of all units, each with all its sites. `slides` holds one entry per layer: true if the
/// layer has a sliding window.
pub(crate) fn grouped(units: &[&[Cause]], slides: &[bool]) -> Vec<Finding> {
    let mut all: Vec<Cause> = units.concat();
    all.sort_by_key(|cause| (cause.sought.rank(), cause.sites[0].flow_order()));
    if units.len() > 1 {
        prefer_what_explains_most(&mut all);
    }
    let mut groups: Vec<Cause> = Vec::new();
    for cause in all {
        let is_known = groups.iter_mut().any(|group| group.take_up(&cause));
        let told = groups.iter().filter(|group| group.sought == cause.sought).count();
        if !is_known && told < cause.sought.most() {
            groups.push(cause);
        }
    }
    let places = SiteDescription { slides };
    groups.into_iter().map(|group| group.finding(&places)).collect()
}

/// If several changes explain a cause, keeps those that explain the most other causes at the same tap. Other
/// units can decide between changes that one unit cannot tell apart.
fn prefer_what_explains_most(all: &mut [Cause]) {
    let counts = |cause: &Cause| -> Vec<usize> {
        let alike = || all.iter().filter(|other| other.sites[0].point == cause.sites[0].point);
        let explained = |fit: &FittingChange| alike().filter(|other| other.explains_as(&fit.typed)).count();
        cause.fits().iter().map(explained).collect()
    };
    let counts: Vec<Vec<usize>> = all.iter().map(counts).collect();
    for (cause, counts) in all.iter_mut().zip(counts) {
        let CauseContent::Changes(fits) = &mut cause.told else { continue };
        let most = counts.iter().copied().max();
        let mut counts = counts.into_iter();
        fits.retain(|_| counts.next() == most);
    }
}
