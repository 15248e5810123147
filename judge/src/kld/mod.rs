//! Divergence between the predictions of two engines, from log-probability files of llama.cpp's
//! `llama-perplexity`, with the same statistics.
//!
//! A text is cut into *chunks*, which are read one by one from an empty cache. Whoever predicts gives log-probabilities of
//! the whole vocabulary at some positions of each ([`PredictionSource`]): a [`LogitsFile`], dumps with logits ([`DumpPredictions`]), a
//! model that is run ([`ModelPredictions`]). [`compare`] holds two of them against each other.

mod dumps;
mod figures;
mod interval;
mod logits_file;
mod prediction_source;
mod table;
mod writer;

pub use dumps::{dumps, size_of_dumps};
pub use figures::{Estimate, KldFigures, LEAST, TokenDivergences, TokenStatistics};
pub use logits_file::{LogitsFile, MAGIC, first_row};
pub use prediction_source::{
    DumpPredictions, ModelPredictions, PredictionRows, PredictionSource, ScriptRunner, compare,
};
pub use table::table;
pub use writer::{LogitsWriter, Perplexity};
