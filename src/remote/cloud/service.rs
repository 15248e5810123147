//! HTTP requests of `object_store` over our own connections, with readable errors.

use std::error::Error;
use std::fmt;
use std::io::Read;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use ureq::http::header::IF_MATCH;
use ureq::http::{Request, Response, StatusCode};
use ureq::{Agent, BodyReader};

use crate::disk_cache::BLOCK;
use crate::network::agent_of_signed;
use crate::remote::transport::{RequestFailure, may_pass, unreachable};

/// Time limit for a connection if `object_store` gives none.
const CONNECT: Duration = Duration::from_secs(30);
/// Maximum number of bytes of an error response that are read to find its code.
const REFUSAL: u64 = 1 << 14;
/// Maximum length of an error code; longer text is not a code.
const LONGEST_CODE: usize = 50;

/// Error of a failed range request. It travels with the request.
#[derive(Clone, Default)]
pub(super) struct RangeError(Arc<Mutex<Option<RequestFailure>>>);

impl RangeError {
    pub(crate) fn take(&self) -> Option<RequestFailure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, failure: RequestFailure) -> HttpError {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        // `object_store` does not retry this kind of error; range requests have their own retries.
        HttpError::new(HttpErrorKind::Unknown, ConnectionProblem("refused".into()))
    }
}

/// Description of a connection error, without a URL.
#[derive(Debug)]
struct ConnectionProblem(String);

impl fmt::Display for ConnectionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ConnectionProblem {}

/// Returns the description of the connection error that caused `error`, if any.
pub(super) fn source_of(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = error.source();
    while let Some(source) = next {
        if let Some(ConnectionProblem(problem)) = source.downcast_ref() {
            return Some(problem.clone());
        }
        next = source.source();
    }
    None
}

/// Makes HTTP connections for an object store. `variables` lists the environment variables for its credentials.
#[derive(Debug)]
pub(super) struct Connector {
    pub(crate) variables: &'static str,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let option = |key| options.get_config_value(&key);
        // The limit is short for metadata services, which most machines do not have.
        let connect =
            option(ClientConfigKey::ConnectTimeout).and_then(|text| text.strip_suffix('s')?.parse().ok());
        let agent = agent_of_signed(connect.map_or(CONNECT, Duration::from_secs));
        let allows_http = option(ClientConfigKey::AllowHttp).as_deref() == Some("true");
        Ok(HttpClient::new(Service { agent, allows_http, variables: self.variables }))
    }
}

/// HTTP service of an object store.
#[derive(Debug)]
struct Service {
    agent: Agent,
    allows_http: bool,
    variables: &'static str,
}

#[async_trait]
impl HttpService for Service {
    /// Sends the request and blocks until the response arrives.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let told = request.extensions().get::<RangeError>().cloned();
        let pin = request.headers().get(IF_MATCH).and_then(|pin| pin.to_str().ok()).map(str::to_owned);
        let answer = self.ask(request).map_err(|failure| match (&told, failure) {
            (Some(told), failure) => told.put(failure),
            (None, RequestFailure::Passing(problem, _)) => {
                HttpError::new(HttpErrorKind::Connect, ConnectionProblem(problem))
            }
            (None, RequestFailure::Absent(problem) | RequestFailure::Final(problem)) => {
                HttpError::new(HttpErrorKind::Unknown, ConnectionProblem(problem))
            }
        })?;
        match told {
            Some(told) if answer.status() != StatusCode::PARTIAL_CONTENT => {
                Err(told.put(self.refusal(answer, pin.as_deref())))
            }
            // A response that rejects credentials may repeat them, so its body is dropped.
            None if !answer.status().is_success() => Ok(answer.map(|_| Bytes::new().into())),
            _ => Ok(answer.map(|body| HttpResponseBody::new(BodyBlocks(Mutex::new(body.into_reader()))))),
        }
    }
}

impl Service {
    fn ask(&self, request: HttpRequest) -> Result<Response<ureq::Body>, RequestFailure> {
        if !self.allows_http && request.uri().scheme_str() != Some("https") {
            let problem =
                "the request would use plain HTTP; allow it with AWS_ALLOW_HTTP=true (AZURE_, GOOGLE_)";
            return Err(RequestFailure::Final(problem.into()));
        }
        let (head, body) = request.into_parts();
        let body = body.as_bytes().cloned().unwrap_or_default();
        // A request without a body must differ from one with an empty body.
        let answer = match body.is_empty() && head.method.is_safe() {
            true => self.agent.run(Request::from_parts(head, ())),
            false => self.agent.run(Request::from_parts(head, body.to_vec())),
        };
        answer.map_err(unreachable)
    }

    /// Returns the error message. Only the code of an error response is shown, since its body may repeat keys.
    fn refusal(&self, answer: Response<ureq::Body>, pin: Option<&str>) -> RequestFailure {
        let (head, body) = answer.into_parts();
        let mut text = Vec::new();
        _ = body.into_reader().take(REFUSAL).read_to_end(&mut text); // an incomplete body is good enough
        let status = head.status.as_u16();
        let code = code(&String::from_utf8_lossy(&text)).map_or(String::new(), |code| format!(" ({code})"));
        let (said, variables) = (format!("HTTP {status}{code}"), self.variables);
        match status {
            200 => RequestFailure::Final(
                "the store does not support range requests; give the https URL of the object".into(),
            ),
            404 | 410 => RequestFailure::Absent(format!("{said}: no such object")),
            401 | 403 => RequestFailure::Absent(format!(
                "{said}: access denied; set other credentials and try again, downloaded data is kept. Credentials are \
                 read from: {variables}"
            )),
            412 => RequestFailure::Final(format!(
                "{said}: the object changed while it was being read: its ETag is no longer {}; run again",
                pin.unwrap_or_default()
            )),
            416 => RequestFailure::Final(format!("{said}: the object is empty, or shorter than before")),
            300..=399 => {
                RequestFailure::Final(format!("{said}: the bucket is in another region; set AWS_REGION"))
            }
            status if may_pass(status) => RequestFailure::passing(said, &head.headers),
            _ => RequestFailure::Final(format!(
                "{said}: the store rejected the request. It was signed with: {variables}"
            )),
        }
    }
}

/// Returns the error code of a store: `<Code>NoSuchKey</Code>`, in the XML of any cloud.
fn code(text: &str) -> Option<&str> {
    let (code, _) = text.split_once("<Code>")?.1.split_once("</Code>")?;
    let is_name = (1..=LONGEST_CODE).contains(&code.len()) && code.chars().all(|c| c.is_ascii_alphabetic());
    is_name.then_some(code)
}

/// A response body that arrives block by block.
struct BodyBlocks(Mutex<BodyReader<'static>>);

impl Body for BodyBlocks {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let reader = self.get_mut().0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut block = vec![0; BLOCK];
        let frame = match reader.read(&mut block) {
            Ok(0) => None,
            Ok(came) => {
                block.truncate(came);
                Some(Ok(Frame::data(block.into())))
            }
            Err(error) => {
                Some(Err(HttpError::new(HttpErrorKind::Interrupted, ConnectionProblem(error.to_string()))))
            }
        };
        Poll::Ready(frame)
    }
}
