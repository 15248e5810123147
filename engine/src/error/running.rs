//! Runs that cannot go on.

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The KV cache cannot take the tokens.
    #[error(
        "{tokens} tokens at position {position} do not fit a KV cache of {capacity}; shorten the input or the generation"
    )]
    CacheFull {
        /// How many tokens were to be added.
        tokens: usize,
        /// Where.
        position: usize,
        /// The cache's capacity, in tokens.
        capacity: usize,
    },
    /// Logits that leave no token to choose.
    #[error(
        "no token can be chosen: {problem}, expected finite numbers; find the first such value with: xcheck dump, then \
         xcheck inspect"
    )]
    BadLogits {
        /// Which logits are what.
        problem: String,
    },
}
