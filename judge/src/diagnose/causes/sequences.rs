//! Attention leaks between sequences, found from attention weights at foreign keys.

use std::collections::HashSet;

use crate::change::CauseKind;
use crate::check::UnexplainedOperation;
use crate::checkpoint::{Point, Site};
use crate::dump::Dump;
use crate::error::Result;
use crate::verdict::{Cause, CauseSearch};

/// Finds queries that attend to keys of another sequence or of padding. With a correct mask, those attention
/// weights are zero.
///
/// # Errors
/// If an array cannot be read.
pub(super) fn foreign_keys(dump: &Dump, open: &[&UnexplainedOperation]) -> Result<Option<Cause>> {
    let (mut places, mut owners) = (HashSet::new(), HashSet::new());
    for one in open.iter().filter(|one| one.site.point == Point::AttnWeights) {
        let seen = seen_owners(dump, one.site)?;
        places.extend((!seen.is_empty()).then_some(one.site));
        owners.extend(seen);
    }
    if places.is_empty() {
        return Ok(None);
    }
    // The attention context computed from the leaking weights is wrong as well.
    let follows = |site: &Site| matches!(site.point, Point::AttnWeights | Point::AttnContext);
    let of_weights = |site: &Site| places.contains(&Site { point: Point::AttnWeights, ..*site });
    let sites = open.iter().map(|one| one.site).filter(|site| follows(site) && of_weights(site)).collect();
    let whose = match (owners.contains(&None), owners.iter().any(Option::is_some)) {
        (true, false) => "of padding",
        (false, _) => "of other sequences",
        (true, true) => "of padding and of other sequences",
    };
    let own = dump.manifest.sequence.as_deref().unwrap_or("0");
    let what = format!("mask_sequences: queries of sequence {own} attend to keys {whose}; mask these keys");
    Ok(Some(Cause::described(CauseSearch::Stages, CauseKind::MaskSequences, sites, what)))
}

/// Returns the owners of foreign keys with a nonzero attention weight. `None` in the set means padding.
fn seen_owners(dump: &Dump, site: Site) -> Result<HashSet<Option<usize>>> {
    let Some(foreign) = dump.foreign(site)? else { return Ok(HashSet::new()) };
    let mut weights = vec![0.0; foreign.values.width()];
    let mut owners = HashSet::new();
    for row in 0..foreign.values.rows() {
        foreign.values.read(row, 0..weights.len(), &mut weights);
        let seen = weights.iter().zip(&foreign.owners).filter(|(weight, _)| **weight != 0.0);
        owners.extend(seen.map(|(_, owner)| *owner));
    }
    Ok(owners)
}
