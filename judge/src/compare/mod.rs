//! Comparison of two arrays, of two dumps, or of a running engine with a dump. Aligns values by position,
//! measures errors, and judges them.

mod alignment;
mod array_comparison;
mod axis_slices;
mod choices;
mod comparable_entries;
mod compared_dump;
mod draft_token;
mod dump_pair;
mod dump_site;
mod excess;
mod expert_slots;
mod input_precision;
mod live_comparison;
mod logprobs;
mod ranks;
mod role;
mod rounding_evaluation;
mod routers;
mod selection;
mod sketches;
mod tolerance;
mod unexplained_operation;
mod uniform_distribution;
mod verdict;
mod visible_keys;

pub use alignment::{Heads, aligned};
pub use array_comparison::ArrayComparison;
pub use choices::{GreedyChoices, logits_after};
pub use compared_dump::ComparedDump;
pub use draft_token::DraftToken;
pub use dump_pair::{DumpPair, SitePair};
pub use excess::{Excess, PerturbedErrors, Statistic};
pub use input_precision::InputPrecision;
pub use live_comparison::{EngineProperties, LiveComparison, LiveResults, is_of_logits};
pub use logprobs::{ListedIds, TopIds};
pub use role::{ContinuationValues, Role};
pub use rounding_evaluation::RoundingEvaluation;
pub use routers::Preference;
pub use selection::{Checkpoints, Ranges, Selection};
pub use sketches::{measure_sketches, sketch_of};
pub use tolerance::{Tolerance, Tolerances};
pub use unexplained_operation::UnexplainedOperation;
pub use uniform_distribution::UniformErrors;
pub use verdict::{
    Doubt, Gate, NoiseFloor, RecordedRows, SiteObservation, SiteResult, Verdict, VerdictCriteria, Waiver,
};
pub use visible_keys::VisibleKeys;
