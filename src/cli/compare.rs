//! `xcheck compare`: two dumps of any producers.

use clap::Args as ClapArgs;

use crate::cli::options::{OutputOptions, SelectOptions};
use crate::cli::output::Output;
use crate::cli::run::command;
use crate::cli::target::dump_named;
use crate::compare::{Role, Verdict};
use crate::diagnose::{Mode, Rules, cross_check_dumps};
use crate::error::Result;
use crate::report::{Comparison, ModelRecord, Report};

/// Arguments of `xcheck compare`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The dump to judge: a directory, .safetensors or .npz, or one that ships (tiny-llama2/transformers-f32)
    candidate: String,
    /// The dump to judge it against, likewise
    reference: String,
    #[command(flatten)]
    select: SelectOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// Compares two dumps.
pub fn run(args: &Args) -> Result<Verdict> {
    let (candidate, reference) = (dump_named(&args.candidate)?, dump_named(&args.reference)?);
    let (selection, tolerances) = (args.select.selection(), args.select.tolerances()?);
    let output = Output::open(&args.output, &format!("compare-{}", candidate.name))?;
    let precision = reference.dump.manifest.producer.precision().unwrap_or("any");
    let rules = Rules {
        selection: &selection,
        tolerances: &tolerances,
        precision,
        mode: Mode::Total,
        role: Role::Reference,
        is_stated: true,
    };
    let outcome = cross_check_dumps(&reference.name, &candidate.dump, &reference.dump, rules)?;
    let manifest = &candidate.dump.manifest;
    let model = ModelRecord {
        name: manifest.model.name.clone(),
        architecture: manifest.architecture().to_owned(),
        format: "dump".to_owned(),
        quantisation: precision.to_owned(),
        sha256: manifest.model.sha256.clone(),
    };
    let mut again = vec!["compare".to_owned(), candidate.typed, reference.typed.clone()];
    again.extend(args.select.tolerance_words());
    let results = vec![Comparison { model, outcome, again, reference: Some(reference.typed) }];
    output.finish(&Report { command: command(), results, checkpoints: selection.checkpoints })
}
