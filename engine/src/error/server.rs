//! Errors about servers that are queried.

/// A server gave no answer, or an unreadable one.
#[derive(Debug, thiserror::Error)]
#[error("{url}: {problem}")]
pub struct ServerError {
    /// Requested URL, without API keys.
    pub url: String,
    /// Problem and remedy.
    pub problem: String,
}
