//! Text Generation Inference: takes text and returns ids, with log-probabilities of prompts but without their
//! top tokens.

use serde_json::{Value, json};

use crate::probe::answer::{
    ContinuationRequest, GreedyContinuation, MissingAnswer, ProbePrompt, ServerAnswer, TokenLogprob,
    TokenPosition, id, list, logprob, text,
};
use crate::probe::client::Client;
use crate::probe::server::{ConversationMessage, RenderedConversation, ServerApi, as_messages};

/// The protocol of Text Generation Inference.
pub(super) struct Tgi<'c> {
    pub(crate) client: &'c Client,
}

const GENERATE: &str = "/generate";
const STREAM: &str = "/generate_stream";

impl Tgi<'_> {
    fn ids(&self, path: &str, body: &Value, pointer: &str) -> ServerAnswer<Vec<u32>> {
        let answer = self.client.post(path, body)?;
        let entries =
            list(&answer, pointer).and_then(|all| all.iter().map(|entry| id(entry, "/id")).collect());
        entries.map_err(|problem: String| self.client.broken(path, problem))
    }

    fn body(ask: &ContinuationRequest) -> ServerAnswer<Value> {
        Ok(json!({
            "inputs": ask.prompt.text()?,
            "parameters": {
                "max_new_tokens": ask.tokens, "do_sample": false, "details": true, "top_n_tokens": ask.top,
                "decoder_input_details": false,
            },
        }))
    }
}

impl ServerApi for Tgi<'_> {
    fn tokenize(&self, words: &str, special: bool) -> ServerAnswer<Vec<u32>> {
        if !special {
            return Err(MissingAnswer::cannot("the server always adds special tokens to a prompt"));
        }
        self.ids("/tokenize", &json!({"inputs": words}), "")
    }

    fn template(&self, messages: &[ConversationMessage]) -> ServerAnswer<RenderedConversation> {
        let path = "/chat_tokenize";
        let answer = self.client.post(path, &json!({"model": "tgi", "messages": as_messages(messages)}))?;
        text(&answer, "/templated_text")
            .map(RenderedConversation::Text)
            .map_err(|problem| self.client.broken(path, problem))
    }

    fn forced(&self, prompt: &ProbePrompt, _: usize) -> ServerAnswer<Vec<Option<TokenPosition>>> {
        let mut body =
            Self::body(&ContinuationRequest { prompt, tokens: 1, top: 0, cold: false, streamed: false })?;
        body["parameters"]["decoder_input_details"] = true.into();
        if let Some(parameters) = body["parameters"].as_object_mut() {
            parameters.remove("top_n_tokens");
        }
        let answer = self.client.post(GENERATE, &body)?;
        let wrong = |problem| self.client.broken(GENERATE, problem);
        let found = list(&answer, "/details/prefill").map_err(wrong)?;
        if found.is_empty() {
            return Err(MissingAnswer::cannot("the server returns an empty list for decoder_input_details"));
        }
        let places: Vec<TokenPosition> = found
            .iter()
            .map(|entry| Ok(TokenPosition { token: Some(named(entry)?), top: Vec::new() }))
            .collect::<Result<_, _>>()
            .map_err(wrong)?;
        let read: Vec<u32> = places.iter().filter_map(|place| place.token.as_ref()?.id).collect();
        if prompt.ids.as_ref().is_some_and(|ids| *ids != read) {
            return Err(MissingAnswer::cannot(
                "the server tokenizes the text into other tokens than the given ones",
            ));
        }
        let known = |place: TokenPosition| {
            place.token.as_ref().is_some_and(|token| token.logprob.is_some()).then_some(place)
        };
        Ok(places.into_iter().map(known).collect())
    }

    fn generate(&self, ask: &ContinuationRequest) -> ServerAnswer<GreedyContinuation> {
        if ask.cold {
            return Err(MissingAnswer::cannot(
                "the server cannot turn off its prefix cache for a request (PREFIX_CACHING=0 does, for all)",
            ));
        }
        let body = Self::body(ask)?;
        let (path, found) = match ask.streamed {
            true => (
                STREAM,
                self.client
                    .stream(STREAM, &body)?
                    .iter()
                    .map(piece)
                    .collect::<Result<Vec<_>, _>>()
                    .map(GreedyContinuation::joined),
            ),
            false => (GENERATE, whole(&self.client.post(GENERATE, &body)?)),
        };
        found.map_err(|problem| self.client.broken(path, problem))
    }

    fn most_likeliest(&self) -> usize {
        5
    }

    fn takes_ids(&self) -> bool {
        false
    }
}

fn whole(answer: &Value) -> Result<GreedyContinuation, String> {
    let tops = answer.pointer("/details/top_tokens").and_then(Value::as_array);
    let place = |(index, entry): (usize, &Value)| {
        let top = tops.and_then(|tops| tops.get(index)).and_then(Value::as_array);
        let top = top.into_iter().flatten().map(named).collect::<Result<_, _>>()?;
        Ok(TokenPosition { token: Some(named(entry)?), top })
    };
    let places =
        list(answer, "/details/tokens")?.iter().enumerate().map(place).collect::<Result<_, String>>()?;
    Ok(GreedyContinuation { places, text: text(answer, "/generated_text")?, made: None })
}

fn piece(answer: &Value) -> Result<GreedyContinuation, String> {
    let Some(token) = answer.get("token") else { return Ok(GreedyContinuation::default()) };
    let top = answer.get("top_tokens").and_then(Value::as_array);
    let top = top.into_iter().flatten().map(named).collect::<Result<_, _>>()?;
    let token = named(token)?;
    Ok(GreedyContinuation {
        text: token.text.clone(),
        places: vec![TokenPosition { token: Some(token), top }],
        made: None,
    })
}

fn named(entry: &Value) -> Result<TokenLogprob, String> {
    Ok(TokenLogprob {
        id: Some(id(entry, "/id")?),
        text: text(entry, "/text")?,
        logprob: logprob(entry, "/logprob")?,
    })
}
