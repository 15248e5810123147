//! Checks of the engine without a reference, one per function.
//!
//! A check compares bits if the numerics sum every row of a product in the same order, for any number of
//! rows. llama.cpp's numerics do not. For them, each operation is compared with the effect of rounding in
//! this model on these tokens ([`Exactness::Rounding`]). A second check compares bits with the summation
//! order of a single row for all rows ([`SingleTokenNumerics`]), so that rounding cannot hide a fault.
//!
//! Values that cannot differ agree even in a wrong engine. A model therefore fails if its values are all zero,
//! equal for all tokens, or missing.

mod boundary;
mod cache;
mod chunks;
mod formats;
mod operations;
mod sequences;
mod single_pass;
mod tally;
mod variety;

pub use cache::{cache_on_equals_off, prefill_equals_decode, window_equals_whole};
pub use chunks::chunks_equal_one_pass;
pub use formats::formats_agree;
pub use sequences::{recorded_equals_unrecorded, side_by_side_equals_alone};

use crate::engine::Engine;
use crate::error::Result;
use crate::model::{LayerState, Model};
use crate::numerics::{Numerics, SingleTokenNumerics};
use crate::verdict::Verdict;

/// Number of tokens of a check, prompt and single tokens together. It is enough for kernels that need several
/// tokens, and for a cache to drop tokens.
const TOKENS: usize = 48;
/// Number of prompt tokens among [`TOKENS`].
const PROMPT: usize = 40;

/// Result of one check.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckResult {
    /// Name of the check.
    pub check: &'static str,
    /// The verdict; `None` if the check does not apply.
    pub verdict: Option<Verdict>,
    /// Number of compared values and their difference, or the reason why nothing was compared.
    pub detail: String,
}

impl CheckResult {
    fn new(check: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { check, verdict: Some(verdict), detail: detail.into() }
    }

    /// Makes a result for a check that does not apply.
    pub fn not_applicable(check: &'static str, why: impl Into<String>) -> Self {
        Self { check, verdict: None, detail: why.into() }
    }
}

/// The model and numerics under check.
#[derive(Clone, Copy)]
pub struct CheckSubject<'m> {
    /// Model to check.
    pub model: &'m dyn Model,
    /// Numerics to check.
    pub numerics: &'m dyn Numerics,
}

/// Required agreement between two ways to compute a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// Both values must be bit-identical.
    Bits,
    /// Equal up to rounding, from the same inputs: within [`crate::noise::NoiseFloor::FAR`] times the noise
    /// floor.
    Rounding,
}

impl<'m> CheckSubject<'m> {
    fn engine(&self, capacity: usize) -> Result<Engine<'m>> {
        Engine::new(self.model, self.numerics, capacity)
    }

    /// Returns the tokens for all checks of a model: as many as the context allows. They reach past each boundary that
    /// can be reached in a short time.
    fn tokens(&self) -> Vec<u32> {
        let dimensions = self.model.dimensions();
        let length = boundary::crossing(self.model, TOKENS).min(dimensions.context_length);
        (0..length).map(|position| ((7 + position * 37) % dimensions.vocab_size) as u32).collect()
    }

    /// Returns the required agreement between several tokens in one pass and one token per pass.
    pub fn exactness(&self) -> Exactness {
        // Embeddings are looked up; a tied head has a different name.
        let is_table = |name: &str| name == "token_embd" || name == "position_embd";
        let mut matrices = self.model.matrices().into_iter().filter(|(name, _)| !is_table(name));
        let layers = 0..self.model.dimensions().n_layers;
        let mut states = layers.map(|layer| self.model.layer_state(layer));
        let (matrices_alike, has_limits) = (self.numerics.recurs_alike(), LayerState::has_limited_steps);
        let is_alike = |state: LayerState| !state.has_matrices() || matrices_alike && !has_limits(&state);
        let recurs_alike = states.all(is_alike);
        match recurs_alike && matrices.all(|(_, matrix)| self.numerics.adds_rows_alike(matrix, PROMPT)) {
            true => Exactness::Bits,
            false => Exactness::Rounding,
        }
    }
}

/// Runs every check on one model and numerics.
///
/// # Errors
/// If the model cannot be run at all.
pub fn check_all(subject: CheckSubject) -> Result<Vec<CheckResult>> {
    let mut checked = vec![prefill_equals_decode(subject)?, cache_on_equals_off(subject)?];
    if subject.exactness() != Exactness::Bits {
        checked.extend(in_one_order(subject)?);
    }
    checked.push(chunks_equal_one_pass(subject)?);
    checked.push(window_equals_whole(subject)?);
    checked.push(side_by_side_equals_alone(subject)?);
    checked.push(recorded_equals_unrecorded(subject)?);
    Ok(checked)
}

/// Runs the cache checks bit for bit, with the summation order of a single row.
///
/// # Errors
/// If the model cannot be run at all.
pub fn in_one_order(subject: CheckSubject) -> Result<[CheckResult; 2]> {
    let numerics = SingleTokenNumerics(subject.numerics);
    let subject = CheckSubject { numerics: &numerics, ..subject };
    Ok([
        CheckResult { check: "prefill equals decode, one order of sums", ..prefill_equals_decode(subject)? },
        CheckResult {
            check: "cache on equals cache off, one order of sums",
            ..cache_on_equals_off(subject)?
        },
    ])
}
