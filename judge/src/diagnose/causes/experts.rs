//! A different number of experts per token, found from array lengths.

use std::collections::BTreeSet;

use crate::change::CauseKind;
use crate::checkpoint::{Point, Site};
use crate::verdict::{Cause, CauseSearch, Finding, SiteResult, Verdict};

/// Returns the failing rows whose arrays have a different number of experts, so that no error was measured.
fn of_others(rows: &[SiteResult]) -> impl Iterator<Item = &SiteResult> {
    let is_of_others = |row: &&SiteResult| {
        let is_of_chosen = row.site.point.is_of_chosen() && row.verdict == Verdict::Fail;
        is_of_chosen && row.local.is_none() && row.accumulated.is_none()
    };
    rows.iter().filter(is_of_others)
}

/// Makes a cause from the rows whose arrays have a different number of experts.
pub(super) fn of_rows(rows: &[SiteResult]) -> Option<Cause> {
    let first = of_others(rows).find(|row| row.site.point == Point::Experts)?;
    let sites: Vec<Site> = of_others(rows).map(|row| row.site).collect();
    let layers: BTreeSet<usize> = sites.iter().filter_map(|site| site.layer).collect();
    let (kind, why) = (CauseKind::ExpertCount, first.reason.as_deref().unwrap_or_default());
    let what = format!("{kind}: {}: {why}", kind.meaning());
    let finding = Finding {
        key: Some("num_experts_per_tok".to_owned()),
        layers: layers.into_iter().collect(),
        ..Finding::new(kind, first.site, what).of(sites)
    };
    Some(Cause::once(CauseSearch::Stages, finding))
}

/// Returns true if `site` is a feed-forward output that was computed with a different number of experts.
pub(super) fn follows(rows: &[SiteResult], site: Site) -> bool {
    let is_there = |row: &SiteResult| (row.site.layer, row.site.pass) == (site.layer, site.pass);
    site.point == Point::FfnOut && of_others(rows).any(is_there)
}
