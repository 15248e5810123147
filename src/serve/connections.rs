//! Accepts a limited number of connections. At the limit, a new connection replaces the one that has waited longest for its
//! client. A connection whose request is complete is never closed for another.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Maximum number of open connections.
const MOST: usize = 256;
/// Time limit for the head of a request, and for an idle connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum size of a request head in bytes.
const LONGEST_HEAD: usize = 64 << 10;
/// Wait after a connection could not be accepted because the system has no more file handles.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until `ending`, then waits for unfinished requests.
///
/// # Errors
/// If the listener fails.
pub(crate) async fn answer(
    listener: TcpListener,
    routes: Router,
    ending: impl Future<Output = ()>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (room, begun) = (Arc::new(Semaphore::new(MOST)), GracefulShutdown::new());
    let waiting = Arc::new(WaitingConnections::default());
    let mut ending = pin!(ending);
    loop {
        let next = async {
            let accepted = listener.accept().await;
            (accepted, place(&room, &waiting).await)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = &mut ending => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let connection = Connection::new(waiting.clone());
        let dismissed = connection.0.dismissed.clone();
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(LONGEST_HEAD)
            .serve_connection(TokioIo::new(stream), service(routes.clone(), connection));
        let served = begun.watch(served);
        tokio::spawn(async move {
            tokio::select! {
                _ = served => {} // no response to a client that disconnects
                () = dismissed.notified() => {}
            }
            drop(place);
        });
    }
    drop(listener);
    begun.shutdown().await;
    Ok(())
}

/// Returns a slot for a new connection. If all slots are taken, closes a connection that waits for its
/// client.
async fn place(room: &Arc<Semaphore>, waiting: &WaitingConnections) -> OwnedSemaphorePermit {
    if room.available_permits() == 0 {
        waiting.dismiss_oldest();
    }
    room.clone().acquire_owned().await.expect("the semaphore is never closed")
}

/// Returns the routes as a service that adds the connection to each request's extensions.
fn service(
    routes: Router,
    connection: Connection,
) -> impl Service<
    hyper::Request<Incoming>,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send,
> {
    let routes = TowerToHyperService::new(routes);
    service_fn(move |mut request: hyper::Request<Incoming>| {
        let answering = AnswerGuard::new(connection.clone());
        request.extensions_mut().insert(connection.clone());
        let answer = routes.call(request);
        async move {
            let answer = answer.await?;
            Ok(answer.map(|body| Body::new(AnswerBody { body, _answering: answering })))
        }
    })
}

/// Connections that wait for their clients, in order of waiting time.
#[derive(Default)]
struct WaitingConnections {
    line: Mutex<WaitingLine>,
}

/// The state of [`WaitingConnections`].
#[derive(Default)]
struct WaitingLine {
    last: u64,
    waiting: BTreeMap<u64, Arc<Notify>>,
}

impl WaitingConnections {
    /// Closes the connection that has waited longest, if any is waiting.
    fn dismiss_oldest(&self) {
        if let Some((_, oldest)) = self.lock().waiting.pop_first() {
            oldest.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingLine> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, shared with the handlers of its requests.
#[derive(Clone)]
pub(crate) struct Connection(Arc<ConnectionSlot>);

/// Entry of a connection in the list of waiting connections.
struct ConnectionSlot {
    waiting: Arc<WaitingConnections>,
    number: Mutex<Option<u64>>,
    dismissed: Arc<Notify>,
}

impl Connection {
    fn new(waiting: Arc<WaitingConnections>) -> Self {
        let place = ConnectionSlot { waiting, number: Mutex::default(), dismissed: Arc::default() };
        let connection = Self(Arc::new(place));
        connection.0.enter();
        connection
    }

    /// Marks the connection as waiting for its client until the guard is dropped. It may then be closed in favour of
    /// another connection.
    pub(crate) fn wait_for_client(&self) -> impl Drop + use<> {
        self.0.enter();
        ClientWait(self.clone())
    }
}

impl ConnectionSlot {
    fn enter(&self) {
        let mut number = self.number();
        if number.is_none() {
            let mut line = self.waiting.lock();
            line.last += 1;
            let last = line.last;
            line.waiting.insert(last, self.dismissed.clone());
            *number = Some(last);
        }
    }

    fn leave(&self) {
        if let Some(number) = self.number().take() {
            self.waiting.lock().waiting.remove(&number);
        }
    }

    fn number(&self) -> MutexGuard<'_, Option<u64>> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Guard: marks a connection as waiting for a request body until it is dropped.
struct ClientWait(Connection);

impl Drop for ClientWait {
    fn drop(&mut self) {
        self.0.0.leave();
    }
}

/// Guard: marks a connection as busy until it is dropped.
struct AnswerGuard(Connection);

impl AnswerGuard {
    fn new(connection: Connection) -> Self {
        connection.0.leave();
        Self(connection)
    }
}

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        self.0.0.enter();
    }
}

/// A response body. When it has been sent, its connection waits for the client again.
struct AnswerBody {
    body: Body,
    _answering: AnswerGuard,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
