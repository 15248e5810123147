//! `xcheck compare`: compares two dumps of any engines.

use std::path::Path;
use std::time::SystemTime;

use clap::Args;

use crate::check::{EngineRounding, Mode, Role, Rules};
use crate::checkpoint::ValueKind;
use crate::cli::check::judged;
use crate::cli::comparison::ComparisonOptions;
use crate::cli::mapped_files::{MapOptions, MappedFileContext, is_foreign, told_by};
use crate::cli::mode_options::GateName;
use crate::cli::named_dump::NamedDump;
use crate::cli::names::{command, dump_name, folder_name};
use crate::cli::options::{CauseOptions, OutputOptions, RequestedModelOptions, SelectionOptions};
use crate::cli::output::ReportOutput;
use crate::cli::prompt::{PromptOptions, token_id};
use crate::cli::references::dumps_named;
use crate::cli::token_texts::texts;
use crate::cli::torch_evaluator::EvaluatorOptions;
use crate::diagnose::cross_check_dumps;
use crate::dump::{Dump, Producer};
use crate::error::{Error, Result};
use crate::report::{Comparison, ModelRecord, Report, Timing};
use crate::verdict::{Outcome, SiteResult, Verdict};

/// Arguments of `xcheck compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Dump under test: a path, a URL or a shipped name
    ///
    /// A path is a directory, a .safetensors or a .npz file. A shipped name is e.g.
    /// tiny-llama2/transformers-f32.
    candidate: String,
    /// Reference dump: a path, a URL or a shipped name
    reference: String,
    /// Model of both dumps; tells which of the two is wrong
    ///
    /// With it, each dump is checked against its own inputs and the weights, as `xcheck audit` does.
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    select: SelectionOptions,
    /// Rule for errors above their tolerance
    ///
    /// `rounding` makes errors that 16-bit rounding may explain inconclusive; `tolerance` fails them.
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value = "rounding",
        conflicts_with = "model",
        help_heading = "Judging"
    )]
    gate: GateName,
    #[command(flatten)]
    causes: CauseOptions,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    map: MapOptions,
    /// Token ids that both sides read, e.g. 1,15043
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        value_parser = token_id,
        help_heading = "Files without a manifest"
    )]
    tokens: Option<Vec<u32>>,
}

/// Compares two dumps. Errors after the report is opened are also in the report.
pub(crate) fn run(args: &CompareArgs) -> Result<Verdict> {
    let name = folder_name("compare", &dump_name(args.candidate.as_ref()), &[&args.reference]);
    let mut output = ReportOutput::open(&args.output, &name)?;
    let report = output.or_refuse(|output| match &args.model {
        Some(model) => audit_both(args, model, output),
        None => compare(args),
    })?;
    output.finish(&report)
}

fn compare(args: &CompareArgs) -> Result<Report> {
    let (candidates, references) = both(args)?;
    if candidates.len() != references.len() {
        let counts = [(&args.candidate, candidates.len()), (&args.reference, references.len())];
        let counts = counts.map(|(typed, count)| format!("{typed} has {count}"));
        let problem = format!(
            "{}: the numbers of sequences differ, expected the same; select one with DUMP#0",
            counts.join(" sequences, ")
        );
        return Err(Error::Usage(problem));
    }
    let pairs = candidates.into_iter().zip(references);
    let results =
        pairs.map(|(candidate, reference)| compared(args, candidate, reference)).collect::<Result<_>>()?;
    Ok(Report { command: command(), results, checkpoints: args.select.selection().checkpoints, served: None })
}

/// Opens both sides. If one side is a file without a manifest and the other a dump, the file is read with the
/// dump's tokens and facts.
fn both(args: &CompareArgs) -> Result<(Vec<NamedDump>, Vec<NamedDump>)> {
    let target = args.model.as_deref().map(|model| RequestedModelOptions::of(model).find()).transpose()?;
    let mut foreign = MappedFileContext::new(&args.map, args.tokens.clone(), target.as_ref());
    let is_first = is_file_without_manifest(&args.candidate)?;
    let order =
        if is_first { [&args.reference, &args.candidate] } else { [&args.candidate, &args.reference] };
    let one = dumps_named(order[0], &foreign)?;
    if let [told] = one.as_slice() {
        foreign.beside = told_by(&told.dump);
    }
    let other = dumps_named(order[1], &foreign)?;
    let (candidates, references) = if is_first { (other, one) } else { (one, other) };
    if references.iter().all(|dump| dump.words.is_empty()) {
        foreign.check_used(&candidates)?;
    }
    Ok((candidates, references))
}

fn is_file_without_manifest(typed: &str) -> Result<bool> {
    let path = Path::new(typed);
    if path.exists() { is_foreign(path) } else { Ok(false) }
}

fn compared(args: &CompareArgs, candidate: NamedDump, reference: NamedDump) -> Result<Comparison> {
    let started = SystemTime::now();
    let (selection, tolerances) = (args.select.selection(), args.select.tolerances()?);
    let precision = reference.dump.manifest.producer.precision().unwrap_or("any");
    let rules = Rules {
        selection: &selection,
        tolerances: &tolerances,
        precision,
        gate: args.gate.gate(),
        mode: Mode::Accumulated,
        role: Role::Reference,
        rounding: EngineRounding::Stated,
        is_stated: true,
        suppositions: &[],
        causes: args.causes.are_sought(),
        budget: None,
    };
    let mut outcome = cross_check_dumps(&reference.name, &candidate.dump, &reference.dump, rules)?;
    let manifest = &candidate.dump.manifest;
    outcome.notes.extend([&candidate, &reference].into_iter().flat_map(|named| named.notes.clone()));
    outcome.lack(&[candidate.lacking.as_slice(), &reference.lacking].concat());
    outcome.notes.extend(one_file(&candidate.dump, &reference.dump));
    outcome.notes.extend(computed_otherwise(&manifest.producer, precision));
    outcome.notes.extend(args.causes.note(outcome.verdict));
    if outcome.verdict == Verdict::Fail {
        outcome.notes.push(MORE.to_owned());
    }
    let model = ModelRecord {
        name: manifest.model.name.clone(),
        architecture: manifest.architecture().to_owned(),
        format: ModelRecord::DUMP.to_owned(),
        quantisation: precision.to_owned(),
        sha256: manifest.model.sha256.clone(),
    };
    let mut again = vec!["compare".to_owned(), candidate.typed.clone(), reference.typed.clone()];
    let words = if candidate.words.is_empty() { &reference.words } else { &candidate.words };
    again.extend(words.iter().filter(|word| !word.is_empty()).cloned());
    again.extend(args.select.tolerance_words());
    again.extend(args.gate.words());
    let (reference, timing) = (reference.words.is_empty().then_some(reference.alone), Timing::since(started));
    let tokens = texts(None, &outcome, manifest);
    Ok(Comparison { model, outcome, again, reference, tokens, timing, sharded: None })
}

/// Judges each dump by its own inputs and the weights, and reports how far the two dumps differ.
fn audit_both(args: &CompareArgs, model: &str, output: &ReportOutput) -> Result<Report> {
    let apart: Vec<String> = compare(args)?.results.iter().map(|result| apart(&result.outcome)).collect();
    let options = ComparisonOptions {
        target: RequestedModelOptions::of(model),
        select: args.select.clone(),
        causes: args.causes.clone(),
        map: args.map.clone(),
        output: args.output.clone(),
        ..ComparisonOptions::default()
    };
    let dumps = [args.candidate.clone(), args.reference.clone()];
    let prompt = PromptOptions { prompt: None, tokens: args.tokens.clone() };
    let mut report = judged(
        &dumps,
        (&options, &prompt, &EvaluatorOptions::default()),
        Mode::Local,
        ("audit", None),
        output,
    )?;
    let outcomes = report.results.iter_mut().map(|result| &mut result.outcome);
    let sides =
        ["candidate", "reference"].into_iter().flat_map(|side| apart.iter().map(move |apart| (side, apart)));
    for (outcome, (side, apart)) in outcomes.zip(sides) {
        outcome.notes.insert(0, format!("this result judges the {side} alone; {apart}"));
    }
    Ok(report)
}

/// Describes the largest relative difference between two dumps.
fn apart(outcome: &Outcome) -> String {
    let error = |row: &SiteResult| row.accumulated.as_ref().map_or(0.0, |found| found.errors.max_scaled);
    let real = outcome.rows.iter().filter(|row| row.site.point.kind() == ValueKind::Real);
    match real.max_by(|a, b| error(a).total_cmp(&error(b))) {
        None => "the two dumps have nothing in common to compare".to_owned(),
        Some(row) => {
            format!("the largest relative difference of the two dumps is at {}: {:.1e}", row.site, error(row))
        }
    }
}

/// Note on what a comparison without a model cannot show.
const MORE: &str = "two dumps alone show only accumulated errors, judged by the tolerance table; use --model \
                    to evaluate each operation of both dumps against exact values";

/// Returns a note if the candidate was computed in another precision, which is not a fault.
fn computed_otherwise(candidate: &Producer, precision: &str) -> Option<String> {
    let other = candidate.precision().filter(|other| *other != precision)?;
    Some(format!("the candidate was computed in {other}, but is judged by the tolerance for {precision}"))
}

/// Returns a note if both sides are the same file.
fn one_file(candidate: &Dump, reference: &Dump) -> Option<String> {
    let place = |dump: &Dump| dump.path.canonicalize().ok();
    let is_one = place(candidate).is_some() && place(candidate) == place(reference);
    let is_one = is_one && candidate.manifest.sequence == reference.manifest.sequence;
    is_one.then(|| "candidate and reference are the same file, so the comparison shows nothing".to_owned())
}
