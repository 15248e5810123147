//! Input tokens and their texts, for reports.

use std::collections::BTreeMap;

/// The input tokens of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// Input tokens.
    pub prompt: Vec<u32>,
    /// Text of each token, if a tokenizer is available: prompt tokens, chosen tokens and top tokens.
    pub texts: BTreeMap<u32, String>,
}

impl PromptTokens {
    /// Adds the token texts of another shard of the same comparison.
    pub(crate) fn with(mut self, other: &Self) -> Self {
        self.texts.extend(other.texts.iter().map(|(&token, text)| (token, text.clone())));
        self
    }
}
