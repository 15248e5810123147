//! Range request over HTTP, and its response.

use std::ops::Range;

use ureq::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, LAST_MODIFIED, RANGE,
};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::Url;
use super::transport::{LONGEST_TAG, RangeResponse, RequestFailure, Transport, may_pass, unreachable};
use crate::network::{self, PacedBody, agent};

/// Range requests over HTTP.
#[derive(Debug)]
pub(super) struct HttpTransport {
    agent: Agent,
    token: Option<(String, String)>,
}

impl HttpTransport {
    pub(crate) fn new(token: Option<(String, String)>) -> Self {
        Self { agent: agent(), token }
    }
}

impl Transport for HttpTransport {
    /// Requests a byte range. The caller compares the version, since not every server supports conditional requests.
    fn get(&self, url: &Url, range: &Range<usize>, _: Option<&str>) -> Result<RangeResponse, RequestFailure> {
        let range = format!("bytes={}-{}", range.start, range.end - 1);
        let headers = [(ACCEPT_ENCODING, "identity".to_owned()), (RANGE, range)];
        let token = self.token.as_ref().filter(|(host, _)| url.shown().starts_with(host));
        let token = token.map(|(_, token)| token.as_str());
        let answer = network::get(&self.agent, &url.full(), &headers, token).map_err(unreachable)?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT | StatusCode::OK => read(answer),
            _ => Err(refusal(&answer)),
        }
    }
}

fn read(answer: Response<Body>) -> Result<RangeResponse, RequestFailure> {
    let text = |name: HeaderName| answer.headers().get(name).and_then(|value| value.to_str().ok());
    if text(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(RequestFailure::Final(
            "the server compresses the file, so byte ranges of it are unusable; download the file".into(),
        ));
    }
    let date = || text(LAST_MODIFIED).map(|date| format!("Last-Modified {date}"));
    let pin = text(ETAG).filter(|tag| tag.len() <= LONGEST_TAG).map(|tag| format!("ETag {tag}")).or_else(date).ok_or_else(|| {
        let problem = "the server gives neither an ETag nor a Last-Modified date, so a change of the file would go \
                       unnoticed; download the file";
        RequestFailure::Final(problem.into())
    })?;
    let in_parts = answer.status() == StatusCode::PARTIAL_CONTENT;
    let (range, total) = match in_parts {
        true => text(CONTENT_RANGE).and_then(content_range),
        false => text(CONTENT_LENGTH).and_then(|len| len.parse().ok()).map(|total: usize| (0..total, total)),
    }
    .ok_or_else(|| {
        RequestFailure::Final("the server does not give the file's length; download the file".into())
    })?;
    Ok(RangeResponse {
        range,
        total,
        pin,
        in_parts,
        body: Box::new(PacedBody::new(answer.into_body().into_reader())),
    })
}

/// Parses a `Content-Range` such as `bytes 0-99/1234`.
fn content_range(text: &str) -> Option<(Range<usize>, usize)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, end, total): (usize, usize, usize) =
        (first.parse().ok()?, last.parse::<usize>().ok()?.checked_add(1)?, total.parse().ok()?);
    (first < end && end <= total).then_some((first..end, total))
}

fn refusal(answer: &Response<Body>) -> RequestFailure {
    let status = answer.status().as_u16();
    let said = format!("HTTP {status}");
    match status {
        404 | 410 => RequestFailure::Absent(format!("{said}: no such file")),
        401 | 403 => RequestFailure::Absent(format!(
            "{said}: access denied; a signed URL may have expired (use a new one, downloaded data is kept), or a token \
             is missing (HF_TOKEN, for the hub)"
        )),
        416 => RequestFailure::Final(format!("{said}: the file is empty, or shorter than before")),
        status if may_pass(status) => RequestFailure::passing(said, answer.headers()),
        _ => RequestFailure::Final(format!("{said}: unexpected response to a range request")),
    }
}
