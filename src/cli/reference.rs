//! `xcheck reference`: makes a dump of a model with another engine, and installs that engine if needed.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::cli::numerics::TorchDtype;
use crate::cli::options::{FormatOptions, RequestedModelOptions};
use crate::cli::prompt::PromptOptions;
use crate::cli::reference_options::ReferenceOptions;
use crate::cli::reference_request::ReferenceRequest;
use crate::error::Result;
use crate::reference::ReferenceInput;
use crate::report::shell;
use crate::verdict::Verdict;

/// Arguments of `xcheck reference`.
#[derive(Debug, Args)]
pub(crate) struct ReferenceArgs {
    #[command(flatten)]
    target: RequestedModelOptions,
    #[command(flatten)]
    prompt: PromptOptions,
    /// Number of greedy decode passes after the prompt
    #[arg(long, value_name = "N", default_value_t = DECODE)]
    decode: u16,
    #[command(flatten)]
    making: ReferenceOptions,
    /// Type that the engine computes in [default: f32; llama.cpp: the file's]
    #[arg(long, value_enum, help_heading = "Reference engine")]
    dtype: Option<TorchDtype>,
    /// Dump to write [default: in the folder of the model's dumps]
    ///
    /// A new directory, or a file ending in .safetensors. By default the dump is written where `xcheck run`
    /// looks for the model's dumps.
    #[arg(long, short, value_name = "PATH", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Show the output of the programs that xcheck runs
    #[arg(long, help_heading = "Output")]
    verbose: bool,
    #[command(flatten)]
    output: FormatOptions,
}

/// Default number of greedy passes.
pub(crate) const DECODE: u16 = 4;

/// Makes a reference and prints the command to compare with it.
pub(crate) fn run(args: &ReferenceArgs) -> Result<Verdict> {
    let target = args.target.find()?;
    let wish = ReferenceRequest {
        engine: args.making.with,
        input: args.prompt.input(),
        decode: args.decode.into(),
        dtype: args.dtype.map(TorchDtype::name),
        out: args.out.clone(),
    };
    let out = args.making.make(&target, &wish, args.verbose)?;
    let named = args.out.iter().flat_map(|out| ["--reference".to_owned(), out.display().to_string()]);
    let compare = ["run", "--model", &target.typed, "--checkpoint", "all"].map(str::to_owned);
    let compare: Vec<_> = compare.into_iter().chain(named).collect();
    args.output.line(format_args!("{}\ncompare with it: {}", out.display(), shell(&compare)));
    args.output.document(|| json!({"path": out.display().to_string(), "compare": compare}));
    Ok(Verdict::Pass)
}

impl PromptOptions {
    /// Returns the given input for another engine.
    pub(crate) fn input(&self) -> Option<ReferenceInput> {
        let prompt = self.prompt.clone().map(ReferenceInput::Prompt);
        prompt.or_else(|| self.tokens.clone().map(ReferenceInput::Tokens))
    }
}
