//! A cause in the user's words: the key, its value on both sides, where, and what to change.

use crate::change::{At, Change, Kind, Value};
use crate::checkpoint::Site;
use crate::compare::{Role, Unexplained};
use crate::diagnose::causes::cause::{Cause, Fit, Sought, Told};
use crate::diagnose::causes::pattern;
use crate::diagnose::causes::stage::{Bench, Searched};

/// More kinds than this are counted, not listed.
const SHOWN: usize = 10;

/// Who is told of what.
pub(super) struct Words<'w> {
    /// What the dump is.
    role: Role,
    /// The stage that a cause was looked for.
    at: &'w At<'w>,
    /// Whether our engine computes what the user supposes, not what the model says.
    is_supposed: bool,
}

impl<'w> Words<'w> {
    /// Tells of what was found at a place.
    pub(super) fn of(bench: &Bench, at: &'w At<'w>) -> Self {
        Self { role: bench.setting.role, at, is_supposed: bench.setting.is_supposed() }
    }

    /// What was found of the first of these places, all of which it explains.
    pub(super) fn told(
        &self,
        sought: Sought,
        searched: &Searched,
        sites: Vec<Site>,
        stage: Option<&Unexplained>,
    ) -> Cause {
        let excluded = searched.excluded.iter().map(|kind| kind.to_string()).collect();
        let told = match searched.fits.is_empty() {
            true => self.nothing(searched, stage),
            false => Told::Changes(searched.fits.iter().map(|changes| self.fit(changes)).collect()),
        };
        Cause { excluded, ..Cause::new(sought, sites, told) }
    }

    fn fit(&self, changes: &[Change]) -> Fit {
        let change = &changes[0];
        let own = change.own(self.at);
        let told = |value: &Value| (*value != Value::Nothing).then(|| value.to_string());
        let (ours, theirs) = (told(&own), told(&change.value));
        let (candidate, reference) = match self.role {
            Role::Candidate => (theirs, ours),
            Role::Reference => (ours, theirs),
        };
        let sentences: Vec<String> = changes.iter().map(|change| self.sentence(change)).collect();
        Fit {
            typed: as_typed(changes),
            kind: change.entry.kind,
            key: self.key(change).map(str::to_owned),
            reference,
            candidate,
            what: sentences.join(", and "),
            remedy: self.remedy(changes),
        }
    }

    /// The key of the configuration. Layers that slide have a base of their own.
    fn key(&self, change: &Change) -> Option<&'static str> {
        let slides = self.at.site.layer.is_some_and(|layer| self.at.book.window(layer).is_some());
        match change.entry.kind {
            Kind::RopeTheta if slides => Some("rope_local_base_freq"),
            _ => change.entry.keys.map(|[key, _]| key),
        }
    }

    /// What to change, where it is configured.
    fn remedy(&self, changes: &[Change]) -> String {
        let key = |change: &Change| match (change.entry.keys?, self.key(change)?) {
            ([_, ""], key) => Some(key.to_owned()),
            ([_, gguf], key) => Some(format!("{key} (in GGUF files {gguf})")),
        };
        let keys: Vec<String> = changes.iter().filter_map(key).collect();
        match (self.role, keys.is_empty()) {
            (Role::Candidate, false) => format!("; it should read {}", keys.join(" and ")),
            _ => String::new(),
        }
    }

    fn dump(&self) -> &'static str {
        self.role.name()
    }

    /// "rope_theta: the candidate computes with 10000, the model says 500000"
    fn sentence(&self, change: &Change) -> String {
        let (entry, dump) = (change.entry, self.dump());
        let name = self.key(change).unwrap_or(entry.kind.name());
        let name = change.point.map_or(name.to_owned(), |point| format!("{name} at {point}"));
        let is_said = !self.is_supposed && !entry.kind.is_of_numerics();
        let ours = if is_said { "the model says" } else { "our engine" };
        let own = change.own(self.at);
        match (&change.value, &own) {
            (Value::Nothing, _) => {
                format!("{name}: what the {dump} computes is this: {}", entry.kind.meaning())
            }
            (theirs, Value::Nothing) => {
                format!("{name}: the {dump} computes with {theirs} ({})", entry.kind.meaning())
            }
            (theirs, own) => format!("{name}: the {dump} computes with {theirs}, {ours} {own}"),
        }
    }

    /// What is known where nothing of the catalogue explains a stage.
    fn nothing(&self, searched: &Searched, stage: Option<&Unexplained>) -> Told {
        let pattern = stage.and_then(pattern::of);
        let kind = if pattern.is_some() { Kind::Partial } else { Kind::Unknown };
        let excluded: Vec<String> = searched.excluded.iter().map(|kind| kind.to_string()).collect();
        let wrong = pattern.unwrap_or_else(|| match stage {
            Some(_) => "all of its values are wrong".to_owned(),
            None => "a dump that holds the taps before it tells more".to_owned(),
        });
        let what = match excluded.is_empty() {
            true => format!("no known mistake explains this; {wrong}"),
            false if excluded.len() > SHOWN => {
                format!("none of {} kinds of known mistakes explains this; {wrong}", excluded.len())
            }
            false => format!("no known mistake explains this (tried: {}); {wrong}", excluded.join(", ")),
        };
        Told::Nothing { kind, what }
    }
}

fn as_typed(changes: &[Change]) -> String {
    changes.iter().map(Change::to_string).collect::<Vec<_>>().join(" and ")
}
