//! Servers that are asked.

/// A server that is asked gives no answer, or none that can be read.
#[derive(Debug, thiserror::Error)]
#[error("{url}: {problem}")]
pub struct ServerError {
    /// Requested URL, without keys.
    pub url: String,
    /// Problem and remedy.
    pub problem: String,
}
