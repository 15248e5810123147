//! `xcheck audit`: a dump judged by its own inputs and the weights alone. No reference has a say.

use clap::Args as ClapArgs;

use crate::cli::check::judge_candidates;
use crate::cli::judging::JudgingOptions;
use crate::cli::prompt::PromptOptions;
use crate::compare::Verdict;
use crate::diagnose::Mode;
use crate::error::Result;

/// Arguments of `xcheck audit`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Dump to check: a path, a URL, a shipped name, or - for standard input
    ///
    /// A path is a directory, a .safetensors or a .npz file. A shipped name is e.g.
    /// tiny-llama2/transformers-f32. Several dumps are judged one after the other. A stream (- for standard
    /// input, or a FIFO) is judged while it arrives.
    #[arg(value_name = "DUMP", required = true)]
    dump: Vec<String>,
    #[command(flatten)]
    pub(super) options: JudgingOptions,
    #[command(flatten)]
    prompt: PromptOptions,
}

/// Judges each operation by the dump's own inputs.
pub fn run(args: &Args) -> Result<Verdict> {
    judge_candidates(&args.dump, (&args.options, &args.prompt), Mode::Local, ("audit", None))
}
