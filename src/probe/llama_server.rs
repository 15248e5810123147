//! llama.cpp's `llama-server`: takes and returns token ids, and returns top tokens of generated positions
//! only.

use serde_json::{Value, json};

use crate::probe::answer::{
    ContinuationRequest, GreedyContinuation, ProbePrompt, ServerAnswer, TokenLogprob, TokenPosition, id, ids,
    list, logprob, text,
};
use crate::probe::client::Client;
use crate::probe::server::{ConversationMessage, RenderedConversation, ServerApi, as_messages};

/// The protocol of `llama-server`.
pub(super) struct LlamaServer<'c> {
    pub(crate) client: &'c Client,
}

const COMPLETION: &str = "/completion";

impl ServerApi for LlamaServer<'_> {
    fn tokenize(&self, words: &str, special: bool) -> ServerAnswer<Vec<u32>> {
        let body = json!({"content": words, "add_special": special, "parse_special": true});
        let answer = self.client.post("/tokenize", &body)?;
        ids(&answer, "/tokens").map_err(|problem| self.client.broken("/tokenize", problem))
    }

    fn template(&self, messages: &[ConversationMessage]) -> ServerAnswer<RenderedConversation> {
        let answer = self.client.post("/apply-template", &json!({"messages": as_messages(messages)}))?;
        let prompt =
            text(&answer, "/prompt").map_err(|problem| self.client.broken("/apply-template", problem))?;
        Ok(RenderedConversation::Text(prompt))
    }

    /// Requests one token after each position of the prompt, since the server returns no log-probabilities of a prompt.
    fn forced(&self, prompt: &ProbePrompt, top: usize) -> ServerAnswer<Vec<Option<TokenPosition>>> {
        let ids = prompt.ids()?;
        let mut places = vec![None];
        for end in 1..ids.len() {
            let before = ProbePrompt { ids: Some(ids[..end].to_vec()), text: None };
            let ask = ContinuationRequest { prompt: &before, tokens: 1, top, cold: true, streamed: false };
            let next = TokenLogprob { id: Some(ids[end]), ..TokenLogprob::default() };
            let place = self.generate(&ask)?.places.into_iter().next();
            places.push(place.map(|place| TokenPosition {
                token: place.top.iter().find(|named| named.is(&next)).cloned(),
                ..place
            }));
        }
        Ok(places)
    }

    fn forced_requests(&self, tokens: usize) -> usize {
        tokens.saturating_sub(1)
    }

    fn generate(&self, ask: &ContinuationRequest) -> ServerAnswer<GreedyContinuation> {
        let body = json!({
            "prompt": ask.prompt.as_json(), "n_predict": ask.tokens, "n_probs": ask.top, "temperature": 0.0,
            "top_k": 1, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 1,
            "cache_prompt": !ask.cold, "ignore_eos": true, "return_tokens": true, "stream": ask.streamed,
            "post_sampling_probs": false,
        });
        let pieces = match ask.streamed {
            true => self.client.stream(COMPLETION, &body)?,
            false => vec![self.client.post(COMPLETION, &body)?],
        };
        let pieces = pieces.iter().map(piece).collect::<Result<Vec<_>, _>>();
        Ok(GreedyContinuation::joined(pieces.map_err(|problem| self.client.broken(COMPLETION, problem))?))
    }
}

fn piece(answer: &Value) -> Result<GreedyContinuation, String> {
    let places = match answer.get("completion_probabilities") {
        Some(_) => list(answer, "/completion_probabilities")?.iter().map(place).collect::<Result<_, _>>()?,
        None => {
            let tokens = if answer.get("tokens").is_some() { ids(answer, "/tokens")? } else { Vec::new() };
            let token = |id| TokenPosition {
                token: Some(TokenLogprob { id: Some(id), ..TokenLogprob::default() }),
                top: Vec::new(),
            };
            tokens.into_iter().map(token).collect()
        }
    };
    Ok(GreedyContinuation { places, text: text(answer, "/content")?, made: None })
}

fn place(entry: &Value) -> Result<TokenPosition, String> {
    // The README's text and its example use different names for this list.
    let top = ["/top_logprobs", "/probs"].into_iter().find(|pointer| entry.pointer(pointer).is_some());
    let top = top.map_or(Ok(Vec::new()), |top| list(entry, top)?.iter().map(named).collect())?;
    Ok(TokenPosition { token: Some(named(entry)?), top })
}

fn named(entry: &Value) -> Result<TokenLogprob, String> {
    let word = entry.get("token").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(TokenLogprob { id: Some(id(entry, "/id")?), text: word, logprob: logprob(entry, "/logprob")? })
}
