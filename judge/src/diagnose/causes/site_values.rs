//! One cause with a different value at each site: the scales of a KV cache, which differ between keys and values, and
//! between layers.

use std::collections::BTreeMap;

use crate::catalogue::OperationChange;
use crate::change::{CauseKind, ChangeValue};
use crate::check::UnexplainedOperation;
use crate::checkpoint::Point;
use crate::diagnose::causes::Changes;
use crate::diagnose::causes::operation_search::{SearchContext, SearchResult};

/// Replaces the value of the first site by the values of all sites, one change for each tap. Layers with different values
/// are listed in order.
pub(super) fn merge(search: &SearchContext, searched: &mut SearchResult, done: &[&UnexplainedOperation]) {
    let Some([change]) = searched.named() else { return };
    if change.entry.kind != CauseKind::CacheScale {
        return;
    }
    let first = vec![change.clone()];
    let mut values: BTreeMap<Point, BTreeMap<usize, OperationChange>> = BTreeMap::new();
    for one in done {
        let Some(layer) = one.site.layer else { continue };
        if let Some(change) = search.stage(one).shares(&first).and_then(|changes| changes.into_iter().next())
        {
            values.entry(one.site.point).or_default().entry(layer).or_insert(change);
        }
    }
    let layers = search.operations.n_layers();
    let merged: Vec<OperationChange> = values
        .into_iter()
        .filter_map(|(point, by_layer)| {
            let (_, first) = by_layer.first_key_value()?;
            let value = match by_layer.values().all(|change| change.value == first.value) {
                true => first.value.clone(),
                false => {
                    let of_layer = |layer| {
                        by_layer.get(&layer).map_or("1".to_owned(), |change| change.value.to_string())
                    };
                    ChangeValue::Word((0..layers).map(of_layer).collect::<Vec<_>>().join(";"))
                }
            };
            Some(OperationChange::new(first.entry, value).at(point))
        })
        .collect();
    // Other notations of the same scale are no alternatives.
    let is_other = |fit: &Changes| fit.iter().any(|change| change.entry.kind != CauseKind::CacheScale);
    if !merged.is_empty() {
        searched.fits.retain(is_other);
        searched.fits.insert(0, merged);
    }
}
