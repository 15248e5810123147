//! HTTP client that all modules share.

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use ureq::config::{ConfigBuilder, RedirectAuthHeaders};
use ureq::http::header::{AUTHORIZATION, HeaderName, LOCATION};
use ureq::http::{Response, Uri};
use ureq::typestate::AgentScope;
use ureq::{Agent, Body};

/// Time limit for a connection, for a response, and for the next bytes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Minimum number of bytes per [`PATIENCE`], 1000 bytes per second. A slower transfer is aborted, so that no
/// run hangs.
const LEAST: u64 = 30_000;
/// Maximum number of redirects that are followed.
const MOST_REDIRECTS: usize = 10;

/// Returns a client that opens connections on demand and reuses them. Proxies are taken from the environment.
pub(crate) fn agent() -> Agent {
    config().build().new_agent()
}

/// Returns a client for signed requests. A signature is valid for one host, so redirects are not followed.
/// `connect` limits the time to connect to a host that should respond at once.
#[cfg(feature = "cloud")]
pub(crate) fn agent_of_signed(connect: Duration) -> Agent {
    config().timeout_connect(Some(connect.min(PATIENCE))).build().new_agent()
}

/// Returns a client for one inference server, with time limits for the connection, the next bytes and the whole
/// answer. It follows no redirects, and uses no proxy for a server on this machine, since the proxy would see the key
/// in plain text.
pub(crate) fn agent_within(connect: Duration, idle: Duration, answer: Duration, is_here: bool) -> Agent {
    let config = config().max_redirects(0).max_redirects_will_error(false);
    let config = if is_here { config.proxy(None) } else { config };
    let config = config.timeout_resolve(Some(connect)).timeout_connect(Some(connect));
    let config = config.timeout_recv_response(Some(answer)).timeout_per_read(Some(idle));
    config.timeout_global(Some(answer)).build().new_agent()
}

fn config() -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        .user_agent(concat!("xcheck/", env!("CARGO_PKG_VERSION")))
        // `get` follows redirects itself, since it knows which host may get the token.
        .max_redirects(0)
        .redirect_auth_headers(RedirectAuthHeaders::Never)
        .http_status_as_error(false)
        .timeout_resolve(Some(PATIENCE))
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(PATIENCE))
}

/// Requests a URL and follows redirects. The token is only sent to the scheme, host and port of the original
/// URL, since any other server may belong to someone else.
///
/// # Errors
/// If there is no response, or too many redirects.
pub(crate) fn get(
    agent: &Agent,
    url: &str,
    headers: &[(HeaderName, String)],
    token: Option<&str>,
) -> Result<Response<Body>, ureq::Error> {
    let mut at: Uri = url.parse().map_err(|_| ureq::Error::BadUri(url.to_owned()))?;
    let asked = origin(&at);
    for _ in 0..=MOST_REDIRECTS {
        let mut request = agent.get(&at);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(token) = token.filter(|_| origin(&at) == asked) {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let answer = request.call()?;
        let there = answer.headers().get(LOCATION).and_then(|there| there.to_str().ok());
        match there.filter(|_| answer.status().is_redirection()) {
            None => return Ok(answer),
            Some(there) => at = joined(&at, there).ok_or_else(|| ureq::Error::BadUri(there.to_owned()))?,
        }
    }
    Err(ureq::Error::TooManyRedirects)
}

/// Returns scheme, host and port.
fn origin(url: &Uri) -> (Option<String>, Option<String>, Option<u16>) {
    let usual = match url.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    };
    let text = |part: Option<&str>| part.map(str::to_lowercase);
    (text(url.scheme_str()), text(url.host()), url.port_u16().or(usual))
}

/// Returns the target of a redirect: another URL, or a path of the same server. A redirect from https to http is
/// refused.
fn joined(from: &Uri, there: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let to: Uri = match there {
        path if path.starts_with("//") => format!("{scheme}:{path}").parse().ok()?,
        path if path.starts_with('/') => format!("{scheme}://{authority}{path}").parse().ok()?,
        url if url.contains("://") => url.parse().ok()?,
        path => {
            let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{path}").parse().ok()?
        }
    };
    let is_open = scheme == "https" && to.scheme_str() == Some("http");
    (!is_open && matches!(to.scheme_str(), Some("http" | "https"))).then_some(to)
}

/// A response body that must arrive at a minimum speed.
pub struct PacedBody<R> {
    body: R,
    patience: Duration,
    least: u64,
    since: Instant,
    came: u64,
}

impl<R> PacedBody<R> {
    /// Wraps a response body with the default minimum speed.
    pub(crate) fn new(body: R) -> Self {
        Self::at(body, PATIENCE, LEAST)
    }

    /// Wraps a body that must arrive at a speed of at least `least` bytes in every `patience`.
    pub fn at(body: R, patience: Duration, least: u64) -> Self {
        Self { body, patience, least, since: Instant::now(), came: 0 }
    }
}

impl<R: Read> Read for PacedBody<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.body.read(buffer)?;
        self.came += read as u64;
        let elapsed = self.since.elapsed();
        if elapsed < self.patience {
            return Ok(read);
        }
        if read > 0 && self.came < self.least {
            let slow = format!("too slow: only {} bytes in {:.0} s", self.came, elapsed.as_secs_f64());
            return Err(io::Error::new(ErrorKind::TimedOut, slow));
        }
        (self.since, self.came) = (Instant::now(), 0);
        Ok(read)
    }
}
