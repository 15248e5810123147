//! Requests, parsed from the fields of a body.

use serde::Deserialize;
use serde_json::Value;

use crate::engine::Sampling;
use crate::serve::error_response::ErrorResponse;
use crate::serve::fields::Fields;
use crate::tokenizer::Conversation;

/// Default number of generated tokens, as in OpenAI's API.
const DEFAULT_TOKENS: usize = 16;

/// Maximum number of stop strings; OpenAI allows four.
const MOST_STOPS: usize = 64;

/// One prompt: a text or token ids.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub(crate) enum CompletionPrompt {
    /// Text; the tokenizer adds the model's special tokens.
    Text(String),
    /// Token ids, used unchanged.
    Ids(Vec<u32>),
}

/// The `prompt` field: one prompt or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum CompletionPrompts {
    One(CompletionPrompt),
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

/// Options of plain and chat completions.
#[derive(Clone, Debug)]
pub(crate) struct CompletionOptions {
    /// Maximum number of generated tokens, if given.
    pub(crate) max_tokens: Option<usize>,
    /// Sampling parameters.
    pub(crate) sampling: Sampling,
    /// Stop strings.
    pub(crate) stops: Vec<String>,
    /// Stop tokens, in addition to the model's own.
    pub(crate) stop_ids: Vec<u32>,
    /// True to continue after an end-of-sequence token.
    pub(crate) ignores_end: bool,
    /// Number of top tokens to return with each generated token; `None` for no log-probabilities.
    pub(crate) logprobs: Option<usize>,
    /// Number of top tokens to return with each prompt token; `None` for no log-probabilities.
    pub(crate) prompt_logprobs: Option<usize>,
    /// True if the answer contains the prompt.
    pub(crate) echo: bool,
    /// True if the answer is streamed.
    pub(crate) streams: bool,
    /// True if a stream ends with the token counts.
    pub(crate) counts: bool,
    /// True if lists of log-probabilities name tokens by id.
    pub(crate) names_ids: bool,
    /// True if the answer contains token ids.
    pub(crate) gives_ids: bool,
}

/// A request to `/v1/completions`.
pub(crate) struct CompletionRequest {
    /// Prompts, each of which starts one or more sequences.
    pub(crate) prompts: Vec<CompletionPrompt>,
    /// True if special tokens are added to a text.
    pub(crate) adds_special: bool,
    /// Options that do not depend on the route.
    pub(crate) ask: CompletionOptions,
}

impl CompletionRequest {
    /// Reads a request to `/v1/completions`.
    ///
    /// # Errors
    /// If the request is invalid, or asks for something that is not supported.
    pub(crate) fn read(mut fields: Fields, most: usize) -> Result<Self, ErrorResponse> {
        let expected = "a string, a list of token ids, or a list of either";
        let prompts = match fields.take("prompt", expected)? {
            Some(CompletionPrompts::One(prompt)) => vec![prompt],
            Some(CompletionPrompts::Texts(texts)) => texts.into_iter().map(CompletionPrompt::Text).collect(),
            Some(CompletionPrompts::Ids(lists)) => lists.into_iter().map(CompletionPrompt::Ids).collect(),
            None => Vec::new(),
        };
        if prompts.is_empty() {
            return Err(ErrorResponse::invalid(
                Some("prompt"),
                format!("prompt is missing, expected {expected}"),
            ));
        }
        let number = "a number of tokens";
        let mut ask = CompletionOptions::read(&mut fields, most)?;
        ask.max_tokens = Some(fields.take("max_tokens", number)?.unwrap_or(DEFAULT_TOKENS));
        ask.logprobs = likeliest(&mut fields, "logprobs", most)?;
        ask.echo = fields.flag("echo")?;
        let adds_special = fields.take("add_special_tokens", "true or false")?.unwrap_or(true);
        fields.finish()?;
        Ok(Self { prompts, adds_special, ask })
    }
}

impl CompletionOptions {
    /// Reads `/v1/chat/completions`.
    ///
    /// # Errors
    /// If the request is invalid, or asks for something that is not supported.
    pub(crate) fn of_chat(mut fields: Fields, most: usize) -> Result<(Conversation, Self), ErrorResponse> {
        let number = "a number of tokens";
        let conversation = conversation(&mut fields)?;
        let mut ask = CompletionOptions::read(&mut fields, most)?;
        let (older, newer) =
            (fields.take("max_tokens", number)?, fields.take("max_completion_tokens", number)?);
        if older.is_some() && newer.is_some() && older != newer {
            let message = "max_tokens and max_completion_tokens are different numbers; give one of them";
            return Err(ErrorResponse::invalid(Some("max_tokens"), message));
        }
        ask.max_tokens = newer.or(older);
        let top = likeliest(&mut fields, "top_logprobs", most)?;
        ask.logprobs = match (fields.flag("logprobs")?, top) {
            (true, top) => Some(top.unwrap_or(0)),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                let message = "top_logprobs needs \"logprobs\": true";
                return Err(ErrorResponse::invalid(Some("top_logprobs"), message));
            }
        };
        fields.finish()?;
        Ok((conversation, ask))
    }

    /// Reads the options that both kinds share.
    fn read(fields: &mut Fields, most: usize) -> Result<Self, ErrorResponse> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct StreamOptions {
            #[serde(default)]
            include_usage: bool,
        }
        let streams = fields.flag("stream")?;
        let options = fields.take::<StreamOptions>("stream_options", "{\"include_usage\": true}")?;
        Ok(Self {
            max_tokens: None,
            sampling: sampling(fields)?,
            stops: stops(fields)?,
            stop_ids: fields.take("stop_token_ids", "a list of token ids")?.unwrap_or_default(),
            ignores_end: fields.flag("ignore_eos")?,
            logprobs: None,
            prompt_logprobs: likeliest(fields, "prompt_logprobs", most)?,
            echo: false,
            streams,
            counts: options.is_some_and(|options| options.include_usage),
            names_ids: fields.flag("return_tokens_as_token_ids")?,
            gives_ids: fields.flag("return_token_ids")?,
        })
    }

    /// Returns the number of top tokens to compute for each prompt token; `None` if no log-probabilities are needed.
    pub(crate) fn scores_prompt(&self) -> Option<usize> {
        self.prompt_logprobs.max(self.logprobs.filter(|_| self.echo))
    }
}

/// Reads the fields that make the text of a conversation.
///
/// # Errors
/// If there are no messages, or one has content other than text.
pub(crate) fn conversation(fields: &mut Fields) -> Result<Conversation, ErrorResponse> {
    let expected = "a list of messages, each with a role and content";
    let messages: Vec<Value> = fields.take("messages", expected)?.unwrap_or_default();
    if messages.is_empty() {
        return Err(ErrorResponse::invalid(
            Some("messages"),
            format!("messages is missing or empty, expected {expected}"),
        ));
    }
    let conversation = Conversation {
        messages: messages.into_iter().map(plain).collect::<Result<_, _>>()?,
        adds_prompt: fields.take("add_generation_prompt", "true or false")?.unwrap_or(true),
        continues: fields.flag("continue_final_message")?,
        told: fields.take("chat_template_kwargs", "an object")?.unwrap_or_default(),
        adds_special: fields.flag("add_special_tokens")?,
    };
    if conversation.continues && conversation.adds_prompt {
        let message = "continue_final_message and add_generation_prompt cannot both be true; set \
                       \"add_generation_prompt\": false";
        return Err(ErrorResponse::invalid(Some("continue_final_message"), message));
    }
    Ok(conversation)
}

/// Converts a message so that its content is a single text. Parts are joined by newlines, as in vLLM.
fn plain(mut message: Value) -> Result<Value, ErrorResponse> {
    let refuse =
        |problem: &str| Err(ErrorResponse::invalid(Some("messages"), format!("messages: {problem}")));
    let Some(fields) = message.as_object_mut() else { return refuse("a message is not an object") };
    if !fields.get("role").is_some_and(Value::is_string) {
        return refuse("a message has no role, expected a string such as \"user\"");
    }
    let called = ["tool_calls", "function_call", "tool_call_id", "audio"];
    if let Some(name) = called.iter().find(|name| fields.get(**name).is_some_and(|value| !value.is_null())) {
        return refuse(&format!("{name} is not supported, expected text content only"));
    }
    fields.retain(|_, value| !value.is_null());
    match fields.get("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let text =
                |part: &Value| (part["type"] == "text").then(|| part["text"].as_str().map(str::to_owned))?;
            let Some(texts) = parts.iter().map(text).collect::<Option<Vec<_>>>() else {
                return refuse("a content part is not text, expected {\"type\": \"text\", \"text\": ...}");
            };
            fields.insert("content".to_owned(), texts.join("\n").into());
        }
        _ => return refuse("a message has no content, expected a string or a list of text parts"),
    }
    Ok(message)
}

fn sampling(fields: &mut Fields) -> Result<Sampling, ErrorResponse> {
    let top_k: Option<i64> = fields.take("top_k", "a number of tokens, or -1 for all")?;
    let sampling = Sampling {
        temperature: fields.take("temperature", "a number of 0 or more")?.unwrap_or(1.0),
        top_k: top_k.and_then(|k| usize::try_from(k).ok()).filter(|&k| k > 0),
        top_p: fields.take("top_p", "a number from 0 to 1")?,
        min_p: fields.take("min_p", "a number from 0 to 1")?,
        seed: fields.take::<i64>("seed", "a 64-bit integer")?.unwrap_or(0) as u64,
    };
    sampling.check()?;
    Ok(sampling)
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ErrorResponse> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum StopStrings {
        One(String),
        Several(Vec<String>),
    }
    let stops = match fields.take("stop", "a string or a list of strings")? {
        Some(StopStrings::One(stop)) => vec![stop],
        Some(StopStrings::Several(stops)) => stops,
        None => Vec::new(),
    };
    if stops.len() > MOST_STOPS || stops.iter().any(String::is_empty) {
        let message = format!(
            "stop has an empty string or more than {MOST_STOPS} strings; give at most {MOST_STOPS}, none empty"
        );
        return Err(ErrorResponse::invalid(Some("stop"), message));
    }
    Ok(stops)
}

/// Reads a number of top tokens; -1 means the maximum.
fn likeliest(fields: &mut Fields, name: &str, most: usize) -> Result<Option<usize>, ErrorResponse> {
    let expected = format!("a number from 0 to {most} (xcheck serve --max-logprobs)");
    let Some(asked) = fields.take::<i64>(name, &expected)? else { return Ok(None) };
    match usize::try_from(asked) {
        Ok(asked) if asked <= most => Ok(Some(asked)),
        _ => Err(ErrorResponse::invalid(Some(name), format!("{name} is {asked}, expected {expected}"))),
    }
}
