//! Input of a model: a prompt or tokens.

use std::sync::Arc;

use clap::Args;

use crate::cli::named_dump::NamedDump;
use crate::cli::requested_model::RequestedModel;
use crate::diagnose::token_difference;
use crate::dump::Dump;
use crate::error::{DumpError, Error, Result};
use crate::tokenizer::{SpecialTokens, Tokenizer};

/// Options for the input of a model.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PromptOptions {
    /// Text that the model reads
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    /// Token ids that the model reads, e.g. 1,15043
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    pub(crate) tokens: Option<Vec<u32>>,
}

impl PromptOptions {
    /// Returns true if an input was given.
    pub(crate) fn is_given(&self) -> bool {
        self.prompt.is_some() || self.tokens.is_some()
    }

    /// Returns the requested input tokens, if any.
    ///
    /// # Errors
    /// If a prompt is given and there is no tokenizer.
    pub(crate) fn tokens(&self, target: &RequestedModel) -> Result<Option<Vec<u32>>> {
        match (&self.tokens, &self.prompt) {
            (Some(tokens), _) => Ok(Some(tokens.clone())),
            (None, Some(text)) => encode(target, text).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Checks that every reference has read the requested input, if an input is given.
    ///
    /// # Errors
    /// [`DumpError::TokensDiffer`] for the first reference with another input.
    pub(crate) fn check_all(&self, target: &RequestedModel, references: &[NamedDump]) -> Result<()> {
        let Some(asked) = self.tokens(target)? else { return Ok(()) };
        match references.iter().find(|reference| reads_other(reference, &asked)) {
            Some(reference) => Err(self.differ(asked, reference)),
            None => Ok(()),
        }
    }

    /// Sets the tokens that each candidate should have read. If a candidate read other tokens than those of the
    /// requested text, it is judged, and its tokens fail. If its manifest's prompt has other tokens, a note is added.
    ///
    /// # Errors
    /// [`DumpError::TokensDiffer`] for the first candidate with other tokens than the requested ones.
    pub(crate) fn expect(&self, target: &RequestedModel, candidates: &mut [NamedDump]) -> Result<()> {
        let asked = self.tokens(target)?;
        for candidate in candidates {
            match &asked {
                Some(asked) if !reads_other(candidate, asked) => {}
                Some(asked) if self.tokens.is_some() => return Err(self.differ(asked.clone(), candidate)),
                Some(asked) => candidate.dump.expected_tokens = Some(asked.clone()),
                None => candidate.notes.extend(of_stated_prompt(target, &candidate.dump)),
            }
        }
        Ok(())
    }

    fn differ(&self, asked: Vec<u32>, dump: &NamedDump) -> Error {
        let read = &dump.dump.manifest.input.tokens;
        let position = asked.iter().zip(read).take_while(|(one, other)| one == other).count();
        Error::Dump(DumpError::TokensDiffer {
            one_name: if self.tokens.is_some() { "--tokens" } else { "--prompt" }.to_owned(),
            one: asked,
            other_name: dump.name.clone(),
            other: read.clone(),
            position,
        })
    }
}

/// Returns true if a dump's engine read other tokens than requested. A file without a manifest was already read
/// with the requested tokens.
fn reads_other(dump: &NamedDump, asked: &[u32]) -> bool {
    dump.dump.manifest.input.tokens != asked && dump.words.is_empty()
}

/// Returns a note if the model's tokenizer encodes the prompt in a dump's manifest to other tokens than the dump's
/// engine read.
fn of_stated_prompt(target: &RequestedModel, dump: &Dump) -> Option<String> {
    let input = &dump.manifest.input;
    let tokenizer = target.tokenizer().ok().flatten().filter(|_| !input.prompt.is_empty())?;
    let expected = tokenizer.encode(&input.prompt, true).ok()?;
    let (kind, what) = token_difference(&input.tokens, &expected)?;
    Some(format!(
        "the manifest's tokens are not those of its prompt ({kind}: {what}); to judge them, give the prompt with --prompt"
    ))
}

/// Returns the token ids of a prompt.
///
/// # Errors
/// If there is no tokenizer, or the text cannot be encoded.
pub(crate) fn encode(target: &RequestedModel, text: &str) -> Result<Vec<u32>> {
    tokenizer(target)?.encode(text, true)
}

/// Returns the first tokenizer among the model's files.
///
/// # Errors
/// If there is no tokenizer, or it is invalid.
pub(crate) fn tokenizer(target: &RequestedModel) -> Result<Arc<dyn Tokenizer>> {
    target.tokenizer()?.ok_or_else(|| no_tokenizer(&target.name))
}

/// Returns the token that the model's tokenizer adds before a text, if any.
///
/// # Errors
/// If there is no tokenizer, or it adds several tokens around a text.
pub(crate) fn beginning(target: &RequestedModel) -> Result<Option<u32>> {
    match tokenizer(target)?.encode_with("", SpecialTokens { add: true, parse: false })?.as_slice() {
        [] => Ok(None),
        [begins] => Ok(Some(*begins)),
        several => Err(Error::Usage(format!(
            "{}: the tokenizer adds {several:?} around a text, expected at most one token before it",
            target.name
        ))),
    }
}

/// Parses one id of a list. Accepts lists in the formats of Python and JSON too.
pub(crate) fn token_id(text: &str) -> std::result::Result<u32, String> {
    let digits = text.trim_matches(|c: char| c.is_whitespace() || "[]".contains(c));
    digits.parse().map_err(|_| "invalid token id, expected a whole number as in 1,15043".to_owned())
}

/// Returns the error for a model without a tokenizer.
pub(crate) fn no_tokenizer(name: &str) -> Error {
    Error::Usage(format!(
        "{name}: no tokenizer found: expected tokenizer.json, tokenizer.model, or vocab.json with merges.txt \
         next to the weights, or a tokenizer inside a GGUF file; commands with --tokens do not need one"
    ))
}
