//! Servers that are asked.

/// A server that is asked gives no answer, or none that can be read.
#[derive(Debug, thiserror::Error)]
#[error("{url}: {problem}")]
pub struct ServerError {
    /// What was asked, without keys.
    pub url: String,
    /// What is wrong, and what to do.
    pub problem: String,
}
