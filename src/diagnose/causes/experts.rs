//! Another number of experts than the model chooses: told by the lengths of what a dump holds.

use crate::change::Kind;
use crate::checkpoint::{Point, Site};
use crate::compare::{Row, Verdict};
use crate::diagnose::causes::{Cause, Finding, Sought};

/// What the first row tells that is of another number of experts.
pub(super) fn of_rows(rows: &[Row]) -> Option<Cause> {
    let is_of_others = |row: &&Row| {
        let is_of_chosen = row.site.point.is_of_chosen() && row.verdict == Verdict::Fail;
        is_of_chosen && row.introduced.is_none() && row.total.is_none()
    };
    let first = rows.iter().filter(is_of_others).find(|row| row.site.point == Point::Experts)?;
    let sites: Vec<Site> = rows.iter().filter(is_of_others).map(|row| row.site).collect();
    let (kind, why) = (Kind::ExpertCount, first.reason.as_deref().unwrap_or_default());
    let what = format!("{kind}: {}: {why}", kind.meaning());
    let finding = Finding {
        key: Some("num_experts_per_tok".to_owned()),
        ..Finding::new(kind, first.site, what).of(sites)
    };
    Some(Cause::once(Sought::Stages, finding))
}

/// Whether a place is computed from other experts than those of the dump.
pub(super) fn follows(cause: &Cause, site: Site) -> bool {
    let is_of_them = |one: &Site| (one.layer, one.pass) == (site.layer, site.pass);
    site.point == Point::FfnOut && cause.sites.iter().any(is_of_them)
}
