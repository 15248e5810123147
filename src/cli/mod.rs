//! The commands of `xcheck`: argument parsing, output and exit codes. No other module prints.

mod audit;
#[cfg(feature = "hub")]
mod audit_report;
#[cfg(feature = "hub")]
mod audited_states;
mod cases;
mod causes;
mod check;
mod checkpoints;
mod compare;
mod comparison;
mod completions;
mod diff;
mod dump;
mod dump_hash;
mod engine_arithmetic;
mod environment;
mod fingerprint;
mod gap;
mod gap_experts;
mod gap_model;
mod gap_page;
mod generate;
mod generation_output;
mod identify;
mod inspect;
mod kld;
mod man;
mod mapped_files;
mod matrix;
mod merge;
mod mode_options;
mod models;
mod named_dump;
mod names;
mod numerics;
mod options;
mod output;
mod plan;
#[cfg(feature = "hub")]
mod probe;
#[cfg(feature = "hub")]
mod probe_audit;
mod progress;
mod prompt;
#[cfg(feature = "hub")]
mod record;
mod reference;
mod reference_options;
mod reference_request;
mod references;
mod remaining_time;
mod remote_files;
mod requested_model;
mod run;
mod selfcheck;
mod selftest;
mod sequence;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "hub")]
mod server_options;
mod shard;
mod shard_options;
mod stream;
mod stream_options;
mod supposed_changes;
mod terminal;
mod text_difference;
mod token_texts;
mod tokenize;
mod torch_evaluator;
mod unique_names;
mod unstated_properties;
mod unstated_quantisation;
mod weight_verification;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::builder::Styles;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::error::{Error, Result};
use crate::lazy_bytes;
use crate::verdict::Verdict;

pub use environment::with_environment;

/// The command line of `xcheck`.
#[derive(Debug, Parser)]
#[command(
    version,
    about,
    propagate_version = true,
    max_term_width = 100,
    after_help = AFTER_HELP
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
'xcheck <COMMAND> -h' lists the options of a command, '--help' explains them.

Exit codes: 0 pass, 1 divergence, 2 bad input or usage, 3 inconclusive";

/// The groups of commands in `xcheck --help`.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Judge", &["run", "check", "audit", "compare", "kld", "gap", "matrix", "diff", "merge", "plan"]),
    ("Produce", &["dump", "reference", "generate", "serve"]),
    ("Servers", &["probe", "record"]),
    ("Inspect", &["identify", "inspect", "tokenize", "models", "checkpoints", "causes"]),
    ("Check xcheck itself", &["selfcheck", "selftest"]),
    ("Shell", &["completions", "man"]),
];

/// Parses a command line.
///
/// # Errors
/// If the command line is invalid, or requests help or the version; the error has the text to print.
pub fn parse(words: Vec<OsString>) -> std::result::Result<Cli, clap::Error> {
    let mut commands = with_groups(Cli::command());
    let matches = commands.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut commands))
}

/// Sets the template of `xcheck --help`, which lists the commands of this build in groups.
fn with_groups(commands: clap::Command) -> clap::Command {
    let styles = Styles::default();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let line = |name: &&str| {
        let command = commands.find_subcommand(name).filter(|command| !command.is_hide_set())?;
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        Some(format!("  {literal}{name:<11}{literal:#}  {about}\n"))
    };
    let group = |(title, names): (&str, &[&str])| {
        let lines: String = names.iter().filter_map(line).collect();
        format!("{header}{title}:{header:#}\n{lines}\n")
    };
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{header}Options:{header:#}\n{{options}}{{after-help}}",
        GROUPS.map(group).concat()
    );
    commands.help_template(template)
}

/// Arguments of a command that this build does not include.
#[cfg(not(feature = "serve"))]
#[derive(Debug, clap::Args)]
struct OmittedCommandArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<std::ffi::OsString>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a model and compare it with reference dumps
    Run(run::RunArgs),
    /// Check another engine's dump against the model, operation by operation
    ///
    /// Measures two errors: the local error of each operation, computed again from the dump's own inputs, and
    /// the accumulated error of a whole run that starts from the token ids.
    Check(check::CheckArgs),
    /// Check a dump's local errors only: short for check --introduced
    ///
    /// Each operation must be within the error bound of rounding, given the dump's own inputs and the
    /// weights. The model does not run from the token ids.
    Audit(audit::AuditArgs),
    /// Compare two dumps of any engines
    Compare(compare::CompareArgs),
    /// Compare predictions by KL divergence, as llama-perplexity does
    ///
    /// Compares two log-probability files or dumps, or one of these with a model.
    Kld(kld::KldArgs),
    /// Compare log-probabilities of a rollout engine and a trainer
    ///
    /// Says whether the difference is rounding or a fault, where it is, and what it means for training.
    Gap(gap::GapArgs),
    /// Split a comparison into shards for a scheduler
    Plan(plan::PlanArgs),
    /// Merge the reports of shards into one report
    Merge(merge::MergeArgs),
    /// Compare two reports: what became worse, better or new
    Diff(diff::DiffArgs),
    /// Judge every combination of models, formats, engines and commits
    ///
    /// Each combination is a cell of one table, and each cell is run once: its report is kept while its
    /// command, this build and its input files are unchanged.
    Matrix(matrix::MatrixArgs),
    /// Run a model and write a dump
    Dump(dump::DumpArgs),
    /// Check a running server against the model, and for determinism
    #[cfg(feature = "hub")]
    Probe(probe::ProbeArgs),
    /// Write a running server's answers to a dump
    #[cfg(feature = "hub")]
    Record(record::RecordArgs),
    /// Make a reference dump with another engine
    ///
    /// The engine runs in a Python environment that xcheck makes for it, or in your own.
    Reference(reference::ReferenceArgs),
    /// Generate text from a prompt
    Generate(generate::GenerateArgs),
    /// Serve a model with the OpenAI API
    #[cfg(feature = "serve")]
    Serve(serve::ServeArgs),
    /// Not in this build
    #[cfg(not(feature = "serve"))]
    #[command(hide = true)]
    Serve(OmittedCommandArgs),
    /// Check xcheck's engine against itself
    ///
    /// Compares prefill with decode, runs with and without a KV cache, and batches with single sequences.
    Selfcheck(selfcheck::SelfcheckArgs),
    /// Check xcheck's verdicts on injected faults
    ///
    /// Injects every known fault, counts how many are detected, located and named, and counts false alarms.
    Selftest(selftest::SelftestArgs),
    /// Find the tap of each array in a file without a manifest
    ///
    /// Writes a name map of the arrays with --map-out.
    Identify(identify::IdentifyArgs),
    /// Show the contents of a model file or a dump
    Inspect(inspect::InspectArgs),
    /// Show the token ids of a text, or where two tokenizers differ
    Tokenize(tokenize::TokenizeArgs),
    /// List shipped and public models, or download one
    Models(models::ModelsArgs),
    /// List the checkpoints: taps, axes, meaning and tolerance
    Checkpoints(checkpoints::CheckpointsArgs),
    /// List the causes that reports name and --suppose takes
    Causes(causes::CausesArgs),
    /// Print the completion script of a shell
    Completions(completions::CompletionsArgs),
    /// Print the manual page, or write one for each command
    Man(man::ManArgs),
}

/// Runs a command and returns the exit code. Prints an error, if any, as one message. `notes` are lines about
/// the command line to print first.
pub fn main(cli: &Cli, notes: &[String]) -> ExitCode {
    notes.iter().for_each(|note| terminal::message("note: ", format_args!("{note}")));
    let found =
        lazy_bytes::caught(|| cli.dispatch()).unwrap_or_else(|refused| Err(Error::Elsewhere(refused)));
    match found.and_then(|verdict| terminal::check().map(|()| verdict)) {
        Ok(verdict) => exit_status(verdict).into(),
        Err(error) => fail(&error),
    }
}

/// Prints an error and returns its exit code.
pub fn fail(error: &Error) -> ExitCode {
    terminal::message("error: ", format_args!("{error}"));
    for_programs(&error.to_string());
    ExitCode::from(2)
}

/// Prints that xcheck itself has a bug, described in the lines before, and returns the exit code for bad
/// input.
pub fn broken() -> ExitCode {
    let advice = "this is a bug in xcheck, not in the engine under test; please report it with the lines \
        above";
    terminal::message("error: ", format_args!("{advice}"));
    for_programs(advice);
    ExitCode::from(2)
}

/// Prints an error or requested information about the command line and returns the exit code.
pub fn refuse(usage: &clap::Error) -> ExitCode {
    let unwritten = usage.print().err().filter(|error| error.kind() != ErrorKind::BrokenPipe);
    if let Some(error) = unwritten.filter(|_| !usage.use_stderr()) {
        terminal::message(
            "error: ",
            format_args!("{}", Error::io("write", "standard output".as_ref())(error)),
        );
        return ExitCode::from(2);
    }
    if usage.use_stderr() {
        let message = usage.render().to_string();
        for_programs(message.trim_end().strip_prefix("error: ").unwrap_or(&message));
    }
    ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2))
}

/// True if a JSON document was already printed.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Records that the printed JSON document already contains the error.
fn for_programs_was_told() {
    TOLD.store(true, Ordering::Relaxed);
}

/// Prints an error as JSON on standard output, if a JSON format is requested. The format is taken from the
/// raw arguments, since parsing may have failed.
fn for_programs(error: &str) {
    if TOLD.load(Ordering::Relaxed) {
        return;
    }
    let words: Vec<_> = std::env::args_os().take_while(|word| word != "--").collect();
    let is_json = |word: &std::ffi::OsStr| word == "json" || word == "agent";
    let pairs = words.windows(2).any(|pair| pair[0] == "--format" && is_json(&pair[1]));
    if pairs || words.iter().any(|word| word == "--format=json" || word == "--format=agent") {
        terminal::document(&format!("{:#}", serde_json::json!({"error": error})));
    }
}

impl Cli {
    /// Returns the requested number of threads, for commands that compute.
    pub fn threads(&self) -> Option<usize> {
        match &self.command {
            Command::Run(args) => args.options.threads.count(),
            Command::Check(args) => args.options.threads.count(),
            Command::Audit(args) => args.options.threads.count(),
            Command::Dump(args) => args.threads.count(),
            Command::Kld(args) => args.threads.count(),
            Command::Gap(args) => args.threads.count(),
            Command::Identify(args) => args.threads.count(),
            Command::Generate(args) => args.threads.count(),
            #[cfg(feature = "serve")]
            Command::Serve(args) => args.threads.count(),
            #[cfg(feature = "hub")]
            Command::Probe(args) => args.threads.count(),
            Command::Selfcheck(args) => args.threads.count(),
            Command::Selftest(args) => args.threads.count(),
            _ => None,
        }
    }

    fn dispatch(&self) -> Result<Verdict> {
        match &self.command {
            Command::Run(args) => run::run(args),
            Command::Check(args) => check::run(args),
            Command::Audit(args) => audit::run(args),
            Command::Compare(args) => compare::run(args),
            Command::Kld(args) => kld::run(args),
            Command::Gap(args) => gap::run(args),
            Command::Plan(args) => plan::run(args),
            Command::Merge(args) => merge::run(args),
            Command::Diff(args) => diff::run(args),
            Command::Matrix(args) => matrix::run(args),
            Command::Dump(args) => dump::run(args),
            #[cfg(feature = "hub")]
            Command::Probe(args) => probe::run(args),
            #[cfg(feature = "hub")]
            Command::Record(args) => record::run(args),
            Command::Reference(args) => reference::run(args),
            Command::Generate(args) => generate::run(args),
            #[cfg(feature = "serve")]
            Command::Serve(args) => serve::run(args),
            #[cfg(not(feature = "serve"))]
            Command::Serve(_) => Err(Error::Usage(
                "this xcheck was built without `serve`; build it with: cargo build --release --features serve".into(),
            )),
            Command::Selfcheck(args) => selfcheck::run(args),
            Command::Selftest(args) => selftest::run(args),
            Command::Identify(args) => identify::run(args),
            Command::Inspect(args) => inspect::run(args),
            Command::Tokenize(args) => tokenize::run(args),
            Command::Models(args) => models::run(args),
            Command::Checkpoints(args) => checkpoints::run(args),
            Command::Causes(args) => causes::run(args),
            Command::Completions(args) => completions::run(args),
            Command::Man(args) => man::run(args),
        }
    }
}

fn exit_status(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Pass | Verdict::Tie | Verdict::Known => 0,
        Verdict::Fail => 1,
        Verdict::Inconclusive => 3,
    }
}
