//! Alignment: the arrays of a dump in canonical layout, found by tap, layer and position, and the selection of
//! sites to compare.

mod aligned_dump;
mod alignment;
mod axis_slices;
mod choices;
mod dump_site;
pub(crate) mod expert_slots;
mod selection;
mod visible_keys;

pub use aligned_dump::AlignedDump;

pub(crate) use aligned_dump::RecordedRows;
pub use alignment::aligned;
pub(crate) use choices::logits_after;
pub use selection::{Checkpoints, Ranges, Selection};
pub(crate) use visible_keys::VisibleKeys;

pub(crate) use aligned_dump::is_of_a_pass;
pub(crate) use alignment::{repaired, unaligned};
pub(crate) use axis_slices::{ShapeDifference, among, axis, latest_keys, with_latest, without_padding};
pub(crate) use dump_site::{DumpSite, MissingValues, temperature_at};
pub(crate) use expert_slots::CommonExperts;
pub(crate) use visible_keys::ComparableEntries;
