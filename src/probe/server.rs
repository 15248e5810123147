//! What every server can be asked for.

use serde_json::{Value, json};

use crate::probe::answer::{Answer, Ask, Generated, Place, Prompt};

/// A message of a conversation, and whose it is.
pub type Message = (&'static str, &'static str);

/// What a server makes of a conversation.
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

    /// What its template makes of a conversation whose next word is the model's.
    ///
    /// # Errors
    /// As [`Server::tokenize`].
    fn template(&self, messages: &[Message]) -> Answer<Rendered>;

    /// How likely each token of a text is, by those before it: an entry for each, of the first mostly none.
    ///
    /// # Errors
    /// As [`Server::tokenize`].
    fn forced(&self, prompt: &Prompt, top: usize) -> Answer<Vec<Option<Place>>>;

    /// How many requests that takes.
    fn forced_requests(&self, tokens: usize) -> usize {
        _ = tokens;
        1
    }

    /// A greedy continuation.
    ///
    /// # Errors
    /// As [`Server::tokenize`].
    fn generate(&self, ask: &Ask) -> Answer<Generated>;

    /// How many of the likeliest tokens such servers tell at most, if nobody has told them otherwise.
    fn most_likeliest(&self) -> usize {
        20
    }

    /// Whether it has answered as to a message of a conversation, for want of another way: what the model has read is not known.
    fn reads_conversations(&self) -> bool {
        false
    }

    /// Whether it takes token ids; else text alone.
    fn takes_ids(&self) -> bool {
        true
    }
}

/// Messages as most protocols have them.
pub(super) fn as_messages(messages: &[Message]) -> Value {
    messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}
