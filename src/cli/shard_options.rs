//! The arguments of `--shard`.

use clap::Args;

use crate::error::{Error, Result};
use crate::plan::{self, Shard};

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ShardOptions {
    /// Judge one of N equal shards, e.g. 3/16, or `auto` from the scheduler
    ///
    /// Shards are counted from 1. `auto` reads the variables of Slurm, GitLab, Buildkite, CircleCI,
    /// Kubernetes or AWS Batch. A shard judges local errors, as with --introduced, or each layer with
    /// --from-reference. `xcheck merge` combines the reports.
    #[arg(long, value_name = "K/N|auto", value_parser = shard, help_heading = "Shards")]
    shard: Option<ShardChoice>,
    /// Continue an interrupted run of this shard, with the same --report
    ///
    /// Finished units are not judged again.
    #[arg(long, requires = "shard", conflicts_with = "no_report", help_heading = "Shards")]
    pub(crate) resume: bool,
}

/// A shard by its number, or the environment of a scheduler.
#[derive(Clone, Copy, Debug)]
enum ShardChoice {
    Is(Shard),
    Auto,
}

fn shard(text: &str) -> std::result::Result<ShardChoice, String> {
    if text == "auto" { Ok(ShardChoice::Auto) } else { text.parse().map(ShardChoice::Is) }
}

impl ShardOptions {
    /// Returns true if a shard was requested.
    pub(crate) fn is_given(&self) -> bool {
        self.shard.is_some()
    }

    /// Returns the requested shard, if any.
    ///
    /// # Errors
    /// If `auto` is given and no scheduler's variables are set.
    pub(crate) fn choice(&self) -> Result<Option<Shard>> {
        Ok(match self.shard {
            None => None,
            Some(ShardChoice::Is(shard)) => Some(shard),
            Some(ShardChoice::Auto) => Some(plan::from_environment(|name| std::env::var(name).ok())?),
        })
    }

    /// Checks that a shard is requested for exactly one dump.
    ///
    /// # Errors
    /// If a shard is requested, and there is no dump or there are several.
    pub(crate) fn check_one(&self, dumps: usize, cases: usize, option: &str) -> Result<()> {
        match (self.is_given(), dumps, cases) {
            (false, ..) | (true, 1, 0) => Ok(()),
            (.., 0) => Err(Error::Usage(format!(
                "--shard: expected a single dump, got {dumps}; name one with {option}, and shard each dump \
                    separately"
            ))),
            _ => Err(Error::Usage("--shard: a known case cannot be split into parts; use a dump".to_owned())),
        }
    }
}
