//! Options shared by several commands.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::align::{Checkpoints, Ranges, Selection};
use crate::catalogue::Supposition;
use crate::check::{Budget, Tolerances};
use crate::checkpoint::Checkpoint;
use crate::cli::progress::SearchProgress;
use crate::cli::requested_model::{ModelVariant, RequestedModel};
use crate::cli::terminal::{self, say, tell};
use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::model::{Activation, I2sLayout, LoadedModel, TernaryFiles};
use crate::shipped_models;
use crate::verdict::Verdict;

/// Returns the name of an option's value on the command line.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Options for the selection and its tolerances.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SelectionOptions {
    /// Groups of taps to compare, e.g. rope,3-7 [default: all recorded]
    ///
    /// A list of names, numbers and ranges of numbers, or `all`. `xcheck checkpoints` lists them.
    #[arg(long, short, value_name = "LIST", help_heading = "What to compare")]
    checkpoint: Option<Checkpoints>,
    /// Layers to compare, e.g. 0,2-3 [default: all]
    #[arg(long, short, value_name = "LIST", allow_negative_numbers = true, help_heading = "What to compare")]
    layer: Option<Ranges>,
    /// Forward passes to compare; 0 is the prompt [default: all]
    #[arg(long, short, value_name = "LIST", allow_negative_numbers = true, help_heading = "What to compare")]
    pass: Option<Ranges>,
    /// Sequence positions to compare, e.g. 0-5 [default: all]
    #[arg(long, value_name = "LIST", allow_negative_numbers = true, help_heading = "What to compare")]
    position: Option<Ranges>,
    /// TOML file of tolerances that take precedence over the built-in ones
    #[arg(long, value_name = "FILE", help_heading = "Judging")]
    tolerance: Option<PathBuf>,
}

impl SelectionOptions {
    /// Returns the selected checkpoints, layers, passes and positions.
    pub(crate) fn selection(&self) -> Selection {
        Selection {
            checkpoints: self.checkpoints(),
            explicit: self.checkpoint.is_some(),
            layers: self.layer.clone(),
            passes: self.pass.clone(),
            positions: self.position.clone(),
        }
    }

    /// Returns the tolerances: the user's table, then the shipped ones.
    pub(crate) fn tolerances(&self) -> Result<Tolerances> {
        match &self.tolerance {
            None => Ok(Tolerances::shipped()),
            Some(file) => Tolerances::shipped().overridden_by(file),
        }
    }

    /// Returns the path of the user's tolerance table.
    pub(crate) fn tolerance_file(&self) -> Option<&Path> {
        self.tolerance.as_deref()
    }

    /// Returns the arguments that choose the same tolerances again.
    pub(crate) fn tolerance_words(&self) -> Vec<String> {
        let file = self.tolerance.iter().map(|file| file.display().to_string());
        file.flat_map(|file| ["--tolerance".to_owned(), file]).collect()
    }

    fn checkpoints(&self) -> Vec<Checkpoint> {
        match &self.checkpoint {
            None => Checkpoint::with_input().to_vec(),
            Some(Checkpoints(chosen)) => chosen.clone(),
        }
    }
}

/// Options for supposed changes of our engine.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SuppositionOptions {
    /// Change the model or inject a fault, e.g. rope_theta=10000
    ///
    /// `xcheck causes` lists the keys. KEY@TAP=VALUE changes one tap. KEY=VALUE@decode applies to passes of one
    /// kind: @prompt, @chunk (later passes of several tokens), @decode (later passes of one token), @pass-1, or @from-12
    /// (tokens from position 12 on). KEY=VALUE@head-3 applies to head 3, @head-0+3 to heads 0 and 3,
    /// KEY=VALUE@layer-2 to layer 2. With --layer, all changes apply to its layers only. Repeat the option to make several changes.
    #[arg(long, value_name = "KEY=VALUE", value_parser = supposed, help_heading = "Arithmetic")]
    suppose: Vec<(String, Supposition)>,
}

fn supposed(text: &str) -> std::result::Result<(String, Supposition), String> {
    Ok((text.to_owned(), Supposition::named(text)?))
}

impl SuppositionOptions {
    /// Returns the supposed changes, limited to the selected layers.
    pub(crate) fn suppositions(&self, layers: Option<&Ranges>) -> Vec<Supposition> {
        let within = |supposed: Supposition| match layers {
            Some(layers) => supposed.in_layers((0..=layers.last()).filter(|&layer| layers.contains(layer))),
            None => supposed,
        };
        self.suppose.iter().map(|(_, supposed)| within(supposed.clone())).collect()
    }

    /// Returns the arguments that suppose the same changes again.
    pub(crate) fn words(&self) -> impl Iterator<Item = String> {
        self.suppose.iter().flat_map(|(typed, _)| ["--suppose".to_owned(), typed.clone()])
    }
}

/// Name that selects all shipped models.
const ALL_MODELS: &str = "all";

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RequestedModelOptions {
    /// Model: a name, a file, a folder, org/repo or a URL
    ///
    /// `xcheck models` lists the names of shipped and public models. A file is a GGUF or llama2.c file, a
    /// folder is a Hugging Face model folder. A model on the Hugging Face hub is org/repo, org/repo:file.gguf
    /// or org/repo:Q8_0. A URL names a file or a folder; only the needed ranges are downloaded.
    ///
    /// `run`, `check` and `audit` take several models, separated by commas, or `all` for every shipped model.
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: String,
    /// Download model files missing from the Hugging Face cache
    #[arg(long)]
    download: bool,
    /// Folder of a LoRA adapter of PEFT [default: one beside the weights]
    ///
    /// The adapter is merged into the weights in f32. Dumps of such a model can be judged in f32 only.
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
}

impl RequestedModelOptions {
    /// Makes options for a local model.
    pub(crate) fn of(model: &str) -> Self {
        Self { model: model.to_owned(), ..Self::default() }
    }

    /// Makes options for a model that may be downloaded from the hub.
    #[cfg(feature = "hub")]
    pub(crate) fn downloadable(model: &str, download: bool) -> Self {
        Self { model: model.to_owned(), download, adapter: None }
    }

    /// Finds the model and its formats.
    ///
    /// # Errors
    /// If the model does not exist, or files are missing and may not be downloaded.
    pub(crate) fn find(&self) -> Result<RequestedModel> {
        self.with_adapter(RequestedModel::find(&self.model, self.download)?)
    }

    fn with_adapter(&self, model: RequestedModel) -> Result<RequestedModel> {
        match &self.adapter {
            Some(folder) => model.with_adapter(folder),
            None => Ok(model),
        }
    }

    /// Finds every model of a list separated by commas; `all` is every shipped model on this machine.
    ///
    /// # Errors
    /// The errors of [`RequestedModelOptions::find`], and if a model is listed twice.
    pub(crate) fn find_all(&self) -> Result<Vec<RequestedModel>> {
        let is_one = self.model.contains("://") || Path::new(&self.model).exists();
        let names: Vec<&str> = match self.model.as_str() {
            ALL_MODELS => shipped_models::models_here()?.iter().map(|model| model.name).collect(),
            one if is_one => vec![one],
            list => list.split(',').map(str::trim).collect(),
        };
        let mut seen = HashSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
            return Err(Error::Usage(format!("--model lists '{twice}' twice")));
        }
        let find = |name| self.with_adapter(RequestedModel::find(name, self.download)?);
        names.into_iter().map(find).collect()
    }
}

/// Options for the search for causes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CauseOptions {
    /// Do not search for the cause of a failure
    ///
    /// The search takes longer than everything else. It changes one verdict: if only logits fail and an
    /// unstated type of the KV cache explains them, a named cause makes the dump fail, and without one it is
    /// inconclusive.
    #[arg(long, conflicts_with = "baseline", help_heading = "Judging")]
    no_causes: bool,
    /// Effort of the search for causes
    #[arg(
        long,
        value_name = "EFFORT",
        value_enum,
        default_value = "limited",
        conflicts_with = "no_causes",
        help_heading = "Judging"
    )]
    causes: SearchEffort,
    /// Time limit of the search for causes in seconds, or none [default: 10]
    ///
    /// With --causes exhaustive, the default is none. If the limit ends the search, the report says so, and a
    /// failure stays a failure. The variable XCHECK_CAUSES_LIMIT sets another default.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "XCHECK_CAUSES_LIMIT",
        hide_env = true,
        value_parser = causes_limit,
        help_heading = "Judging"
    )]
    causes_limit: Option<CausesLimit>,
}

/// Effort of the search for causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SearchEffort {
    /// Stop at the time limit, and at the first simple change that explains everything
    #[default]
    Limited,
    /// Try every change and more pairs of changes, without a time limit
    Exhaustive,
}

/// Time limit of a search whose limit the user does not set.
const USUAL_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of the search for causes; `None` for no limit.
#[derive(Clone, Copy, Debug, Default)]
struct CausesLimit(Option<Duration>);

fn causes_limit(typed: &str) -> std::result::Result<CausesLimit, String> {
    let seconds = typed.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match (typed, seconds) {
        ("none", _) => Ok(CausesLimit(None)),
        (_, Some(seconds)) => Ok(CausesLimit(Some(seconds))),
        _ => Err("expected a number of seconds, or none".to_owned()),
    }
}

impl CauseOptions {
    /// Options that turn the search for causes off.
    #[cfg(feature = "hub")]
    pub(crate) const NONE: Self = Self { no_causes: true, causes: SearchEffort::Limited, causes_limit: None };

    /// Returns true if causes are searched for.
    pub(crate) fn are_sought(&self) -> bool {
        !self.no_causes
    }

    /// Returns the time limit of the search; `None` without a limit.
    pub(crate) fn limit(&self) -> Option<Duration> {
        let usual = (self.causes == SearchEffort::Limited).then_some(USUAL_LIMIT);
        self.causes_limit.map_or(usual, |limit| limit.0)
    }

    /// Returns the time limit and the effort of one comparison's search, which shows its progress.
    pub(crate) fn budget(&self) -> Budget {
        let bar = SearchProgress::new();
        let budget = Budget::new(self.limit(), move |step| bar.show(step));
        if self.causes == SearchEffort::Exhaustive { budget.exhaustive() } else { budget }
    }

    /// Returns a note if a failure's causes were not searched because the search was not requested.
    pub(crate) fn note(&self, verdict: Verdict) -> Option<String> {
        let is_open = self.no_causes && verdict == Verdict::Fail;
        is_open.then(|| "causes were not searched: --no-causes".to_owned())
    }
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ThreadOptions {
    /// Number of compute threads [default: RAYON_NUM_THREADS, else one per core]
    ///
    /// The number of threads changes no bit of any result.
    #[arg(long, value_name = "N", value_parser = some_threads, help_heading = "Threads")]
    threads: Option<usize>,
    /// Compute with one thread, every operation in a fixed order
    #[arg(long, conflicts_with = "threads", help_heading = "Threads")]
    deterministic: bool,
}

impl ThreadOptions {
    /// Returns the requested number of threads, if any.
    pub(crate) fn count(&self) -> Option<usize> {
        if self.deterministic { Some(1) } else { self.threads }
    }
}

/// Parses a number of threads. It is limited, because too many threads would wait for each other at every
/// operation.
fn some_threads(text: &str) -> Result<usize, String> {
    const EACH_CORE: usize = 16;
    const ANYWHERE: usize = 256;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let most = (EACH_CORE * cores).max(ANYWHERE);
    let threads = text.parse().ok().filter(|threads| (1..=most).contains(threads));
    threads.ok_or_else(|| format!("expected 1 to {most}; this machine has {cores} cores"))
}

/// Options that override a model's files.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ModelOptions {
    /// Form of GELU, regardless of the model files
    #[arg(long, value_enum, help_heading = "Arithmetic")]
    gelu: Option<Gelu>,
    /// Layout of I2_S weights: x86, or arm for files quantised by ARM builds
    ///
    /// I2_S files do not state their layout.
    #[arg(long, value_name = "LAYOUT", default_value = "x86", help_heading = "Arithmetic")]
    i2s_layout: I2sLayout,
    /// kernel_config.ini for a TL1 or TL2 file [default: the one beside the file]
    ///
    /// The kernel_config.ini of the bitnet.cpp build that the model file was made for.
    #[arg(long, value_name = "FILE", help_heading = "Arithmetic")]
    kernel_config: Option<PathBuf>,
}

/// A form of GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Gelu {
    /// The tanh approximation
    Tanh,
    /// The exact form with the error function
    Erf,
}

impl ModelOptions {
    /// Loads a model in one of its formats, with these options.
    pub(crate) fn load(&self, variant: &ModelVariant) -> Result<LoadedModel> {
        let mut loaded = variant.files.load_told(&self.ternary()?)?;
        loaded.notes.iter().for_each(|note| tell!("note: {note}"));
        match self.gelu {
            Some(form) if !loaded.model.set_gelu(form.activation()) => {
                Err(Error::Usage(format!("--gelu: {} has no GELU", loaded.model.architecture())))
            }
            _ => Ok(loaded),
        }
    }

    pub(crate) fn kernel_config(&self) -> Option<&Path> {
        self.kernel_config.as_deref()
    }

    fn ternary(&self) -> Result<TernaryFiles> {
        let told = TernaryFiles { layout: self.i2s_layout, kernels: Vec::new() };
        match &self.kernel_config {
            Some(file) => told.with_kernels(&FileBytes::open(file)?),
            None => Ok(told),
        }
    }

    /// Returns the arguments that load the model the same way again.
    pub(crate) fn words(&self) -> Vec<String> {
        let gelu = self.gelu.as_ref().map(|form| ["--gelu".to_owned(), value_name(form)]);
        let arm = self.i2s_layout == I2sLayout::Arm;
        let layout = arm.then(|| ["--i2s-layout".to_owned(), "arm".to_owned()]);
        let kernels =
            self.kernel_config.iter().map(|file| ["--kernel-config".to_owned(), file.display().to_string()]);
        gelu.into_iter().chain(layout).chain(kernels).flatten().collect()
    }
}

impl Gelu {
    fn activation(self) -> Activation {
        match self {
            Gelu::Tanh => Activation::GeluTanh,
            Gelu::Erf => Activation::GeluErf,
        }
    }
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct OutputOptions {
    /// Folder for the report files [default: reports/<command>-<model>]
    ///
    /// xcheck writes report.json, report.md, report.html and junit.xml to this folder. If one dump is named,
    /// the default folder is reports/<command>-<model>-<dump>.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// Write no report files
    #[arg(long, conflicts_with = "report", help_heading = "Output")]
    pub(crate) no_report: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table, help_heading = "Output")]
    pub(crate) format: ReportFormat,
    /// Print a further section after the table
    ///
    /// The map of the first dump that fails is printed without this option, too.
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Output")]
    pub(crate) show: Option<ExtraOutput>,
    /// Add accumulated errors and specification tolerances to the table
    ///
    /// The table is then 100 columns wide.
    #[arg(long, short, conflicts_with = "format", help_heading = "Output")]
    pub(crate) verbose: bool,
    /// Print only the verdict lines
    #[arg(long, short, conflicts_with_all = ["format", "show", "verbose"], help_heading = "Output")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) baseline: BaselineOptions,
}

/// Additional output besides the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExtraOutput {
    /// A map of the taps and layers of every dump
    Map,
}

/// The printed format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// A table for the terminal
    #[default]
    Table,
    /// The contents of report.json
    Json,
    /// GitHub Actions annotations: errors for first divergences, warnings for gaps
    Github,
    /// JSON of at most 4 kB for a coding agent: what is wrong, why, and the next command
    Agent,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct BaselineOptions {
    /// File of known failures; only new or worse failures fail
    ///
    /// The file lists what was compared and which failures are waived, each with a reason. A value that was
    /// compared before and is now missing is inconclusive. See docs/how-to/gates.md.
    #[arg(long, value_name = "FILE", help_heading = "Baseline")]
    pub(crate) baseline: Option<PathBuf>,
    /// Rewrite the baseline file from this result
    ///
    /// New failures are written without a reason. They are waived once you fill in `reason`, `link` and
    /// `expires`.
    #[arg(long, requires = "baseline", help_heading = "Baseline")]
    pub(crate) update_baseline: bool,
    /// With --update-baseline, fail if bit-identical values change later
    #[arg(long, requires = "update_baseline", help_heading = "Baseline")]
    pub(crate) bits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table for the terminal
    Table,
    /// JSON
    Json,
}

/// Output options of commands without a verdict.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FormatOptions {
    /// Output format
    #[arg(long, value_enum, default_value_t = OutputFormat::Table, help_heading = "Output")]
    pub(crate) format: OutputFormat,
}

impl FormatOptions {
    /// Prints a line for people; nothing if the format is JSON.
    pub(crate) fn line(self, text: impl Display) {
        if self.format == OutputFormat::Table {
            say!("{text}");
        }
    }

    /// Prints a JSON document, if the format is JSON.
    pub(crate) fn document(self, document: impl FnOnce() -> serde_json::Value) {
        if self.format == OutputFormat::Json {
            terminal::document(&format!("{:#}", document()));
        }
    }
}
