//! Files in cloud buckets (`s3://`, `gs://`, `az://`), with credentials from the environment.
//!
//! `object_store` finds credentials and signs requests. Its requests use the same connections as all others
//! ([`service`]), one range per request. `object_store` is asynchronous; this module waits for each request, so
//! that all other modules stay synchronous.

mod service;

use std::env;
use std::io::{self, Read};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{Extensions, GetOptions, GetResult, ObjectStore, RetryConfig};
use tokio::runtime::{self, Runtime};

use self::service::{Connector, RangeError, source_of};
use super::transport::{LONGEST_TAG, RangeResponse, RequestFailure, Transport};
use super::{Url, refused};
use crate::error::Result;

/// Prefix of a version identifier that is an ETag.
const ETAG: &str = "ETag ";
/// Maximum length of a library's message.
const LONGEST_MESSAGE: usize = 500;

pub(super) struct CloudBucket {
    store: Box<dyn ObjectStore>,
    /// Endpoint and account, which are not part of the address.
    home: String,
    /// Environment variables that configure the bucket.
    variables: &'static str,
}

impl CloudBucket {
    /// Makes the bucket of an address, with settings from the environment. Sends no request.
    ///
    /// # Errors
    /// If the environment has invalid or missing settings.
    pub(crate) fn new(url: &Url) -> Result<Self> {
        let bucket = bucket_of(url.shown());
        let store = match url.scheme() {
            "s3" | "s3a" => amazon(bucket),
            "gs" => google(bucket),
            _ => azure(bucket),
        };
        store.map_err(|error| {
            refused(url, &format!("cannot configure access from the environment: {}", tell(&error)))
        })
    }
}

fn amazon(bucket: &str) -> object_store::Result<CloudBucket> {
    let variables = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL; \
                     AWS_SKIP_SIGNATURE=true for a public bucket";
    let builder = AmazonS3Builder::from_env().with_url(bucket);
    let home = builder.get_config_value(&AmazonS3ConfigKey::Endpoint).unwrap_or_default();
    let builder = builder.with_retry(patience()).with_http_connector(Connector { variables });
    Ok(CloudBucket { store: Box::new(builder.build()?), home, variables })
}

fn google(bucket: &str) -> object_store::Result<CloudBucket> {
    let variables = "GOOGLE_APPLICATION_CREDENTIALS, a file; GOOGLE_SKIP_SIGNATURE=true for a public bucket";
    let builder = GoogleCloudStorageBuilder::from_env().with_url(bucket);
    let home = builder.get_config_value(&GoogleConfigKey::BaseUrl).unwrap_or_default();
    let builder = builder.with_retry(patience()).with_http_connector(Connector { variables });
    Ok(CloudBucket { store: Box::new(builder.build()?), home, variables })
}

fn azure(bucket: &str) -> object_store::Result<CloudBucket> {
    let variables = "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY or AZURE_CLIENT_ID \
                     with its secret; AZURE_SKIP_SIGNATURE=true for a public container";
    let builder = MicrosoftAzureBuilder::from_env().with_url(bucket);
    let home = [AzureConfigKey::AccountName, AzureConfigKey::Endpoint];
    let home = home.map(|key| builder.get_config_value(&key).unwrap_or_default()).join("\n");
    let builder = builder.with_retry(patience()).with_http_connector(Connector { variables });
    Ok(CloudBucket { store: Box::new(builder.build()?), home, variables })
}

/// Returns the retry settings for requests that `object_store` sends by itself to get credentials. Range requests
/// have their own retries.
fn patience() -> RetryConfig {
    RetryConfig { max_retries: 2, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() }
}

impl Transport for CloudBucket {
    fn get(
        &self,
        url: &Url,
        range: &Range<usize>,
        pin: Option<&str>,
    ) -> Result<RangeResponse, RequestFailure> {
        let key = url.shown()[bucket_of(url.shown()).len()..].trim_start_matches('/');
        let key = Path::parse(key)
            .map_err(|error| RequestFailure::Final(format!("invalid object key: {error}")))?;
        let told = RangeError::default();
        let mut extensions = Extensions::new();
        extensions.insert(told.clone());
        let options = GetOptions::new()
            .with_range(Some(range.start as u64..range.end as u64))
            .with_if_match(pin.and_then(|pin| pin.strip_prefix(ETAG)))
            .with_extensions(extensions);
        let runtime = runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| RequestFailure::Final(error.to_string()))?;
        let result = runtime.block_on(self.store.get_opts(&key, options));
        let result = result.map_err(|error| told.take().unwrap_or_else(|| self.no_credentials(&error)))?;
        answer(result, runtime)
    }

    fn home(&self) -> &str {
        &self.home
    }
}

impl CloudBucket {
    /// Returns the error of a request that failed before it was sent.
    fn no_credentials(&self, error: &object_store::Error) -> RequestFailure {
        let (why, variables) = (tell(error), self.variables);
        RequestFailure::Final(format!(
            "no credentials: {why}; set {variables}, or give a presigned https URL"
        ))
    }
}

fn answer(result: GetResult, runtime: Runtime) -> Result<RangeResponse, RequestFailure> {
    let pin = result.meta.e_tag.as_ref().filter(|tag| tag.len() <= LONGEST_TAG);
    let pin = pin.map(|tag| format!("{ETAG}{tag}")).ok_or_else(|| {
        RequestFailure::Final(
            "the store gives no ETag, so a change of the object would go unnoticed; download the object"
                .into(),
        )
    })?;
    let number = |number: u64| {
        usize::try_from(number)
            .map_err(|_| RequestFailure::Final("the object is too large for this machine".into()))
    };
    let (range, total) = (number(result.range.start)?..number(result.range.end)?, number(result.meta.size)?);
    let body = Box::new(StreamedBody { runtime, stream: result.into_stream(), rest: Bytes::new() });
    Ok(RangeResponse { range, total, pin, in_parts: true, body })
}

/// A response body, read synchronously.
struct StreamedBody {
    runtime: Runtime,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    rest: Bytes,
}

impl Read for StreamedBody {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.runtime.block_on(self.stream.next()) {
                Some(more) => self.rest = more.map_err(|error| io::Error::other(tell(&error)))?,
                None => return Ok(0),
            }
        }
        let some = self.rest.split_to(buffer.len().min(self.rest.len()));
        buffer[..some.len()].copy_from_slice(&some);
        Ok(some.len())
    }
}

/// Returns scheme and bucket of an address.
fn bucket_of(shown: &str) -> &str {
    let host = shown.find("://").map_or(0, |end| end + 3);
    &shown[..shown[host..].find('/').map_or(shown.len(), |end| host + end)]
}

/// Returns an error as text without secrets. For connection errors, only the problem is shown, since other text may
/// repeat a response with the key. For other errors, the library's message is shown, unless it contains a secret
/// from the environment.
fn tell(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(source) = source_of(error) {
        return source;
    }
    let words = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let is_secret =
        |name: &str| ["KEY", "SECRET", "TOKEN", "SAS", "PASSWORD"].iter().any(|part| name.contains(part));
    let mut secrets = env::vars().filter(|(name, value)| is_secret(name) && !value.is_empty());
    match words.len() > LONGEST_MESSAGE || secrets.any(|(_, secret)| words.contains(&secret)) {
        true => "the reason is hidden because it may contain a secret".into(),
        false => words.trim_end_matches([':', ' ']).to_owned(),
    }
}
