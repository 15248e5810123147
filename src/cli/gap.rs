//! `xcheck gap`: log-probabilities of a rollout engine against those of a trainer.

use std::path::PathBuf;

use clap::Args;

use crate::cli::options::FormatOptions;
use crate::error::{Error, Result};
use crate::gap::{GapOptions, PolicySide, RecordSource, RoundingScale, SequenceJoin, assess, gap_table};
use crate::verdict::Verdict;

/// Arguments of `xcheck gap`.
#[derive(Debug, Args)]
pub struct GapArgs {
    /// Log-probabilities of the rollout engine: JSONL, .npz, .pt or .safetensors
    ///
    /// JSONL has one sequence in a line: {"tokens": [...], "logprobs": [null, ...]}, and optionally prompt_length,
    /// temperature, version and dtype. Field names of TRL, verl, OpenRLHF, NeMo-RL and slime are known.
    rollout: PathBuf,
    /// Log-probabilities of the trainer for the same tokens
    ///
    /// Without it, ROLLOUT has both, as --columns or the usual names say.
    trainer: Option<PathBuf>,
    /// Fields with the log-probabilities of rollout and trainer
    #[arg(long, value_name = "ROLLOUT,TRAINER", value_delimiter = ',', num_args = 1)]
    columns: Vec<String>,
    /// Type of the arithmetic: of both, or of rollout and trainer
    #[arg(long, value_name = "TYPE[,TYPE]", value_delimiter = ',', num_args = 1)]
    dtype: Vec<String>,
    /// Importance ratios farther than this from 1 are clipped
    #[arg(long, value_name = "EPSILON", default_value_t = 0.2)]
    clip: f64,
    #[command(flatten)]
    output: FormatOptions,
}

/// Compares both files and prints the report.
pub fn run(args: &GapArgs) -> Result<Verdict> {
    let join = args.join()?;
    let found = assess(join, &GapOptions { dtypes: args.dtypes()?, clip: args.clip })?;
    args.output.line(gap_table(&found).trim_end());
    args.output.document(|| serde_json::to_value(&found).unwrap_or_default());
    Ok(found.verdict)
}

impl GapArgs {
    fn join(&self) -> Result<SequenceJoin> {
        let (rollout, trainer) = match self.columns.as_slice() {
            [] => (None, None),
            [rollout, trainer] if rollout != trainer => (Some(rollout.as_str()), Some(trainer.as_str())),
            _ => return Err(Error::Usage("--columns: expected two different names, ROLLOUT,TRAINER".into())),
        };
        let other = self.trainer.as_ref().unwrap_or(&self.rollout);
        if other == &self.rollout && rollout.is_none() && self.trainer.is_some() {
            return Err(Error::Usage(format!(
                "{} is given twice; name its two fields with --columns ROLLOUT,TRAINER",
                other.display()
            )));
        }
        let rollout = RecordSource::open(&self.rollout, PolicySide::Rollout, rollout)?;
        Ok(SequenceJoin::new(rollout, RecordSource::open(other, PolicySide::Trainer, trainer)?))
    }

    fn dtypes(&self) -> Result<[Option<String>; 2]> {
        if let Some(unknown) = self.dtype.iter().find(|dtype| RoundingScale::named(dtype).is_none()) {
            return Err(Error::Usage(format!("--dtype {unknown}: unknown type, expected {}", RoundingScale::names())));
        }
        match self.dtype.as_slice() {
            [] => Ok([None, None]),
            [both] => Ok([Some(both.clone()), Some(both.clone())]),
            [rollout, trainer] => Ok([Some(rollout.clone()), Some(trainer.clone())]),
            _ => Err(Error::Usage("--dtype: expected one type, or those of rollout and trainer".into())),
        }
    }
}
