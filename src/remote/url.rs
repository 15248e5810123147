//! URLs, with the parts that must not be shown kept separate.

use std::path::{MAIN_SEPARATOR, Path};

use crate::error::{Error, Result};
use crate::lazy_bytes::UnavailableBytes;

/// URL schemes of cloud buckets: Amazon S3 and compatible services, Google Cloud, Azure.
const CLOUDS: [&str; 8] = ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"];

const NO_SCHEME: &str = "unsupported scheme for a remote file, expected http or https; give such a URL, for example a \
                         presigned one";

/// Advice when the feature `cloud` is missing.
pub(super) const NO_CLOUD: &str = "this xcheck was built without the feature 'cloud': build it with `--features cloud`, \
                                   or give an https URL, for example a presigned one";

/// URL of a file or a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Scheme, host and path.
    shown: String,
    /// User info: user name and password.
    user: Option<String>,
    /// Query, often a signature.
    query: Option<String>,
}

impl Url {
    /// Parses a URL; `None` if the text is not a URL.
    ///
    /// # Errors
    /// If the scheme is not supported.
    pub(crate) fn of(text: &str) -> Result<Option<Self>> {
        let Some(url) = Self::parse(text) else { return Ok(None) };
        let problem = match url.scheme() {
            "http" | "https" => return Ok(Some(url)),
            _ if !url.is_of_a_cloud() => NO_SCHEME,
            _ if !cfg!(feature = "cloud") => NO_CLOUD,
            _ if url.user.is_some() || url.query.is_some() => {
                "the address of a bucket must not contain credentials or a query; set credentials in the environment"
            }
            _ => return Ok(Some(url)),
        };
        Err(Error::Elsewhere(UnavailableBytes { place: url.shown, problem: problem.into() }))
    }

    /// Parses a URL with any scheme; `None` if the text is not a URL.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme = scheme.len() > 1 && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+');
        let scheme = scheme.to_ascii_lowercase();
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query.to_owned())),
            None => (rest, None),
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = match host.rsplit_once('@') {
            // The part before @ is a container.
            Some((container, _)) if scheme.starts_with("abfs") && !container.contains(':') => (None, host),
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, host),
        };
        let shown = format!("{scheme}://{host}{}", path.trim_end_matches('/'));
        (is_scheme && !host.is_empty()).then_some(Self { shown, user, query })
    }

    /// Returns the scheme in lower case, such as `https`.
    pub(crate) fn scheme(&self) -> &str {
        self.shown.split_once("://").map_or("", |(scheme, _)| scheme)
    }

    /// Returns true for the address of an object in a bucket (`s3://`, `gs://`, `az://` …).
    pub(crate) fn is_of_a_cloud(&self) -> bool {
        CLOUDS.contains(&self.scheme())
    }

    /// Returns the URL without userinfo and query.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the last part of the path, or the host if the path is empty.
    pub(crate) fn name(&self) -> &str {
        self.shown.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the whole URL, with userinfo and query.
    pub(crate) fn full(&self) -> String {
        let (scheme, rest) = self.shown.split_once("://").unwrap_or_default();
        let user = self.user.as_ref().map_or(String::new(), |user| format!("{user}@"));
        let query = self.query.as_ref().map_or(String::new(), |query| format!("?{query}"));
        format!("{scheme}://{user}{rest}{query}")
    }

    pub(crate) fn query(&self) -> &str {
        self.query.as_deref().unwrap_or_default()
    }

    /// Returns another path of the same host, with the same userinfo and query.
    pub(crate) fn at(&self, shown: &Path) -> Self {
        Self { shown: shown.to_string_lossy().replace(MAIN_SEPARATOR, "/"), ..self.clone() }
    }
}

/// Returns an argument with only scheme, host and path of a URL in it.
pub fn redacted(argument: &str) -> String {
    let scheme = argument.find("://").map(|end| {
        let before = &argument[..end];
        end - before.chars().rev().take_while(char::is_ascii_alphanumeric).count()
    });
    let url = scheme.and_then(|start| Some((start, Url::parse(&argument[start..])?)));
    url.map_or(argument.to_owned(), |(start, url)| format!("{}{}", &argument[..start], url.shown()))
}
