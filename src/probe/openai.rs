//! The OpenAI protocol, as in llama-cpp-python, mistral.rs and many others. Tokens are identified by their
//! texts.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::probe::answer::{
    ContinuationRequest, GreedyContinuation, MissingAnswer, ProbePrompt, ServerAnswer, TokenLogprob,
    TokenPosition, ids, list, logprob, text,
};
use crate::probe::client::Client;
use crate::probe::ollama::place;
use crate::probe::server::{ConversationMessage, RenderedConversation, ServerApi};

/// The OpenAI protocol.
pub(super) struct Openai<'c> {
    pub(crate) client: &'c Client,
    pub(crate) model: String,
    /// True if the server supports only chat completions. Empty until that is known.
    pub(crate) talks: OnceLock<bool>,
}

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

impl Openai<'_> {
    fn completion(&self, ask: &ContinuationRequest) -> ServerAnswer<GreedyContinuation> {
        let prompt = ask.prompt.text.clone().map_or_else(|| ask.prompt.as_json(), Value::from);
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": ask.tokens, "temperature": 0.0, "top_p": 1.0,
            "frequency_penalty": 0.0, "presence_penalty": 0.0, "seed": 1, "logprobs": ask.top, "stream": ask.streamed,
        });
        self.pieces(COMPLETIONS, &body, ask.streamed)
    }

    /// Sends the prompt as a user message, for servers with chat completions only.
    fn chat(&self, ask: &ContinuationRequest) -> ServerAnswer<GreedyContinuation> {
        let body = json!({
            "model": self.model, "messages": [{"role": "user", "content": ask.prompt.text()?}], "max_tokens": ask.tokens,
            "temperature": 0.0, "top_p": 1.0, "seed": 1, "logprobs": true, "top_logprobs": ask.top, "stream": ask.streamed,
        });
        self.pieces(CHAT, &body, ask.streamed)
    }

    fn pieces(&self, path: &str, body: &Value, streamed: bool) -> ServerAnswer<GreedyContinuation> {
        let pieces = match streamed {
            true => self.client.stream(path, body)?,
            false => vec![self.client.post(path, body)?],
        };
        let pieces = pieces.iter().map(piece).collect::<Result<Vec<_>, _>>();
        Ok(GreedyContinuation::joined(pieces.map_err(|problem| self.client.broken(path, problem))?))
    }
}

impl ServerApi for Openai<'_> {
    /// Returns the token ids of a text. The protocol has no tokenizer route; llama-cpp-python has one, which always
    /// adds the tokens before a prompt.
    fn tokenize(&self, words: &str, special: bool) -> ServerAnswer<Vec<u32>> {
        if !special {
            return Err(MissingAnswer::cannot("the server always adds special tokens to a prompt"));
        }
        let path = "/extras/tokenize";
        match self.client.post(path, &json!({"model": self.model, "input": words})) {
            Ok(answer) => ids(&answer, "/tokens").map_err(|problem| self.client.broken(path, problem)),
            Err(MissingAnswer::Cannot(_)) => {
                Err(MissingAnswer::cannot("the protocol does not return token ids"))
            }
            Err(broken) => Err(broken),
        }
    }

    fn template(&self, _: &[ConversationMessage]) -> ServerAnswer<RenderedConversation> {
        Err(MissingAnswer::cannot("the protocol does not return the rendered template"))
    }

    fn forced(&self, prompt: &ProbePrompt, top: usize) -> ServerAnswer<Vec<Option<TokenPosition>>> {
        let text = prompt.text()?;
        let body = json!({
            "model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0.0, "logprobs": top, "echo": true,
        });
        let echoed = self.pieces(COMPLETIONS, &body, false)?;
        if !echoed.text.starts_with(text) || echoed.places.len() < 2 {
            return Err(MissingAnswer::cannot(
                "the server does not return the log-probabilities of the prompt for echo",
            ));
        }
        let mut places = echoed.places;
        let generated = &echoed.text[text.len()..];
        let last = places.last().and_then(|place| place.token.as_ref());
        let is_behind = match (generated, echoed.made) {
            // A token without text, such as an end token, is recognised by the server's token count.
            ("", Some(made)) => made > 0 && last.is_some_and(|token| token.text.is_empty()),
            ("", None) => prompt.ids.as_ref().is_some_and(|ids| ids.len() < places.len()),
            (text, _) => last.is_some_and(|token| token.text == text),
        };
        if is_behind {
            places.pop();
        }
        let wanted = prompt.ids.as_ref().map_or(places.len(), Vec::len);
        let known = |place: TokenPosition| {
            place.token.as_ref().is_some_and(|token| token.logprob.is_some()).then_some(place)
        };
        // Some servers omit the token that begins a prompt, since it has no text.
        match wanted.checked_sub(places.len()) {
            Some(silent @ (0 | 1)) => {
                Ok((0..silent).map(|_| None).chain(places.into_iter().map(known)).collect())
            }
            _ => {
                let why = format!("the server echoes {} tokens of a prompt of {wanted}", places.len());
                Err(MissingAnswer::cannot(why))
            }
        }
    }

    fn generate(&self, ask: &ContinuationRequest) -> ServerAnswer<GreedyContinuation> {
        if ask.cold {
            return Err(MissingAnswer::cannot("the protocol cannot turn off a prefix cache"));
        }
        // Completion and chat are different requests: later requests use the kind that the first answer came
        // from.
        match self.talks.get() {
            Some(true) => return self.chat(ask),
            Some(false) => return self.completion(ask),
            None => {}
        }
        let (talks, found) = match self.completion(ask) {
            Err(MissingAnswer::Cannot(why)) => (
                true,
                self.chat(ask).map_err(|also| match also {
                    MissingAnswer::Cannot(also) => {
                        MissingAnswer::Cannot(format!("{COMPLETIONS}: {why}; {CHAT}: {also}"))
                    }
                    other => other,
                }),
            ),
            found => (false, found),
        };
        if found.is_ok() {
            _ = self.talks.set(talks);
        }
        found
    }

    fn reads_conversations(&self) -> bool {
        self.talks.get() == Some(&true)
    }

    fn most_likeliest(&self) -> usize {
        5
    }

    fn takes_ids(&self) -> bool {
        false
    }
}

fn piece(answer: &Value) -> Result<GreedyContinuation, String> {
    let Some(choice) = answer.pointer("/choices/0") else { return Ok(GreedyContinuation::default()) };
    let told = choice.get("logprobs").filter(|found| !found.is_null());
    let places = match told {
        None => Vec::new(),
        // As in chat responses; llama-server uses this format for completions too.
        Some(told) if told.get("content").is_some_and(Value::is_array) => {
            list(told, "/content")?.iter().map(place).collect::<Result<_, _>>()?
        }
        Some(told) if told.get("tokens").is_some_and(Value::is_array) => of_lists(told)?,
        Some(_) => Vec::new(),
    };
    let said = ["/text", "/message/content", "/delta/content"]
        .into_iter()
        .find(|pointer| choice.pointer(pointer).is_some_and(Value::is_string));
    let made = answer.pointer("/usage/completion_tokens").and_then(Value::as_u64);
    Ok(GreedyContinuation { places, text: said.map_or(Ok(String::new()), |said| text(choice, said))?, made })
}

/// Reads parallel lists with one entry per token.
fn of_lists(told: &Value) -> Result<Vec<TokenPosition>, String> {
    let tokens = list(told, "/tokens")?.iter().enumerate();
    let place = |(index, name): (usize, &Value)| {
        let named = |text: &str, logprob| TokenLogprob { id: None, text: text.to_owned(), logprob };
        let token =
            named(name.as_str().unwrap_or_default(), logprob(told, &format!("/token_logprobs/{index}"))?);
        let top = told.pointer(&format!("/top_logprobs/{index}")).and_then(Value::as_object);
        let top = top.into_iter().flatten().map(|(name, value)| Ok(named(name, logprob(value, "")?)));
        let mut top = top.collect::<Result<Vec<_>, String>>()?;
        // A JSON object has one entry for all tokens with the same text (empty, or part of a character). A
        // missing token may be more likely than all except the chosen one.
        if top.iter().any(|named| named.text.is_empty() || named.text.contains('\u{fffd}')) {
            top.retain(|named| named.logprob >= token.logprob);
        }
        Ok(TokenPosition { token: Some(token), top })
    };
    tokens.map(place).collect()
}
