//! Changes between two reports, classified as worse, better, new or changed.

use std::collections::HashMap;

use crate::checkpoint::Site;
use crate::noise::NoiseFloor;
use crate::report::{FailureSize, RecordedDump, RecordedReport, RecordedRow, ServerCheck};
use crate::verdict::Verdict;

/// Class of a change, from bad to good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A worse verdict, a larger failure, a different failure, or a site that is no longer compared.
    Worse,
    /// A better verdict, or a failure that shrank by more than the usual variation between builds.
    Better,
    /// A newly compared site without a failure.
    New,
    /// Neither worse nor better: rounding explains the value before and now.
    Changed,
}

impl Class {
    /// Returns the name of the class, as in reports.
    pub fn name(self) -> &'static str {
        match self {
            Class::Worse => "worse",
            Class::Better => "better",
            Class::New => "new",
            Class::Changed => "changed",
        }
    }
}

/// A change between two reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Class of the change.
    pub class: Class,
    /// Kind of change: `verdict`, `coverage`, `judged`, `cause`, `size`, `bound_ratio`, `bits`, `check`.
    pub what: &'static str,
    /// Name of the dump, or the subject of a server check.
    pub(crate) dump: String,
    /// The site; `None` for a change of the whole dump.
    pub(crate) site: Option<Site>,
    /// Old and new value, as text.
    pub said: [String; 2],
    /// Reason for the change, if known.
    pub(crate) reason: Option<String>,
}

/// Differences between two reports.
#[derive(Clone, Debug)]
pub struct Diff {
    /// Version, command and verdict of each report, older first.
    pub(crate) of: [([String; 2], Verdict); 2],
    /// Changes in the order of the new report, followed by missing sites.
    pub changes: Vec<Change>,
    /// Number of sites and server checks that are in both reports.
    pub compared: usize,
    /// Notes that are not changes.
    pub(crate) notes: Vec<String>,
}

impl Diff {
    /// Compares a report with an older one. With `bits`, a lost bit-identity is a change for the worse.
    pub fn new(old: &RecordedReport, new: &RecordedReport, bits: bool) -> Self {
        let of = [old, new].map(|seen| (seen.told.clone(), seen.verdict));
        let mut diff = Self { of, changes: Vec::new(), compared: 0, notes: Vec::new() };
        let is_renamed =
            old.dumps.len() == 1 && new.dumps.len() == 1 && old.dumps[0].name != new.dumps[0].name;
        if is_renamed {
            diff.notes.push(format!("{} was {} before", new.dumps[0].name, old.dumps[0].name));
        }
        for now in &new.dumps {
            match old.dumps.iter().find(|before| is_renamed || before.name == now.name) {
                Some(before) => diff.dump(before, now, bits),
                None => {
                    diff.changes.push(Change::of_dump(now, new_class(now.verdict), ["", now.verdict.name()]))
                }
            }
        }
        let is_gone =
            |before: &&RecordedDump| !is_renamed && new.dumps.iter().all(|now| now.name != before.name);
        let gone = old.dumps.iter().filter(is_gone);
        diff.changes
            .extend(gone.map(|before| Change::of_dump(before, Class::Worse, [before.verdict.name(), ""])));
        diff.checks(&old.checks, &new.checks);
        diff.whole(old, new);
        diff
    }

    /// Compares the checks of a server, identified by subject and name.
    fn checks(&mut self, old: &[ServerCheck], new: &[ServerCheck]) {
        let key = |check: &ServerCheck| (check.about.clone(), check.check.clone());
        let all = |checks: &[ServerCheck]| -> HashMap<_, Option<Verdict>> {
            checks.iter().map(|check| (key(check), check.verdict)).collect()
        };
        let (before, now) = (all(old), all(new));
        self.compared += now.keys().filter(|key| before.contains_key(key)).count();
        let gone = old.iter().filter(|check| !now.contains_key(&key(check)));
        for check in new.iter().chain(gone) {
            let [then, now] = [&before, &now].map(|checks| checks.get(&key(check)).copied());
            let Some(class) = class_of_check(then.flatten(), now.flatten()) else { continue };
            let said = [then, now].map(|said| match said {
                None => String::new(),
                Some(None) => "not available".to_owned(),
                Some(Some(verdict)) => verdict.name().to_owned(),
            });
            let reason = (class == Class::Worse && now.is_some()).then(|| check.found.clone());
            let dump = format!("server, {}: {}", check.about, check.check);
            self.changes.push(Change { class, what: "check", dump, site: None, said, reason });
        }
    }

    /// Adds a change if the report's overall verdict was good and is no longer good. A waived failure does not count as
    /// good.
    fn whole(&mut self, old: &RecordedReport, new: &RecordedReport) {
        let is_told = self.changes.iter().any(|change| change.class == Class::Worse);
        let is_known = old.dumps.iter().flat_map(|dump| &dump.rows).any(|row| row.verdict == Verdict::Known);
        if badness(old.verdict) > 0 || badness(new.verdict) == 0 || is_told || is_known {
            return;
        }
        let said = [old, new].map(|seen| seen.verdict.name().to_owned());
        let (class, dump) = (Class::Worse, "the report".to_owned());
        self.changes.push(Change { class, what: "verdict", dump, site: None, said, reason: None });
    }

    /// Returns fail if something became worse, and inconclusive if nothing could be compared.
    pub fn verdict(&self) -> Verdict {
        match () {
            () if self.changes.iter().any(|change| change.class == Class::Worse) => Verdict::Fail,
            () if self.compared == 0 => Verdict::Inconclusive,
            () => Verdict::Pass,
        }
    }

    fn dump(&mut self, before: &RecordedDump, now: &RecordedDump, bits: bool) {
        if before.sha256 != now.sha256 {
            self.notes.push(format!("{}: the weights differ (SHA-256)", now.name));
        }
        if before.judged != now.judged {
            let change = Change::of_dump(now, Class::Worse, [&before.judged, &now.judged]);
            self.changes.push(Change { what: "judged", reason: None, ..change });
        }
        let was_worse = self.changes.iter().filter(|change| change.class == Class::Worse).count();
        // A missing row and a present row of the same site have the same key; each report has a site once.
        let mut left: HashMap<_, _> = before.rows.iter().map(|row| (row.site, row)).collect();
        self.compared += now.rows.iter().filter(|row| left.contains_key(&row.site)).count();
        for row in &now.rows {
            let change = match left.remove(&row.site) {
                Some(old) if is_more_of_it(before, old, row) => {
                    Some((Class::Changed, "verdict", words(old, row)))
                }
                Some(old) => changed(old, row, bits),
                None => {
                    let now = row.verdict.name().to_owned();
                    Some((new_class(row.verdict), "coverage", [String::new(), now]))
                }
            };
            self.changes.extend(change.map(|told| Change::of_row(now, row, told)));
        }
        for row in before.rows.iter().filter(|row| left.contains_key(&row.site)) {
            let told = (Class::Worse, "coverage", [row.verdict.name().to_owned(), String::new()]);
            self.changes.push(Change { reason: None, ..Change::of_row(now, row, told) });
        }
        let is_worse = self.changes.iter().filter(|change| change.class == Class::Worse).count() > was_worse;
        // A failing row is reported itself; a verdict of the whole dump, such as missing coverage, has no
        // row.
        if (badness(before.verdict), badness(now.verdict)) == (0, 1) && !is_worse {
            self.changes.push(Change::of_dump(
                now,
                Class::Worse,
                [before.verdict.name(), now.verdict.name()],
            ));
        }
    }
}

/// Returns the class of a changed server check; `None` if it did not change. A check that is no longer
/// available counts as worse.
fn class_of_check(then: Option<Verdict>, now: Option<Verdict>) -> Option<Class> {
    match (then.map(badness), now.map(badness)) {
        (None, None) => None,
        (None, Some(0 | 1)) => Some(Class::New),
        (None, Some(_)) | (Some(0), None) => Some(Class::Worse),
        (Some(_), None) => Some(Class::Changed),
        (Some(then), Some(now)) if now > then => Some(Class::Worse),
        (Some(then), Some(now)) => (now < then).then_some(Class::Better),
    }
}

/// Returns true if a value just above its bound belongs to an existing failure in another pass.
fn is_more_of_it(before: &RecordedDump, old: &RecordedRow, row: &RecordedRow) -> bool {
    let is_beside = |other: &RecordedRow| {
        let key = |row: &RecordedRow| (row.site.point, row.site.layer);
        let is_here = key(other) == key(row) && other.cause == row.cause;
        is_here && badness(other.verdict) == 2
    };
    let is_new = badness(old.verdict) == 0 && badness(row.verdict) == 2;
    is_new && FailureSize::is_just_beyond(row) && before.rows.iter().any(is_beside)
}

/// Returns the class of a dump that exists only in the new report: worse if it fails.
fn new_class(verdict: Verdict) -> Class {
    if badness(verdict) == 2 { Class::Worse } else { Class::New }
}

/// Returns the rank of a verdict. A tie counts as a pass, a waived failure as a failure.
fn badness(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Pass | Verdict::Tie => 0,
        Verdict::Inconclusive => 1,
        Verdict::Known | Verdict::Fail => 2,
    }
}

/// Smallest bound ratio at which the usual variation between builds can exceed the error bound.
const NEAR_THE_EDGE: f64 = 1.0 / NoiseFloor::NEAR;

fn words(old: &RecordedRow, new: &RecordedRow) -> [String; 2] {
    [old, new].map(|row| row.verdict.name().to_owned())
}

/// Returns the class, the kind, and the old and new figures of a changed row; `None` if it did not change.
fn changed(old: &RecordedRow, new: &RecordedRow, bits: bool) -> Option<(Class, &'static str, [String; 2])> {
    match (badness(old.verdict), badness(new.verdict)) {
        _ if new.counted() < old.counted() => {
            let told = [old, new].map(|row| format!("{} values", row.elements));
            Some((Class::Worse, "coverage", told))
        }
        (then, now) if now > then => Some((Class::Worse, "verdict", words(old, new))),
        (then, now) if now < then => Some((Class::Better, "verdict", words(old, new))),
        (2, _) => failing(old, new),
        _ if old.is_identical && !new.is_identical => {
            let class = if bits { Class::Worse } else { Class::Changed };
            Some((class, "bits", ["identical", "not identical"].map(str::to_owned)))
        }
        _ if new.is_identical && !old.is_identical => {
            Some((Class::Changed, "bits", ["not identical", "identical"].map(str::to_owned)))
        }
        _ => {
            let (then, now) = (old.size.bound_ratio?, new.size.bound_ratio?);
            let is_far = then.max(now) > NoiseFloor::NEAR * then.min(now) && then.max(now) > NEAR_THE_EDGE;
            is_far.then(|| (Class::Changed, "bound_ratio", [then, now].map(|figure| format!("{figure:.2}"))))
        }
    }
}

fn failing(old: &RecordedRow, new: &RecordedRow) -> Option<(Class, &'static str, [String; 2])> {
    let cause = |row: &RecordedRow| row.cause.clone().unwrap_or("none found".to_owned());
    let size = |row: &RecordedRow| {
        let FailureSize { bound_ratio, over, .. } = row.size;
        let bound_ratio = bound_ratio.map(|bound_ratio| format!("err/bound {bound_ratio:.1e}"));
        let told: Vec<String> =
            bound_ratio.into_iter().chain(over.map(|count| format!("{count} over"))).collect();
        told.join(", ")
    };
    match () {
        () if old.cause != new.cause => Some((Class::Worse, "cause", [cause(old), cause(new)])),
        () if old.size.outgrown_by(new).is_some() => Some((Class::Worse, "size", [size(old), size(new)])),
        () if new.size.outgrown_by(old).is_some() => Some((Class::Better, "size", [size(old), size(new)])),
        () => None,
    }
}

impl Change {
    fn of_row(
        dump: &RecordedDump,
        row: &RecordedRow,
        (class, what, said): (Class, &'static str, [String; 2]),
    ) -> Self {
        let reason = row.reason.clone().filter(|_| class == Class::Worse);
        Self { class, what, dump: dump.name.clone(), site: Some(row.site), said, reason }
    }

    fn of_dump(dump: &RecordedDump, class: Class, said: [&str; 2]) -> Self {
        let what = if said.contains(&"") { "coverage" } else { "verdict" };
        let said = said.map(str::to_owned);
        Self { class, what, dump: dump.name.clone(), site: None, said, reason: dump.reason.clone() }
    }
}
