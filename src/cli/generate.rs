//! `xcheck generate`: generates text with a model.

use std::iter::repeat_n;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};

use crate::cli::generation_output::{GenerationOutput, TextOutput};
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{ModelOptions, RequestedModelOptions, ThreadOptions};
use crate::cli::prompt::{encode, token_id};
use crate::cli::requested_model::RequestedModel;
use crate::cli::terminal::{self, tell};
use crate::cli::tokenize::read;
use crate::engine::{self, Generation, Request, Sampling, generate_all};
use crate::error::{Error, Result};
use crate::input;
use crate::model::LoadedModel;
use crate::numerics::Numerics;
use crate::tokenizer::Tokenizer;
use crate::verdict::Verdict;

/// Default number of generated tokens, unless the context ends earlier.
const DEFAULT_TOKENS: usize = 128;

/// Arguments of `xcheck generate`.
#[derive(Debug, Args)]
#[command(override_usage = "\
xcheck generate [OPTIONS] --model <MODEL>
                       <--prompt <TEXT>|--prompts-file <FILE>|--tokens <IDS>>")]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    target: RequestedModelOptions,
    #[command(flatten)]
    prompts: GenerationPrompt,
    /// Number of tokens to generate [default: 128, or the rest of the context]
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,
    /// Number of sequences per prompt
    #[arg(
        long,
        alias = "n",
        value_name = "N",
        default_value = "1",
        value_parser = samples,
        help_heading = "Sampling"
    )]
    samples: usize,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// Token id that ends the text, instead of the model's own; repeatable
    #[arg(long, value_name = "ID", value_delimiter = ',', help_heading = "Stopping")]
    stop_id: Vec<u32>,
    /// Continue after the model's end-of-text token
    #[arg(long, conflicts_with = "stop_id", help_heading = "Stopping")]
    ignore_eos: bool,
    /// Maximum tokens of prompt and generation [default: the model's context]
    #[arg(long, value_name = "N", help_heading = "Stopping")]
    context: Option<usize>,
    /// Print the generated text without the prompt
    #[arg(long, help_heading = "Output")]
    no_echo: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = GenerateFormat::Text, help_heading = "Output")]
    format: GenerateFormat,
    #[command(flatten)]
    numerics: NumericsOptions,
    /// Cache only the window of sliding-window layers
    #[arg(long, help_heading = "Arithmetic")]
    window_cache: bool,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
}

fn nothing_to_read() -> Error {
    let problem = "the prompt is empty, and the model has no BOS token; use a non-empty --prompt or --tokens";
    Error::Usage(problem.to_owned())
}

fn samples(text: &str) -> std::result::Result<usize, String> {
    const MOST: usize = 1024;
    let number = text.parse().ok().filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("expected 1 to {MOST}"))
}

/// The first input of the model.
#[derive(Debug, Args)]
#[group(required = true)]
struct GenerationPrompt {
    /// Text to continue, or - for standard input
    ///
    /// Repeat the option for several sequences.
    #[arg(long, short, value_name = "TEXT")]
    prompt: Vec<String>,
    /// File with one prompt per line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "tokens"])]
    prompts_file: Option<PathBuf>,
    /// Token ids to continue, e.g. 1,15043
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id, conflicts_with = "prompt")]
    tokens: Vec<u32>,
}

/// Options for choosing the next token.
#[derive(Debug, Args)]
struct SamplingOptions {
    /// Sampling temperature; below 1e-6 the likeliest token is chosen
    #[arg(long, value_name = "T", default_value_t = 0.0, help_heading = "Sampling")]
    temperature: f32,
    /// Sample only from the K likeliest tokens
    #[arg(long, value_name = "K", requires = "temperature", help_heading = "Sampling")]
    top_k: Option<usize>,
    /// Sample only from the smallest set of tokens with probability above P
    #[arg(long, value_name = "P", requires = "temperature", help_heading = "Sampling")]
    top_p: Option<f64>,
    /// Sample only from tokens at least P times as likely as the likeliest
    #[arg(long, value_name = "P", requires = "temperature", help_heading = "Sampling")]
    min_p: Option<f64>,
    /// Random seed of the first sequence; each further one adds 1
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Sampling")]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GenerateFormat {
    /// The text while it is generated
    Text,
    /// One JSON document at the end
    Json,
}

/// Generates and prints text on standard output, and the speed on standard error.
pub(crate) fn run(args: &GenerateArgs) -> Result<Verdict> {
    let target = args.target.find()?;
    let prompts = args.prompts.tokens(&target)?;
    let loaded = args.model_options.load(&target.variants[0])?;
    let numerics = args.numerics.of_stored(&loaded)?;
    let mut sequences = Vec::new();
    let samples = prompts.into_iter().flat_map(|prompt| repeat_n(prompt, args.samples));
    for (item, mut prompt) in samples.enumerate() {
        if prompt.is_empty() {
            prompt.push(loaded.begin_token.ok_or_else(nothing_to_read)?);
        }
        let request = args.request(&loaded, prompt, item)?;
        sequences.push(Generation::new(&*loaded.model, &*numerics, request)?);
    }
    note_decoded(&loaded, &*numerics);
    let tokenizer = args.prompts.tokenizer(&target)?;
    let streams = args.format == GenerateFormat::Text && sequences.len() == 1;
    let mut text = TextOutput::new(tokenizer.as_deref(), sequences[0].prompt(), !args.no_echo);
    if streams {
        print(&text.begin()?)?;
    }
    let mut printed = Ok(true);
    generate_all(&mut sequences, |_, token| {
        if streams {
            printed = text.push(token).and_then(|piece| print(&piece));
        }
        matches!(printed, Ok(true))
    })?;
    if !printed? {
        return Ok(Verdict::Pass); // the reader has closed the output
    }
    let generated = GenerationOutput::of(&target.name, numerics.name(), tokenizer.as_deref(), &sequences)?;
    match (args.format, streams) {
        (GenerateFormat::Json, _) => print(&generated.json())?,
        (GenerateFormat::Text, true) => print(&(text.finish()? + "\n"))?,
        (GenerateFormat::Text, false) => print(&generated.text(!args.no_echo))?,
    };
    tell!("{}", generated.speed());
    Ok(Verdict::Pass)
}

impl GenerateArgs {
    /// Returns the request of a sequence. `item` is its index among all sequences.
    fn request(&self, loaded: &LoadedModel, prompt: Vec<u32>, item: usize) -> Result<Request> {
        let context = self.context.unwrap_or(loaded.model.dimensions().context_length);
        let room = context.saturating_sub(prompt.len());
        let stop = match (self.ignore_eos, self.stop_id.as_slice()) {
            (true, _) => Vec::new(),
            (false, []) => loaded.end_tokens.clone(),
            (false, asked) => asked.to_vec(),
        };
        Ok(Request {
            prompt,
            // At least one token, so that a full context is an error instead of an empty text.
            max_tokens: self.max_tokens.unwrap_or(DEFAULT_TOKENS.min(room).max(1)),
            stop,
            context,
            forgets: self.window_cache,
            sampling: self.sampling.of_item(item),
        })
    }
}

impl SamplingOptions {
    /// Returns the sampling settings of one of several sequences, with the seed of this sequence.
    fn of_item(&self, item: usize) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed.wrapping_add(item as u64),
        }
    }
}

impl GenerationPrompt {
    /// Returns the prompt tokens of each sequence.
    fn tokens(&self, target: &RequestedModel) -> Result<Vec<Vec<u32>>> {
        if !self.tokens.is_empty() {
            return Ok(vec![self.tokens.clone()]);
        }
        let texts = match &self.prompts_file {
            Some(file) => lines(file)?,
            None => self.prompt.iter().map(|text| read(text)).collect::<Result<_>>()?,
        };
        texts.iter().map(|text| encode(target, text)).collect()
    }

    /// Returns the tokenizer, if any. It is optional if ids were given; then ids are printed.
    fn tokenizer(&self, target: &RequestedModel) -> Result<Option<Arc<dyn Tokenizer>>> {
        match target.tokenizer() {
            Err(problem) if !self.tokens.is_empty() => {
                tell!("printing token ids, because their text is unknown: {problem}");
                Ok(None)
            }
            found => found,
        }
    }
}

fn lines(file: &Path) -> Result<Vec<String>> {
    let text = input::text(file)?;
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return Err(Error::Usage(format!("{} has no prompts, expected one per line", file.display())));
    }
    Ok(lines)
}

/// Prints a piece immediately; returns `false` if the output was closed.
fn print(piece: &str) -> Result<bool> {
    if terminal::out(piece) {
        return Ok(true);
    }
    terminal::check().map(|()| false)
}

/// Prints a note if the numerics decode the weights before they compute, because this is slow, and the file's
/// format is meant for products that read the codes.
fn note_decoded(loaded: &LoadedModel, numerics: &dyn Numerics) {
    let Some((_, dtype)) = engine::decoded(&*loaded.model, numerics).into_iter().next() else { return };
    let native = engine::native_to(dtype).map(|numerics| format!("--numerics {}", numerics.name()));
    let names = native.collect::<Vec<_>>().join(" or ");
    tell!(
        "weights of type {dtype} are decoded to floats, which is slow; {names} computes with them as stored"
    );
}
