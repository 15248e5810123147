//! `xcheck check`: another engine's activations against what our engine makes of their own inputs.

use clap::Args as ClapArgs;

use crate::cli::judging::{Judging, ModeOptions, Models};
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{ModelOptions, OutputOptions, SelectOptions, TargetOptions, ThreadOptions};
use crate::cli::output::Output;
use crate::cli::run::command;
use crate::cli::target::dump_named;
use crate::compare::{Role, Verdict};
use crate::error::Result;
use crate::report::Report;

/// Arguments of `xcheck check`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    target: TargetOptions,
    /// The dump to judge: a directory, .safetensors or .npz; can be given several times
    #[arg(long, value_name = "DUMP", required = true)]
    candidate: Vec<String>,
    #[command(flatten)]
    select: SelectOptions,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
    #[command(flatten)]
    mode: ModeOptions,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs our engine along each candidate and judges what each of its stages made of its inputs.
pub fn run(args: &Args) -> Result<Verdict> {
    let target = args.target.find()?;
    let candidates = args.candidate.iter().map(|typed| dump_named(typed)).collect::<Result<Vec<_>>>()?;
    let (selection, tolerances) = (args.mode.selection(&args.select), args.select.tolerances()?);
    let output = Output::open(&args.output, &format!("check-{}", target.name))?;
    let judging = Judging {
        target: &target,
        selection: &selection,
        tolerances: &tolerances,
        numerics: &args.numerics,
        mode: &args.mode,
        model_options: &args.model_options,
        select: &args.select,
    };
    let mut models = Models::new(&args.model_options);
    let mut results = Vec::new();
    for candidate in &candidates {
        results.push(judging.of(candidate, Role::Candidate, &mut models)?);
    }
    output.finish(&Report { command: command(), results, checkpoints: selection.checkpoints.clone() })
}
