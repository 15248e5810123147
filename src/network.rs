//! How servers are talked to, whichever they are.

use std::time::Duration;

use ureq::Agent;
use ureq::config::{ConfigBuilder, RedirectAuthHeaders};
use ureq::typestate::AgentScope;

/// How long a connection, an answer or the next bytes may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections, made when something is asked for and kept open as long as servers do. Proxies are those of the environment.
pub fn agent() -> Agent {
    config().build().new_agent()
}

/// The same, for signed requests: a signature is for one host, so nothing is asked elsewhere; and who knows that a host
/// answers at once, or is not there, need not wait for it longer than `connect`.
#[cfg(feature = "cloud")]
pub fn agent_of_signed(connect: Duration) -> Agent {
    config().max_redirects(0).timeout_connect(Some(connect.min(PATIENCE))).build().new_agent()
}

/// The same, for one server that computes: within these times until there is a connection, until the next bytes, and until the
/// answer is whole. It is asked where it is, and nowhere else.
pub fn agent_within(connect: Duration, idle: Duration, answer: Duration) -> Agent {
    let config = config().max_redirects(0).max_redirects_will_error(false);
    let config = config.timeout_resolve(Some(connect)).timeout_connect(Some(connect));
    let config = config.timeout_recv_response(Some(answer)).timeout_per_read(Some(idle));
    config.timeout_global(Some(answer)).build().new_agent()
}

fn config() -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        .user_agent(concat!("xcheck/", env!("CARGO_PKG_VERSION")))
        // A content delivery network is another host: a token is not for it.
        .redirect_auth_headers(RedirectAuthHeaders::SameHost)
        .http_status_as_error(false)
        .timeout_resolve(Some(PATIENCE))
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(PATIENCE))
}
