//! Log-probabilities of the same tokens by two programs, such as the rollout engine and the trainer of reinforcement
//! learning: decides if their difference is rounding or a fault, and where it is.

mod assessment;
mod bias;
mod breakdown;
mod change_point;
mod expert_routes;
mod field_names;
mod figure;
mod finding;
mod json_lines;
mod logprob_error;
mod number_grid;
mod pair_view;
mod parquet;
mod pattern;
mod record;
mod record_source;
mod rounding_scales;
mod route_effect;
mod route_replay;
mod sentence;
mod sequence_join;
mod softmax_sum;
mod table;
mod tensor_batch;
mod token_route;
mod token_sample;
mod training_effect;
mod value_counts;

pub use assessment::{GapAssessment, GapOptions, PairTally, assess};
pub use expert_routes::ExpertRoutes;
pub use field_names::PolicySide;
pub use figure::GapFigure;
pub(crate) use finding::GapFinding;
pub use parquet::{ParquetFile, ParquetRow};
pub use record_source::RecordSource;
pub use rounding_scales::LogOddsScale;
pub use route_effect::RouteEffect;
pub use route_replay::RouteReplay;
pub use sequence_join::{JoinCounts, SequenceJoin, SequencePair};
pub use table::gap_table;
pub(crate) use token_sample::SampleSequence;
