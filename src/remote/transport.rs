//! How bytes of a file elsewhere are asked for, whichever way leads there.

use std::io::Read;
use std::ops::Range;
use std::time::Duration;

use ureq::http::HeaderMap;
use ureq::http::header::RETRY_AFTER;

use super::Url;

/// As long as a server may ask to be left alone.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A longer ETag is none that could be shown.
pub(super) const LONGEST_TAG: usize = 200;

/// Asks for parts of files; several threads may ask at once.
pub(super) trait Transport: Send + Sync {
    /// Asks for some bytes of a file, of that content if its `pin` is known; a server may give all of them, and says so.
    fn get(&self, url: &Url, range: &Range<usize>, pin: Option<&str>) -> Result<Answer, Failure>;

    /// What tells the same address at two places apart, where the address does not.
    fn home(&self) -> &str {
        ""
    }
}

/// Why there is no answer to work with.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// It may be better soon; the server may have said when.
    Passing(String, Option<Duration>),
    /// It is not there, or not for us.
    Absent(String),
    /// It will be the same again.
    Final(String),
}

/// Bytes on their way.
pub(super) struct Answer {
    /// Which of the file they are.
    pub range: Range<usize>,
    /// How long the file is.
    pub total: usize,
    /// By what the server names its content, as in `ETag "33a6"`.
    pub pin: String,
    /// Whether the server gives parts.
    pub in_parts: bool,
    pub body: Box<dyn Read>,
}

/// Whether a server that gives this status may do better soon.
pub(super) fn may_pass(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}

impl Failure {
    /// What such a server says, and for how long it wants to be left alone.
    pub fn passing(said: String, headers: &HeaderMap) -> Self {
        let wait = headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.parse().ok());
        Self::Passing(said, wait.map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE)))
    }
}

/// The words of the library, but for those that repeat the URL.
pub(super) fn unreachable(error: ureq::Error) -> Failure {
    match error {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::Final("this is no URL".into()),
        ureq::Error::HostNotFound => Failure::Final("there is no such host, or no network".into()),
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_) => Failure::Passing(error.to_string(), None),
        _ => Failure::Final(format!("the server cannot be reached: {error}")),
    }
}
