//! A cause in the user's words: the key, its value on both sides, where, and what to change.

use std::collections::BTreeSet;

use crate::change::{At, Change, Kind, Value};
use crate::checkpoint::{Point, Site};
use crate::compare::{Role, Unexplained};
use crate::diagnose::causes::finding::Finding;
use crate::diagnose::causes::pattern;
use crate::diagnose::causes::stage::Searched;

/// More kinds than this are counted, not listed.
const SHOWN: usize = 10;

/// Who is told of what.
pub(super) struct Words<'w> {
    /// What the dump is.
    pub(super) role: Role,
    /// The stage that a cause was looked for.
    pub(super) at: &'w At<'w>,
    /// Whether our engine computes what the user supposes, not what the model says.
    pub(super) is_supposed: bool,
}

impl Words<'_> {
    /// What was found of the first of these places, all of which it explains.
    pub(super) fn told(&self, searched: &Searched, sites: &[Site], stage: Option<&Unexplained>) -> Finding {
        let Some((first, others)) = searched.fits.split_first() else {
            return self.nothing(searched, sites[0], stage);
        };
        let places = self.places(sites);
        let change = &first[0];
        let kind = change.entry.kind;
        let own = change.own(self.at);
        let told = |value: &Value| (*value != Value::Nothing).then(|| value.to_string());
        let (ours, theirs) = (told(&own), told(&change.value));
        let (candidate, reference) = match self.role {
            Role::Candidate => (theirs, ours),
            Role::Reference => (ours, theirs),
        };
        let remaining: Vec<String> = others.iter().map(|changes| as_typed(changes)).collect();
        let sentences: Vec<String> = first.iter().map(|change| self.sentence(change)).collect();
        let mut what = format!("{}; seen at {places}{}", sentences.join(", and "), self.remedy(first));
        let of_other_kinds = others.iter().any(|other| other[0].entry.kind != kind);
        if of_other_kinds {
            what = format!("{what}; or {}: these values do not tell which", remaining.join(", or "));
        }
        Finding {
            kind,
            site: sites[0],
            points: sites.iter().map(|site| site.point).collect::<BTreeSet<_>>().into_iter().collect(),
            layers: sites.iter().filter_map(|site| site.layer).collect::<BTreeSet<_>>().into_iter().collect(),
            key: self.key(change).map(str::to_owned),
            reference,
            candidate,
            what,
            verified_on: by_tap(sites),
            remaining,
            excluded: searched.excluded.iter().map(|kind| kind.to_string()).collect(),
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

    /// "q_rope and k_rope in all layers".
    fn places(&self, sites: &[Site]) -> String {
        let points: BTreeSet<Point> = sites.iter().map(|site| site.point).collect();
        let layers: BTreeSet<usize> = sites.iter().filter_map(|site| site.layer).collect();
        let names: Vec<&str> = points.iter().map(|point| point.name()).collect();
        let (names, book) = (names.join(", "), self.at.book);
        let that_slide = |slides: bool| -> BTreeSet<usize> {
            (0..book.n_layers()).filter(|&layer| book.window(layer).is_some() == slides).collect()
        };
        let which = match layers.len() {
            0 => return names,
            all if all == book.n_layers() => return format!("{names} in all layers"),
            _ if layers == that_slide(true) => ", the ones with a sliding window",
            _ if layers == that_slide(false) => ", the ones with full attention",
            _ => "",
        };
        let s = if layers.len() == 1 { "" } else { "s" };
        format!("{names} in layer{s} {}{which}", ranges(&layers))
    }

    fn dump(&self) -> &'static str {
        self.role.name()
    }

    /// "rope_theta: the candidate computes with 10000, the model says 500000"
    fn sentence(&self, change: &Change) -> String {
        let (entry, dump) = (change.entry, self.dump());
        let name = self.key(change).unwrap_or(entry.kind.name());
        let name = change.point.map_or(name.to_owned(), |point| format!("{name} at {point}"));
        let ours = if self.is_supposed { "our engine" } else { "the model says" };
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
    fn nothing(&self, searched: &Searched, site: Site, stage: Option<&Unexplained>) -> Finding {
        let pattern = stage.and_then(pattern::of);
        let kind = if pattern.is_some() { Kind::Partial } else { Kind::Unknown };
        let excluded: Vec<String> = searched.excluded.iter().map(|kind| kind.to_string()).collect();
        let wrong = pattern.unwrap_or_else(|| match stage {
            Some(_) => "all of its values are wrong".to_owned(),
            None => "a dump that holds the taps before it tells more".to_owned(),
        });
        let what = match excluded.is_empty() {
            true => format!("no cause is known for this; {wrong}"),
            false if excluded.len() > SHOWN => {
                format!("none of {} kinds of known mistakes explains this; {wrong}", excluded.len())
            }
            false => format!("none of {} explains this; {wrong}", excluded.join(", ")),
        };
        Finding { excluded, ..Finding::new(kind, site, what) }
    }
}

fn as_typed(changes: &[Change]) -> String {
    changes.iter().map(Change::to_string).collect::<Vec<_>>().join(" and ")
}

/// "0-4, 6-10".
fn ranges(numbers: &BTreeSet<usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let told = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(told).collect::<Vec<_>>().join(", ")
}

/// "q_rope, layers 0-3, passes 0-4", by tap.
fn by_tap(sites: &[Site]) -> Vec<String> {
    let points: BTreeSet<Point> = sites.iter().map(|site| site.point).collect();
    let told = |point: Point| {
        let of = |number: fn(&Site) -> Option<usize>, one: &str, many: &str| {
            let numbers: BTreeSet<usize> =
                sites.iter().filter(|site| site.point == point).filter_map(number).collect();
            match numbers.len() {
                0 => String::new(),
                1 => format!(", {one} {}", ranges(&numbers)),
                _ => format!(", {many} {}", ranges(&numbers)),
            }
        };
        format!(
            "{point}{}{}",
            of(|site| site.layer, "layer", "layers"),
            of(|site| site.pass, "pass", "passes")
        )
    };
    points.into_iter().map(told).collect()
}
