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
    /// The dump to judge: a directory, .safetensors or .npz, or one that ships (tiny-llama2/transformers-f32); several are
    /// judged one after the other. Or a stream, judged while it comes: - for standard input, or a FIFO
    #[arg(value_name = "DUMP", required = true)]
    dump: Vec<String>,
    #[command(flatten)]
    prompt: PromptOptions,
    #[command(flatten)]
    pub(super) options: JudgingOptions,
}

/// Judges what each stage has made of the values that the dump itself holds.
pub fn run(args: &Args) -> Result<Verdict> {
    judge_candidates(&args.dump, (&args.options, &args.prompt), Mode::Introduced, ("audit", None))
}
