//! `xcheck check`: another engine's activations against what our engine makes of their own inputs.

use clap::Args as ClapArgs;

use crate::cli::judging::{Judging, ModeOptions, Models};
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{ModelOptions, OutputOptions, SelectOptions, TargetOptions, ThreadOptions};
use crate::cli::output::{Output, folder_name, model_name};
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
    /// The dump to judge: a directory, .safetensors or .npz, or one that ships (tiny-llama2/transformers-f32); can be given several times
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

/// Judges each candidate; whatever goes wrong once the report has a place is in the report, too.
pub fn run(args: &Args) -> Result<Verdict> {
    let named: Vec<&str> = args.candidate.iter().map(String::as_str).collect();
    let name = folder_name("check", model_name(&args.target.model), &named);
    let mut output = Output::open(&args.output, &name)?;
    let report = output.or_refuse(check(args))?;
    output.finish(&report)
}

/// Runs our engine along each candidate and judges what each of its stages made of its inputs.
fn check(args: &Args) -> Result<Report> {
    let target = args.target.find()?;
    let candidates = args.candidate.iter().map(|typed| dump_named(typed)).collect::<Result<Vec<_>>>()?;
    let (selection, tolerances) = (args.mode.selection(&args.select), args.select.tolerances()?);
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
    Ok(Report { command: command(), results, checkpoints: selection.checkpoints.clone() })
}
