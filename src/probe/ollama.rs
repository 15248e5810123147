//! Ollama: takes and returns text, with log-probabilities of generated tokens.

use serde_json::{Value, json};

use crate::probe::answer::{
    ContinuationRequest, GreedyContinuation, MissingAnswer, ProbePrompt, ServerAnswer, TokenLogprob,
    TokenPosition, list, logprob, text,
};
use crate::probe::client::Client;
use crate::probe::server::{ConversationMessage, RenderedConversation, ServerApi};

/// The protocol of Ollama.
pub(super) struct Ollama<'c> {
    pub(crate) client: &'c Client,
    pub(crate) model: String,
}

const GENERATE: &str = "/api/generate";

impl ServerApi for Ollama<'_> {
    fn tokenize(&self, _: &str, _: bool) -> ServerAnswer<Vec<u32>> {
        Err(MissingAnswer::cannot("the server does not return token ids"))
    }

    fn template(&self, _: &[ConversationMessage]) -> ServerAnswer<RenderedConversation> {
        Err(MissingAnswer::cannot("the server does not return the rendered template"))
    }

    fn forced(&self, _: &ProbePrompt, _: usize) -> ServerAnswer<Vec<Option<TokenPosition>>> {
        Err(MissingAnswer::cannot("the server gives log-probabilities of generated tokens only"))
    }

    fn generate(&self, ask: &ContinuationRequest) -> ServerAnswer<GreedyContinuation> {
        if ask.cold {
            return Err(MissingAnswer::cannot("the server cannot turn off its prefix cache for a request"));
        }
        let body = json!({
            "model": self.model, "prompt": ask.prompt.text()?, "raw": true, "stream": ask.streamed,
            "logprobs": ask.top > 0, "top_logprobs": ask.top,
            "options": {
                "temperature": 0.0, "seed": 1, "num_predict": ask.tokens, "top_k": 1, "top_p": 1.0, "min_p": 0.0,
                "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            },
        });
        let pieces = match ask.streamed {
            true => self.client.stream(GENERATE, &body)?,
            false => vec![self.client.post(GENERATE, &body)?],
        };
        let pieces = pieces.iter().map(piece).collect::<Result<Vec<_>, _>>();
        Ok(GreedyContinuation::joined(pieces.map_err(|problem| self.client.broken(GENERATE, problem))?))
    }

    fn takes_ids(&self) -> bool {
        false
    }
}

fn piece(answer: &Value) -> Result<GreedyContinuation, String> {
    let places = match answer.get("logprobs").filter(|found| !found.is_null()) {
        Some(_) => list(answer, "/logprobs")?.iter().map(place).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    Ok(GreedyContinuation { places, text: text(answer, "/response")?, made: None })
}

/// Reads an entry of `logprobs`, which OpenAI's `logprobs.content` shares.
pub(super) fn place(entry: &Value) -> Result<TokenPosition, String> {
    let top = entry.get("top_logprobs").and_then(Value::as_array);
    let top = top.into_iter().flatten().map(named).collect::<Result<_, _>>()?;
    Ok(TokenPosition { token: Some(named(entry)?), top })
}

fn named(entry: &Value) -> Result<TokenLogprob, String> {
    let id = entry.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    Ok(TokenLogprob { id, text: text(entry, "/token")?, logprob: logprob(entry, "/logprob")? })
}
