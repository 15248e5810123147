//! `xcheck run`: a model against its references.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use clap::Args as ClapArgs;

use crate::cases::Case;
use crate::checkpoint::Checkpoint;
use crate::cli::cases::{CaseOptions, own_tokens};
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{ModelOptions, OutputOptions, SelectOptions, TargetOptions, ThreadOptions};
use crate::cli::output::Output;
use crate::cli::parting::parting;
use crate::cli::progress::Progress;
use crate::cli::prompt::PromptOptions;
use crate::cli::target::{Reference, Target, Variant, record};
use crate::compare::{Role, Selection, Tolerances, Verdict};
use crate::diagnose::{Mode, Rules, check_case, cross_check};
use crate::error::Result;
use crate::model::{LoadedModel, ModelFiles};
use crate::report::{Comparison, Report};

/// Arguments of `xcheck run`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    target: TargetOptions,
    /// A dump to compare with, by name or path; default: every one found for the model
    #[arg(long, short, value_name = "DUMP")]
    reference: Vec<String>,
    #[command(flatten)]
    cases: CaseOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    #[command(flatten)]
    select: SelectOptions,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
    /// Measure only what each stage introduces, started from the reference's own values
    #[arg(long)]
    isolate: bool,
    /// Measure only what an ordinary run shows, errors of earlier stages included
    #[arg(long, conflicts_with = "isolate")]
    propagate: bool,
    /// Run each layer from the reference's own input of that layer; with --layer, judge these layers alone
    #[arg(long, conflicts_with_all = ["isolate", "propagate"])]
    from_reference: bool,
    /// After a tie in the generation, judge the steps that follow it too, along the reference's tokens
    #[arg(long)]
    follow_reference: bool,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the model on each reference's own input and compares, then on the prompt of each known case.
pub fn run(args: &Args) -> Result<Verdict> {
    let target = args.target.find()?;
    let cases = args.cases.of(&target.name, args.by_model_name())?;
    let references = match args.reference.is_empty() && args.cases.are_named() {
        true => Vec::new(),
        false => target.references(&args.reference)?,
    };
    args.prompt.check_all(&target, &references)?;
    let (selection, tolerances) = (args.selection(), args.select.tolerances()?);
    let mut models = Models { options: &args.model_options, loaded: HashMap::new() };
    if references.is_empty() {
        models.load(&target.variants[0])?; // a damaged model is an error, whatever it would be compared with
    }
    let output = Output::open(&args.output, &format!("run-{}", target.name))?;

    let run = Run { args, target: &target, selection: &selection, tolerances: &tolerances };
    let mut results = Vec::new();
    for reference in &references {
        results.push(run.against(reference, &mut models)?);
    }
    for case in &cases {
        results.push(run.case(case, &mut models)?);
    }
    let report = Report { command: command(), results, checkpoints: selection.checkpoints.clone() };
    let verdict = output.finish(&report)?;
    if references.is_empty() && !args.cases.are_named() {
        anstream::eprintln!("{}", how_to_make_one(&target));
    }
    Ok(verdict)
}

/// The formats of a model, each loaded when it is needed first.
struct Models<'a> {
    options: &'a ModelOptions,
    loaded: HashMap<String, LoadedModel>,
}

impl Models<'_> {
    fn load(&mut self, variant: &Variant) -> Result<&LoadedModel> {
        Ok(match self.loaded.entry(variant.name.clone()) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(place) => place.insert(self.options.load(variant)?),
        })
    }
}

/// What all comparisons of a run share.
struct Run<'r> {
    args: &'r Args,
    target: &'r Target,
    selection: &'r Selection,
    tolerances: &'r Tolerances,
}

impl Run<'_> {
    fn against(&self, reference: &Reference, models: &mut Models) -> Result<Comparison> {
        let variant = self.target.variant_for(reference)?;
        let loaded = models.load(variant)?;
        let producer = &reference.dump.manifest.producer;
        let numerics = self.args.numerics.of(&*loaded.model, Some(producer))?;
        let rules = Rules {
            selection: self.selection,
            tolerances: self.tolerances,
            precision: producer.precision().unwrap_or(loaded.precision.name()),
            mode: self.args.mode(),
            role: Role::Reference,
        };
        let mut progress = Progress::new(&reference.name, loaded.model.dimensions().n_layers);
        let (name, dump) = (&reference.name, &reference.dump);
        let mut outcome = cross_check(name, &*loaded.model, &*numerics, dump, rules, &mut progress)?;
        outcome.notes.extend(parting(self.target, &outcome, dump));
        let model = record(&self.target.name, variant, loaded);
        let again = self.args.again(["--reference".to_owned(), reference.typed.clone()]);
        Ok(Comparison { model, outcome, again, reference: Some(reference.typed.clone()) })
    }

    fn case(&self, case: &Case, models: &mut Models) -> Result<Comparison> {
        let variant = &self.target.variants[0];
        let loaded = models.load(variant)?;
        let numerics = self.args.numerics.of(&*loaded.model, None)?;
        // A case is of tokens alone: what else was asked for is asked of the references.
        let selection = Selection { explicit: false, ..self.selection.clone() };
        let rules = Rules {
            selection: &selection,
            tolerances: self.tolerances,
            precision: loaded.precision.name(),
            mode: Mode::Total,
            role: Role::Reference,
        };
        let mut progress = Progress::new(&case.name, loaded.model.dimensions().n_layers);
        let (model, dump) = (&*loaded.model, case.reference(loaded.model.architecture())?);
        let own = own_tokens(self.target, case);
        let mut outcome = check_case(&case.name, model, &*numerics, &dump, &own, rules, &mut progress)?;
        outcome.notes.extend(parting(self.target, &outcome, &dump));
        let model = record(&self.target.name, variant, loaded);
        Ok(Comparison {
            model,
            outcome,
            again: self.args.again(self.args.cases.words(case)),
            reference: None,
        })
    }
}

impl Args {
    fn mode(&self) -> Mode {
        match (self.isolate, self.propagate, self.from_reference) {
            (true, ..) => Mode::Introduced,
            (_, true, _) => Mode::Total,
            (.., true) => Mode::Layers,
            _ => Mode::Both,
        }
    }

    /// What to look at. What lies outside the layers does not depend on a layer that is run by itself: it is looked
    /// at with all of them, or where it is asked for by name.
    fn selection(&self) -> Selection {
        let selection = Selection { follow_reference: self.follow_reference, ..self.select.selection() };
        let layers_alone = self.from_reference && selection.layers.is_some() && !selection.explicit;
        if layers_alone { selection.inside_layers() } else { selection }
    }

    /// Whether the model's name alone is reason enough to run a known case: where nothing else was asked for.
    fn by_model_name(&self) -> bool {
        let nothing_asked =
            self.reference.is_empty() && self.prompt.prompt.is_none() && self.prompt.tokens.is_none();
        let generates = self.selection().checkpoints.contains(&Checkpoint::Generation);
        nothing_asked && generates && matches!(self.mode(), Mode::Both | Mode::Total)
    }

    /// The arguments that run this model against one reference or case, both errors measured or layer by layer.
    fn again(&self, with: impl IntoIterator<Item = String>) -> Vec<String> {
        let model = ["run", "--model", &self.target.model].map(str::to_owned);
        let mut words: Vec<String> = model.into_iter().chain(with).collect();
        words.extend(self.numerics.words());
        words.extend(self.model_options.words());
        words.extend(self.from_reference.then(|| "--from-reference".to_owned()));
        words.extend(self.follow_reference.then(|| "--follow-reference".to_owned()));
        words.extend(self.select.tolerance_words());
        words
    }
}

/// The command line as it was given, without the program's name.
pub fn command() -> Vec<String> {
    std::env::args().skip(1).collect()
}

/// What to type to get a reference for a model that has none.
fn how_to_make_one(target: &Target) -> String {
    let (files, folder) = (&target.variants[0].files, target.dumps_folder());
    let weights = &files.weights()[0].path;
    let command = match files {
        ModelFiles::Gguf(_) | ModelFiles::GgufWithKernels { .. } => format!(
            "reference-scripts/build_dump_llama_cpp.sh .venv-llama.cpp && \\\n    \
             .venv-llama.cpp/bin/dump_llama_cpp --model {} --prompt 'Hello' --decode 4 --out {}",
            weights.display(),
            folder.join("llama.cpp.safetensors").display()
        ),
        ModelFiles::Llama2c { .. } => format!(
            ".venv/bin/python reference-scripts/dump_llama2c.py --model {} --prompt 'Hello' --decode 4 --out {}",
            weights.display(),
            folder.join("llama2.c.safetensors").display()
        ),
        ModelFiles::HuggingFace { .. } => format!(
            ".venv/bin/python reference-scripts/dump_transformers.py --model {} --prompt 'Hello' --decode 4 \
             --dtype f32 --out {}",
            weights.parent().unwrap_or(weights).display(),
            folder.join("transformers-f32.safetensors").display()
        ),
    };
    format!(
        "no reference for {} in {}; make one (see reference-scripts/README.md):\n\n    {command}",
        target.name,
        folder.display()
    )
}
