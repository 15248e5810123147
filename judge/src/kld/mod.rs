//! Divergence between the predictions of two engines, from log-probability files of llama.cpp's
//! `llama-perplexity`, with the same statistics.
//!
//! A text is cut into *chunks*, which are read one by one from an empty cache. Whoever predicts gives log-probabilities of
//! the whole vocabulary at some positions of each ([`Predictions`]): a [`LogitsFile`], dumps with logits ([`Dumps`]), a
//! model that is run ([`Computed`]). [`compare`] holds two of them against each other.

mod dumps;
mod figures;
mod file;
mod interval;
mod sources;
mod table;
mod writer;

pub use dumps::{dumps, size_of_dumps};
pub use figures::{Estimate, Figures, LEAST, Tally, Tokens};
pub use file::{LogitsFile, MAGIC, first_row};
pub use sources::{Computed, Dumps, Predictions, Rows, Run, compare};
pub use table::table;
pub use writer::{Perplexity, Writer};
