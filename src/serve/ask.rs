//! What a request asks for, read from its fields.

use serde::Deserialize;
use serde_json::Value;

use crate::engine::Sampling;
use crate::serve::fields::Fields;
use crate::serve::refusal::Refusal;
use crate::tokenizer::Conversation;

/// How many tokens a completion has where nothing is said, as OpenAI has it.
const DEFAULT_TOKENS: usize = 16;

/// More sequences that end a text are refused, as OpenAI does with more than four.
const MOST_STOPS: usize = 64;

/// Something to read.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub enum Prompt {
    /// Text, around which the model's own special tokens are put.
    Text(String),
    /// Ids as they are.
    Ids(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    One(Prompt),
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

/// What both kinds of completions can be asked.
#[derive(Clone, Debug)]
pub struct Ask {
    /// How many tokens to generate at most, if that was said.
    pub max_tokens: Option<usize>,
    /// How to choose.
    pub sampling: Sampling,
    /// Texts that end the text.
    pub stops: Vec<String>,
    /// Tokens that do, besides the model's own.
    pub stop_ids: Vec<u32>,
    /// Whether to go on where the model ends the text.
    pub ignores_end: bool,
    /// Of each generated token its log-probability, and of how many others.
    pub logprobs: Option<usize>,
    /// The same of each token of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Whether the prompt stands in the answer.
    pub echo: bool,
    /// Whether the answer comes token by token.
    pub streams: bool,
    /// Whether a stream ends with how many tokens there were.
    pub counts: bool,
    /// Whether tokens in lists of log-probabilities are written by their ids.
    pub names_ids: bool,
    /// Whether the answer has the ids.
    pub gives_ids: bool,
}

/// `/v1/completions`.
pub struct Completion {
    /// What to read.
    pub prompts: Vec<Prompt>,
    /// Whether a text is put between special tokens.
    pub adds_special: bool,
    /// What to answer.
    pub ask: Ask,
}

impl Completion {
    /// Reads a body.
    ///
    /// # Errors
    /// If it is none, or asks for something that is not done here.
    pub fn read(mut fields: Fields, most: usize) -> Result<Self, Refusal> {
        let expected = "a text, a list of ids, or a list of either";
        let prompts = match fields.take("prompt", expected)? {
            Some(Prompts::One(prompt)) => vec![prompt],
            Some(Prompts::Texts(texts)) => texts.into_iter().map(Prompt::Text).collect(),
            Some(Prompts::Ids(lists)) => lists.into_iter().map(Prompt::Ids).collect(),
            None => Vec::new(),
        };
        if prompts.is_empty() {
            return Err(Refusal::invalid(Some("prompt"), format!("prompt is missing, expected {expected}")));
        }
        let number = "a number of tokens";
        let mut ask = Ask::read(&mut fields, most)?;
        ask.max_tokens = Some(fields.take("max_tokens", number)?.unwrap_or(DEFAULT_TOKENS));
        ask.logprobs = likeliest(&mut fields, "logprobs", most)?;
        ask.echo = fields.flag("echo")?;
        let adds_special = fields.take("add_special_tokens", "true or false")?.unwrap_or(true);
        fields.finish()?;
        Ok(Self { prompts, adds_special, ask })
    }
}

impl Ask {
    /// Reads `/v1/chat/completions`.
    ///
    /// # Errors
    /// If it is none, or asks for something that is not done here.
    pub fn of_chat(mut fields: Fields, most: usize) -> Result<(Conversation, Self), Refusal> {
        let number = "a number of tokens";
        let conversation = conversation(&mut fields)?;
        let mut ask = Ask::read(&mut fields, most)?;
        let (older, newer) =
            (fields.take("max_tokens", number)?, fields.take("max_completion_tokens", number)?);
        if older.is_some() && newer.is_some() && older != newer {
            let message = "max_tokens and max_completion_tokens are different numbers, expected one of them";
            return Err(Refusal::invalid(Some("max_tokens"), message));
        }
        ask.max_tokens = newer.or(older);
        let top = likeliest(&mut fields, "top_logprobs", most)?;
        ask.logprobs = match (fields.flag("logprobs")?, top) {
            (true, top) => Some(top.unwrap_or(0)),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                let message = "top_logprobs is given and logprobs is not true, expected both";
                return Err(Refusal::invalid(Some("top_logprobs"), message));
            }
        };
        fields.finish()?;
        Ok((conversation, ask))
    }

    /// What both kinds share.
    fn read(fields: &mut Fields, most: usize) -> Result<Self, Refusal> {
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
            stop_ids: fields.take("stop_token_ids", "a list of ids")?.unwrap_or_default(),
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

    /// What is to be known of the tokens of the prompt: of how many others log-probabilities too.
    pub fn scores_prompt(&self) -> Option<usize> {
        self.prompt_logprobs.max(self.logprobs.filter(|_| self.echo))
    }
}

/// Reads the fields that make the text of a conversation.
///
/// # Errors
/// If there are no messages, or one of something else than text.
pub fn conversation(fields: &mut Fields) -> Result<Conversation, Refusal> {
    let expected = "a list of messages, each with a role and content";
    let messages: Vec<Value> = fields.take("messages", expected)?.unwrap_or_default();
    if messages.is_empty() {
        return Err(Refusal::invalid(
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
        let message = "continue_final_message and add_generation_prompt exclude each other, expected one of them; \
                       say \"add_generation_prompt\": false";
        return Err(Refusal::invalid(Some("continue_final_message"), message));
    }
    Ok(conversation)
}

/// A message whose content is one text. Parts are joined by ends of lines, as vLLM does.
fn plain(mut message: Value) -> Result<Value, Refusal> {
    let refuse = |problem: &str| Err(Refusal::invalid(Some("messages"), format!("messages: {problem}")));
    let Some(fields) = message.as_object_mut() else { return refuse("one is no object") };
    if !fields.get("role").is_some_and(Value::is_string) {
        return refuse("one has no role, expected a text such as \"user\"");
    }
    let called = ["tool_calls", "function_call", "tool_call_id", "audio"];
    if let Some(name) = called.iter().find(|name| fields.get(**name).is_some_and(|value| !value.is_null())) {
        return refuse(&format!("{name} is not supported, expected text alone"));
    }
    fields.retain(|_, value| !value.is_null());
    match fields.get("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            let text =
                |part: &Value| (part["type"] == "text").then(|| part["text"].as_str().map(str::to_owned))?;
            let Some(texts) = parts.iter().map(text).collect::<Option<Vec<_>>>() else {
                return refuse(
                    "a part of a content is no text, expected {\"type\": \"text\", \"text\": ...}",
                );
            };
            fields.insert("content".to_owned(), texts.join("\n").into());
        }
        _ => return refuse("one has no content, expected a text or a list of texts"),
    }
    Ok(message)
}

fn sampling(fields: &mut Fields) -> Result<Sampling, Refusal> {
    let top_k: Option<i64> = fields.take("top_k", "a number of tokens, or -1 for all")?;
    let sampling = Sampling {
        temperature: fields.take("temperature", "a number from 0 on")?.unwrap_or(1.0),
        top_k: top_k.and_then(|k| usize::try_from(k).ok()).filter(|&k| k > 0),
        top_p: fields.take("top_p", "a number from 0 to 1")?,
        min_p: fields.take("min_p", "a number from 0 to 1")?,
        seed: fields.take::<i64>("seed", "a whole number of 64 bits")?.unwrap_or(0) as u64,
    };
    sampling.check()?;
    Ok(sampling)
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, Refusal> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stops {
        One(String),
        Several(Vec<String>),
    }
    let stops = match fields.take("stop", "a text or a list of texts")? {
        Some(Stops::One(stop)) => vec![stop],
        Some(Stops::Several(stops)) => stops,
        None => Vec::new(),
    };
    if stops.len() > MOST_STOPS || stops.iter().any(String::is_empty) {
        let message = format!(
            "stop holds an empty text or more than {MOST_STOPS}, expected at most as many, none empty"
        );
        return Err(Refusal::invalid(Some("stop"), message));
    }
    Ok(stops)
}

/// A number of tokens whose log-probabilities are asked for; -1 is as many as are given.
fn likeliest(fields: &mut Fields, name: &str, most: usize) -> Result<Option<usize>, Refusal> {
    let expected = format!("a number from 0 to {most} (xcheck serve --max-logprobs)");
    let Some(asked) = fields.take::<i64>(name, &expected)? else { return Ok(None) };
    match usize::try_from(asked) {
        Ok(asked) if asked <= most => Ok(Some(asked)),
        _ => Err(Refusal::invalid(Some(name), format!("{name} is {asked}, expected {expected}"))),
    }
}
