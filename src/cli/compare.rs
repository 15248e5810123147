//! `xcheck compare`: two dumps of any producers.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args as ClapArgs;

use crate::cli::options::{OutputOptions, SelectOptions};
use crate::cli::output::Output;
use crate::cli::run::command;
use crate::cli::target::dump_name;
use crate::compare::{Role, Verdict};
use crate::diagnose::{Mode, Rules, cross_check_dumps};
use crate::dump::Dump;
use crate::error::Result;
use crate::report::{Comparison, ModelRecord, Report, Timing};

/// Arguments of `xcheck compare`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The dump to judge: a directory, .safetensors or .npz
    candidate: PathBuf,
    /// The dump to judge it against
    reference: PathBuf,
    #[command(flatten)]
    select: SelectOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// Compares two dumps; whatever goes wrong after the report's place is made is in the report, too.
pub fn run(args: &Args) -> Result<Verdict> {
    let [candidate, reference] = [&args.candidate, &args.reference].map(|path| dump_name(path));
    let mut output = Output::open(&args.output, &format!("compare-{candidate}-{reference}"))?;
    let report = output.or_refuse(compare(args))?;
    output.finish(&report)
}

fn compare(args: &Args) -> Result<Report> {
    let started = SystemTime::now();
    let (candidate, reference) = (Dump::open(&args.candidate)?, Dump::open(&args.reference)?);
    let (selection, tolerances) = (args.select.selection(), args.select.tolerances()?);
    let precision = reference.manifest.producer.precision().unwrap_or("any").to_owned();
    let rules = Rules {
        selection: &selection,
        tolerances: &tolerances,
        precision: &precision,
        mode: Mode::Total,
        role: Role::Reference,
    };
    let outcome = cross_check_dumps(&dump_name(&args.reference), &candidate, &reference, rules)?;
    let model = ModelRecord {
        name: candidate.manifest.model.name.clone(),
        architecture: candidate.manifest.architecture().to_owned(),
        format: ModelRecord::DUMP.to_owned(),
        quantisation: precision.clone(),
        sha256: candidate.manifest.model.sha256.clone(),
    };
    let [candidate, reference] = [&args.candidate, &args.reference].map(|path| path.display().to_string());
    let mut again = vec!["compare".to_owned(), candidate, reference.clone()];
    again.extend(args.select.tolerance_words());
    let (reference, timing) = (Some(reference), Timing::since(started));
    let results = vec![Comparison { model, outcome, again, reference, timing }];
    Ok(Report { command: command(), results, checkpoints: selection.checkpoints })
}
