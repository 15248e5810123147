//! Faults in a mixture's shared expert: the expert is missing, or its weight is.

use crate::change::{CatalogueEntry, CauseKind};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::shared_expert::exact::SharedSum;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::SharedExpert,
    keys: Some(["shared_expert_intermediate_size", "expert_shared_feed_forward_length"]),
    at: &[Point::FfnOut],
    takes: "none|unweighted",
    compute: |at, value| {
        let SharedSum { routed, outputs, weights } = at.stage()?;
        match value.as_word()? {
            "none" => Some(routed.clone()),
            "unweighted" if weights.is_some() => Some(at.n.add_shared(routed, outputs, None)),
            _ => None,
        }
    },
    ..CatalogueEntry::PLAIN
}];
