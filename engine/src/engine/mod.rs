//! Runs a model: passes over tokens with numerics and a tap, and generation.

mod generation;
mod layer;
mod memory_estimate;
mod sampler;
mod segment;
mod stream;
mod token_score;

pub use generation::{Generation, Request, StopReason, generate_all};
pub use layer::run_layer;
pub use sampler::{Sampler, Sampling};
pub use segment::{ModelSegment, SegmentPass, run_part, tap_generated};
pub use token_score::TokenScore;

use std::ops::Range;

use crate::engine::stream::{Stream, probed, through};
use crate::error::{Error, Result, TokenizerError};
use crate::model::{Dimensions, LayerState, Model, ModelState};
use crate::numerics::{self, Numerics};
use crate::ops::sampling::argmax;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::weight::DType;

/// Input of a run: its passes and their tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct RunInput {
    /// Forward passes, in order.
    pub passes: Vec<PassInput>,
    /// Number of tokens of the prompt. The choice after the last prompt token is the first generated token.
    pub prompt_len: usize,
}

/// One forward pass of a [`RunInput`].
#[derive(Clone, Debug, PartialEq)]
pub struct PassInput {
    /// Tokens to read; `None` for the greedy choice of the previous pass.
    pub tokens: Option<Vec<u32>>,
    /// Temperature of the pass's `probs`.
    pub temperature: f32,
    /// True if the tap sees this pass.
    pub tapped: bool,
}

impl PassInput {
    /// Creates a pass over given tokens. The tap sees the pass, and the temperature is 1.
    pub fn given(tokens: &[u32]) -> Self {
        Self { tokens: Some(tokens.to_vec()), temperature: 1.0, tapped: true }
    }

    /// Creates a pass that reads the token chosen greedily after the previous pass. The tap sees the pass, and the
    /// temperature is 1.
    pub fn greedy() -> Self {
        Self { tokens: None, temperature: 1.0, tapped: true }
    }
}

impl RunInput {
    /// Creates one pass over the prompt, then `decode` passes of one token each.
    pub fn greedy(prompt: &[u32], decode: usize) -> Self {
        let mut passes = vec![PassInput::given(prompt)];
        passes.extend((0..decode).map(|_| PassInput::greedy()));
        Self { passes, prompt_len: prompt.len() }
    }

    /// Returns the number of tokens that all passes read.
    pub(crate) fn len(&self) -> usize {
        self.passes.iter().map(|step| step.tokens.as_ref().map_or(1, Vec::len)).sum()
    }

    /// Returns the positions of each pass.
    fn positions(&self) -> impl Iterator<Item = Range<usize>> {
        self.passes.iter().scan(0, |start, step| {
            let end = *start + step.tokens.as_ref().map_or(1, Vec::len);
            Some(std::mem::replace(start, end)..end)
        })
    }
}

/// Tokens that a run read and chose.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The tokens of each pass.
    pub passes: Vec<Vec<u32>>,
    /// Greedy choices, starting at the end of the prompt.
    pub generated: Vec<u32>,
    /// Greedy choice and margin after each pass.
    pub choices: Vec<GreedyToken>,
}

/// A greedy choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GreedyToken {
    /// Chosen token.
    pub token: u32,
    /// Second-best token.
    pub second: u32,
    /// Difference between the two largest logits.
    pub margin: f32,
}

impl GreedyToken {
    fn new(token: u32, logits: &[f32]) -> Self {
        let mut others = logits.to_vec();
        // A dump that is replayed may name a token outside the vocabulary, which has no logit.
        let best = others
            .get_mut(token as usize)
            .map_or(f32::NEG_INFINITY, |logit| std::mem::replace(logit, f32::NEG_INFINITY));
        let second = argmax(&others);
        Self { token, second: second as u32, margin: best - others[second] }
    }
}

/// Checks the number of tokens of a run, before its passes are listed.
///
/// # Errors
/// If there are more tokens than the model's context, or than fit in memory.
pub fn check_length(model: &dyn Model, tokens: usize) -> Result<()> {
    check_context(tokens, model.dimensions())?;
    memory_estimate::check_all(model, tokens)
}

/// Checks for the errors of [`run`], before anything is computed or written.
///
/// # Errors
/// See [`run`].
pub fn check(model: &dyn Model, numerics: &dyn Numerics, script: &RunInput) -> Result<()> {
    let engine = Engine::new(model, numerics, script.len())?;
    memory_estimate::check(model.dimensions(), script.positions())?;
    script
        .passes
        .iter()
        .filter_map(|step| step.tokens.as_ref())
        .try_for_each(|tokens| engine.check_tokens(tokens))
}

/// Runs `script` from an empty state and shows every intermediate value to `tap`.
///
/// Passes with given tokens go through the model together, layer by layer. Each weight is then read only once, and
/// keys and values of a layer are dropped after the last pass has used them.
///
/// # Errors
/// If the numerics cannot compute with a weight's type, a token is outside the vocabulary, or the tokens exceed the
/// model's context.
pub fn run(
    model: &dyn Model,
    numerics: &dyn Numerics,
    script: &RunInput,
    tap: &mut dyn Tap,
) -> Result<Transcript> {
    let mut engine = Engine::new(model, numerics, script.len())?;
    let mut transcript = Transcript::default();
    let (mut choice, mut steps) = (None, script.passes.as_slice());
    while !steps.is_empty() {
        let given = steps.iter().take_while(|step| step.tokens.is_some()).count();
        let (together, rest) = steps.split_at(given.max(1));
        let read = |step: &PassInput| step.tokens.clone().or(choice.map(|choice| vec![choice]));
        let tokens: Option<Vec<Vec<u32>>> = together.iter().map(read).collect();
        let none = || Error::Usage("the first pass has no tokens to read".into());
        let tokens = tokens.ok_or_else(none)?;
        let reads =
            together.iter().zip(&tokens).map(|(step, tokens)| PassTokens { tokens, tapped: step.tapped });
        for (stream, step) in engine.through(reads.collect(), tap, rest.is_empty())?.into_iter().zip(together)
        {
            let end = stream.end;
            let next = stream.choice(step.temperature, tap);
            if end >= script.prompt_len {
                transcript.generated.push(next.token);
                transcript.choices.push(next);
            }
            choice = Some(next.token);
        }
        transcript.passes.extend(tokens);
        steps = rest;
    }
    tap_generated(&transcript.choices, tap);
    Ok(transcript)
}

/// The tokens of a pass.
struct PassTokens<'r> {
    tokens: &'r [u32],
    tapped: bool,
}

/// A running model with its position and its state.
pub struct Engine<'m> {
    model: &'m dyn Model,
    numerics: &'m dyn Numerics,
    state: ModelState,
    passes: usize,
    /// Tokens read so far, if they may have to be read again.
    read: Vec<u32>,
}

impl<'m> Engine<'m> {
    /// Creates an engine for at most `capacity` tokens.
    ///
    /// # Errors
    /// If the numerics cannot compute with a weight's type, or the capacity exceeds the model's context.
    pub fn new(model: &'m dyn Model, numerics: &'m dyn Numerics, capacity: usize) -> Result<Self> {
        check_types(model, numerics)?;
        let dimensions = model.dimensions();
        check_context(capacity, dimensions)?;
        let layers = (0..dimensions.n_layers).map(|layer| model.layer_state(layer)).collect();
        let state = ModelState::new(layers, capacity);
        Ok(Self { model, numerics, state, passes: 0, read: Vec::new() })
    }

    /// Lets layers with a sliding window keep only the keys and values that the next token sees. Their taps then show
    /// only these.
    pub fn forgetting(mut self) -> Self {
        self.state = self.state.forgetting();
        self
    }

    /// Returns true if positions were dropped from the state.
    pub fn has_forgotten(&self) -> bool {
        self.state.layers.iter().any(LayerState::has_dropped)
    }

    /// Returns the number of tokens read so far.
    pub fn position(&self) -> usize {
        self.state.len()
    }

    /// Returns the current size of the state in bytes: for attention, its KV cache.
    pub fn cache_bytes(&self) -> usize {
        self.state.bytes()
    }

    /// Reads further `tokens` and returns the logits after the last one, `[V]`.
    ///
    /// # Errors
    /// If there are no tokens, a token is outside the vocabulary, or the tokens do not fit the capacity.
    pub fn read(&mut self, tokens: &[u32], tap: &mut dyn Tap) -> Result<Tensor> {
        let mut streams = self.through(vec![PassTokens { tokens, tapped: true }], tap, false)?;
        Ok(streams.remove(0).last_logits(tap))
    }

    /// Reads further `tokens` and passes the logits after each to `seen`, some rows at a time to save memory: the index
    /// of the first row, and `[rows, V]`.
    ///
    /// # Errors
    /// See [`Engine::read`], and the errors of `seen`.
    pub(crate) fn read_all(
        &mut self,
        tokens: &[u32],
        tap: &mut dyn Tap,
        seen: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let mut streams = self.through(vec![PassTokens { tokens, tapped: true }], tap, false)?;
        streams.remove(0).all_logits(seen)
    }

    /// Reads further `tokens` and returns the greedy choice after the last one.
    ///
    /// # Errors
    /// See [`Engine::read`].
    pub fn pass(&mut self, tokens: &[u32], temperature: f32, tap: &mut dyn Tap) -> Result<GreedyToken> {
        let mut streams = self.through(vec![PassTokens { tokens, tapped: true }], tap, false)?;
        Ok(streams.remove(0).choice(temperature, tap))
    }

    /// Runs passes through all layers; `is_last` is true if no pass will follow.
    fn through(
        &mut self,
        reads: Vec<PassTokens>,
        tap: &mut dyn Tap,
        is_last: bool,
    ) -> Result<Vec<Stream<'m>>> {
        let start = self.state.len();
        let ends = reads.iter().scan(start, |end, read| {
            *end += read.tokens.len();
            Some(*end - read.tokens.len()..*end)
        });
        memory_estimate::check(self.model.dimensions(), ends)?;
        let mut streams = Vec::with_capacity(reads.len());
        for read in reads {
            self.check_tokens(read.tokens)?;
            streams.extend(self.reread(self.state.len() + read.tokens.len()));
            streams.push(self.embedded(read, tap));
        }
        let states = &mut self.state.layers;
        through(self.model, 0..states.len(), &mut streams, states, tap, is_last);
        streams.retain(|stream| !stream.anew);
        Ok(streams)
    }

    /// Returns a pass that reads all earlier tokens again, if the sequence becomes too long for LongRoPE's short
    /// factors.
    fn reread(&self, length: usize) -> Option<Stream<'m>> {
        let (most, end) = (self.model.rereads_beyond()?, self.state.len());
        if end == 0 || end > most || length <= most {
            return None;
        }
        let pass = self.model.pass_within(self.numerics, 0..end, length);
        let x = probed(&mut (), false, self.passes, |t| pass.embed(&self.read, t));
        Some(Stream { numerics: self.numerics, pass, index: self.passes, end, tapped: false, anew: true, x })
    }

    fn embedded(&mut self, PassTokens { tokens, tapped }: PassTokens, tap: &mut dyn Tap) -> Stream<'m> {
        let (index, position) = (self.passes, self.state.len());
        let end = position + tokens.len();
        let pass = self.model.pass(self.numerics, position..end);
        let x = probed(tap, tapped, index, |t| pass.embed(tokens, t));
        self.state.advance(tokens.len());
        self.passes += 1;
        if self.model.rereads_beyond().is_some() {
            self.read.extend(tokens);
        }
        Stream { numerics: self.numerics, pass, index, end, tapped, anew: false, x }
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::Usage("no tokens to read: the input is empty".into()));
        }
        let vocab_size = self.model.dimensions().vocab_size;
        if let Some(index) = tokens.iter().position(|&id| id as usize >= vocab_size) {
            return Err(Error::Tokenizer(TokenizerError::BadToken {
                id: tokens[index],
                position: self.state.len() + index,
                vocab_size,
            }));
        }
        self.state.check_room(tokens.len())
    }
}

/// Returns the weights (name and type) that the numerics decode before they compute, because they cannot use the
/// stored type.
pub fn decoded(model: &dyn Model, numerics: &dyn Numerics) -> Vec<(String, DType)> {
    let matrices = model.matrices().into_iter().map(|(name, matrix)| (name, matrix.dtype));
    matrices.filter(|(_, dtype)| !numerics.native_types().contains(dtype)).collect()
}

/// Returns the numerics that compute with a stored type directly.
pub fn native_to(dtype: DType) -> impl Iterator<Item = &'static dyn Numerics> {
    numerics::ALL.iter().copied().filter(move |numerics| numerics.native_types().contains(&dtype))
}

/// Returns an error if the numerics decode a weight that other numerics compute with directly.
///
/// # Errors
/// If there is such a weight: names the first, its type, and the numerics that compute with the type.
pub fn check_native(model: &dyn Model, numerics: &dyn Numerics) -> Result<()> {
    let Some((name, dtype)) = decoded(model, numerics).into_iter().next() else { return Ok(()) };
    let names: Vec<_> = native_to(dtype).map(|numerics| format!("'{}'", numerics.name())).collect();
    Err(Error::Usage(format!(
        "--strict: numerics '{}' would decode {name}, which is {dtype}, and compute in floating point; use numerics \
         that compute with {dtype} as it is stored: {}",
        numerics.name(),
        names.join(", ")
    )))
}

fn check_context(tokens: usize, sizes: Dimensions) -> Result<()> {
    if tokens <= sizes.context_length {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{tokens} tokens are more than the {} that the model was trained for; shorten the input or the generation, or \
         give a smaller --context",
        sizes.context_length
    )))
}

/// Returns an error for a weight type that the numerics do not support. No other type is used silently.
fn check_types(model: &dyn Model, numerics: &dyn Numerics) -> Result<()> {
    let supported = numerics.weight_types();
    let Some((name, matrix)) =
        model.matrices().into_iter().find(|(_, matrix)| !supported.contains(&matrix.dtype))
    else {
        return Ok(());
    };
    let names: Vec<_> = supported.iter().map(|dtype| dtype.name()).collect();
    Err(Error::Usage(format!(
        "numerics '{}' do not support the type of {name}: {}, expected {}",
        numerics.name(),
        matrix.dtype,
        names.join(", ")
    )))
}
