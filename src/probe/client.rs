//! HTTP client for a server. It limits time, size and number of requests, follows no redirects, and removes
//! the key from messages.

use std::borrow::Cow;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{Method, Request, Response, StatusCode, header};
use ureq::{Agent, Body};

use crate::error::{Error, ServerError};
use crate::network::agent_within;
use crate::probe::answer::{MissingAnswer, ServerAnswer};

/// First wait before a request to a busy server is repeated, if the server does not state a time.
const PAUSE: Duration = Duration::from_millis(250);
/// Maximum number of characters of a response in a message.
const SAID: usize = 300;

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    /// Time limit for the connection.
    pub(crate) connect: Duration,
    /// Time limit for the whole answer.
    pub(crate) answer: Duration,
    /// Time limit for the next bytes of an answer.
    pub(crate) idle: Duration,
    /// Maximum size of an answer in bytes.
    pub(crate) largest: u64,
    /// Number of retries for a busy server.
    pub(crate) retries: usize,
    /// Maximum number of requests in all.
    pub(crate) requests: usize,
}

/// HTTP client for one server address.
pub struct Client {
    agent: Agent,
    base: String,
    key: Option<String>,
    limits: ClientLimits,
    made: AtomicUsize,
}

impl Client {
    /// Makes a client for the server at an address without an API path, such as `http://127.0.0.1:8000`.
    ///
    /// # Errors
    /// If the address is invalid, or contains a user name or a key.
    pub(crate) fn new(url: &str, key: Option<String>, limits: ClientLimits) -> Result<Self, Error> {
        let base = url.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches('/');
        let refuse = |problem: &str| {
            Err(Error::Usage(format!(
                "the server's address {problem}, expected http://HOST:PORT or https://HOST"
            )))
        };
        let Ok(parsed) = base.parse::<ureq::http::Uri>() else { return refuse("is not valid") };
        match (parsed.scheme_str(), parsed.authority()) {
            (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => refuse(
                "contains a user name or a key, which would appear in reports (set the key with XCHECK_API_KEY)",
            ),
            (Some("http" | "https"), Some(_)) if base.contains(['?', '#']) => {
                refuse("contains a query or a fragment")
            }
            (Some("http" | "https"), Some(_)) => Ok(Self {
                agent: agent_within(limits.connect, limits.idle, limits.answer, is_here(base)),
                base: base.to_owned(),
                key: key.filter(|key| !key.is_empty()),
                limits,
                made: AtomicUsize::new(0),
            }),
            _ => refuse("is not an HTTP address"),
        }
    }

    /// Returns the address of the server.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Returns the number of requests sent.
    pub(crate) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed).min(self.limits.requests)
    }

    /// Returns the number of requests that may still be sent.
    pub(crate) fn left(&self) -> usize {
        self.limits.requests - self.made()
    }

    /// Sends a GET request to a path.
    ///
    /// # Errors
    /// Errors of [`Client::post`].
    pub(crate) fn get(&self, path: &str) -> ServerAnswer<Value> {
        self.json(path, &self.ask(Method::GET, path, None)?)
    }

    /// Sends a POST request with a JSON body to a path.
    ///
    /// # Errors
    /// [`MissingAnswer::Cannot`] if the server refuses the request. [`MissingAnswer::Broken`] if there is no
    /// response, or an invalid one.
    pub(crate) fn post(&self, path: &str, body: &Value) -> ServerAnswer<Value> {
        self.json(path, &self.ask(Method::POST, path, Some(body))?)
    }

    /// Sends a POST request and returns the JSON documents of a streamed response: server-sent events, or one
    /// document per line.
    ///
    /// # Errors
    /// The errors of [`Client::post`].
    pub(crate) fn stream(&self, path: &str, body: &Value) -> ServerAnswer<Vec<Value>> {
        let text = self.ask(Method::POST, path, Some(body))?;
        let line = |line: &str| {
            let line = line.trim();
            let is_piece = line.starts_with('{') || line.starts_with("data:");
            let piece = line.strip_prefix("data:").unwrap_or(line).trim();
            (is_piece && piece != "[DONE]").then(|| piece.to_owned())
        };
        let pieces: Vec<String> = text.lines().filter_map(line).collect();
        if pieces.is_empty() {
            return Err(self.broken(
                path,
                format!(
                    "expected server-sent events or one JSON object per line, found {}",
                    self.quoted(&text)
                ),
            ));
        }
        pieces.iter().map(|piece| self.json(path, piece)).collect()
    }

    /// Returns an error about a response.
    pub(crate) fn broken(&self, path: &str, problem: impl Into<String>) -> MissingAnswer {
        let (url, problem) = (format!("{}{path}", self.base), problem.into());
        MissingAnswer::Broken(Box::new(ServerError { url, problem }.into()))
    }

    fn json(&self, path: &str, text: &str) -> ServerAnswer<Value> {
        serde_json::from_str(text).map(|answer| self.hidden(answer)).map_err(|error| {
            let advice = match text.trim_start().starts_with('<') {
                true => "; this is an HTML page: is this the address of the API?",
                false => "",
            };
            self.broken(path, format!("the answer is not JSON ({error}): {}{advice}", self.quoted(text)))
        })
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> ServerAnswer<String> {
        let mut tried = 0;
        loop {
            let answer = self.once(&method, path, body)?;
            let status = answer.status();
            let is_busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status);
            if !is_busy || tried == self.limits.retries {
                return self.text_of(path, answer);
            }
            let own = (PAUSE * 2u32.pow(tried as u32)).min(self.limits.answer);
            let pause = retry_after(&answer).unwrap_or(own);
            if pause > self.limits.answer {
                let problem = format!(
                    "HTTP {}: the server is busy and asks to wait {} s, longer than --timeout",
                    status.as_u16(),
                    pause.as_secs()
                );
                return Err(self.broken(path, problem));
            }
            thread::sleep(pause);
            tried += 1;
        }
    }

    fn once(&self, method: &Method, path: &str, body: Option<&Value>) -> ServerAnswer<Response<Body>> {
        if self.made.fetch_add(1, Ordering::Relaxed) >= self.limits.requests {
            return Err(MissingAnswer::NotAsked(format!(
                "skipped: the limit of {} requests is reached; raise --requests",
                self.limits.requests
            )));
        }
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let sent = match body {
            Some(body) => request
                .header(header::CONTENT_TYPE, "application/json")
                .body(body.to_string())
                .map(|request| self.agent.run(request)),
            None => request.body(()).map(|request| self.agent.run(request)),
        };
        sent.map_err(ureq::Error::from).flatten().map_err(|error| self.broken(path, self.unreachable(&error)))
    }

    fn unreachable(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(kind) => {
                format!("timeout ({kind}); raise --timeout, --idle-timeout or --connect-timeout")
            }
            other => format!("request failed: {other}"),
        }
    }

    /// Returns the text of a successful response.
    fn text_of(&self, path: &str, answer: Response<Body>) -> ServerAnswer<String> {
        let status = answer.status();
        if status.is_redirection() {
            let to =
                answer.headers().get(header::LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
            let to = self.without_key(to.split(['?', '#']).next().unwrap_or(to));
            let problem = format!(
                "HTTP {}: redirects to {to}; redirects are not followed, so that the key is not sent elsewhere: give \
                 that address if you trust it",
                status.as_u16()
            );
            return Err(self.broken(path, problem));
        }
        let mut bytes = Vec::new();
        let read = answer.into_body().into_reader().take(self.limits.largest + 1).read_to_end(&mut bytes);
        if let Err(error) = read {
            return Err(self.broken(path, format!("the response ended after {} bytes: {error}", bytes.len())));
        }
        if bytes.len() as u64 > self.limits.largest {
            return Err(self.broken(
                path,
                format!("the response is longer than {} bytes; raise --largest-answer", self.limits.largest),
            ));
        }
        let text = self.without_key(&String::from_utf8_lossy(&bytes));
        let said =
            || format!("HTTP {}: {}", status.as_u16(), self.quoted(&self.without_key(&message(&text))));
        match status.as_u16() {
            200..=299 => Ok(text),
            401 | 403 => {
                Err(self
                    .broken(path, format!("{}; set the key with XCHECK_API_KEY or OPENAI_API_KEY", said())))
            }
            429 | 503 => Err(self.broken(path, format!("{}; the server stayed busy", said()))),
            400..=499 => Err(MissingAnswer::Cannot(said())),
            _ => Err(self.broken(path, said())),
        }
    }

    /// Returns the start of a server's text on one line.
    fn quoted(&self, text: &str) -> String {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let words: String = words.chars().filter(|c| !c.is_control()).collect();
        match words.char_indices().nth(SAID) {
            _ if words.is_empty() => "nothing".to_owned(),
            Some((end, _)) => format!("{}…", &words[..end]),
            None => words,
        }
    }

    /// Removes the key from all strings of a JSON document.
    fn hidden(&self, answer: Value) -> Value {
        match answer {
            _ if self.key.is_none() => answer,
            Value::String(text) => Value::String(self.without_key(&text)),
            Value::Array(list) => list.into_iter().map(|value| self.hidden(value)).collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(name, value)| (self.without_key(&name), self.hidden(value)))
                .collect(),
            other => other,
        }
    }

    /// Removes the key from a text, since servers repeat unknown keys in messages.
    fn without_key(&self, text: &str) -> String {
        self.key.as_ref().map_or(text.to_owned(), |key| text.replace(key.as_str(), "[key]"))
    }
}

/// Returns the error message of a JSON response, or the whole text.
fn message(text: &str) -> Cow<'_, str> {
    const PLACES: [&str; 4] = ["/error/message", "/message", "/error", "/detail"];
    let answer = serde_json::from_str::<Value>(text).unwrap_or_default();
    let words = PLACES.iter().find_map(|place| answer.pointer(place)?.as_str());
    words.map_or(Cow::Borrowed(text), |words| Cow::Owned(words.to_owned()))
}

/// Returns true if an address is on this machine.
pub(crate) fn is_here(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    let host = host
        .rsplit_once(':')
        .filter(|(_, port)| port.chars().all(|c| c.is_ascii_digit()))
        .map_or(host, |(host, _)| host);
    ["127.0.0.1", "localhost", "[::1]"].contains(&host)
}

fn retry_after(answer: &Response<Body>) -> Option<Duration> {
    let seconds = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse::<f64>().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}
