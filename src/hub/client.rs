//! HTTP client of the hub: file lists of repositories, and file contents.

use std::io::Read;

use serde::Deserialize;
use ureq::http::header::{CONTENT_RANGE, RANGE};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::digest::Digest;
use super::name::is_plain;
use super::settings::HubSettings;
use crate::error::{Error, HubError, Result};
use crate::network::{PacedBody, agent, get};

pub(super) struct HubClient<'s> {
    agent: Agent,
    settings: &'s HubSettings,
}

/// Files of a repository at a commit.
pub(super) struct Listing {
    /// Commit that the files belong to.
    pub(crate) commit: String,
    /// Files of the repository.
    pub(crate) files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Clone)]
pub(super) struct RemoteFile {
    /// Path in the repository.
    pub(crate) name: String,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Hash of the content.
    pub(crate) digest: Digest,
}

/// The hub's response to `api/models/<repo>/revision/<revision>?blobs=true`.
#[derive(Deserialize)]
struct RepoInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

impl<'s> HubClient<'s> {
    /// Makes a client. It connects at the first request.
    pub(crate) fn new(settings: &'s HubSettings) -> Self {
        Self { agent: agent(), settings }
    }

    /// Lists the files of a repository's main branch.
    ///
    /// # Errors
    /// If the hub cannot be reached, refuses, or gives an unexpected response.
    pub(crate) fn list(&self, repo: &str) -> Result<Listing> {
        let url = format!("{}/api/models/{repo}/revision/main?blobs=true", self.settings.endpoint);
        let mut answer = self.get(&url, repo, repo, None)?;
        /// Maximum size of a file list in bytes.
        const LONGEST: u64 = 10_000_000;
        let mut body = Vec::new();
        let read = PacedBody::new(answer.body_mut().as_reader()).take(LONGEST).read_to_end(&mut body);
        read.map_err(|error| self.unreachable(repo, &error))?;
        let info: Result<RepoInfo, _> = serde_json::from_slice(&body);
        let info = info.map_err(|error| odd(repo, &format!("cannot parse the file list: {error}")))?;
        if !matches!(Digest::from_name(&info.sha), Some(Digest::GitBlob(_))) {
            return Err(odd(repo, &format!("the commit is {:?}, expected 40 hexadecimal digits", info.sha)));
        }
        let files = info.siblings.into_iter().filter_map(Sibling::file).collect();
        Ok(Listing { commit: info.sha, files })
    }

    /// Requests the bytes of a file after `start`. Returns the bytes and the position at which they start, which is 0
    /// if the server does not support ranges.
    ///
    /// # Errors
    /// If the hub cannot be reached or refuses.
    pub(crate) fn read(
        &self,
        repo: &str,
        commit: &str,
        file: &str,
        start: u64,
    ) -> Result<(u64, impl Read + use<>)> {
        let what = format!("{file} of {repo}");
        let url = format!("{}/{repo}/resolve/{commit}/{file}", self.settings.endpoint);
        let answer = self.get(&url, repo, &what, (start > 0).then(|| format!("bytes={start}-")))?;
        let range = answer.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let start = match (answer.status(), range) {
            (StatusCode::PARTIAL_CONTENT, Some(range)) if range.starts_with(&format!("bytes {start}-")) => {
                start
            }
            (StatusCode::PARTIAL_CONTENT, _) => {
                return Err(odd(&what, "the server sent another byte range than requested"));
            }
            _ => 0,
        };
        Ok((start, PacedBody::new(answer.into_body().into_reader())))
    }

    fn get(&self, url: &str, repo: &str, what: &str, range: Option<String>) -> Result<Response<Body>> {
        let headers: Vec<_> = range.into_iter().map(|range| (RANGE, range)).collect();
        let answer = get(&self.agent, url, &headers, self.settings.sendable_token()?);
        let answer = answer.map_err(|error| self.unreachable(what, &error))?;
        match answer.status().is_success() {
            true => Ok(answer),
            false => Err(refused(what, &self.reason(&answer, repo))),
        }
    }

    /// Returns the meaning of an HTTP error, and advice. The hub gives its own error code in a header.
    fn reason(&self, answer: &Response<Body>, repo: &str) -> String {
        let header =
            |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (code, said) = (header("x-error-code"), header("x-error-message"));
        let page = format!("{}/{repo}", self.settings.endpoint);
        let status = answer.status();
        let token = self.settings.token.is_some();
        let meaning = match (status.as_u16(), code) {
            (401 | 403, "GatedRepo") if token => {
                format!("the token has no access yet: accept the licence at {page} with the token's account")
            }
            (401 | 403, "GatedRepo") => {
                format!(
                    "the model is gated: accept the licence at {page}, then set HF_TOKEN to a token of that account"
                )
            }
            (404, "EntryNotFound") => "the repository has no such file".to_owned(),
            (401 | 403, _) if token => {
                "the token in HF_TOKEN is invalid, or has no access to the repository".to_owned()
            }
            (401 | 403 | 404, _) => {
                format!("{repo} does not exist or is private: check the name, or set HF_TOKEN")
            }
            (429 | 500.., _) => "try again later; the download resumes".to_owned(),
            _ => "unexpected response from a hub; check HF_ENDPOINT".to_owned(),
        };
        let said = if said.is_empty() { String::new() } else { format!(" ({said})") };
        format!("HTTP {}{said}: {meaning}", status.as_u16())
    }

    /// Returns the error if the network prevents a request to the hub.
    fn unreachable(&self, what: &str, error: &dyn std::fmt::Display) -> Error {
        let endpoint = &self.settings.endpoint;
        refused(what, &format!("cannot reach {endpoint}: {error}; try again, the download resumes"))
    }
}

impl Sibling {
    /// Returns the file. `None` if it has no size or no hash to verify, or has a name that no model file has.
    fn file(self) -> Option<RemoteFile> {
        if !self.rfilename.split('/').all(is_plain) {
            return None;
        }
        let digest = match self.lfs {
            Some(lfs) => Digest::from_name(&lfs.sha256).filter(|digest| matches!(digest, Digest::Sha256(_))),
            None => Digest::from_name(&self.blob_id?).filter(|digest| matches!(digest, Digest::GitBlob(_))),
        };
        Some(RemoteFile { name: self.rfilename, size: self.size?, digest: digest? })
    }
}

/// Returns the error for an invalid response of the hub.
pub(super) fn odd(what: &str, problem: &str) -> Error {
    refused(what, &format!("{problem}; this is not a valid response from a hub, check HF_ENDPOINT"))
}

fn refused(what: &str, problem: &str) -> Error {
    HubError::Download { what: what.to_owned(), problem: problem.to_owned() }.into()
}
