//! Verdicts: the rule for one site, choices of tokens and experts, and the verdict of a whole dump with its
//! coverage.

mod cause;
mod conclusion;
mod coverage;
mod evidence;
mod expert_choices;
mod finding;
mod half_precision;
mod noise_floor_verdict;
mod outcome;
mod rule;
mod site_description;
mod site_result;
mod ties;
mod unit_rows;

pub(crate) use cause::{Cause, CauseContent, CauseSearch, FittingChange};
pub(crate) use conclusion::conclude;
pub use coverage::NOT_RECORDED;
pub(crate) use coverage::once_each;
pub use evidence::{Basis, Evidence};
pub(crate) use evidence::{MissingSite, SideTaps};
pub use finding::{Finding, changes_of};
pub(crate) use outcome::CheckpointSummary;
pub use outcome::{ComparisonSubject, Coverage, Outcome};
pub use site_result::{Doubt, SiteResult, Verdict, Waiver};

pub(crate) use cause::{MOST, MOST_PARTS};
pub(crate) use evidence::OUR_ENGINE;
pub(crate) use finding::joined;
pub(crate) use half_precision::is_half_precision;
pub(crate) use ties::LogitSource;
pub(crate) use unit_rows::{TieEvidence, UnitRows, one_sided};
