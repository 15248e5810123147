//! The report text of a cause: the configuration key, its value on both sides, the sites, and the fix.

use crate::catalogue::OperationChange;
use crate::change::{CauseKind, ChangeValue, SiteContext};
use crate::check::{Role, UnexplainedOperation};
use crate::checkpoint::Site;
use crate::diagnose::causes::operation_search::{SearchContext, SearchResult};
use crate::diagnose::causes::pattern;
use crate::ops::norm::exact::LayerNormalisation;
use crate::verdict::{Cause, CauseContent, CauseSearch, FittingChange, joined};

/// Up to this many kinds are listed; longer lists are only counted.
const SHOWN: usize = 10;

/// Makes the report text of a cause at one site.
pub(super) struct CauseText<'w> {
    /// Role of the dump.
    role: Role,
    /// The operation that the cause explains.
    at: &'w SiteContext<'w>,
    /// True if our engine computes with a change from `--suppose` instead of the model's setting.
    is_supposed: bool,
}

impl<'w> CauseText<'w> {
    /// Makes the report text of a cause at a site.
    pub(super) fn of(search: &SearchContext, at: &'w SiteContext<'w>) -> Self {
        Self { role: search.context.role, at, is_supposed: search.context.is_supposed() }
    }

    /// Describes a cause that explains all of `sites`. The text names the values at the first one.
    pub(super) fn told(
        &self,
        sought: CauseSearch,
        searched: &SearchResult,
        sites: Vec<Site>,
        stage: Option<&UnexplainedOperation>,
    ) -> Cause {
        let excluded = searched.excluded.iter().map(|kind| kind.to_string()).collect();
        let told = match searched.fits.is_empty() {
            true => self.nothing(searched, stage),
            false => CauseContent::Changes(searched.fits.iter().map(|changes| self.fit(changes)).collect()),
        };
        Cause { excluded, ..Cause::new(sought, sites, told) }
    }

    fn fit(&self, changes: &[OperationChange]) -> FittingChange {
        let change = &changes[0];
        let own = change.own(self.at);
        let told = |value: &ChangeValue| (*value != ChangeValue::Nothing).then(|| value.to_string());
        let (ours, theirs) = (told(&own), told(&change.value));
        let (candidate, reference) = match self.role {
            Role::Candidate => (theirs, ours),
            Role::Reference => (ours, theirs),
        };
        let sentences: Vec<String> = changes.iter().map(|change| self.sentence(change)).collect();
        FittingChange {
            typed: joined(changes),
            kind: change.entry.kind,
            key: self.key(change).map(str::to_owned),
            reference,
            candidate,
            what: sentences.join(", and "),
            remedy: self.remedy(changes),
        }
    }

    /// Returns the configuration key and the GGUF key of a change. Sliding-window layers may have their own
    /// RoPE base, and LayerNorm uses a different epsilon key than RMSNorm.
    fn keys(&self, change: &OperationChange) -> Option<[&'static str; 2]> {
        match change.entry.kind {
            CauseKind::RopeTheta if self.has_own_base() => {
                change.entry.keys.map(|[_, gguf]| ["rope_local_base_freq", gguf])
            }
            CauseKind::NormEps if self.at.stage::<LayerNormalisation>().is_some() => {
                Some(["layer_norm_epsilon", "attention.layer_norm_epsilon"])
            }
            _ => change.entry.keys,
        }
    }

    /// Returns true if the layer has a sliding window and a RoPE base of its own.
    fn has_own_base(&self) -> bool {
        let operations = self.at.operations;
        let theta = |layer| operations.rope(layer).map(|rope| rope.theta);
        let slides = |layer: &usize| operations.window(*layer).is_some();
        let mut others = (0..operations.n_layers()).filter(|layer| !slides(layer));
        self.at.site.layer.filter(slides).is_some_and(|own| others.any(|other| theta(other) != theta(own)))
    }

    fn key(&self, change: &OperationChange) -> Option<&'static str> {
        self.keys(change).map(|[key, _]| key)
    }

    /// Returns the setting to change, if the cause is a setting.
    fn remedy(&self, changes: &[OperationChange]) -> String {
        let key = |change: &OperationChange| match self.keys(change)? {
            [key, ""] => Some(key.to_owned()),
            [key, gguf] => Some(format!("{key} (in GGUF files {gguf})")),
        };
        let keys: Vec<String> = changes.iter().filter_map(key).collect();
        match (self.role, keys.is_empty()) {
            (Role::Candidate, false) => format!("; read it from {}", keys.join(" and ")),
            _ => String::new(),
        }
    }

    fn dump(&self) -> &'static str {
        self.role.name()
    }

    /// Describes a change with its name for `--suppose`, e.g. "norm_eps: the candidate computes with 0.01,
    /// the model says 1e-5".
    fn sentence(&self, change: &OperationChange) -> String {
        let (entry, dump) = (change.entry, self.dump());
        let name = entry.kind.name();
        let name = change.point.map_or(name.to_owned(), |point| format!("{name} at {point}"));
        let is_said = !self.is_supposed && !entry.kind.is_of_numerics();
        let ours = if is_said { "the model says" } else { "our engine" };
        let own = change.own(self.at);
        let told = match (change.meaning(), &change.value, &own) {
            (Some(meaning), value, _) => {
                format!("{name}: in the {dump}, {meaning} ({value})")
            }
            (None, ChangeValue::Nothing, _) => {
                format!("{name}: the {dump} computes this instead: {}", entry.kind.meaning())
            }
            (None, theirs, ChangeValue::Nothing) => {
                format!("{name}: the {dump} computes with {theirs} ({})", entry.kind.meaning())
            }
            // The file stores the inverse, by which logits are divided.
            (None, theirs, own) if change.entry.kind == CauseKind::LogitScale => {
                format!("{name}: the {dump} multiplies logits by {theirs}, {ours} by {own}")
            }
            (None, theirs, own) => format!("{name}: the {dump} computes with {theirs}, {ours} {own}"),
        };
        let passes = change.passes.map(|passes| passes.meaning());
        let heads = change.heads.as_ref().map(|heads| heads.meaning(self.at.site.point));
        [Some(told), heads, passes].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Describes an operation that no change in the catalogue explains.
    fn nothing(&self, searched: &SearchResult, stage: Option<&UnexplainedOperation>) -> CauseContent {
        let pattern = stage.and_then(pattern::of);
        let kind = if pattern.is_some() { CauseKind::Partial } else { CauseKind::Unknown };
        let excluded: Vec<String> = searched.excluded.iter().map(|kind| kind.to_string()).collect();
        let wrong = pattern.unwrap_or_else(|| match stage {
            Some(_) => "all values are wrong".to_owned(),
            None => "record the taps before it to narrow this down".to_owned(),
        });
        let what = match excluded.is_empty() {
            true => format!("no known mistake explains this; {wrong}"),
            false if excluded.len() > SHOWN => {
                format!("none of {} kinds of known mistakes explains this; {wrong}", excluded.len())
            }
            false => format!("no known mistake explains this (tried: {}); {wrong}", excluded.join(", ")),
        };
        CauseContent::Nothing { kind, what }
    }
}
