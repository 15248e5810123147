//! Input tokens and their texts, for reports.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    pub fn with(mut self, other: &Self) -> Self {
        self.texts.extend(other.texts.iter().map(|(&token, text)| (token, text.clone())));
        self
    }
}

/// Tokens as in `report.json`.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct TokensRow {
    prompt: Vec<u32>,
    texts: Vec<TextRow>,
}

#[derive(Serialize, Deserialize)]
struct TextRow {
    token: u32,
    text: String,
}

impl From<&PromptTokens> for TokensRow {
    fn from(tokens: &PromptTokens) -> Self {
        let texts = tokens.texts.iter().map(|(&token, text)| TextRow { token, text: text.clone() });
        Self { prompt: tokens.prompt.clone(), texts: texts.collect() }
    }
}

impl From<TokensRow> for PromptTokens {
    fn from(row: TokensRow) -> Self {
        let texts = row.texts.into_iter().map(|row| (row.token, row.text));
        Self { prompt: row.prompt, texts: texts.collect() }
    }
}
