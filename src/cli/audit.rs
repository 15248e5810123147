//! `xcheck audit`: short for `xcheck check --introduced`, with dumps as arguments.

use clap::Args;

use crate::check::Mode;
use crate::cli::check::judge_candidates;
use crate::cli::comparison::ComparisonOptions;
use crate::cli::prompt::PromptOptions;
use crate::cli::torch_evaluator::EvaluatorOptions;
use crate::error::{Error, Result};
use crate::verdict::Verdict;

/// Arguments of `xcheck audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Dump to check: a path, a URL, a shipped name, or - for standard input
    ///
    /// A path is a directory, a .safetensors or a .npz file. A shipped name is e.g.
    /// tiny-llama2/transformers-f32. Several dumps are judged one after the other. A stream (- for standard
    /// input, or a FIFO) is judged while it arrives.
    #[arg(value_name = "DUMP", required = true)]
    dump: Vec<String>,
    #[command(flatten)]
    pub(super) options: ComparisonOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    #[command(flatten)]
    evaluator: EvaluatorOptions,
}

/// Judges each operation by the dump's own inputs, or each layer with `--from-reference`.
///
/// # Errors
/// If accumulated errors are requested, and the errors of `check`.
pub(crate) fn run(args: &AuditArgs) -> Result<Verdict> {
    let mode = match args.options.mode()? {
        Mode::Both => Mode::Local,
        Mode::Accumulated => {
            return Err(Error::Usage(
                "--total: audit measures local errors; use xcheck check --total".to_owned(),
            ));
        }
        mode => mode,
    };
    judge_candidates(&args.dump, (&args.options, &args.prompt, &args.evaluator), mode, ("audit", None))
}
