//! Divergence between the predictions of two engines, from log-probability files of llama.cpp's
//! `llama-perplexity`, with the same statistics.
//!
//! A text is cut into *chunks*. Each chunk is evaluated from an empty cache. A [`PredictionSource`] gives
//! log-probabilities over the whole vocabulary at some positions of each chunk. There are three sources: a
//! [`LogitsFile`], dumps with logits ([`DumpPredictions`]), and a model that is run ([`ModelPredictions`]).
//! [`compare`] compares two sources.

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
pub use prediction_source::{DumpPredictions, ModelPredictions, PredictionSource, ScriptRunner, compare};
pub use table::table;
pub use writer::{LogitsWriter, Perplexity};
