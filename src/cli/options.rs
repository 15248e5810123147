//! Options that several commands share.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::thread;

use clap::{Args, ValueEnum};

use crate::change::Supposition;
use crate::checkpoint::Checkpoint;
use crate::cli::target::{Target, Variant};
use crate::cli::terminal::{self, say, tell};
use crate::compare::{Checkpoints, Ranges, Selection, Tolerances, Verdict};
use crate::error::{Error, Result};
use crate::format::Source;
use crate::model::{Activation, I2sLayout, LoadedModel, TernaryFiles};
use crate::shipped;

/// What to compare, and how strictly.
#[derive(Clone, Debug, Default, Args)]
pub struct SelectOptions {
    /// Checkpoints: all, names, numbers or ranges (rope, 3, 1-7); default: those that the dump holds
    #[arg(long, short, value_name = "LIST")]
    checkpoint: Option<Checkpoints>,
    /// Only these layers, e.g. 0,2-3
    #[arg(long, short, value_name = "LIST", allow_negative_numbers = true)]
    layer: Option<Ranges>,
    /// Only these forward passes; 0 is the prompt
    #[arg(long, short, value_name = "LIST", allow_negative_numbers = true)]
    pass: Option<Ranges>,
    /// Only values of these positions of the sequence, e.g. 0-5
    #[arg(long, value_name = "LIST", allow_negative_numbers = true)]
    position: Option<Ranges>,
    /// A TOML table of tolerances that goes before the shipped one
    #[arg(long, value_name = "FILE")]
    tolerance: Option<PathBuf>,
}

impl SelectOptions {
    /// What was asked for.
    pub fn selection(&self) -> Selection {
        Selection {
            checkpoints: self.checkpoints(),
            explicit: self.checkpoint.is_some(),
            layers: self.layer.clone(),
            passes: self.pass.clone(),
            positions: self.position.clone(),
        }
    }

    /// The shipped tolerances, under the user's own.
    pub fn tolerances(&self) -> Result<Tolerances> {
        match &self.tolerance {
            None => Ok(Tolerances::shipped()),
            Some(file) => Tolerances::shipped().overridden_by(file),
        }
    }

    /// The user's table.
    pub fn tolerance_file(&self) -> Option<&Path> {
        self.tolerance.as_deref()
    }

    /// The arguments that give the same tolerances again.
    pub fn tolerance_words(&self) -> Vec<String> {
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

/// What our engine is supposed to compute otherwise.
#[derive(Clone, Debug, Default, Args)]
pub struct SupposeOptions {
    /// Compute otherwise than the model asks for, e.g. rope_theta=10000; with --layer, in these layers alone (see
    /// `xcheck causes`); can be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = supposed)]
    suppose: Vec<(String, Supposition)>,
}

fn supposed(text: &str) -> std::result::Result<(String, Supposition), String> {
    Ok((text.to_owned(), Supposition::named(text)?))
}

impl SupposeOptions {
    /// The changes, in the layers that were asked for.
    pub fn suppositions(&self, layers: Option<&Ranges>) -> Vec<Supposition> {
        let within = |supposed: Supposition| match layers {
            Some(layers) => supposed.in_layers((0..=layers.last()).filter(|&layer| layers.contains(layer))),
            None => supposed,
        };
        self.suppose.iter().map(|(_, supposed)| within(supposed.clone())).collect()
    }

    /// The arguments that suppose the same again.
    pub fn words(&self) -> impl Iterator<Item = String> {
        self.suppose.iter().flat_map(|(typed, _)| ["--suppose".to_owned(), typed.clone()])
    }
}

/// The name of every shipped model together.
const ALL_MODELS: &str = "all";

/// Which model.
#[derive(Clone, Debug, Args)]
pub struct TargetOptions {
    /// A model: a shipped or public one by name (see `xcheck models`), a GGUF or llama2.c file, a Hugging Face directory,
    /// of the hub org/repo, org/repo:file.gguf or org/repo:Q8_0, or the URL of a file or folder, of which parts are read.
    /// `run` and `check` take several, separated by commas, or `all` for every shipped one
    #[arg(long, short, value_name = "MODEL")]
    pub model: String,
    /// Get what the Hugging Face cache lacks of the model
    #[arg(long)]
    download: bool,
}

impl TargetOptions {
    /// A model that is here.
    pub fn of(model: &str) -> Self {
        Self { model: model.to_owned(), download: false }
    }

    /// The same, which may be got from the hub.
    #[cfg(feature = "hub")]
    pub fn downloadable(model: &str, download: bool) -> Self {
        Self { model: model.to_owned(), download }
    }

    /// Finds the model and its formats.
    ///
    /// # Errors
    /// If there is none of that name or path, or it is not all here and may not be downloaded.
    pub fn find(&self) -> Result<Target> {
        Target::find(&self.model, self.download)
    }

    /// Finds every model of a list separated by commas; `all` is every shipped model on this machine.
    ///
    /// # Errors
    /// As [`TargetOptions::find`], and if a model is listed twice.
    pub fn find_all(&self) -> Result<Vec<Target>> {
        let is_one = self.model.contains("://") || Path::new(&self.model).exists();
        let names: Vec<&str> = match self.model.as_str() {
            ALL_MODELS => shipped::models_here()?.iter().map(|model| model.name).collect(),
            one if is_one => vec![one],
            list => list.split(',').map(str::trim).collect(),
        };
        let mut seen = HashSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
            return Err(Error::Usage(format!("--model lists '{twice}' twice")));
        }
        names.into_iter().map(|name| Target::find(name, self.download)).collect()
    }
}

/// Whether what explains a failure is looked for.
#[derive(Clone, Debug, Default, Args)]
pub struct CauseOptions {
    /// Do not look for what explains a failure, which takes longer than all else; no verdict depends on it
    #[arg(long, conflicts_with = "baseline")]
    no_causes: bool,
}

impl CauseOptions {
    /// It is not.
    #[cfg(feature = "hub")]
    pub const NONE: Self = Self { no_causes: true };

    /// Whether it is.
    pub fn are_sought(&self) -> bool {
        !self.no_causes
    }

    /// What is to be said of a verdict that nobody wants explained.
    pub fn note(&self, verdict: Verdict) -> Option<String> {
        let is_open = self.no_causes && verdict == Verdict::Fail;
        is_open.then(|| "causes were not looked for: --no-causes".to_owned())
    }
}

/// Which threads compute.
#[derive(Clone, Debug, Default, Args)]
pub struct ThreadOptions {
    /// Threads that compute [default: RAYON_NUM_THREADS, else one for each core]; they change no bit of any result
    #[arg(long, value_name = "N", value_parser = some_threads)]
    threads: Option<usize>,
    /// Compute with one thread, everything in one order
    #[arg(long, conflicts_with = "threads")]
    deterministic: bool,
}

impl ThreadOptions {
    /// How many were asked for, if any number was.
    pub fn count(&self) -> Option<usize> {
        if self.deterministic { Some(1) } else { self.threads }
    }
}

/// As many threads as a machine can make anything of: threads in turns on one core wait for each other at every operation.
fn some_threads(text: &str) -> Result<usize, String> {
    const EACH_CORE: usize = 16;
    const ANYWHERE: usize = 256;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let most = (EACH_CORE * cores).max(ANYWHERE);
    let threads = text.parse().ok().filter(|threads| (1..=most).contains(threads));
    threads.ok_or_else(|| format!("expected 1 to {most}; this machine runs {cores} at once"))
}

/// What of a model is computed otherwise than its files ask for.
#[derive(Clone, Debug, Default, Args)]
pub struct ModelOptions {
    /// The form of GELU, whichever the model's files ask for
    #[arg(long, value_enum)]
    gelu: Option<Gelu>,
    /// How I2_S weights lie, which their files do not state: x86, or arm as ARM builds quantise
    #[arg(long, value_name = "LAYOUT", default_value = "x86")]
    i2s_layout: I2sLayout,
    /// The kernel_config.ini of the build that a TL1 or TL2 file is for [default: the one beside the file]
    #[arg(long, value_name = "FILE")]
    kernel_config: Option<PathBuf>,
}

/// A form of GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Gelu {
    /// By its tanh approximation
    Tanh,
    /// By the error function
    Erf,
}

impl ModelOptions {
    /// Reads a model.
    pub fn load(&self, variant: &Variant) -> Result<LoadedModel> {
        let mut loaded = variant.files.load_told(&self.ternary()?)?;
        loaded.notes.iter().for_each(|note| tell!("note: {note}"));
        match self.gelu {
            Some(form) if !loaded.model.set_gelu(form.activation()) => {
                Err(Error::Usage(format!("--gelu: {} has no GELU", loaded.model.architecture())))
            }
            _ => Ok(loaded),
        }
    }

    /// The file that describes the kernels, if one was given.
    pub fn kernel_config(&self) -> Option<&Path> {
        self.kernel_config.as_deref()
    }

    fn ternary(&self) -> Result<TernaryFiles> {
        let told = TernaryFiles { layout: self.i2s_layout, kernels: Vec::new() };
        match &self.kernel_config {
            Some(file) => told.with_kernels(&Source::open(file)?),
            None => Ok(told),
        }
    }

    /// The arguments that give the same model again.
    pub fn words(&self) -> Vec<String> {
        let form = self.gelu.and_then(|form| form.to_possible_value());
        let gelu = form.map(|form| ["--gelu".to_owned(), form.get_name().to_owned()]);
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

/// Where the result goes.
#[derive(Clone, Debug, Args)]
pub struct OutputOptions {
    /// Where to write report.json, report.md and junit.xml [default: reports/<command>-<model>, or
    /// reports/<command>-<model>-<dump> where one dump is named]
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Write no report files
    #[arg(long, conflicts_with = "report")]
    pub no_report: bool,
    /// What to print
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub format: ReportFormat,
    /// Show more than the table; the map stands after the first failure anyway
    #[arg(long, value_enum, value_name = "WHAT")]
    pub show: Option<Show>,
    /// Add accumulated errors and the specification's tolerances to the table, 100 columns wide
    #[arg(long, short, conflicts_with = "format")]
    pub verbose: bool,
    /// Print the verdict lines alone
    #[arg(long, short, conflicts_with_all = ["format", "show", "verbose"])]
    pub quiet: bool,
    #[command(flatten)]
    pub baseline: BaselineOptions,
}

/// What to show besides the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Show {
    /// A map of taps and layers of every dump
    Map,
}

/// What to print of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// A table for a person
    Table,
    /// report.json
    Json,
    /// Annotations for a job of GitHub: an error for each first divergence, a warning for what could not be judged
    Github,
}

/// What the result must be no worse than.
#[derive(Clone, Debug, Default, Args)]
pub struct BaselineOptions {
    /// A file of what is known to fail, and of what was compared: other failures fail, and so do worse ones
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Write the baseline anew of what is found; what is new in it has no reason yet, and is let pass when somebody gives one
    #[arg(long, requires = "baseline")]
    pub update_baseline: bool,
    /// With --update-baseline, demand from now on that what is bit-identical stays so
    #[arg(long, requires = "update_baseline")]
    pub bits: bool,
}

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// A table for a person
    Table,
    /// JSON for a program
    Json,
}

/// What to print, of a command that judges nothing.
#[derive(Clone, Copy, Debug, Args)]
pub struct FormatOptions {
    /// What to print
    #[arg(long, value_enum, default_value_t = OutputFormat::Table)]
    pub format: OutputFormat,
}

impl FormatOptions {
    /// Prints a line for a person, where one reads.
    pub fn line(self, text: impl Display) {
        if self.format == OutputFormat::Table {
            say!("{text}");
        }
    }

    /// Prints the document for a program, where one reads.
    pub fn document(self, document: impl FnOnce() -> serde_json::Value) {
        if self.format == OutputFormat::Json {
            terminal::document(&format!("{:#}", document()));
        }
    }
}
