//! `xcheck run`: compares a model with its references.

use std::time::SystemTime;

use clap::Args;
use clap::builder::UnknownArgumentValueParser;

use crate::align::Selection;
use crate::cases::Case;
use crate::check::{EngineRounding, Mode, Role, Rules};
use crate::checkpoint::Checkpoint;
use crate::cli::cases::{CaseOptions, own_tokens};
use crate::cli::comparison::{ComparisonContext, ComparisonOptions, LoadedModels};
use crate::cli::mapped_files::MappedFileContext;
use crate::cli::named_dump::NamedDump;
use crate::cli::names::{self, folder_name, model_name};
use crate::cli::output::ReportOutput;
use crate::cli::progress::RunProgress;
use crate::cli::prompt::PromptOptions;
use crate::cli::reference::DECODE;
use crate::cli::reference_options::ReferenceOptions;
use crate::cli::reference_request::{ReferenceRequest, takes};
use crate::cli::requested_model::{RequestedModel, record};
use crate::cli::stream;
use crate::cli::terminal::tell;
use crate::cli::text_difference::parting;
use crate::cli::token_texts::texts;
use crate::diagnose::check_case;
use crate::dump::Producer;
use crate::error::{Error, Result};
use crate::report::{Comparison, Report, Timing, quoted, shell};
use crate::verdict::Verdict;

/// Arguments of `xcheck run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Reference dump: name, path, URL or - (stdin) [default: all found]
    ///
    /// The default is every dump found for the model. A stream (- for standard input, or a FIFO) is judged
    /// while it arrives. Repeat the option for several dumps.
    #[arg(long, short, value_name = "DUMP")]
    reference: Vec<String>,
    #[arg(long, hide = true, value_name = "DUMP", value_parser = UnknownArgumentValueParser::suggest(
        "use 'xcheck check --candidate' to judge a dump of your engine"
    ))]
    candidate: Option<()>,
    #[command(flatten)]
    pub(super) options: ComparisonOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    #[command(flatten)]
    cases: CaseOptions,
    /// Make a reference if there is none, as `xcheck reference` does
    #[arg(long, conflicts_with_all = ["reference", "case"], help_heading = "Reference engine")]
    make_references: bool,
    #[command(flatten)]
    making: ReferenceOptions,
}

/// Subcommand that judges a reference again, and the option before the reference.
const COMMAND: (&str, Option<&str>) = ("run", Some("--reference"));

/// Runs the model and compares. Errors after the report is opened are also in the report.
pub(crate) fn run(args: &RunArgs) -> Result<Verdict> {
    let mut output = args.options.open_output(&args.folder_name())?;
    let (report, advice) = output.or_refuse(|output| compare(args, output))?;
    let verdict = output.finish(&report)?;
    if !args.options.output.quiet {
        advice.iter().for_each(|advice| tell!("{advice}"));
    }
    Ok(verdict)
}

/// Judges each model. Also returns lines to print after the report: about dumps that were not compared, and how to
/// make a reference for a model without one.
fn compare(args: &RunArgs, output: &ReportOutput) -> Result<(Report, Vec<String>)> {
    let options = &args.options;
    if let Some(typed) = options.stream.of(&args.reference)? {
        return Ok((args.streamed(typed, output)?, Vec::new()));
    }
    let targets = options.target.find_all()?;
    if targets.len() > 1 && !args.reference.is_empty() {
        return Err(Error::Usage("--reference needs a single model; name one with --model".to_owned()));
    }
    let (selection, tolerances) = (&options.selection(), &options.select.tolerances()?);
    let (mode, command) = (options.mode()?, COMMAND);
    let (mut results, mut advice) = (Vec::new(), Vec::new());
    for target in &targets {
        let judging = ComparisonContext { target, selection, tolerances, options, mode, command, output };
        let (found, told) = args.judge_model(&judging)?;
        if found.is_empty() && targets.len() > 1 {
            return Err(Error::Usage(told.join("; ")));
        }
        results.extend(found.into_iter().map(|result| result.named_after(targets.len())));
        advice.extend(told);
    }
    let checkpoints = selection.checkpoints.clone();
    Ok((Report { command: names::command(), results, checkpoints, served: None }, advice))
}

impl RunArgs {
    fn folder_name(&self) -> String {
        let named: Vec<&str> = self.reference.iter().chain(self.cases.named()).map(String::as_str).collect();
        folder_name("run", model_name(&self.options.target.model), &named)
    }

    /// Runs a model on each reference's own input and compares. Then runs it on the prompt of each known case.
    fn judge_model(&self, judging: &ComparisonContext) -> Result<(Vec<Comparison>, Vec<String>)> {
        let (options, target) = (&self.options, judging.target);
        self.make_references(target)?;
        let (references, left_out) = match self.reference.is_empty() && self.cases.are_named() {
            true => (Vec::new(), None),
            false => {
                let tokens = self.prompt.tokens(target)?;
                target.references(
                    &self.reference,
                    &MappedFileContext::new(&options.map, tokens, Some(target)),
                )?
            }
        };
        self.prompt.check_all(target, &references)?;
        let mut models = LoadedModels::new(&options.model);
        // A damaged model is an error, even without a reference.
        let is_needed = references.is_empty() || self.runs_known_cases();
        let loaded = is_needed.then(|| models.load(&target.variants[0])).transpose()?;
        let known = loaded.filter(|_| self.runs_known_cases()).map(|loaded| &*loaded.model);
        let cases = self.cases.of(&target.name, known)?;
        options.shard.check_one(references.len(), cases.len(), "--reference")?;
        let mut results = Vec::new();
        for reference in &references {
            results.push(judging.of(reference, Role::Reference, &mut models)?);
        }
        for case in &cases {
            results.push(self.case(case, judging, &mut models)?);
        }
        let has_none = references.is_empty() && !self.cases.are_named();
        let advice = left_out.into_iter().chain(has_none.then(|| how_to_make_one(target)));
        Ok((results, advice.collect()))
    }

    /// Makes a reference if this was requested and none exists, or none of the named engine.
    fn make_references(&self, target: &RequestedModel) -> Result<()> {
        if !self.make_references {
            return match self.making.are_given() {
                true => Err(Error::Usage("--with, --python and --yes need --make-references; add it".into())),
                false => Ok(()),
            };
        }
        let (here, _) = target.references(&[], &MappedFileContext::default())?;
        let is_wanted = |named: &NamedDump| {
            self.making.with.is_none_or(|engine| named.dump.manifest.producer.name == engine.producer())
        };
        if here.iter().any(is_wanted) {
            return Ok(());
        }
        let decode = usize::from(DECODE);
        let wish = ReferenceRequest {
            engine: self.making.with,
            input: self.prompt.input(),
            decode,
            ..ReferenceRequest::default()
        };
        self.making.make(target, &wish, self.options.output.verbose).map(drop)
    }

    /// Judges a reference that arrives through a pipe.
    fn streamed(&self, typed: &str, output: &ReportOutput) -> Result<Report> {
        let options = &self.options;
        if self.cases.are_named() || self.prompt.is_given() || !options.map.maps.is_empty() {
            return Err(Error::Usage(
                "--case, --map, --prompt and --tokens cannot be used with a stream, which states its own \
                    arrays and tokens; omit them"
                    .to_owned(),
            ));
        }
        stream::judged(typed, options, options.mode()?, (COMMAND, Role::Reference), output)
    }

    fn case(
        &self,
        case: &Case,
        judging: &ComparisonContext,
        models: &mut LoadedModels,
    ) -> Result<Comparison> {
        let started = SystemTime::now();
        let target = judging.target;
        let variant = &target.variants[0];
        variant.begin_hash();
        let loaded = models.load(variant)?;
        let numerics = self.options.numerics.of(&*loaded.model, None)?;
        // A known case only has tokens, so a selection of taps only applies to the references.
        let selection = Selection { explicit: false, ..judging.selection.clone() };
        let suppositions = self.options.suppositions();
        let rules = Rules {
            selection: &selection,
            mode: Mode::Accumulated,
            rounding: EngineRounding::Stated,
            ..judging.rules(true, &Producer::default(), Role::Reference, loaded, &suppositions)
        };
        let mut progress = RunProgress::new(&case.name, loaded.model.dimensions().n_layers);
        let (model, dump) = (&*loaded.model, case.reference(loaded.model.architecture())?);
        let own = own_tokens(target, case);
        let mut outcome = check_case(&case.name, model, &*numerics, &dump, &own, rules, &mut progress)?;
        outcome.notes.extend(case.note.clone());
        outcome.notes.extend(self.options.causes.note(outcome.verdict));
        outcome.notes.extend(variant.elsewhere()?);
        outcome.notes.extend(parting(target, &outcome, &dump));
        let model = record(&target.name, variant, loaded)?;
        Ok(Comparison {
            model,
            tokens: texts(Some(target), &outcome, &dump.manifest),
            outcome,
            again: judging.again("run", self.cases.words(case)),
            reference: None,
            timing: Timing::since(started),
            sharded: None,
        })
    }

    /// Returns true if the model's known cases are run, which is the default if nothing else was requested.
    fn runs_known_cases(&self) -> bool {
        let nothing_asked =
            self.reference.is_empty() && self.prompt.prompt.is_none() && self.prompt.tokens.is_none();
        let selection = self.options.selection();
        let generates = selection.checkpoints.contains(&Checkpoint::Generation);
        let runs_whole = matches!(self.options.mode.mode(), Mode::Both | Mode::Accumulated);
        nothing_asked && generates && runs_whole && !self.options.shard.is_given()
    }
}

/// Returns the command that makes a reference for a model without one.
fn how_to_make_one(target: &RequestedModel) -> String {
    let folder = target.dumps_folder();
    let lacking = format!("no reference for {} in {}", target.name, folder.display());
    if target.is_elsewhere() {
        return format!(
            "{lacking}; name one with --reference, or download the model and make one (see \
                docs/how-to/references.md)"
        );
    }
    let files = &target.variants[0].files;
    let command = match takes(files) {
        Some(_) => {
            let make = shell(&["reference", "--model", &target.typed].map(str::to_owned));
            format!("{make} (or add --make-references to this run)")
        }
        None => {
            let (model, out) =
                (files.weights()[0].path.to_string_lossy(), folder.join("llama2.c.safetensors"));
            let script = [".venv/bin/python", "reference-scripts/dump/dump_llama2c.py", "--model", &model];
            let asked = ["--prompt", "Hello", "--decode", "4", "--out", &out.to_string_lossy()];
            quoted(script.into_iter().chain(asked))
        }
    };
    format!("{lacking}; make one (see docs/how-to/references.md):\n\n    {command}")
}
