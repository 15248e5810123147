//! Output of generated text during generation, and of the complete result with its speed.

use std::fs;
use std::time::Duration;

use serde::Serialize;

use crate::engine::{Generation, StopReason};
use crate::error::Result;
use crate::tokenizer::{TextStream, Tokenizer};

/// Decodes the text of one sequence token by token. Without a tokenizer, the text consists of token ids.
pub(crate) struct TextOutput<'t> {
    tokenizer: Option<&'t dyn Tokenizer>,
    stream: Option<TextStream<'t>>,
    prompt: Vec<u32>,
    echo: bool,
}

impl<'t> TextOutput<'t> {
    /// Makes the output; it starts with the prompt's text if `echo` is true.
    pub(crate) fn new(tokenizer: Option<&'t dyn Tokenizer>, prompt: &[u32], echo: bool) -> Self {
        Self { tokenizer, stream: None, prompt: prompt.to_vec(), echo }
    }

    /// Returns the text before the first token.
    ///
    /// # Errors
    /// If an id has no text.
    pub(crate) fn begin(&mut self) -> Result<String> {
        let Some(tokenizer) = self.tokenizer else {
            return Ok(if self.echo { ids(&self.prompt) } else { String::new() });
        };
        if !self.echo {
            self.stream = Some(TextStream::after(tokenizer, &self.prompt)?);
            return Ok(String::new());
        }
        let mut stream = TextStream::new(tokenizer);
        let pieces: Result<String> = self.prompt.iter().map(|&id| stream.push(id)).collect();
        self.stream = Some(stream);
        pieces
    }

    /// Returns the text that a token adds.
    ///
    /// # Errors
    /// If the token has no text.
    pub(crate) fn push(&mut self, token: u32) -> Result<String> {
        self.stream.as_mut().map_or_else(|| Ok(ids(&[token])), |stream| stream.push(token))
    }

    /// Returns the remaining text, which may be an incomplete character.
    ///
    /// # Errors
    /// If a token has no text.
    pub(crate) fn finish(self) -> Result<String> {
        self.stream.map_or(Ok(String::new()), TextStream::finish)
    }
}

fn ids(tokens: &[u32]) -> String {
    tokens.iter().map(|id| format!("{id} ")).collect()
}

/// The generated sequences of a run and its speed.
#[derive(Debug, Serialize)]
pub(crate) struct GenerationOutput {
    model: String,
    numerics: String,
    sequences: Vec<GeneratedSequence>,
    prompt_tokens: usize,
    /// Prompt tokens per second; null if no prompt was read.
    prompt_tokens_per_second: Option<f64>,
    generated_tokens: usize,
    /// Speed of the tokens after each sequence's first; null if there are none.
    decode_tokens_per_second: Option<f64>,
    /// Seconds until every sequence had its first token.
    seconds_to_first_token: f64,
    /// Peak resident memory including mapped weights, in bytes; null if the system does not report it.
    peak_memory_bytes: Option<usize>,
    kv_cache_bytes: usize,
}

/// One generated sequence with its prompt.
#[derive(Debug, Serialize)]
struct GeneratedSequence {
    prompt: Option<String>,
    prompt_tokens: Vec<u32>,
    text: Option<String>,
    tokens: Vec<u32>,
    /// Reason why the sequence ended: "stop" or "length".
    ended_by: &'static str,
    stop_id: Option<u32>,
}

impl GenerationOutput {
    /// Collects finished sequences.
    ///
    /// # Errors
    /// If an id has no text.
    pub(crate) fn of(
        model: &str,
        numerics: &str,
        tokenizer: Option<&dyn Tokenizer>,
        sequences: &[Generation],
    ) -> Result<Self> {
        let sum = |of: fn(&Generation) -> usize| sequences.iter().map(of).sum::<usize>();
        let seconds =
            |of: fn(&Generation) -> Duration| sequences.iter().map(of).sum::<Duration>().as_secs_f64();
        let (to_first, after) = (seconds(|one| one.prompt_time), seconds(|one| one.decode_time));
        let decoded = sum(|one| one.decode_passes);
        Ok(Self {
            model: model.to_owned(),
            numerics: numerics.to_owned(),
            sequences: sequences
                .iter()
                .map(|one| GeneratedSequence::of(one, tokenizer))
                .collect::<Result<_>>()?,
            prompt_tokens: sum(|one| one.prompt().len()),
            prompt_tokens_per_second: (to_first > 0.0)
                .then(|| sum(|one| one.prompt().len()) as f64 / to_first),
            generated_tokens: sum(|one| one.generated().len()),
            decode_tokens_per_second: (decoded > 0).then(|| decoded as f64 / after),
            seconds_to_first_token: to_first,
            peak_memory_bytes: peak_memory(),
            kv_cache_bytes: sum(|one| one.cache_bytes()),
        })
    }

    /// Returns one JSON document.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("the output can be written as JSON") + "\n"
    }

    /// Returns all texts, one after the other.
    pub(crate) fn text(&self, echo: bool) -> String {
        let text = |one: &GeneratedSequence| match (&one.prompt, &one.text) {
            (Some(prompt), Some(text)) if echo => format!("{prompt}{text}\n"),
            (_, Some(text)) => format!("{text}\n"),
            _ => format!("{}\n", ids(&one.tokens).trim_end()),
        };
        self.sequences.iter().map(text).collect()
    }

    /// Returns a line about the speed.
    pub(crate) fn speed(&self) -> String {
        let at = |rate: Option<f64>| rate.map_or(String::new(), |rate| format!(" at {rate:.1} tokens/s"));
        let [prompt, decode] = [self.prompt_tokens_per_second, self.decode_tokens_per_second].map(at);
        let memory =
            self.peak_memory_bytes.map_or("unknown".to_owned(), |bytes| format!("{} MB", bytes / 1_000_000));
        format!(
            "prompt {} tokens{prompt}, generated {}{decode}; first token after {:.3} s; peak memory \
             {memory}, including {:.1} MB KV cache; numerics {}",
            self.prompt_tokens,
            self.generated_tokens,
            self.seconds_to_first_token,
            self.kv_cache_bytes as f64 / 1e6,
            self.numerics
        )
    }
}

impl GeneratedSequence {
    fn of(generation: &Generation, tokenizer: Option<&dyn Tokenizer>) -> Result<Self> {
        let (prompt, tokens) = (generation.prompt(), generation.generated());
        let mut text = TextOutput::new(tokenizer, prompt, true);
        let (before, mut after) = (text.begin()?, String::new());
        for &token in tokens {
            after += &text.push(token)?;
        }
        after += &text.finish()?;
        let (ended_by, stop_id) = match generation.ending() {
            Some(StopReason::Stop(id)) => ("stop", Some(id)),
            _ => ("length", None),
        };
        Ok(Self {
            prompt: tokenizer.map(|_| before),
            prompt_tokens: prompt.to_vec(),
            text: tokenizer.map(|_| after),
            tokens: tokens.to_vec(),
            ended_by,
            stop_id,
        })
    }
}

/// Returns the peak resident memory of the process in bytes, on Linux only.
fn peak_memory() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let figure = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    figure.trim().trim_end_matches(" kB").parse::<usize>().ok().map(|kilobytes| kilobytes * 1024)
}
