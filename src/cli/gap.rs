//! `xcheck gap`: log-probabilities of a rollout engine against those of a trainer.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::atomic_write::write_whole;
use crate::cli::gap_model::{ModelAssessments, against_model};
use crate::cli::gap_page::gap_page;
use crate::cli::options::{
    FormatOptions, ModelOptions, RequestedModelOptions, SuppositionOptions, ThreadOptions,
};
use crate::cli::requested_model::RequestedModel;
use crate::cli::terminal::tell;
use crate::error::{Error, Result};
use crate::gap::{
    GapAssessment, GapOptions, LogOddsScale, PolicySide, RecordSource, SequenceJoin, assess, gap_table,
};
use crate::verdict::Verdict;

/// Arguments of `xcheck gap`.
#[derive(Debug, Args)]
pub(crate) struct GapArgs {
    /// Rollout log-probabilities: JSONL, Parquet, .npz, .pt or .safetensors
    ///
    /// JSONL has one sequence in a line: {"tokens": [...], "logprobs": [null, ...]}, and optionally prompt_length,
    /// temperature, version, dtype and routed_experts. Field names of TRL, verl, OpenRLHF, NeMo-RL and slime are known.
    rollout: PathBuf,
    /// Log-probabilities of the trainer for the same tokens
    ///
    /// Without it, ROLLOUT must have both columns, of the usual names or those of --columns.
    trainer: Option<PathBuf>,
    /// Fields with the log-probabilities of rollout and trainer
    #[arg(long, value_name = "ROLLOUT,TRAINER", value_delimiter = ',', num_args = 1)]
    columns: Vec<String>,
    /// Compute type of both sides, or two types: rollout,trainer
    #[arg(long, value_name = "TYPE[,TYPE]", value_delimiter = ',', num_args = 1)]
    dtype: Vec<String>,
    /// Report the share of importance ratios farther than this from 1
    #[arg(long, value_name = "EPSILON", default_value_t = 0.2)]
    clip: f64,
    /// Check each side against this model, to find the wrong side
    ///
    /// Our engine computes the log-probabilities of the first sequences in f32.
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Number of tokens that our engine reads
    #[arg(long, value_name = "N", default_value_t = 2048, requires = "model")]
    model_tokens: usize,
    /// Write an HTML page with plots of the differences and the worst tokens
    ///
    /// With --model, the page has the tokens' text.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    #[command(flatten)]
    output: FormatOptions,
    #[command(flatten)]
    suppose: SuppositionOptions,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
}

/// Compares both files and prints the report.
pub(crate) fn run(args: &GapArgs) -> Result<Verdict> {
    if !(args.clip > 0.0) {
        return Err(Error::Usage(format!("--clip {}: expected a number above 0", args.clip)));
    }
    let options = GapOptions {
        dtypes: args.dtypes()?,
        clip: args.clip,
        is_one_file: args.trainer.is_none(),
        has_figure: args.html.is_some(),
    };
    let target = args.model.as_deref().map(|model| RequestedModelOptions::of(model).find()).transpose()?;
    let found = assess(args.join()?, &options)?;
    let of_model = target.as_ref().map(|target| args.against(target, &found)).transpose()?;
    args.output.line(gap_table(&found).trim_end());
    if let Some(of_model) = &of_model {
        args.output.line(format_args!("\nModel: {}", of_model.sentence()));
        for (side, one) in [PolicySide::Rollout, PolicySide::Trainer].into_iter().zip(&of_model.sides) {
            args.output.line(format_args!("  {:<8} {}  {}", side.name(), one.verdict.name(), one.sentence));
            if let Some(replay) = &one.replay {
                args.output.line(format_args!("           {}", replay.sentence()));
            }
        }
    }
    let verdicts = of_model.iter().flat_map(|of_model| of_model.sides.iter().map(|side| side.verdict));
    let verdict = verdicts.fold(found.verdict, Ord::max);
    if let (Some(path), Some(figure)) = (&args.html, &found.figure) {
        // The verdict is already known. If the tokenizer cannot be read, the page only lacks the tokens' text.
        let tokenizer = target.as_ref().map_or(Ok(None), RequestedModel::tokenizer).unwrap_or_else(|error| {
            tell!("note: the page has no token texts: {error}");
            None
        });
        let page = gap_page(document(&found, of_model.as_ref(), verdict), figure, tokenizer.as_deref());
        write_whole(path, page.as_bytes()).map_err(Error::io("write", path))?;
    }
    args.output.document(|| document(&found, of_model.as_ref(), verdict));
    Ok(verdict)
}

fn document(found: &GapAssessment, of_model: Option<&ModelAssessments>, verdict: Verdict) -> Value {
    let mut document = json!(found);
    document["verdict"] = json!(verdict.name());
    if let Some(of_model) = of_model {
        let [rollout, trainer] = &of_model.sides;
        document["model"] = json!({
            "sentence": of_model.sentence(),
            "sequences": of_model.sequences,
            "rollout": rollout,
            "trainer": trainer,
        });
    }
    document
}

impl GapArgs {
    fn join(&self) -> Result<SequenceJoin> {
        let (rollout, trainer) = match self.columns.as_slice() {
            [] => (None, None),
            [rollout, trainer] if rollout != trainer => (Some(rollout.as_str()), Some(trainer.as_str())),
            _ => return Err(Error::Usage("--columns: expected two different names, ROLLOUT,TRAINER".into())),
        };
        let other = self.trainer.as_ref().unwrap_or(&self.rollout);
        let place = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
        let is_one_file = place(other) == place(&self.rollout);
        if self.trainer.is_some() && rollout.is_none() && is_one_file {
            return Err(Error::Usage(format!(
                "{} is given twice; name its two fields with --columns ROLLOUT,TRAINER",
                other.display()
            )));
        }
        let open = if is_one_file { RecordSource::of_both } else { RecordSource::open };
        let rollout = open(&self.rollout, PolicySide::Rollout, rollout)?;
        Ok(SequenceJoin::new(rollout, open(other, PolicySide::Trainer, trainer)?))
    }

    /// Compares the log-probabilities of both sides with the model's, in the compute types stated in `found`.
    fn against(&self, target: &RequestedModel, found: &GapAssessment) -> Result<ModelAssessments> {
        let loaded = self.model_options.load(&target.variants[0])?;
        let dtypes = found.dtypes.clone();
        let options = GapOptions { dtypes, clip: self.clip, is_one_file: false, has_figure: false };
        let supposed = self.suppose.suppositions(None);
        against_model(self.join()?, &*loaded.model, &supposed, (&options, self.model_tokens))
    }

    fn dtypes(&self) -> Result<[Option<String>; 2]> {
        if let Some(unknown) = self.dtype.iter().find(|dtype| LogOddsScale::named(dtype).is_none()) {
            return Err(Error::Usage(format!(
                "--dtype {unknown}: unknown type, expected {}",
                LogOddsScale::names()
            )));
        }
        match self.dtype.as_slice() {
            [] => Ok([None, None]),
            [both] => Ok([Some(both.clone()), Some(both.clone())]),
            [rollout, trainer] => Ok([Some(rollout.clone()), Some(trainer.clone())]),
            _ => Err(Error::Usage("--dtype: expected one type, or those of rollout and trainer".into())),
        }
    }
}
