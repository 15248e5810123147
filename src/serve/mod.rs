//! HTTP server for the OpenAI API, with the reference engine.
//!
//! Threads of an async runtime handle connections; one thread computes ([`serve`]), with rayon's threads. A
//! queue of limited length connects them. Each request has a channel for the events of its sequences. Closing
//! the channel stops the computation.

mod body;
mod connections;
mod error_response;
mod fields;
mod job;
mod metrics;
mod queue;
mod reply;
mod request;
mod routes;
mod stream;
mod text;
mod worker;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Semaphore;

use crate::engine::{Generation, Request};
use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::numerics::Numerics;
use crate::serve::body::BodyMemory;
use crate::serve::error_response::ErrorResponse;
use crate::serve::metrics::Metrics;
use crate::serve::queue::Queue;
use crate::serve::request::CompletionOptions;
use crate::serve::text::TokenNames;
use crate::serve::worker::work;
use crate::tokenizer::{Chat, ChatTemplate, Conversation, Tokenizer};

/// Time that accepted requests have to finish after the server is told to shut down.
const GRACE: Duration = Duration::from_secs(10);

/// Time to send the last answers after everything is computed.
const SENDING: Duration = Duration::from_secs(2);

/// Number of request bodies that are parsed at the same time.
const LOOKING: usize = 4;

/// A served model with its numerics and limits.
pub(crate) struct ServedModel {
    /// Name of the model in the API.
    pub(crate) name: String,
    pub(crate) loaded: LoadedModel,
    /// Numerics of the served model.
    pub(crate) numerics: Box<dyn Numerics>,
    /// Tokenizer, if the model has one.
    pub(crate) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Chat settings of the model.
    pub(crate) chat: Chat,
    /// Chat template, if there is one.
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) limits: RequestLimits,
}

/// Limits of a request. A request beyond a limit is refused before anything is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestLimits {
    /// Maximum number of tokens of prompt and generation together.
    pub(crate) context: usize,
    /// Maximum number of generated tokens per sequence.
    pub(crate) max_tokens: usize,
    /// Maximum number of top log-probabilities per token.
    pub(crate) max_logprobs: usize,
    /// Number of sequences that are computed in turns.
    pub(crate) parallel: usize,
    /// Maximum number of waiting sequences.
    pub(crate) queue: usize,
    /// Maximum size of a body in bytes.
    pub(crate) body: usize,
}

/// The server state that all threads share.
struct App {
    served: ServedModel,
    queue: Queue,
    metrics: Metrics,
    names: TokenNames,
    created: u64,
    answers: AtomicUsize,
    /// Memory for request bodies.
    bodies: BodyMemory,
    /// Permits for parsing bodies, because parsing takes several times the memory of the body.
    looking: Arc<Semaphore>,
}

/// Serves until the process gets SIGINT or SIGTERM. Then new requests are rejected, and accepted ones have
/// ten seconds to finish. Calls `ready` when the server accepts requests. The calling thread computes.
///
/// # Errors
/// If the runtime cannot be started, or the listener fails.
pub(crate) fn serve(
    served: ServedModel,
    listener: TcpListener,
    ready: impl FnOnce() + Send + 'static,
) -> Result<()> {
    let app = Arc::new(App::new(served));
    let refuse = |error: std::io::Error| Error::Usage(format!("cannot start the server: {error}"));
    listener.set_nonblocking(true).map_err(refuse)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(refuse)?;
    let talking = {
        let app = app.clone();
        thread::spawn(move || {
            let told = runtime.block_on(talk(&app, listener, ready));
            app.queue.close(Instant::now());
            runtime.shutdown_background();
            told
        })
    };
    work(&app);
    talking
        .join()
        .unwrap_or_else(|_| Err(std::io::Error::other("the server thread panicked; please report it")))
        .map_err(refuse)
}

/// Handles connections until shutdown. Calls `ready` first.
async fn talk(app: &Arc<App>, listener: TcpListener, ready: impl FnOnce()) -> std::io::Result<()> {
    let ending = told_to_end()?;
    ready();
    let told = Arc::new(tokio::sync::Notify::new());
    let (closing, waiting) = (app.clone(), told.clone());
    let signal = async move {
        ending.await;
        closing.queue.close(Instant::now() + GRACE);
        waiting.notify_one();
    };
    let answering = connections::answer(listener, routes::routes(app.clone()), signal);
    let deadline = async {
        told.notified().await;
        tokio::time::sleep(GRACE + SENDING).await;
    };
    tokio::select! {
        ended = answering => ended,
        () = deadline => Ok(()),
    }
}

/// Installs handlers for SIGINT and SIGTERM; the returned future ends at the first signal.
fn told_to_end() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminated, mut interrupted) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(async move {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = interrupted.recv() => {}
            }
        })
    }
    #[cfg(not(unix))]
    Ok(async {
        _ = tokio::signal::ctrl_c().await;
    })
}

impl App {
    fn new(served: ServedModel) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            queue: Queue::new(served.limits.parallel, served.limits.queue),
            metrics: Metrics::new(&served.name, served.numerics.name()),
            names: TokenNames::new(served.tokenizer.clone()),
            created: since.as_secs(),
            answers: AtomicUsize::new(0),
            bodies: BodyMemory::new(served.limits.body),
            looking: Arc::new(Semaphore::new(LOOKING)),
            served,
        }
    }

    /// Returns a number that is unique among all answers.
    fn next_number(&self) -> usize {
        self.answers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the fingerprint that all answers of the same computation share.
    fn fingerprint(&self) -> String {
        format!("xcheck-{}-{}", env!("CARGO_PKG_VERSION"), self.served.numerics.name())
    }
}

impl ServedModel {
    /// Returns the tokenizer, or an error if there is none.
    fn tokenizer(&self) -> Result<&dyn Tokenizer, ErrorResponse> {
        let none = "the model has no tokenizer; give token ids: \"prompt\": [1, 2, 3]";
        self.tokenizer.as_deref().ok_or_else(|| ErrorResponse::invalid(Some("prompt"), none))
    }

    /// Returns the token ids of a text.
    fn encode(&self, text: &str, adds_special: bool) -> Result<Vec<u32>, ErrorResponse> {
        Ok(self.tokenizer()?.encode(text, adds_special)?)
    }

    /// Returns the token ids of a rendered conversation.
    fn conversation(&self, conversation: &Conversation) -> Result<Vec<u32>, ErrorResponse> {
        let none = "the model has no chat template; give one with xcheck serve --chat-template, or use /v1/completions";
        let template =
            self.template.as_ref().ok_or_else(|| ErrorResponse::invalid(Some("messages"), none))?;
        self.encode(&template.render(conversation)?, conversation.adds_special)
    }

    /// Checks a prompt and its options, and returns the request for the engine.
    fn request(&self, prompt: &[u32], ask: &CompletionOptions) -> Result<Request, ErrorResponse> {
        let RequestLimits { context, max_tokens: most, .. } = self.limits;
        let room = context.saturating_sub(prompt.len());
        // At least one token by default, so that a full context is rejected.
        let max_tokens = ask.max_tokens.unwrap_or_else(|| most.min(room).max(1));
        if max_tokens > most {
            let message = format!("max_tokens is {max_tokens}, expected at most {most}");
            return Err(ErrorResponse::invalid(Some("max_tokens"), message));
        }
        if prompt.len().saturating_add(max_tokens) > context {
            let message = format!(
                "{} prompt tokens and {max_tokens} tokens to generate do not fit a context of {context}; shorten the \
                 prompt or lower max_tokens",
                prompt.len()
            );
            let about = Some("context_length_exceeded");
            return Err(ErrorResponse::invalid(None, message).about(Some("prompt"), about));
        }
        let end_tokens = if ask.ignores_end { &[][..] } else { &self.loaded.end_tokens };
        let request = Request {
            prompt: prompt.to_vec(),
            max_tokens,
            stop: [end_tokens, &ask.stop_ids].concat(),
            context: prompt.len() + max_tokens,
            forgets: false,
            sampling: ask.sampling,
        };
        let refuse = |error: Error| ErrorResponse::invalid(Some("prompt"), error.to_string());
        Generation::new(&*self.loaded.model, &*self.numerics, request.clone()).map_err(refuse)?;
        Ok(request)
    }
}
