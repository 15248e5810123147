//! `xcheck kld` and `xcheck dump --kld`: log-probability files and the table of llama-perplexity.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::mapped_files::MappedFileContext;
use crate::cli::numerics::NumericsOptions;
use crate::cli::options::{
    FormatOptions, ModelOptions, RequestedModelOptions, SuppositionOptions, ThreadOptions,
};
use crate::cli::progress::StepProgress;
use crate::cli::prompt::{PromptOptions, beginning, tokenizer};
use crate::cli::references::dumps_named;
use crate::cli::requested_model::RequestedModel;
use crate::cli::supposed_changes::run_supposing;
use crate::engine::RunInput;
use crate::error::{Error, Result};
use crate::kld::{
    DumpPredictions, Estimate, KldFigures, LEAST, LogitsFile, LogitsWriter, ModelPredictions,
    PredictionSource, ScriptRunner, TokenDivergences, compare, first_row, table,
};
use crate::measure::Prediction;
use crate::model::LoadedModel;
use crate::numerics::Numerics;
use crate::tap::Tap;
use crate::tokenizer::SpecialTokens;
use crate::verdict::Verdict;
use crate::{engine, input};

/// Arguments of `xcheck kld`.
#[derive(Debug, Args)]
pub(crate) struct KldArgs {
    /// Base: a log-probability file or a dump with logits
    ///
    /// A log-probability file is written by llama-perplexity --kl-divergence-base or by `xcheck dump --kld`.
    base: String,
    /// File or dump to compare with the base
    ///
    /// Without it, --model is run on the text of the base.
    #[arg(required_unless_present = "model")]
    other: Option<String>,
    /// Model to run on the text of the base
    #[arg(long, short, value_name = "MODEL", conflicts_with = "other")]
    model: Option<String>,
    /// Compare only the first N chunks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Largest mean KL divergence that passes, in nats
    ///
    /// Fails if the whole 95 % interval is above this limit. Inconclusive if the limit is inside the interval
    /// or there is no interval.
    #[arg(long, value_name = "NATS")]
    max_kld: Option<f64>,
    /// Token id that replaces each chunk's first token, or none
    ///
    /// The default is the token that the model's tokenizer puts before a text.
    #[arg(long, value_name = "ID", requires = "model")]
    bos: Option<Bos>,
    #[command(flatten)]
    output: FormatOptions,
    #[command(flatten)]
    numerics: NumericsOptions,
    #[command(flatten)]
    suppose: SuppositionOptions,
    #[command(flatten)]
    model_options: ModelOptions,
    #[command(flatten)]
    pub(super) threads: ThreadOptions,
}

/// Options of `xcheck dump --kld`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KldOptions {
    /// Write log-probabilities for llama-perplexity instead of a dump
    ///
    /// The file is that of llama-perplexity --kl-divergence-base. The text of --prompt, --tokens or --text is
    /// cut into chunks of --ctx tokens.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["out", "sketch"],
        help_heading = "Log-probability file"
    )]
    pub(crate) kld: Option<PathBuf>,
    /// File with the text to read
    #[arg(
        long,
        value_name = "FILE",
        requires = "kld",
        conflicts_with_all = ["prompt", "tokens"],
        help_heading = "Log-probability file"
    )]
    text: Option<PathBuf>,
    /// Number of tokens per chunk
    #[arg(
        long,
        value_name = "N",
        requires = "kld",
        default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(3..),
        help_heading = "Log-probability file"
    )]
    ctx: u32,
    /// Read only the first N chunks
    #[arg(
        long,
        value_name = "N",
        requires = "kld",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Log-probability file"
    )]
    chunks: Option<u32>,
    /// Token id that replaces each chunk's first token, or none
    ///
    /// The default is the token that the model's tokenizer puts before a text.
    #[arg(long, value_name = "ID", requires = "kld", help_heading = "Log-probability file")]
    bos: Option<Bos>,
}

/// The token before a text: an id, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bos {
    None,
    Id(u32),
}

impl FromStr for Bos {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match (text, text.parse()) {
            ("none", _) => Ok(Bos::None),
            (_, Ok(id)) => Ok(Bos::Id(id)),
            _ => Err("expected a token id, or none".into()),
        }
    }
}

/// Prints llama-perplexity's table for two files, two dumps, or a file and a model.
pub(crate) fn run(args: &KldArgs) -> Result<Verdict> {
    let base = named(&args.base)?;
    let most = args.chunks.map_or(usize::MAX, |chunks| chunks as usize);
    let tally = match (&args.other, &args.model) {
        (Some(other), _) => compared(&*base, &*named(other)?, most)?,
        (None, model) => {
            let target =
                RequestedModelOptions::of(model.as_deref().expect("clap requires a model or a second file"))
                    .find()?;
            let loaded = args.model_options.load(&target.variants[0])?;
            let chunks: Vec<_> = base.chunks().into_iter().map(<[u32]>::to_vec).collect();
            let bos = if base.hides_first() { bos(&target, args.bos)? } else { None };
            let numerics = args.numerics.of(&*loaded.model, None)?;
            let run = runs(&loaded, &*numerics, &args.suppose);
            compared(&*base, &ModelPredictions::new(target.name.clone(), chunks, bos, run), most)?
        }
    };
    let (figures, verdict) = (tally.figures(), args.verdict(&tally));
    args.output.line(shown(&tally, figures.as_ref()));
    if let (Some(most), Some(figures)) = (args.max_kld, &figures) {
        args.output.line(format_args!("\n{}  {}", verdict.name().to_uppercase(), bounded(figures, most)));
    }
    args.output.document(|| document(&tally, figures.as_ref(), verdict));
    Ok(verdict)
}

/// Formats the mean KL divergence with its limit, such as "mean KLD 0.0123 (95 %: 0.0110 to 0.0136), limit
/// 0.01".
fn bounded(figures: &KldFigures, most: f64) -> String {
    let Estimate { value, interval, .. } = figures.kld.mean;
    let within = interval.map_or(String::new(), |[low, high]| format!(" (95 %: {low:.6} to {high:.6})"));
    format!("mean KLD {value:.6}{within}, limit {most}")
}

fn compared(
    base: &dyn PredictionSource,
    other: &dyn PredictionSource,
    most: usize,
) -> Result<TokenDivergences> {
    let mut steps = StepProgress::new("chunk", base.chunks().len().min(most));
    compare(base, other, most, |done| steps.reached(done))
}

impl KldArgs {
    /// Returns the verdict. Inconclusive if there are too few tokens for statistics.
    fn verdict(&self, tally: &TokenDivergences) -> Verdict {
        let Some(figures) = tally.figures() else { return Verdict::Inconclusive };
        let Some(most) = self.max_kld else { return Verdict::Pass };
        if tally.left_out > 0 {
            return Verdict::Inconclusive;
        }
        match figures.kld.mean.interval {
            Some([_, high]) if high <= most => Verdict::Pass,
            Some([low, _]) if low > most => Verdict::Fail,
            _ => Verdict::Inconclusive,
        }
    }
}

/// Opens a log-probability file or a dump.
fn named(typed: &str) -> Result<Box<dyn PredictionSource>> {
    if let Some(file) = LogitsFile::at(Path::new(typed))? {
        return Ok(Box::new(file));
    }
    let dumps = dumps_named(typed, &MappedFileContext::default())?;
    Ok(Box::new(DumpPredictions::new(dumps.into_iter().map(|named| named.dump).collect())?))
}

/// Returns a function that runs a model with the supposed changes.
fn runs<'r>(
    loaded: &'r LoadedModel,
    numerics: &'r dyn Numerics,
    suppose: &SuppositionOptions,
) -> Box<ScriptRunner<'r>> {
    let supposed = suppose.suppositions(None);
    Box::new(move |script: &RunInput, tap: &mut dyn Tap| {
        run_supposing(&supposed, &*loaded.model, numerics, script, tap)
    })
}

/// Returns the token that replaces the first token of each chunk, if any: the requested one, or otherwise the one
/// that the tokenizer adds before a text.
fn bos(target: &RequestedModel, asked: Option<Bos>) -> Result<Option<u32>> {
    match asked {
        Some(Bos::None) => return Ok(None),
        Some(Bos::Id(id)) => return Ok(Some(id)),
        None => {}
    }
    beginning(target).map_err(|error| {
        Error::Usage(format!("{error}; set the token before a text with --bos ID, or --bos none"))
    })
}

/// Writes the file of `xcheck dump --kld`.
pub(super) fn write(
    path: &Path,
    options: &KldOptions,
    (target, prompt): (&RequestedModel, &PromptOptions),
    (loaded, numerics): (&LoadedModel, &dyn Numerics),
    suppose: &SuppositionOptions,
    output: FormatOptions,
) -> Result<Verdict> {
    let n_ctx = options.ctx as usize;
    let tokens = options.chunked(&options.tokens(target, prompt)?)?;
    let chunks: Vec<Vec<u32>> = tokens.chunks_exact(n_ctx).map(<[u32]>::to_vec).collect();
    let count = chunks.len();
    let script = RunInput::greedy(&chunks[0], 0);
    engine::check(&*loaded.model, numerics, &script)?;
    let n_vocab = loaded.model.dimensions().vocab_size;
    let mut writer = LogitsWriter::create(path, n_vocab, n_ctx, &tokens)?;
    let run = runs(loaded, numerics, suppose);
    let computed = ModelPredictions::new(target.name.clone(), chunks, bos(target, options.bos)?, run);
    let mut steps = StepProgress::new("chunk", count);
    for (number, chunk) in computed.chunks().into_iter().enumerate() {
        let rows = computed.open(number)?;
        let row = |position: usize| {
            let mut row = Prediction::default();
            rows(position, &mut row)?;
            Ok((row, chunk[position + 1]))
        };
        let rows = (first_row(n_ctx)..n_ctx - 1).map(row).collect::<Result<Vec<_>>>()?;
        writer.chunk(&rows)?;
        steps.reached(number + 1);
    }
    drop(steps);
    let perplexity = writer.finish()?;
    let (ppl, error) = perplexity.value();
    let shown = path.display();
    output.line(format_args!(
        "{shown}: {count} chunks of {n_ctx} tokens of {}\nFinal estimate: PPL = {ppl:.4} +/- {error:.5}",
        target.name
    ));
    output.document(|| {
        json!({
            "path": path.display().to_string(),
            "model": target.name,
            "numerics": numerics.name(),
            "n_ctx": n_ctx,
            "chunks": count,
            "tokens": perplexity.count(),
            "ppl": {"value": ppl, "as_if_independent": error},
        })
    });
    Ok(Verdict::Pass)
}

impl KldOptions {
    fn tokens(&self, target: &RequestedModel, prompt: &PromptOptions) -> Result<Vec<u32>> {
        let Some(file) = &self.text else {
            let nothing = || Error::Usage("no input for the model; use --text, --prompt or --tokens".into());
            return prompt.tokens(target)?.ok_or_else(nothing);
        };
        let text = input::text(file)?;
        // Like llama.cpp's -f: the final newline is removed, and special tokens are plain text.
        let text = text.strip_suffix('\n').unwrap_or(&text);
        tokenizer(target)?.encode_with(text, SpecialTokens { add: true, parse: false })
    }

    /// Returns the requested number of whole chunks, or all.
    fn chunked(&self, tokens: &[u32]) -> Result<Vec<u32>> {
        let n_ctx = self.ctx as usize;
        let whole = tokens.len() / n_ctx;
        if whole == 0 {
            return Err(Error::Usage(format!(
                "{} tokens are fewer than one chunk of {n_ctx}; use a longer text or a smaller --ctx",
                tokens.len()
            )));
        }
        let wanted = self.chunks.map_or(whole, |chunks| chunks as usize).min(whole);
        Ok(tokens[..wanted * n_ctx].to_vec())
    }
}

fn shown(tally: &TokenDivergences, figures: Option<&KldFigures>) -> String {
    let (chunks, tokens) = (tally.chunks(), tally.count());
    match figures {
        None => {
            format!("{chunks} chunks, {tokens} tokens: too few for statistics, expected at least {LEAST}")
        }
        Some(figures) => {
            let how = match chunks {
                1 => "one chunk is too few for intervals".to_owned(),
                _ => {
                    format!(
                        "[…] is the 95 % interval over {chunks} chunks, since tokens within a chunk are \
                        correlated"
                    )
                }
            };
            let (within, apart) = tally.within();
            let left_out = match tally.left_out {
                0 => String::new(),
                left => {
                    format!(" of {}, because the other side has no prediction for the rest", tokens + left)
                }
            };
            format!(
                "{}\n{chunks} chunks, {tokens} tokens{left_out}; ± treats tokens as independent, like \
                 llama-perplexity; {how}\n{within} of {tokens} tokens have every log-probability within the \
                 rounding of the base's 16 bits; the largest difference is {apart:.6}",
                table(figures)
            )
        }
    }
}

fn document(tally: &TokenDivergences, figures: Option<&KldFigures>, verdict: Verdict) -> Value {
    let (within, apart) = tally.within();
    json!({
        "verdict": verdict.name(),
        "chunks": tally.chunks(),
        "tokens": tally.count(),
        "tokens_left_out": tally.left_out,
        "kld_of_chunks": tally.klds(),
        "within_steps": within,
        "largest_difference": apart,
        "intervals": "95 %, Student's t over chunks",
        "statistics": figures,
    })
}
