//! Errors of a run.

/// Error of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The KV cache has no capacity for the tokens.
    #[error(
        "{tokens} tokens at position {position} do not fit a KV cache of {capacity}; shorten the input or the generation"
    )]
    CacheFull {
        /// Number of tokens to add.
        tokens: usize,
        /// Position of the first token.
        position: usize,
        /// The cache's capacity, in tokens.
        capacity: usize,
    },
    /// The logits leave no token to choose.
    #[error(
        "no token can be chosen: {problem}, expected finite numbers; find the first such value with: xcheck dump, then \
         xcheck inspect"
    )]
    BadLogits {
        /// Description of the bad logits.
        problem: String,
    },
}
