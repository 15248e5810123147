//! The commands: arguments in, output and an exit code out. The only code that prints.

mod apart;
#[cfg(feature = "hub")]
mod asking;
mod audit;
mod cases;
mod causes;
mod check;
mod checkpoints;
mod compare;
mod completions;
mod content;
mod diff;
mod dump;
mod elsewhere;
mod environment;
mod fingerprint;
mod foreign;
mod generate;
mod generated;
mod identify;
mod inspect;
mod judging;
mod kld;
mod making;
mod man;
mod matrix;
mod merge;
mod models;
mod named;
mod names;
mod numerics;
mod options;
mod output;
mod pace;
mod parting;
mod plan;
#[cfg(feature = "hub")]
mod probe;
mod progress;
mod prompt;
#[cfg(feature = "hub")]
mod record;
mod reference;
mod references;
mod run;
mod selfcheck;
mod selftest;
mod sequence;
#[cfg(feature = "serve")]
mod serve;
mod shard;
mod shard_options;
mod stream;
mod stream_options;
mod subject;
mod supposing;
mod target;
mod terminal;
mod texts;
mod tokenize;
mod unsaid;
mod unsaid_integers;

use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};

use crate::compare::Verdict;
use crate::error::{Error, Result};
use crate::parts;

pub use environment::with_environment;

/// Does an inference engine compute what the reference computes, and if not, which operation is the first
/// that is wrong?
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 pass, 1 divergence, 2 bad input or usage, 3 inconclusive";

/// Arguments of a command that was left out of this program.
#[cfg(not(feature = "serve"))]
#[derive(Debug, clap::Args)]
struct Absent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<std::ffi::OsString>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a model and compare it with reference dumps, checkpoint by checkpoint
    Run(run::Args),
    /// Judge another engine's activations: what each of its stages made of its own inputs
    Check(check::Args),
    /// Judge a dump by its own inputs and the weights alone: is each stage what rounding can make of them?
    Audit(audit::Args),
    /// Compare two dumps of any producers
    Compare(compare::Args),
    /// How far predictions are apart: llama-perplexity's table of two of its files, of dumps, of a file and a model
    Kld(kld::Args),
    /// Cut a comparison into shards: what each needs, for a scheduler
    Plan(plan::Args),
    /// Put the reports of shards together
    Merge(merge::Args),
    /// What became worse, better or new between two reports
    Diff(diff::Args),
    /// Run and compare every combination of models, formats, engines, commits: one table, each cell run once
    Matrix(matrix::Args),
    /// Run a model and write its own activations as a dump
    Dump(dump::Args),
    /// Ask a running server: does it compute what the model is, and the same again?
    #[cfg(feature = "hub")]
    Probe(probe::Args),
    /// Write a running server's answers as a dump, to be compared later
    #[cfg(feature = "hub")]
    Record(record::Args),
    /// Make a reference: run another engine on a model, in an environment that is made for it
    Reference(reference::Args),
    /// Generate text from a prompt
    Generate(generate::Args),
    /// Serve a model's reference computation behind the OpenAI API
    #[cfg(feature = "serve")]
    Serve(serve::Args),
    /// Named in the message of a program that was built without it
    #[cfg(not(feature = "serve"))]
    #[command(hide = true)]
    Serve(Absent),
    /// Check the engine against itself: prefill and decode, cache on and off, batch and single
    Selfcheck(selfcheck::Args),
    /// Check the judge: plant every known mistake, and count what is detected, located and named, and what is a false alarm
    Selftest(selftest::Args),
    /// Find what the arrays of a file are that has no manifest, and write a map of them
    Identify(identify::Args),
    /// Show what a model file or a dump holds
    Inspect(inspect::Args),
    /// Show the ids of a text, or where two tokenizers part
    Tokenize(tokenize::Args),
    /// List the models that ship with their references, and known public ones; download one
    Models(models::Args),
    /// List the twelve checkpoints: taps, axes, meaning, tolerance and its source
    Checkpoints(checkpoints::Args),
    /// List the causes that findings name and --suppose takes
    Causes(causes::Args),
    /// Print what completes commands and options in a shell
    Completions(completions::Args),
    /// Print the manual page, or write one for each command
    Man(man::Args),
}

/// Carries out a command line and gives back the exit code; errors are printed here, one message each. `notes` are lines about
/// the command line.
pub fn main(cli: &Cli, notes: &[String]) -> ExitCode {
    notes.iter().for_each(|note| terminal::message("note: ", format_args!("{note}")));
    let found = parts::caught(|| cli.dispatch()).unwrap_or_else(|refused| Err(Error::Elsewhere(refused)));
    match found.and_then(|verdict| terminal::check().map(|()| verdict)) {
        Ok(verdict) => exit_code(verdict),
        Err(error) => fail(&error),
    }
}

/// Prints an error and returns its exit code.
pub fn fail(error: &Error) -> ExitCode {
    terminal::message("error: ", format_args!("{error}"));
    for_programs(&error.to_string());
    ExitCode::from(2)
}

/// Says that this program is wrong, as the lines before have it, and gives back the exit code of bad input: there is no verdict.
pub fn broken() -> ExitCode {
    let advice = "this is a fault of xcheck, not of what it judges: please report it with the lines above";
    terminal::message("error: ", format_args!("{advice}"));
    for_programs(advice);
    ExitCode::from(2)
}

/// Says what is wrong with a command line, or what was asked about it, and gives back the exit code.
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

/// Whether the one document that a program reads was printed.
static TOLD: AtomicBool = AtomicBool::new(false);

/// What is wrong stands in the document that was printed: there is none of its own.
fn for_programs_was_told() {
    TOLD.store(true, Ordering::Relaxed);
}

/// The message on standard output, where JSON was asked for. The words of the command line tell, since they may be what
/// is wrong.
fn for_programs(error: &str) {
    if TOLD.load(Ordering::Relaxed) {
        return;
    }
    let words: Vec<_> = std::env::args_os().take_while(|word| word != "--").collect();
    let pairs = words.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json");
    if pairs || words.iter().any(|word| word == "--format=json") {
        terminal::document(&format!("{:#}", serde_json::json!({"error": error})));
    }
}

impl Cli {
    /// How many threads were asked for, by those commands that compute.
    pub fn threads(&self) -> Option<usize> {
        match &self.command {
            Command::Run(args) => args.options.threads.count(),
            Command::Check(args) => args.options.threads.count(),
            Command::Audit(args) => args.options.threads.count(),
            Command::Dump(args) => args.threads.count(),
            Command::Kld(args) => args.threads.count(),
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

fn exit_code(verdict: Verdict) -> ExitCode {
    ExitCode::from(match verdict {
        Verdict::Pass | Verdict::Tie | Verdict::Known => 0,
        Verdict::Fail => 1,
        Verdict::Inconclusive => 3,
    })
}
