//! Generation of tokens after a prompt.

use std::time::{Duration, Instant};

use crate::engine::{Engine, Sampler, Sampling};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::numerics::Numerics;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Request for a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Maximum number of generated tokens.
    pub max_tokens: usize,
    /// Tokens that end the text. They are not part of the text.
    pub stop: Vec<u32>,
    /// Capacity of the KV cache in tokens: prompt and generation.
    pub context: usize,
    /// True if layers with a sliding window keep only their window in the cache.
    pub forgets: bool,
    /// Sampling parameters.
    pub sampling: Sampling,
}

/// Reason why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// This stop token was chosen.
    Stop(u32),
    /// The maximum number of tokens was generated.
    Length,
}

/// Generation of one sequence. Several generations are independent: each has its own cache and seed.
pub struct Generation<'m> {
    engine: Engine<'m>,
    numerics: &'m dyn Numerics,
    sampler: Sampler,
    request: Request,
    unread: Vec<u32>,
    generated: Vec<u32>,
    logits: Tensor,
    ending: Option<StopReason>,
    /// Time of the pass over the prompt.
    pub prompt_time: Duration,
    /// Time of all later passes.
    pub decode_time: Duration,
    /// Number of passes after the prompt.
    pub decode_passes: usize,
}

impl<'m> Generation<'m> {
    /// Checks the request without computing anything.
    ///
    /// # Errors
    /// If the numerics cannot compute with a weight's type, a token is outside the vocabulary, the prompt is empty, a
    /// sampling setting is invalid, prompt and generation exceed the context, or the context exceeds the model's.
    pub fn new(model: &'m dyn Model, numerics: &'m dyn Numerics, request: Request) -> Result<Self> {
        let mut engine = Engine::new(model, numerics, request.context)?;
        if request.forgets {
            engine = engine.forgetting();
        }
        let sampler = Sampler::new(request.sampling)?;
        check_context(&request)?;
        engine.check_tokens(&request.prompt)?;
        Ok(Self {
            engine,
            numerics,
            sampler,
            unread: request.prompt.clone(),
            generated: Vec::new(),
            logits: Tensor::new(&[0], Vec::new()),
            ending: (request.max_tokens == 0).then_some(StopReason::Length),
            prompt_time: Duration::ZERO,
            decode_time: Duration::ZERO,
            decode_passes: 0,
            request,
        })
    }

    /// Generates the next token; `None` when the text has ended.
    ///
    /// # Errors
    /// If the logits leave no token to choose.
    pub fn advance(&mut self) -> Result<Option<u32>> {
        self.advance_before(&mut ())
    }

    /// Generates the next token and shows all values to `tap`.
    ///
    /// # Errors
    /// See [`Generation::advance`].
    pub fn advance_before(&mut self, tap: &mut dyn Tap) -> Result<Option<u32>> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let token = self.timed_choice(tap)?;
        if self.request.stop.contains(&token) {
            self.ending = Some(StopReason::Stop(token));
            return Ok(None);
        }
        self.unread = vec![token];
        self.generated.push(token);
        if self.generated.len() == self.request.max_tokens {
            self.ending = Some(StopReason::Length);
        }
        Ok(Some(token))
    }

    /// Reads the prompt and passes the logits after each token to `seen`: the index of the first row, and some rows at
    /// a time, `[rows, V]`, in order. The logits have the same bits as in a dump. No token is chosen yet.
    ///
    /// # Errors
    /// See [`Engine::read`]; also if the prompt was read before.
    pub fn read_prompt(
        &mut self,
        tap: &mut dyn Tap,
        mut seen: impl FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        self.logits = self.engine.read_all(&std::mem::take(&mut self.unread), tap, &mut seen)?;
        self.prompt_time = start.elapsed();
        Ok(())
    }

    /// Reads the unread tokens and chooses the next one, and measures the time.
    fn timed_choice(&mut self, tap: &mut dyn Tap) -> Result<u32> {
        let (start, is_prompt) = (Instant::now(), self.generated.is_empty());
        if !self.unread.is_empty() {
            self.logits = self.engine.read(&self.unread, tap)?;
        }
        let token = self.sampler.choose(&self.logits, self.numerics)?;
        if is_prompt {
            self.prompt_time += start.elapsed();
        } else {
            self.decode_time += start.elapsed();
            self.decode_passes += 1;
        }
        Ok(token)
    }

    /// Returns the prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.request.prompt
    }

    /// Returns the logits of the last choice; empty before the first choice.
    pub fn logits(&self) -> &[f32] {
        self.logits.data()
    }

    /// Returns the generated tokens.
    pub fn generated(&self) -> &[u32] {
        &self.generated
    }

    /// Returns the reason for the end, if the generation has ended.
    pub fn ending(&self) -> Option<StopReason> {
        self.ending
    }

    /// Returns the current size of the KV cache in bytes.
    pub fn cache_bytes(&self) -> usize {
        self.engine.cache_bytes()
    }
}

/// Generates all sequences in turns, one token each, until all have ended. `seen` gets the index of the sequence and
/// the token, and returns false to stop.
///
/// # Errors
/// The first error of any sequence.
pub fn generate_all(sequences: &mut [Generation], mut seen: impl FnMut(usize, u32) -> bool) -> Result<()> {
    while sequences.iter().any(|sequence| sequence.ending.is_none()) {
        for (index, sequence) in sequences.iter_mut().enumerate() {
            if let Some(token) = sequence.advance()?
                && !seen(index, token)
            {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn check_context(request: &Request) -> Result<()> {
    let (prompt, generation, context) = (request.prompt.len(), request.max_tokens, request.context);
    if prompt.saturating_add(generation) <= context {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{prompt} prompt tokens and {generation} tokens to generate do not fit a context of {context}; shorten the \
         prompt, generate fewer tokens, or give a larger --context, at most the context length of the model"
    )))
}
