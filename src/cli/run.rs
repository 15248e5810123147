//! `xcheck run`: a model against its references.

use std::collections::HashMap;

use clap::Args as ClapArgs;

use crate::cli::numerics::Choice;
use crate::cli::options::{OutputOptions, SelectOptions};
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::prompt::PromptOptions;
use crate::cli::target::{Target, record};
use crate::compare::{Selection, Verdict};
use crate::diagnose::{Mode, Rules, cross_check};
use crate::error::Result;
use crate::model::{LoadedModel, ModelFiles};
use crate::report::{Comparison, Report};

/// Arguments of `xcheck run`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// A model: a shipped or public one by name (see `xcheck models`), a GGUF file, a Hugging Face directory, or of
    /// the hub org/repo, org/repo:file.gguf or org/repo:Q8_0
    #[arg(long, short, value_name = "MODEL")]
    model: String,
    /// Get what the Hugging Face cache lacks of the model
    #[arg(long)]
    download: bool,
    /// A dump to compare with, by name or path; default: every one found for the model
    #[arg(long, short, value_name = "DUMP")]
    reference: Vec<String>,
    #[command(flatten)]
    prompt: PromptOptions,
    #[command(flatten)]
    select: SelectOptions,
    /// How to compute
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    numerics: Choice,
    /// Measure only what each stage introduces, started from the reference's own values
    #[arg(long)]
    isolate: bool,
    /// Measure only what an ordinary run shows, errors of earlier stages included
    #[arg(long, conflicts_with = "isolate")]
    propagate: bool,
    /// Run each layer from the reference's own input of that layer; with --layer, judge these layers alone
    #[arg(long, conflicts_with_all = ["isolate", "propagate"])]
    from_reference: bool,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the model on each reference's own input and compares.
pub fn run(args: &Args) -> Result<Verdict> {
    let target = Target::find(&args.model, args.download)?;
    let references = target.references(&args.reference)?;
    args.prompt.check_all(&target, &references)?;
    let (selection, tolerances) = (args.selection(), args.select.tolerances()?);
    if references.is_empty() {
        target.variants[0].files.load()?; // a damaged model is an error, whatever it would be compared with
    }
    let output = Output::open(&args.output, &format!("run-{}", target.name))?;

    let mut models = HashMap::<&str, LoadedModel>::new();
    let mut results = Vec::new();
    for reference in &references {
        let variant = target.variant_for(reference)?;
        if !models.contains_key(variant.name.as_str()) {
            models.insert(&variant.name, variant.files.load()?);
        }
        let loaded = &models[variant.name.as_str()];
        let producer = &reference.dump.manifest.producer;
        let numerics = args.numerics.resolve(Some(producer))?;
        let precision = producer.precision().unwrap_or(loaded.precision.name());
        let rules = Rules { selection: &selection, tolerances: &tolerances, precision, mode: args.mode() };
        let mut progress = Progress::new(&reference.name, loaded.model.dimensions().n_layers);
        let outcome =
            cross_check(&reference.name, &*loaded.model, &*numerics, &reference.dump, rules, &mut progress)?;
        let model = record(&target.name, variant, loaded);
        let again = args.again(&reference.typed);
        results.push(Comparison { model, outcome, again, reference: reference.typed.clone() });
    }
    let report = Report { command: command(), results, checkpoints: selection.checkpoints };
    let verdict = output.finish(&report)?;
    if references.is_empty() {
        anstream::eprintln!("{}", how_to_make_one(&target));
    }
    Ok(verdict)
}

impl Args {
    fn mode(&self) -> Mode {
        match (self.isolate, self.propagate, self.from_reference) {
            (true, ..) => Mode::Isolated,
            (_, true, _) => Mode::Propagated,
            (.., true) => Mode::Layerwise,
            _ => Mode::Both,
        }
    }

    /// What to look at. What lies outside the layers does not depend on a layer that is run by itself: it is looked
    /// at with all of them, or where it is asked for by name.
    fn selection(&self) -> Selection {
        let selection = self.select.selection();
        let layers_alone = self.from_reference && selection.layers.is_some() && !selection.explicit;
        if layers_alone { selection.inside_layers() } else { selection }
    }

    /// The arguments that run this model against one reference, both errors measured or layer by layer.
    fn again(&self, reference: &str) -> Vec<String> {
        let mut words = vec!["run", "--model", &self.model, "--reference", reference];
        if self.numerics != Choice::Auto {
            words.extend(["--numerics", self.numerics.name()]);
        }
        words.extend(self.from_reference.then_some("--from-reference"));
        words.into_iter().map(str::to_owned).chain(self.select.tolerance_words()).collect()
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
        ModelFiles::Gguf(_) => format!(
            "reference-scripts/build_dump_llama_cpp.sh .venv-llama.cpp && \\\n    \
             .venv-llama.cpp/bin/dump_llama_cpp --model {} --prompt 'Hello' --decode 4 --out {}",
            weights.display(),
            folder.join("llama.cpp.safetensors").display()
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
