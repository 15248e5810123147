//! `xcheck compare`: two dumps of any producers.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::cli::options::{OutputOptions, SelectOptions};
use crate::cli::output::Output;
use crate::cli::run::command;
use crate::cli::target::dump_name;
use crate::compare::{Role, Verdict};
use crate::diagnose::{Mode, Rules, cross_check_dumps};
use crate::dump::Dump;
use crate::error::Result;
use crate::report::{Comparison, ModelRecord, Report};

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

/// Compares two dumps.
pub fn run(args: &Args) -> Result<Verdict> {
    let (ours, theirs) = (Dump::open(&args.candidate)?, Dump::open(&args.reference)?);
    let (selection, tolerances) = (args.select.selection(), args.select.tolerances()?);
    let output = Output::open(&args.output, &format!("compare-{}", dump_name(&args.candidate)))?;
    let precision = theirs.manifest.producer.precision().unwrap_or("any").to_owned();
    let rules = Rules {
        selection: &selection,
        tolerances: &tolerances,
        precision: &precision,
        mode: Mode::Total,
        role: Role::Reference,
    };
    let outcome = cross_check_dumps(&dump_name(&args.reference), &ours, &theirs, rules)?;
    let model = ModelRecord {
        name: ours.manifest.model.name.clone(),
        architecture: ours.manifest.architecture().to_owned(),
        format: "dump".to_owned(),
        quantisation: precision.clone(),
        sha256: ours.manifest.model.sha256.clone(),
    };
    let [candidate, reference] = [&args.candidate, &args.reference].map(|path| path.display().to_string());
    let mut again = vec!["compare".to_owned(), candidate, reference.clone()];
    again.extend(args.select.tolerance_words());
    let results = vec![Comparison { model, outcome, again, reference: Some(reference) }];
    output.finish(&Report { command: command(), results, checkpoints: selection.checkpoints })
}
