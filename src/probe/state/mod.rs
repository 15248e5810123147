//! States in which an endpoint may serve a model: quantised weights, a shorter KV cache, another model. A sequential
//! test of one-token requests finds out which.

mod prediction;
mod test;
mod word_prompt;

pub use prediction::Arithmetic;

pub(crate) use prediction::{NoisePair, TokenOdds, last_odds};
pub use test::{NoiseBounds, OddsAnswer, StateTest, ToldOdds};
pub(crate) use word_prompt::WordPrompts;
