//! vLLM: takes and returns token ids, with log-probabilities of prompts.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::probe::answer::{
    ContinuationRequest, GreedyContinuation, MissingAnswer, ProbePrompt, ServerAnswer, TokenLogprob,
    TokenPosition, ids, list, logprob, text,
};
use crate::probe::client::Client;
use crate::probe::server::{ConversationMessage, RenderedConversation, ServerApi, as_messages};

/// The protocol of vLLM.
pub(super) struct Vllm<'c> {
    pub(crate) client: &'c Client,
    pub(crate) model: String,
}

const COMPLETIONS: &str = "/v1/completions";
const TOKENIZE: &str = "/tokenize";

impl Vllm<'_> {
    fn tokens(&self, body: &Value) -> ServerAnswer<Vec<u32>> {
        let answer = self.client.post(TOKENIZE, body)?;
        ids(&answer, "/tokens").map_err(|problem| self.client.broken(TOKENIZE, problem))
    }
}

impl ServerApi for Vllm<'_> {
    fn tokenize(&self, words: &str, special: bool) -> ServerAnswer<Vec<u32>> {
        self.tokens(&json!({"model": self.model, "prompt": words, "add_special_tokens": special}))
    }

    fn template(&self, messages: &[ConversationMessage]) -> ServerAnswer<RenderedConversation> {
        let body =
            json!({"model": self.model, "messages": as_messages(messages), "add_generation_prompt": true});
        self.tokens(&body).map(RenderedConversation::Ids)
    }

    fn forced(&self, prompt: &ProbePrompt, top: usize) -> ServerAnswer<Vec<Option<TokenPosition>>> {
        let ids = prompt.ids()?;
        let body = json!({
            "model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top,
            "cache_salt": salt(),
        });
        let answer = self.client.post(COMPLETIONS, &body)?;
        let wrong = |problem| self.client.broken(COMPLETIONS, problem);
        if answer.pointer("/choices/0/prompt_logprobs").is_none_or(Value::is_null) {
            return Err(MissingAnswer::cannot("the server returns no prompt_logprobs"));
        }
        let rows = list(&answer, "/choices/0/prompt_logprobs").map_err(wrong)?;
        if rows.len() != ids.len() {
            let problem = format!("prompt_logprobs has {} entries for {} tokens", rows.len(), ids.len());
            return Err(self.client.broken(COMPLETIONS, problem));
        }
        ids.iter().zip(rows).map(|(&id, row)| forced(id, row, top)).collect::<Result<_, _>>().map_err(wrong)
    }

    fn generate(&self, ask: &ContinuationRequest) -> ServerAnswer<GreedyContinuation> {
        let mut body = json!({
            "model": self.model, "prompt": ask.prompt.as_json(), "max_tokens": ask.tokens, "temperature": 0.0,
            "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 1, "ignore_eos": true,
            "logprobs": ask.top, "return_tokens_as_token_ids": true, "stream": ask.streamed,
        });
        if ask.cold {
            body["cache_salt"] = salt().into();
        }
        let pieces = match ask.streamed {
            true => self.client.stream(COMPLETIONS, &body)?,
            false => vec![self.client.post(COMPLETIONS, &body)?],
        };
        let pieces = pieces.iter().map(piece).collect::<Result<Vec<_>, _>>();
        Ok(GreedyContinuation::joined(pieces.map_err(|problem| self.client.broken(COMPLETIONS, problem))?))
    }
}

/// Returns a unique salt, so that no earlier request shares its prefix cache.
fn salt() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("xcheck-{}-{}", since.as_nanos(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Parses `{"123": {"logprob": -1.5, "rank": 1, "decoded_token": " a"}}`. The token at this position is
/// always included, even if it is unlikely.
fn forced(own: u32, row: &Value, top: usize) -> Result<Option<TokenPosition>, String> {
    let Some(row) = row.as_object() else { return Ok(None) };
    let mut all = Vec::new();
    for (key, entry) in row {
        let id =
            key.parse::<u32>().map_err(|_| format!("prompt_logprobs names '{key}', expected a token id"))?;
        let word = entry.get("decoded_token").and_then(Value::as_str).unwrap_or_default();
        all.push(TokenLogprob { id: Some(id), text: word.to_owned(), logprob: logprob(entry, "/logprob")? });
    }
    all.sort_by(|a, b| b.logprob.unwrap_or(f64::NAN).total_cmp(&a.logprob.unwrap_or(f64::NAN)));
    let token = all.iter().find(|named| named.id == Some(own)).cloned();
    all.truncate(top);
    Ok(Some(TokenPosition { token, top: all }))
}

fn piece(answer: &Value) -> Result<GreedyContinuation, String> {
    // The last piece of a stream may contain usage only.
    let Some(choice) = answer.pointer("/choices/0") else { return Ok(GreedyContinuation::default()) };
    let mut places = Vec::new();
    if let Some(found) = choice.get("logprobs").filter(|found| !found.is_null()) {
        for (index, name) in list(found, "/tokens")?.iter().enumerate() {
            let token = named(
                name.as_str().unwrap_or_default(),
                logprob(found, &format!("/token_logprobs/{index}"))?,
            )?;
            let top = found.pointer(&format!("/top_logprobs/{index}")).and_then(Value::as_object);
            let top = top.into_iter().flatten().map(|(name, value)| named(name, logprob(value, "")?));
            places.push(TokenPosition { token: Some(token), top: top.collect::<Result<_, _>>()? });
        }
    }
    Ok(GreedyContinuation { places, text: text(choice, "/text")?, made: None })
}

/// Parses a token name such as `token_id:123`.
fn named(name: &str, logprob: Option<f64>) -> Result<TokenLogprob, String> {
    let id = name.strip_prefix("token_id:").and_then(|id| id.parse().ok());
    let id = id.ok_or_else(|| format!("logprobs name '{name}', expected token_id:N"))?;
    Ok(TokenLogprob { id: Some(id), text: String::new(), logprob })
}
