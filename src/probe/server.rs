//! Interface to all server protocols.

use serde_json::{Value, json};

use crate::probe::answer::{
    ContinuationRequest, GreedyContinuation, ProbePrompt, ServerAnswer, TokenPosition,
};

/// A message of a conversation with its role.
pub type ConversationMessage = (&'static str, &'static str);

/// Rendered conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum RenderedConversation {
    /// Rendered text that the model reads.
    Text(String),
    /// Token ids of the rendered text.
    Ids(Vec<u32>),
}

/// Protocol of a server. Unsupported requests return a
/// [`MissingAnswer`](crate::probe::MissingAnswer) with the reason.
pub trait ServerApi: Sync {
    /// Returns the token ids of a text. `special` adds the tokens that begin and end a prompt.
    ///
    /// # Errors
    /// A [`MissingAnswer`](crate::probe::MissingAnswer), if the server does not answer the request.
    fn tokenize(&self, text: &str, special: bool) -> ServerAnswer<Vec<u32>>;

    /// Renders a conversation with the server's template; the next turn is the model's.
    ///
    /// # Errors
    /// Errors of [`ServerApi::tokenize`].
    fn template(&self, messages: &[ConversationMessage]) -> ServerAnswer<RenderedConversation>;

    /// Returns the log-probability of each token of a prompt, given the tokens before it. The first entry is
    /// `None` on most servers, because no token comes before it.
    ///
    /// # Errors
    /// Errors of [`ServerApi::tokenize`].
    fn forced(&self, prompt: &ProbePrompt, top: usize) -> ServerAnswer<Vec<Option<TokenPosition>>>;

    /// Returns the number of requests that [`ServerApi::forced`] sends.
    fn forced_requests(&self, tokens: usize) -> usize {
        _ = tokens;
        1
    }

    /// Generates a greedy continuation.
    ///
    /// # Errors
    /// The errors of [`ServerApi::tokenize`].
    fn generate(&self, ask: &ContinuationRequest) -> ServerAnswer<GreedyContinuation>;

    /// Returns the largest number of top tokens that this kind of server returns by default.
    fn most_likeliest(&self) -> usize {
        20
    }

    /// Returns true if the server answered the prompt as a chat message, because it supports nothing else.
    /// Then the tokens that the model read are unknown.
    fn reads_conversations(&self) -> bool {
        false
    }

    /// Returns true if the server takes token ids, false if it takes text only.
    fn takes_ids(&self) -> bool {
        true
    }
}

/// Returns messages as JSON, in the form most protocols use.
pub(super) fn as_messages(messages: &[ConversationMessage]) -> Value {
    messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}
