//! Metrics for Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::serve::job::SequenceOutcome;

/// Content type of the metrics.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Status recorded if the client disconnects before the response, as in nginx.
const LEFT: u16 = 499;

/// Labels of the request counter.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

/// Labels of the request duration.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

/// Labels of the sequence counter.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// The server's counters. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    waiting: Gauge,
    running: Gauge,
    memory: Gauge,
    sequences: Family<OutcomeLabels, Counter>,
    /// Number of prompt tokens read.
    pub(crate) prompt_tokens: Counter,
    pub(crate) generated_tokens: Counter,
    registry: Arc<Registry>,
}

impl Metrics {
    /// Creates the counters of a server, all zero.
    pub(crate) fn new(model: &str, numerics: &str) -> Self {
        let mut metrics = Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 4.0, 10))),
            in_flight: Gauge::default(),
            waiting: Gauge::default(),
            running: Gauge::default(),
            memory: Gauge::default(),
            sequences: Family::default(),
            prompt_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            registry: Arc::default(),
        };
        metrics.registry = Arc::new(metrics.registered(model, numerics));
        metrics
    }

    fn registered(&self, model: &str, numerics: &str) -> Registry {
        let mut all = Registry::with_prefix("xcheck");
        let [version, model, numerics] =
            [("version", env!("CARGO_PKG_VERSION")), ("model", model), ("numerics", numerics)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
        all.register(
            "server",
            "Version, model and numerics of the server",
            Info::new(vec![version, model, numerics]),
        );
        all.register(
            "requests",
            "Requests by route and status; 499 counts clients that disconnected",
            self.requests.clone(),
        );
        all.register(
            "request_seconds",
            "Seconds from a request to the end of its response",
            self.seconds.clone(),
        );
        all.register("requests_in_flight", "Requests without a complete response", self.in_flight.clone());
        all.register("sequences_waiting", "Sequences in the queue", self.waiting.clone());
        all.register("sequences_running", "Sequences being computed", self.running.clone());
        all.register("sequences", "Sequences that have ended, by outcome", self.sequences.clone());
        all.register("prompt_tokens", "Prompt tokens read", self.prompt_tokens.clone());
        all.register("generated_tokens", "Tokens generated", self.generated_tokens.clone());
        all.register(
            "resident_memory_bytes",
            "Resident memory of the process, mapped weights included",
            self.memory.clone(),
        );
        all
    }

    /// Counts a sequence that has ended.
    pub(crate) fn left(&self, outcome: SequenceOutcome) {
        let outcome = match outcome {
            SequenceOutcome::Finished => "finished",
            SequenceOutcome::Dropped => "dropped",
            SequenceOutcome::Failed => "failed",
        };
        self.sequences.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Returns all metrics as text, with the lengths of the queue: waiting and running sequences.
    pub(crate) fn text(&self, (waiting, running): (usize, usize)) -> String {
        self.waiting.set(waiting as i64);
        self.running.set(running as i64);
        self.memory.set(resident_memory().unwrap_or(0));
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String cannot fail");
        text
    }

    /// Counts a new request.
    pub(crate) fn arrived(&self, route: &str) -> ActiveRequest {
        self.in_flight.inc();
        ActiveRequest {
            metrics: self.clone(),
            route: route.to_owned(),
            since: Instant::now(),
            status: AtomicU16::new(LEFT),
        }
    }
}

/// A request whose answer is not complete. It is counted when its last clone is dropped.
pub(crate) struct ActiveRequest {
    metrics: Metrics,
    route: String,
    since: Instant,
    status: AtomicU16,
}

impl ActiveRequest {
    /// Stores the status of the response.
    pub(crate) fn answered(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let Self { metrics, route, since, status } = self;
        metrics.in_flight.dec();
        let status = status.load(Ordering::Relaxed);
        metrics.requests.get_or_create(&RequestLabels { route: route.clone(), status }).inc();
        metrics
            .seconds
            .get_or_create(&RouteLabels { route: route.clone() })
            .observe(since.elapsed().as_secs_f64());
    }
}

/// Returns the resident memory of the process in bytes; `None` except on Linux.
fn resident_memory() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let figure = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    figure.trim().trim_end_matches(" kB").parse::<i64>().ok().map(|kilobytes| kilobytes * 1024)
}
