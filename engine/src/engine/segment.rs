//! Runs consecutive layers of a model over several passes, from given inputs.

use std::ops::Range;

use crate::checkpoint::{Point, Site};
use crate::engine::layer::check_parts;
use crate::engine::stream::{Stream, through};
use crate::engine::{GreedyToken, Transcript, check_context, check_types, memory_estimate};
use crate::error::{Error, Result, TokenizerError};
use crate::model::{LayerState, Model};
use crate::numerics::Numerics;
use crate::tap::{Probe, Tap};
use crate::tensor::Tensor;

/// Part of a model: embeddings, consecutive layers, and the head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelSegment {
    /// True if the segment starts from tokens and needs no hidden states.
    pub embed: bool,
    /// Layers.
    pub layers: Range<usize>,
    /// True if the segment includes the operations after the last layer: last norm, logits and choices.
    pub head: bool,
}

/// Input of one pass for a segment of a model.
#[derive(Clone, Debug)]
pub struct SegmentPass<'t> {
    /// Index of the pass.
    pub pass: usize,
    /// Positions of the pass's tokens.
    pub positions: Range<usize>,
    /// Tokens of the pass.
    pub tokens: &'t [u32],
    /// Temperature of the pass's `probs`.
    pub temperature: f32,
}

/// Runs a segment over `passes` and shows every value to `tap`. `start` returns the input of a pass, `[T, d]`, or
/// `None` if it is unknown, which ends the run. Each layer reads the passes from the first on. Layers outside the
/// segment are neither read nor cached. Returns one greedy choice for each pass if the segment includes the head.
///
/// # Errors
/// The errors of `start`; if the numerics cannot compute with a weight's type, a token is outside the vocabulary, an
/// input has the wrong shape, or the tokens exceed the model's context.
pub fn run_part(
    model: &dyn Model,
    numerics: &dyn Numerics,
    part: &ModelSegment,
    passes: &[SegmentPass],
    start: &mut dyn FnMut(usize) -> Result<Option<Tensor>>,
    tap: &mut dyn Tap,
) -> Result<Transcript> {
    check_types(model, numerics)?;
    let sizes = model.dimensions();
    let begins_with_tokens = part.embed && part.layers.start == 0;
    if !part.layers.is_empty() && !begins_with_tokens {
        check_parts(model)?;
    }
    check_context(passes.last().map_or(0, |reading| reading.positions.end), sizes)?;
    memory_estimate::check(sizes, passes.iter().map(|reading| reading.positions.clone()))?;
    let mut streams = Vec::new();
    for reading in passes {
        let pass = model.pass(numerics, reading.positions.clone());
        let x = if part.embed {
            check_vocabulary(reading, sizes.vocab_size)?;
            pass.embed(reading.tokens, &mut Probe::new(tap, reading.pass))
        } else {
            let Some(x) = start(reading.pass)? else { break };
            check_shape(&x, reading, sizes.hidden_size)?;
            x
        };
        let (index, end) = (reading.pass, reading.positions.end);
        streams.push(Stream { numerics, pass, index, end, tapped: true, anew: false, x });
    }
    let mut states: Vec<LayerState> = part.layers.clone().map(|layer| model.layer_state(layer)).collect();
    through(model, part.layers.clone(), &mut streams, &mut states, tap, true);
    let mut transcript = Transcript::default();
    for (stream, reading) in streams.into_iter().zip(passes) {
        if part.head {
            transcript.choices.push(stream.choice(reading.temperature, tap));
        }
        transcript.passes.push(reading.tokens.to_vec());
    }
    Ok(transcript)
}

/// Shows the generated tokens to a tap.
pub fn tap_generated(choices: &[GreedyToken], tap: &mut dyn Tap) {
    let ids = choices.iter().map(|choice| choice.token as f32).collect::<Vec<_>>();
    tap.tap(Site { point: Point::Generated, layer: None, pass: None }, Tensor::new(&[ids.len()], ids));
}

fn check_vocabulary(reading: &SegmentPass, vocab_size: usize) -> Result<()> {
    let outside = reading.tokens.iter().position(|&id| id as usize >= vocab_size);
    outside.map_or(Ok(()), |index| {
        let (id, position) = (reading.tokens[index], reading.positions.start + index);
        Err(TokenizerError::BadToken { id, position, vocab_size }.into())
    })
}

fn check_shape(x: &Tensor, reading: &SegmentPass, width: usize) -> Result<()> {
    let expected = [reading.positions.len(), width];
    if x.shape() == expected {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "the input of pass {} has shape {:?}, expected {expected:?}; is it from this model?",
        reading.pass,
        x.shape()
    )))
}
