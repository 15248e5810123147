//! Judging with torch in place of our engine, for models that our engine does not know.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::check::{Gate, Mode};
use crate::cli::comparison::{ComparisonContext, has_modules};
use crate::cli::named_dump::NamedDump;
use crate::cli::progress::ProgramProgress;
use crate::cli::reference_options::EnvironmentOptions;
use crate::cli::requested_model::RequestedModel;
use crate::cli::token_texts::texts;
use crate::disk_cache::DiskCache;
use crate::error::{Error, Result};
use crate::evaluator::{EvaluatorConnection, ModuleRules, check_modules};
use crate::input;
use crate::model::is_known_model_type;
use crate::reference::{EvaluatorProcess, ProcessObserver, ReferenceEngine, ReferenceFolder};
use crate::report::{Comparison, ModelRecord, Timing};
use crate::weight::DType;

/// Options for the program that evaluates the model.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EvaluatorOptions {
    /// Evaluate the model with our engine, or with torch and transformers
    ///
    /// torch evaluates any model of transformers, in f64, from a dump of the outputs of its modules
    /// (xcheck.hook in Python). It needs a Python environment with torch and transformers.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "auto", help_heading = "Evaluator")]
    evaluator: EvaluatorName,
    /// End a torch worker without progress after this many seconds [default: 600]
    ///
    /// The worker reports each layer that it has evaluated, and the changes that it tries. It reports nothing while it
    /// loads the model.
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = "Evaluator"
    )]
    evaluator_timeout: Option<u64>,
    #[command(flatten)]
    environment: EnvironmentOptions,
}

/// The program that evaluates the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum EvaluatorName {
    /// torch for architectures that our engine does not know and for dumps of module outputs
    #[default]
    Auto,
    /// Our engine
    Native,
    /// torch
    Torch,
}

impl EvaluatorOptions {
    /// Returns true if torch evaluates the model for this dump.
    pub(crate) fn is_torch(&self, target: &RequestedModel, named: &NamedDump) -> bool {
        match self.evaluator {
            EvaluatorName::Native => false,
            EvaluatorName::Torch => true,
            EvaluatorName::Auto => {
                has_modules(&named.dump) || model_type(target).is_some_and(|name| !is_known_model_type(&name))
            }
        }
    }

    /// Starts the worker.
    ///
    /// # Errors
    /// If there is no environment, or Python does not start.
    fn start(&self) -> Result<TorchEvaluator> {
        let workplace = ReferenceFolder::in_kept(&DiskCache::from_env()?)?;
        let engine = ReferenceEngine::Transformers;
        let environment =
            self.environment.find_or_make(engine, &workplace, &mut ProgramProgress::new(false))?;
        let limit = Duration::from_secs(self.evaluator_timeout.unwrap_or(PATIENCE));
        let (process, requests, answers) = EvaluatorProcess::start(&environment, &workplace, limit)?;
        let connection = EvaluatorConnection::new(Box::new(requests), Box::new(answers));
        Ok(TorchEvaluator { process, connection })
    }

    /// Judges a dump with torch. `worker` is started for the first dump.
    ///
    /// # Errors
    /// If the options need our engine, there is no environment, or the worker fails.
    pub(crate) fn judge(
        &self,
        judging: &ComparisonContext,
        named: &NamedDump,
        worker: &mut Option<TorchEvaluator>,
    ) -> Result<Comparison> {
        let started = SystemTime::now();
        refuse_options_of_our_engine(judging)?;
        judging.target.refuse_adapter("--evaluator torch")?;
        let folder = folder(judging.target)?;
        let TorchEvaluator { process, connection } = match worker {
            Some(worker) => worker,
            None => worker.insert(self.start()?),
        };
        let progress = RefCell::new(ProgramProgress::new(false));
        progress.borrow_mut().begin(&format!("evaluating {} with torch", judging.target.name));
        let causes = &judging.options.causes;
        let seconds =
            causes.are_sought().then(|| causes.limit().map_or(LONGEST, |limit| limit.as_secs().max(1)));
        let rules = ModuleRules { selection: judging.selection, tolerances: judging.tolerances, seconds };
        let dump = std::path::absolute(&named.dump.path).map_err(Error::io("find", &named.dump.path))?;
        let judged =
            check_modules(&named.name, (&named.dump, &dump), &folder, connection, rules, &mut |what| {
                progress.borrow_mut().line(what)
            });
        let mut outcome = judged.map_err(|error| process.explain(error))?;
        outcome.notes.extend(named.notes.iter().cloned());
        outcome.notes.extend(causes.note(outcome.verdict));
        outcome.lack(&named.lacking);
        let variant = &judging.target.variants[0];
        let mut again = judging.again_with(named);
        again.extend(["--evaluator", "torch"].map(str::to_owned));
        Ok(Comparison {
            model: ModelRecord {
                name: judging.target.name.clone(),
                architecture: model_type(judging.target).unwrap_or_default(),
                format: "safetensors".to_owned(),
                quantisation: named.dump.manifest.producer.dtype().map_or("", DType::name).to_owned(),
                sha256: variant.sha256()?,
            },
            tokens: texts(Some(judging.target), &outcome, &named.dump.manifest),
            outcome,
            again,
            reference: named.words.is_empty().then(|| named.alone.clone()),
            timing: Timing::since(started),
            sharded: None,
        })
    }
}

/// A running worker. It judges one dump after the other.
pub(crate) struct TorchEvaluator {
    process: EvaluatorProcess,
    connection: EvaluatorConnection<'static>,
}

/// Time in seconds that a worker may report nothing, if the user does not set it.
const PATIENCE: u64 = 600;

/// Time limit in seconds for the search for causes, if the user requests no limit.
const LONGEST: u64 = 3600;

/// Returns the `model_type` of a model folder's configuration.
fn model_type(target: &RequestedModel) -> Option<String> {
    let config = input::bytes(&Path::new(&target.typed).join("config.json")).ok()?;
    let config: Value = serde_json::from_slice(&config).ok()?;
    config.get("model_type")?.as_str().map(str::to_owned)
}

/// Returns the folder of a model on this machine.
fn folder(target: &RequestedModel) -> Result<PathBuf> {
    let folder = target.variants[0].files.weights()[0].path.parent().map(Path::to_owned);
    let folder = folder.filter(|folder| folder.join("config.json").is_file());
    let folder = folder.ok_or_else(|| {
        Error::Usage(format!(
            "{} has no folder with a config.json on this machine, expected a Hugging Face folder for torch; download the \
             model and use its path",
            target.typed
        ))
    })?;
    std::path::absolute(&folder).map_err(Error::io("find", &folder))
}

fn refuse_options_of_our_engine(judging: &ComparisonContext) -> Result<()> {
    let options = judging.options;
    let given = [
        ("--shard", options.shard.is_given()),
        ("--suppose", !options.suppositions().is_empty()),
        ("--gate tolerance", options.mode.gate() == Gate::Tolerance),
        ("--total", judging.mode == Mode::Accumulated),
        ("--rounding", options.mode.profile().is_some()),
        ("--position", judging.selection.positions.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => Err(Error::Usage(format!(
            "{option} is not supported where torch evaluates the model; omit {option}"
        ))),
    }
}
