//! Range requests for remote files, over any transport.

use std::io::Read;
use std::ops::Range;
use std::time::Duration;

use ureq::http::HeaderMap;
use ureq::http::header::RETRY_AFTER;

use super::Url;

/// Longest wait that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Maximum length of an ETag in bytes. A longer one is rejected, since it cannot be shown.
pub(super) const LONGEST_TAG: usize = 200;

/// A transport for range requests. Several threads may send requests at once.
pub(super) trait Transport: Send + Sync {
    /// Requests a byte range of a file, with its version `pin` if known. If the server returns the whole file instead,
    /// the response says so.
    fn get(
        &self,
        url: &Url,
        range: &Range<usize>,
        pin: Option<&str>,
    ) -> Result<RangeResponse, RequestFailure>;

    /// Returns text that distinguishes two stores with equal addresses, such as the endpoint.
    fn home(&self) -> &str {
        ""
    }
}

/// Reason why a request failed.
#[derive(Clone, Debug)]
pub(super) enum RequestFailure {
    /// A later attempt may succeed. The server may have stated when.
    Passing(String, Option<Duration>),
    /// The file does not exist, or access is denied.
    Absent(String),
    /// Another attempt will fail too.
    Final(String),
}

/// The response to a range request.
pub(super) struct RangeResponse {
    /// Byte range in the file.
    pub(crate) range: Range<usize>,
    /// Length of the file in bytes.
    pub(crate) total: usize,
    /// Version identifier of the content, such as `ETag "33a6"`.
    pub(crate) pin: String,
    /// True if the server supports range requests.
    pub(crate) in_parts: bool,
    pub(crate) body: Box<dyn Read>,
}

/// Returns true if a request with this HTTP status may succeed later.
pub(super) fn may_pass(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}

impl RequestFailure {
    /// Returns a temporary failure, with the wait that the server asks for.
    pub(crate) fn passing(said: String, headers: &HeaderMap) -> Self {
        let wait = headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.parse().ok());
        Self::Passing(said, wait.map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE)))
    }
}

/// Returns the failure for a connection error, without the URL.
pub(super) fn unreachable(error: ureq::Error) -> RequestFailure {
    match error {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => RequestFailure::Final("invalid URL".into()),
        ureq::Error::HostNotFound => RequestFailure::Final("no such host, or no network connection".into()),
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_) => RequestFailure::Passing(error.to_string(), None),
        _ => RequestFailure::Final(format!("cannot reach the server: {error}")),
    }
}
