//! Server options shared by `probe` and `record`.

use std::env;
use std::time::Duration;

use clap::Args;

use crate::cli::prompt::PromptOptions;
use crate::cli::terminal::tell;
use crate::error::{Error, Result};
use crate::probe::{
    Client, ClientLimits, ContinuationRequest, GreedyContinuation, MissingAnswer, ProbePrompt, Recording,
    ServerAnswer, ServerApi, ServerIdentity, ServerProtocol, TokenPosition, TokenTextIds, decimals, identify,
    is_here, of_prompt, speak,
};
use crate::tokenizer::Tokenizer;

/// Default prompt for a server, with a name, a number and a quotation.
const PROMPT: &str = "Once upon a time, in 1984, there was a little girl named Lily. She said: \"I am";

/// Server and request options.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerOptions {
    /// Address of the server, http://HOST:PORT
    ///
    /// The API key is read from XCHECK_API_KEY, else from OPENAI_API_KEY, which is sent only over https or to
    /// this machine.
    #[arg(value_name = "URL")]
    url: String,
    /// Software of the server [default: detected]
    #[arg(long, value_enum, value_name = "KIND", help_heading = "Server")]
    server: Option<ServerProtocol>,
    /// Name of the model on the server, if it serves several
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    served_model: Option<String>,
    /// Maximum number of requests
    #[arg(long, value_name = "N", default_value_t = 200, help_heading = "Limits")]
    requests: usize,
    /// Number of top log-probabilities to ask for [default: the server's maximum]
    #[arg(long, value_name = "K")]
    top: Option<usize>,
    /// Number of tokens to generate
    #[arg(long, value_name = "N", default_value_t = 16)]
    decode: usize,
    /// Seconds to wait for a complete answer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "120",
        value_parser = seconds,
        help_heading = "Limits"
    )]
    timeout: Duration,
    /// Seconds to wait for a connection
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "10",
        value_parser = seconds,
        help_heading = "Limits"
    )]
    connect_timeout: Duration,
    /// Seconds to wait for the next bytes of an answer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "60",
        value_parser = seconds,
        help_heading = "Limits"
    )]
    idle_timeout: Duration,
    /// Maximum size of an answer in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, help_heading = "Limits")]
    largest_answer: u64,
    #[command(flatten)]
    prompt: PromptOptions,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "expected a positive number of seconds".to_owned())
}

impl ServerOptions {
    /// Makes the client without sending a request.
    ///
    /// # Errors
    /// If the address is invalid, or no request is allowed.
    pub(crate) fn client(&self) -> Result<Client> {
        if self.requests == 0 || self.decode == 0 {
            return Err(Error::Usage("--requests and --decode: expected at least 1".into()));
        }
        let limits = ClientLimits {
            connect: self.connect_timeout,
            answer: self.timeout,
            idle: self.idle_timeout,
            largest: self.largest_answer,
            retries: 3,
            requests: self.requests,
        };
        Client::new(&self.url, key(&self.url), limits)
    }

    /// Identifies the server.
    ///
    /// # Errors
    /// If it does not answer, or its protocol is unknown.
    pub(crate) fn identify(&self, client: &Client) -> Result<ServerIdentity> {
        tell!("at most {} requests to {}", self.requests, client.base());
        identify(client, self.server, self.served_model.as_deref()).map_err(whole)
    }

    /// Returns the number of top tokens to ask for.
    pub(crate) fn top(&self, server: &dyn ServerApi) -> usize {
        self.top.unwrap_or(server.most_likeliest())
    }

    /// Sends the requests to record.
    ///
    /// # Errors
    /// If the connection fails, or the server returns no continuation.
    pub(crate) fn ask<'c>(
        &self,
        client: &'c Client,
        known: &ServerIdentity,
        own: Option<&dyn Tokenizer>,
    ) -> Result<ServerAnswers<'c>> {
        let server = speak(client, known);
        let prompt = self.prompt(&*server, own)?;
        let top = self.top(&*server);
        let ask =
            ContinuationRequest { prompt: &prompt, tokens: self.decode, top, cold: false, streamed: false };
        let mut generated = server.generate(&ask).map_err(whole)?;
        let length = prompt.ids.as_ref().map_or(0, Vec::len);
        let mut read = match server.forced_requests(length) {
            many if many > client.left() => Err(MissingAnswer::NotAsked(format!(
                "not asked: this takes one request per token ({many}), more than --requests allows"
            ))),
            _ => server.forced(&prompt, top),
        };
        if let Err(MissingAnswer::Broken(error)) = read {
            return Err(*error);
        }
        if let Some(own) = own {
            let vocabulary = TokenTextIds::of(own);
            vocabulary.name_all(&mut generated.places);
            vocabulary.name_all(read.iter_mut().flatten().flatten());
        }
        Ok(ServerAnswers { server, prompt, tokens: self.decode, top, generated, read })
    }

    /// Returns the prompt: the token ids of the model's tokenizer if the server accepts ids, otherwise text
    /// that the server tokenizes.
    fn prompt(&self, server: &dyn ServerApi, own: Option<&dyn Tokenizer>) -> Result<ProbePrompt> {
        if let Some(ids) = &self.prompt.tokens {
            let text = own.map(|own| own.decode_lossy(ids)).transpose()?;
            return Ok(ProbePrompt { ids: Some(ids.clone()), text });
        }
        let text = self.prompt.prompt.clone().unwrap_or_else(|| PROMPT.to_owned());
        let ours = || own.map(|own| own.encode(&text, true)).transpose();
        let ids = match server.takes_ids() {
            true => ours()?.map_or_else(|| of_prompt(server, &text), |ids| Ok(Some(ids)))?,
            false => of_prompt(server, &text)?.map_or_else(ours, |ids| Ok(Some(ids)))?,
        };
        Ok(ProbePrompt { ids, text: Some(text) })
    }
}

/// The requests to a server and its answers.
pub(crate) struct ServerAnswers<'c> {
    /// Server that answered.
    pub(crate) server: Box<dyn ServerApi + 'c>,
    /// Prompt that the server read.
    pub(crate) prompt: ProbePrompt,
    /// Number of requested tokens.
    tokens: usize,
    /// Number of requested top tokens.
    pub(crate) top: usize,
    /// Generated tokens.
    pub(crate) generated: GreedyContinuation,
    /// Log-probabilities of the prompt tokens, or the reason why there are none.
    pub(crate) read: ServerAnswer<Vec<Option<TokenPosition>>>,
}

impl ServerAnswers<'_> {
    pub(crate) fn ask(&self) -> ContinuationRequest<'_> {
        ContinuationRequest {
            prompt: &self.prompt,
            tokens: self.tokens,
            top: self.top,
            cold: false,
            streamed: false,
        }
    }

    /// Returns the decimal step of log-probabilities that are written with few decimals, and 0 for others.
    pub(crate) fn step(&self) -> f64 {
        let told = self.read.iter().flatten().flatten().chain(&self.generated.places);
        2.0 * decimals(told).unwrap_or(0.0)
    }

    /// Returns the recording with all answers.
    pub(crate) fn recording(&self) -> Recording {
        let text = self.prompt.text.clone().unwrap_or_default();
        let read = self.read.as_ref().ok().cloned().unwrap_or_default();
        // A server with a chat API does not show the prompt it makes from a conversation, so the tokens
        // before the answer are unknown.
        let is_known = !self.server.reads_conversations();
        let generated = if is_known { self.generated.clone() } else { GreedyContinuation::default() };
        Recording::new(&text, self.prompt.ids.as_deref().unwrap_or_default(), read, generated)
    }
}

/// Turns a refused request into an error if nothing else can be compared.
fn whole(refusal: MissingAnswer) -> Error {
    match refusal {
        MissingAnswer::Cannot(why) | MissingAnswer::NotAsked(why) => {
            Error::Usage(format!("cannot query the server: {why}"))
        }
        MissingAnswer::Broken(error) => *error,
    }
}

/// Returns the API key for a server. A key from OPENAI_API_KEY is sent only over https, or to this machine.
fn key(url: &str) -> Option<String> {
    let own = env::var("XCHECK_API_KEY").ok();
    let is_kept = url.starts_with("https://") || is_here(url);
    own.or_else(|| env::var("OPENAI_API_KEY").ok().filter(|_| is_kept)).filter(|key| !key.is_empty())
}
