//! Shard numbers from the environment variables of schedulers.

use crate::error::{Error, Result};
use crate::plan::Shard;

/// Environment variable with the number of shards, for schedulers that do not set one.
const SHARDS: &str = "XCHECK_SHARDS";

/// A scheduler that numbers its jobs.
struct Scheduler {
    name: &'static str,
    index: &'static str,
    /// Index of the first job.
    first: FirstIndex,
    /// Environment variable with the number of jobs.
    count: Option<&'static str>,
}

/// Index of a scheduler's first job.
enum FirstIndex {
    Is(usize),
    /// Environment variables with the first index, the last index and the step of a job array.
    Told([&'static str; 3]),
}

/// Known schedulers. Sources: Slurm, "Job Array Support"; GitLab, "Predefined CI/CD variables" (the index is
/// only set with `parallel:`, the total always); Buildkite, "Environment variables"; CircleCI, "Project
/// values and variables"; Kubernetes, "Indexed Job for Parallel Processing with Static Work Assignment"; AWS
/// Batch, "Job environment variables".
const KNOWN: [Scheduler; 6] = [
    Scheduler {
        name: "Slurm",
        index: "SLURM_ARRAY_TASK_ID",
        first: FirstIndex::Told(["SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP"]),
        count: Some("SLURM_ARRAY_TASK_COUNT"),
    },
    Scheduler {
        name: "GitLab",
        index: "CI_NODE_INDEX",
        first: FirstIndex::Is(1),
        count: Some("CI_NODE_TOTAL"),
    },
    Scheduler {
        name: "Buildkite",
        index: "BUILDKITE_PARALLEL_JOB",
        first: FirstIndex::Is(0),
        count: Some("BUILDKITE_PARALLEL_JOB_COUNT"),
    },
    Scheduler {
        name: "CircleCI",
        index: "CIRCLE_NODE_INDEX",
        first: FirstIndex::Is(0),
        count: Some("CIRCLE_NODE_TOTAL"),
    },
    Scheduler { name: "Kubernetes", index: "JOB_COMPLETION_INDEX", first: FirstIndex::Is(0), count: None },
    Scheduler {
        name: "AWS Batch",
        index: "AWS_BATCH_JOB_ARRAY_INDEX",
        first: FirstIndex::Is(0),
        count: Some("AWS_BATCH_JOB_ARRAY_SIZE"),
    },
];

/// Returns the shard from the environment. `XCHECK_SHARDS` overrides the scheduler's number of jobs, for
/// example when only a few jobs run again. Indices then count from the scheduler's first index, 0 for Slurm.
///
/// # Errors
/// If no scheduler's variables are set, one is not a number, or two contradict each other.
pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Shard> {
    let environment = SchedulerEnvironment { variable: &variable };
    let mut told: Vec<(&str, Shard)> = Vec::new();
    for scheduler in &KNOWN {
        if let Some(shard) = environment.shard(scheduler)? {
            told.push((scheduler.name, shard));
        }
    }
    let Some(&(_, shard)) = told.first() else {
        let names: Vec<_> = KNOWN.iter().map(|known| format!("{} ({})", known.index, known.name)).collect();
        return Err(Error::Usage(format!(
            "--shard auto: no scheduler found, expected one of the variables {}; give e.g. --shard 3/16",
            names.join(", ")
        )));
    };
    if told.iter().any(|(_, other)| *other != shard) {
        let told: Vec<_> = told.iter().map(|(name, shard)| format!("{name} has {shard}")).collect();
        return Err(Error::Usage(format!(
            "--shard auto: contradictory schedulers: {}; give e.g. --shard 3/16",
            told.join(", ")
        )));
    }
    Ok(shard)
}

struct SchedulerEnvironment<'e> {
    variable: &'e dyn Fn(&str) -> Option<String>,
}

impl SchedulerEnvironment<'_> {
    fn shard(&self, scheduler: &Scheduler) -> Result<Option<Shard>> {
        let Some(index) = self.number(scheduler.index)? else { return Ok(None) };
        let shards = self.number(SHARDS)?;
        let count = scheduler.count.map(|name| self.number(name)).transpose()?.flatten();
        let (first, step) = match (&scheduler.first, shards) {
            (FirstIndex::Is(first), _) => (*first, 1),
            (FirstIndex::Told(_), Some(_)) => (0, 1),
            (FirstIndex::Told(names), None) => self.gapless(names, count)?,
        };
        let of = shards.or(count).ok_or_else(|| {
            let (name, index) = (scheduler.name, scheduler.index);
            Error::Usage(format!(
                "--shard auto: {name} sets {index} but not the number of shards; set {SHARDS}"
            ))
        })?;
        let shard = index.checked_sub(first).map(|after| Shard { index: after / step + 1, of });
        match shard.filter(|shard| shard.index <= shard.of) {
            Some(shard) => Ok(Some(shard)),
            None => Err(Error::Usage(format!(
                "--shard auto: {} is {index}, expected one of {of} shards, counted from {first}; give e.g. \
                    --shard 3/16",
                scheduler.index
            ))),
        }
    }

    /// Returns the first index and the step of a job array.
    ///
    /// # Errors
    /// If the array has gaps, because then it may be a rerun of some jobs only.
    fn gapless(&self, [min, max, step]: &[&str; 3], count: Option<usize>) -> Result<(usize, usize)> {
        let (first, last) = (self.number(min)?.unwrap_or(0), self.number(max)?);
        let step = self.number(step)?.unwrap_or(1).max(1);
        match (last, count) {
            (Some(last), Some(count)) if last.saturating_sub(first) / step + 1 != count => {
                Err(Error::Usage(format!(
                    "--shard auto: the array has only {count} of the indices {first} to {last}; use an array \
                     that starts at 0, and set {SHARDS} to the number of shards"
                )))
            }
            _ => Ok((first, step)),
        }
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = (self.variable)(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        let number = text.parse().map_err(|_| {
            Error::Usage(format!(
                "--shard auto: {name} is '{text}', expected a number; give e.g. --shard 3/16"
            ))
        })?;
        Ok(Some(number))
    }
}
