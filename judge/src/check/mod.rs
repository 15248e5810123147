//! The check of each site: compares the values of two sources, a run of our engine and a dump or two dumps, and
//! keeps one record per site. Includes the runs of our engine along a dump.

mod budget;
mod choice_margins;
mod continuation_values;
mod continuations;
mod dump_pair;
mod engine_properties;
mod live_comparison;
mod logprobs;
mod ranks;
mod rounding_evaluation;
mod rules;
mod run_context;
mod runs;
mod site_check;
mod site_pair;
mod sketches;
mod starting_values;
mod tolerance;
mod uniform_distribution;

pub use budget::{Budget, SearchStep};
pub(crate) use choice_margins::{DraftToken, Preference};
pub use continuation_values::ContinuationValues;
pub(crate) use dump_pair::DumpPair;
pub use engine_properties::EngineProperties;
pub use live_comparison::LiveComparison;
pub(crate) use logprobs::ListedIds;
pub use rounding_evaluation::RoundingEvaluation;
pub use rules::{EngineRounding, Gate, Mode, Role, Rules};
pub use site_check::ArrayComparison;
pub(crate) use site_check::{SiteCheck, UnexplainedOperation, is_of_logits};
pub(crate) use sketches::{measure_sketches, sketch_of};
pub use tolerance::{Tolerance, Tolerances};
pub(crate) use uniform_distribution::UniformErrors;

pub(crate) use budget::Deadline;
pub(crate) use run_context::{ManifestStatement, RerunPart, RunContext};
pub(crate) use runs::{Preferences, RankMargins, RunPair, RunResults, continues, preferences, rank_margins};
pub(crate) use starting_values::{LayerInputs, SegmentSpan, StartingValueFinder};
