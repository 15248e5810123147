//! Error responses in OpenAI's format.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::Error;

/// Value of `Retry-After` for a client that was refused because the server is busy.
const RETRY_SECONDS: &str = "1";

/// An error response: a message and the request field that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorResponse {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    /// True if the same request may succeed later.
    is_passing: bool,
}

impl ErrorResponse {
    /// Makes an error for an invalid value, in the field `param` or in the whole request.
    pub(crate) fn invalid(param: Option<&str>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message).about(param, None)
    }

    /// Creates an error with an HTTP status.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, is_passing: false }
    }

    /// Sets the field that the error is about, and its machine-readable code.
    pub(crate) fn about(self, param: Option<&str>, code: Option<&'static str>) -> Self {
        Self { param: param.map(str::to_owned), code, ..self }
    }

    /// Returns the error for a full queue.
    pub(crate) fn full(waiting: usize) -> Self {
        let message = format!("the queue is full: {waiting} sequences are waiting; retry later");
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, message).about(None, Some("queue_full"));
        Self { is_passing: true, ..refusal }
    }

    /// Returns the error for missing memory for the body.
    pub(crate) fn busy(message: &str) -> Self {
        Self {
            is_passing: true,
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message).about(None, Some("busy"))
        }
    }

    /// Returns the error for a request during shutdown.
    pub(crate) fn closing() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down; use another server")
    }

    /// Returns an error of the computation.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Returns the error as OpenAI's JSON.
    pub fn json(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let Self { message, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

/// Errors of the engine and the tokenizer are errors of the request.
impl From<Error> for ErrorResponse {
    fn from(error: Error) -> Self {
        Self::invalid(None, error.to_string())
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.json())).into_response();
        if self.is_passing {
            let seconds = header::HeaderValue::from_static(RETRY_SECONDS);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
