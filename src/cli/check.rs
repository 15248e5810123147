//! `xcheck check`: compares another engine's activations with the results of our engine from the same inputs.

use clap::Args;
use clap::builder::UnknownArgumentValueParser;

use crate::check::{Mode, Role};
use crate::cli::comparison::{ComparisonContext, ComparisonOptions, LoadedModels};
use crate::cli::mapped_files::MappedFileContext;
use crate::cli::named_dump::{NamedDump, told_apart};
use crate::cli::names::{command as typed_command, folder_name, model_name};
use crate::cli::output::ReportOutput;
use crate::cli::prompt::PromptOptions;
use crate::cli::references::dumps_named;
use crate::cli::requested_model::RequestedModel;
use crate::cli::stream;
use crate::cli::torch_evaluator::EvaluatorOptions;
use crate::error::{Error, Result};
use crate::report::Report;
use crate::verdict::Verdict;

/// Arguments of `xcheck check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Dump to check: a path, a URL, a shipped name, or - for standard input
    ///
    /// A path is a directory, a .safetensors or a .npz file. A shipped name is e.g.
    /// tiny-llama2/transformers-f32. Several dumps are judged one after the other. A stream (- for standard
    /// input, or a FIFO) is judged while it arrives. Repeat the option for several dumps.
    #[arg(long, value_name = "DUMP", required = true)]
    candidate: Vec<String>,
    #[arg(long, hide = true, value_name = "DUMP", value_parser = UnknownArgumentValueParser::suggest(
        "use 'xcheck run --reference' to compare xcheck's own engine with a dump, 'xcheck compare A B' for two dumps"
    ))]
    reference: Option<()>,
    #[command(flatten)]
    pub(super) options: ComparisonOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    #[command(flatten)]
    evaluator: EvaluatorOptions,
}

/// Judges each candidate. Errors after the report is opened are also in the report.
pub(crate) fn run(args: &CheckArgs) -> Result<Verdict> {
    let command = ("check", Some("--candidate"));
    let options = (&args.options, &args.prompt, &args.evaluator);
    judge_candidates(&args.candidate, options, args.options.mode()?, command)
}

/// Runs our engine on each candidate's tokens and judges each operation by its inputs.
pub(super) fn judge_candidates(
    candidates: &[String],
    (options, prompt, evaluator): (&ComparisonOptions, &PromptOptions, &EvaluatorOptions),
    mode: Mode,
    command: (&'static str, Option<&'static str>),
) -> Result<Verdict> {
    let named: Vec<&str> = candidates.iter().map(String::as_str).collect();
    let name = folder_name(command.0, model_name(&options.target.model), &named);
    let mut output = options.open_output(&name)?;
    let stream = options.stream.of(candidates)?;
    let report = output.or_refuse(|output| match stream {
        Some(_) if !options.map.maps.is_empty() || prompt.is_given() => Err(Error::Usage(
            "--map, --prompt and --tokens cannot be used with a stream, which states its own arrays and \
                tokens; omit them"
                .to_owned(),
        )),
        Some(typed) => stream::judged(typed, options, mode, (command, Role::Candidate), output),
        None => judged(candidates, (options, prompt, evaluator), mode, command, output),
    })?;
    output.finish(&report)
}

/// Judges the candidates without writing a report.
pub(super) fn judged(
    candidates: &[String],
    (options, prompt, evaluator): (&ComparisonOptions, &PromptOptions, &EvaluatorOptions),
    mode: Mode,
    command: (&'static str, Option<&'static str>),
    output: &ReportOutput,
) -> Result<Report> {
    let targets = options.target.find_all()?;
    // Array names of a foreign file identify the architecture only if there is one model.
    let only = if let [target] = targets.as_slice() { Some(target) } else { None };
    let tokens = only.map(|target| prompt.tokens(target)).transpose()?.flatten();
    let foreign = MappedFileContext::new(&options.map, tokens, only);
    let candidates =
        candidates.iter().map(|typed| dumps_named(typed, &foreign)).collect::<Result<Vec<_>>>()?;
    let mut candidates = told_apart(candidates.into_iter().flatten().collect());
    foreign.check_used(&candidates)?;
    if let Some(target) = only {
        prompt.expect(target, &mut candidates)?;
    } else if prompt.is_given() {
        return Err(Error::Usage(
            "--prompt and --tokens need a single model; name one with --model".to_owned(),
        ));
    }
    let (selection, tolerances) = (options.selection(), options.select.tolerances()?);
    options.shard.check_one(candidates.len(), 0, "--candidate")?;
    let mut models: Vec<LoadedModels> = targets.iter().map(|_| LoadedModels::new(&options.model)).collect();
    let (mut results, mut worker) = (Vec::new(), None);
    for candidate in &candidates {
        let at = model_of(candidate, &targets)?;
        let (selection, tolerances, target) = (&selection, &tolerances, &targets[at]);
        let judging = ComparisonContext { target, selection, tolerances, options, mode, command, output };
        let result = match evaluator.is_torch(target, candidate) {
            true => evaluator.judge(&judging, candidate, &mut worker)?,
            false => judging.of(candidate, Role::Candidate, &mut models[at])?,
        };
        results.push(result.named_after(targets.len()));
    }
    Ok(Report { command: typed_command(), results, checkpoints: selection.checkpoints.clone(), served: None })
}

/// Returns the index of the model from which a dump was made, found by the hash of its weights or otherwise by its
/// name.
///
/// # Errors
/// If several models are given and the dump matches none of them.
fn model_of(candidate: &NamedDump, targets: &[RequestedModel]) -> Result<usize> {
    if let [_] = targets {
        return Ok(0);
    }
    for (at, target) in targets.iter().enumerate() {
        if target.made_from(candidate)?.is_some() {
            return Ok(at);
        }
    }
    let stated = &candidate.dump.manifest.model.name;
    targets.iter().position(|target| target.name == *stated).ok_or_else(|| {
        let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
        Error::Usage(format!(
            "{}: the dump has model '{stated}', expected one of {}; add it to --model, or judge the dump in \
                a run of its own",
            candidate.name,
            names.join(", ")
        ))
    })
}
