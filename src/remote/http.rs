//! One request for a part of a file, and what the answer says.

use std::ops::Range;

use ureq::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, LAST_MODIFIED, RANGE,
};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::Url;
use super::transport::{Answer, Failure, LONGEST_TAG, Transport, may_pass, unreachable};
use crate::network::{self, Paced, agent};

#[derive(Debug)]
pub(super) struct Http {
    agent: Agent,
    token: Option<(String, String)>,
}

impl Http {
    pub fn new(token: Option<(String, String)>) -> Self {
        Self { agent: agent(), token }
    }
}

impl Transport for Http {
    /// What the answer is known by is for the caller to look at: not every server heeds a condition.
    fn get(&self, url: &Url, range: &Range<usize>, _: Option<&str>) -> Result<Answer, Failure> {
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

fn read(answer: Response<Body>) -> Result<Answer, Failure> {
    let text = |name: HeaderName| answer.headers().get(name).and_then(|value| value.to_str().ok());
    if text(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Failure::Final("the server compresses it; parts of that are of no use".into()));
    }
    let date = || text(LAST_MODIFIED).map(|date| format!("Last-Modified {date}"));
    let pin = text(ETAG).filter(|tag| tag.len() <= LONGEST_TAG).map(|tag| format!("ETag {tag}")).or_else(date).ok_or_else(|| {
        let problem = "the server names neither an ETag nor a date for it, so that a change could not be seen; download it";
        Failure::Final(problem.into())
    })?;
    let in_parts = answer.status() == StatusCode::PARTIAL_CONTENT;
    let (range, total) = match in_parts {
        true => text(CONTENT_RANGE).and_then(content_range),
        false => text(CONTENT_LENGTH).and_then(|len| len.parse().ok()).map(|total: usize| (0..total, total)),
    }
    .ok_or_else(|| Failure::Final("the server does not say how long it is".into()))?;
    Ok(Answer { range, total, pin, in_parts, body: Box::new(Paced::new(answer.into_body().into_reader())) })
}

/// `bytes 0-99/1234`
fn content_range(text: &str) -> Option<(Range<usize>, usize)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, end, total): (usize, usize, usize) =
        (first.parse().ok()?, last.parse::<usize>().ok()?.checked_add(1)?, total.parse().ok()?);
    (first < end && end <= total).then_some((first..end, total))
}

fn refusal(answer: &Response<Body>) -> Failure {
    let status = answer.status().as_u16();
    let said = format!("HTTP {status}");
    match status {
        404 | 410 => Failure::Absent(format!("{said}: there is no such file")),
        401 | 403 => Failure::Absent(format!(
            "{said}: no access; a signed URL may have expired (what has come is kept, a new one goes on), or a token is \
             missing (HF_TOKEN, for the hub)"
        )),
        416 => Failure::Final(format!("{said}: the file is empty, or shorter than it was")),
        status if may_pass(status) => Failure::passing(said, answer.headers()),
        _ => Failure::Final(format!("{said}: this is no answer to a request for a part of a file")),
    }
}
