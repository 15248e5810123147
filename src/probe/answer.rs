//! Answers of servers, independent of the protocol.

use serde_json::Value;

use crate::error::{Error, ServerError};

/// An answer, or the reason why it is missing.
pub type ServerAnswer<T> = Result<T, MissingAnswer>;

/// Reason for a missing answer.
#[derive(Debug)]
pub enum MissingAnswer {
    /// The server or its protocol does not support the request; has the reason.
    Cannot(String),
    /// The maximum number of requests was reached before this request.
    NotAsked(String),
    /// The server should have answered, but failed.
    Broken(Box<Error>),
}

impl MissingAnswer {
    /// Creates the refusal for something that the server cannot do.
    pub fn cannot(why: impl Into<String>) -> Self {
        MissingAnswer::Cannot(why.into())
    }

    /// Returns the reason as text.
    pub(crate) fn why(&self) -> String {
        match self {
            MissingAnswer::Cannot(why) | MissingAnswer::NotAsked(why) => why.clone(),
            MissingAnswer::Broken(error) => error.to_string(),
        }
    }

    /// Returns the problem of a server that should have answered.
    pub(crate) fn problem(&self) -> Option<&str> {
        match self {
            MissingAnswer::Broken(error) => match &**error {
                Error::Server(ServerError { problem, .. }) => Some(problem),
                _ => None,
            },
            MissingAnswer::Cannot(_) | MissingAnswer::NotAsked(_) => None,
        }
    }
}

/// A token and its log-probability, as far as the server states it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprob {
    /// Token id; servers with OpenAI's protocol return none.
    pub id: Option<u32>,
    /// Text of the token.
    pub text: String,
    /// Natural logarithm of the token's probability.
    pub logprob: Option<f64>,
}

impl TokenLogprob {
    /// Returns true if both are the same token: by id, or by text if an id is missing.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self.id, other.id) {
            (Some(one), Some(other)) => one == other,
            _ => self.text == other.text,
        }
    }
}

/// A position of a sequence: its token and the top tokens, given the tokens before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenPosition {
    /// Token at this position; `None` if its log-probability is unknown.
    pub token: Option<TokenLogprob>,
    /// Top tokens, as many as the server returned.
    pub top: Vec<TokenLogprob>,
}

/// Positions (token and top tokens) of the continuation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GreedyContinuation {
    /// Tokens of the continuation, by position.
    pub places: Vec<TokenPosition>,
    /// Whole text of the continuation.
    pub text: String,
    /// Number of generated tokens, as reported by the server.
    pub made: Option<u64>,
}

impl GreedyContinuation {
    /// Returns the token ids, if all are known.
    pub(crate) fn ids(&self) -> Option<Vec<u32>> {
        self.places.iter().map(|place| place.token.as_ref()?.id).collect()
    }

    /// Joins the pieces of a stream.
    pub(crate) fn joined(pieces: impl IntoIterator<Item = Self>) -> Self {
        pieces.into_iter().fold(Self::default(), |mut whole, piece| {
            whole.places.extend(piece.places);
            whole.text += &piece.text;
            whole.made = piece.made.or(whole.made);
            whole
        })
    }
}

/// Input of the model: token ids, a text, or both forms of the same input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbePrompt {
    /// Token ids, if known.
    pub(crate) ids: Option<Vec<u32>>,
    /// Text, if the prompt has one.
    pub(crate) text: Option<String>,
}

impl ProbePrompt {
    /// Returns the token ids.
    ///
    /// # Errors
    /// If the ids are unknown.
    pub(crate) fn ids(&self) -> ServerAnswer<&[u32]> {
        self.ids.as_deref().ok_or_else(|| MissingAnswer::cannot("the prompt's token ids are not known"))
    }

    /// Returns the text.
    ///
    /// # Errors
    /// If the prompt has ids only.
    pub(crate) fn text(&self) -> ServerAnswer<&str> {
        self.text.as_deref().ok_or_else(|| {
            MissingAnswer::cannot("the server takes text, but the prompt is given as token ids")
        })
    }

    /// Returns the ids if they are known, otherwise the text, as JSON.
    pub(crate) fn as_json(&self) -> Value {
        self.ids
            .as_ref()
            .map_or_else(|| self.text.clone().unwrap_or_default().into(), |ids| ids.clone().into())
    }

    /// Returns the prompt followed by a continuation.
    pub(crate) fn and(&self, generated: &GreedyContinuation) -> Self {
        let ids = self.ids.as_ref().zip(generated.ids()).map(|(ids, more)| [ids.as_slice(), &more].concat());
        let text = self.text.as_ref().map(|text| text.clone() + &generated.text);
        Self { ids, text }
    }
}

/// A request for a greedy continuation.
#[derive(Clone, Copy, Debug)]
pub struct ContinuationRequest<'p> {
    /// Prompt to continue.
    pub prompt: &'p ProbePrompt,
    /// Maximum number of tokens to generate.
    pub tokens: usize,
    /// Number of top tokens to return at each position.
    pub top: usize,
    /// True if the server must not reuse the cache of earlier requests.
    pub cold: bool,
    /// True if the answer should be streamed.
    pub streamed: bool,
}

/// Returns the list at a JSON pointer, or an error message.
pub(super) fn list<'v>(value: &'v Value, pointer: &str) -> Result<&'v Vec<Value>, String> {
    value.pointer(pointer).and_then(Value::as_array).ok_or_else(|| expected(value, pointer, "a list"))
}

/// Returns the string at a JSON pointer, or an error message.
pub(super) fn text(value: &Value, pointer: &str) -> Result<String, String> {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.map(str::to_owned).ok_or_else(|| expected(value, pointer, "a string"))
}

/// Returns the token id at a JSON pointer, or an error message.
pub(super) fn id(value: &Value, pointer: &str) -> Result<u32, String> {
    let found = value.pointer(pointer).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    found.ok_or_else(|| expected(value, pointer, "a token id"))
}

/// Returns the token ids at a JSON pointer, or an error message.
pub(super) fn ids(value: &Value, pointer: &str) -> Result<Vec<u32>, String> {
    list(value, pointer)?.iter().map(|value| id(value, "")).collect()
}

/// Returns the log-probability at a JSON pointer; `None` if it is null or missing.
pub(super) fn logprob(value: &Value, pointer: &str) -> Result<Option<f64>, String> {
    match value.pointer(pointer) {
        None | Some(Value::Null) => Ok(None),
        Some(found) => found.as_f64().map(Some).ok_or_else(|| expected(value, pointer, "a log-probability")),
    }
}

fn expected(value: &Value, pointer: &str, what: &str) -> String {
    const SHOWN: usize = 80;
    let found = value.pointer(pointer).map_or("nothing".to_owned(), Value::to_string);
    let found: String = found.chars().take(SHOWN).collect();
    let place = pointer.trim_start_matches('/').replace('/', ".");
    let place = if place.is_empty() { "the answer" } else { &place };
    format!("{place} is {found}, expected {what}")
}
