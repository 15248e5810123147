//! SGLang: takes and returns token ids, with log-probabilities of prompts, over its own `/generate` route.

use serde_json::{Value, json};

use crate::probe::answer::{
    ContinuationRequest, GreedyContinuation, MissingAnswer, ProbePrompt, ServerAnswer, TokenLogprob,
    TokenPosition, id, ids, list, logprob, text,
};
use crate::probe::client::Client;
use crate::probe::server::{ConversationMessage, RenderedConversation, ServerApi};

/// The protocol of SGLang.
pub(super) struct Sglang<'c> {
    pub(crate) client: &'c Client,
    pub(crate) model: String,
}

const GENERATE: &str = "/generate";

impl Sglang<'_> {
    fn body(&self, prompt: &ProbePrompt, tokens: usize, top: usize, start: i64) -> Value {
        let (key, value) = match prompt.ids {
            Some(_) => ("input_ids", prompt.as_json()),
            None => ("text", prompt.as_json()),
        };
        json!({
            key: value, "return_logprob": true, "logprob_start_len": start, "top_logprobs_num": top,
            "sampling_params": {
                "temperature": 0.0, "top_p": 1.0, "top_k": 1, "min_p": 0.0, "max_new_tokens": tokens,
                "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": true,
            },
        })
    }
}

impl ServerApi for Sglang<'_> {
    fn tokenize(&self, words: &str, special: bool) -> ServerAnswer<Vec<u32>> {
        let body = json!({"model": self.model, "prompt": words, "add_special_tokens": special});
        let answer = self.client.post("/tokenize", &body)?;
        ids(&answer, "/tokens").map_err(|problem| self.client.broken("/tokenize", problem))
    }

    fn template(&self, _: &[ConversationMessage]) -> ServerAnswer<RenderedConversation> {
        Err(MissingAnswer::cannot("the server does not return the rendered template"))
    }

    fn forced(&self, prompt: &ProbePrompt, top: usize) -> ServerAnswer<Vec<Option<TokenPosition>>> {
        let wanted = prompt.ids()?;
        let answer = self.client.post(GENERATE, &self.body(prompt, 1, top, 0))?;
        let wrong = |problem| self.client.broken(GENERATE, problem);
        let found = places(&answer, "input").map_err(wrong)?;
        if found.len() != wanted.len() {
            return Err(wrong(format!(
                "input_token_logprobs has {} entries for {} tokens",
                found.len(),
                wanted.len()
            )));
        }
        let known = |place: TokenPosition| {
            place.token.as_ref().is_some_and(|token| token.logprob.is_some()).then_some(place)
        };
        Ok(found.into_iter().map(known).collect())
    }

    fn generate(&self, ask: &ContinuationRequest) -> ServerAnswer<GreedyContinuation> {
        if ask.cold {
            return Err(MissingAnswer::cannot(
                "the server cannot turn off its prefix cache for a request (--disable-radix-cache does, for all)",
            ));
        }
        let mut body = self.body(ask.prompt, ask.tokens, ask.top, -1);
        body["stream"] = ask.streamed.into();
        let pieces = match ask.streamed {
            true => self.client.stream(GENERATE, &body)?,
            false => vec![self.client.post(GENERATE, &body)?],
        };
        let piece = |answer: &Value| {
            Ok(GreedyContinuation {
                places: places(answer, "output")?,
                text: text(answer, "/text")?,
                made: None,
            })
        };
        let pieces: Result<Vec<_>, String> = pieces.iter().map(piece).collect();
        let pieces = pieces.map_err(|problem| self.client.broken(GENERATE, problem))?;
        Ok(pieces.into_iter().fold(GreedyContinuation::default(), grown))
    }
}

/// Joins a piece of a stream. A piece contains the whole text so far, or with `--incremental-streaming-output` only
/// the new part.
fn grown(whole: GreedyContinuation, piece: GreedyContinuation) -> GreedyContinuation {
    let tells_all = piece.places.starts_with(&whole.places) && piece.text.starts_with(&whole.text);
    if tells_all { piece } else { GreedyContinuation::joined([whole, piece]) }
}

/// Reads lists of `[log-probability, id, text]`.
fn places(answer: &Value, side: &str) -> Result<Vec<TokenPosition>, String> {
    let tokens = list(answer, &format!("/meta_info/{side}_token_logprobs"))?;
    let tops = answer.pointer(&format!("/meta_info/{side}_top_logprobs")).and_then(Value::as_array);
    let place = |(index, entry): (usize, &Value)| {
        let top = tops.and_then(|tops| tops.get(index)).and_then(Value::as_array);
        let top = top.into_iter().flatten().map(named).collect::<Result<_, _>>()?;
        Ok(TokenPosition { token: Some(named(entry)?), top })
    };
    tokens.iter().enumerate().map(place).collect()
}

fn named(entry: &Value) -> Result<TokenLogprob, String> {
    let word = entry.get(2).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(TokenLogprob { id: Some(id(entry, "/1")?), text: word, logprob: logprob(entry, "/0")? })
}
