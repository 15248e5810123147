//! Interface to all servers.

use serde_json::{Value, json};

use crate::probe::answer::{Answer, Ask, Generated, Place, Prompt};

/// A message of a conversation, and whose it is.
pub type Message = (&'static str, &'static str);

/// Rendered conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Rendered {
    /// The text that the model reads.
    Text(String),
    /// Its tokens.
    Ids(Vec<u32>),
}

/// A server, in its own protocol. What it cannot do is refused in words.
pub trait Server: Sync {
    /// The ids of a text; `special` tells whether those that begin and end a prompt stand around it.
    ///
    /// # Errors
    /// As [`Refusal`](crate::probe::Refusal) says; so do all others.
    fn tokenize(&self, text: &str, special: bool) -> Answer<Vec<u32>>;

    /// Renders a conversation with the server's template; the next turn is the model's.
    ///
    /// # Errors
    /// Errors of [`Server::tokenize`].
    fn template(&self, messages: &[Message]) -> Answer<Rendered>;

    /// Returns the log-probability of each token of a prompt, given the tokens before it. The first entry is mostly
    /// `None`.
    ///
    /// # Errors
    /// Errors of [`Server::tokenize`].
    fn forced(&self, prompt: &Prompt, top: usize) -> Answer<Vec<Option<Place>>>;

    /// Returns the number of requests that [`Server::forced`] sends.
    fn forced_requests(&self, tokens: usize) -> usize {
        _ = tokens;
        1
    }

    /// A greedy continuation.
    ///
    /// # Errors
    /// Errors of [`Server::tokenize`].
    fn generate(&self, ask: &Ask) -> Answer<Generated>;

    /// Returns the largest number of top tokens that such a server returns by default.
    fn most_likeliest(&self) -> usize {
        20
    }

    /// Returns true if the server answered the prompt as a chat message because it supports nothing else: then the
    /// tokens that the model has read are unknown.
    fn reads_conversations(&self) -> bool {
        false
    }

    /// Returns true if the server takes token ids, false if it takes text only.
    fn takes_ids(&self) -> bool {
        true
    }
}

/// Messages as most protocols have them.
pub(super) fn as_messages(messages: &[Message]) -> Value {
    messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}
