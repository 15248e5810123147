//! Reads request bodies: rejects bodies that are too large, times out bodies that stall, and limits the memory that all bodies
//! use together.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::serve::connections::Connection;
use crate::serve::error_response::ErrorResponse;

/// Maximum number of bodies of the largest size that are in memory at the same time.
const LARGEST: usize = 32;
/// Size in bytes up to which a body is read without reserving memory. Each connection has at most one such body.
const SMALL: usize = 64 << 10;
/// Maximum time that a body waits for memory.
const ROOM: Duration = Duration::from_secs(1);
/// Maximum time in which a client may send no bytes of its body.
const STALL: Duration = Duration::from_secs(5);
/// Minimum number of bytes per second that a client must send, after the first [`STALL`].
const SLOWEST: usize = 256 << 10;
/// Unit in which body memory is counted, in bytes.
const KIB: usize = 1 << 10;

/// Memory that all request bodies share.
pub(crate) struct BodyMemory {
    most: usize,
    room: Arc<Semaphore>,
}

/// A request body. It occupies shared memory until it is dropped.
pub(crate) struct RequestBody {
    /// Content of the body.
    pub(crate) bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

impl BodyMemory {
    /// Makes the memory for bodies of at most `most` bytes each.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, room: Arc::new(Semaphore::new(LARGEST * most.div_ceil(KIB))) }
    }

    /// Reads the body of a request.
    ///
    /// # Errors
    /// If the body is too large (413), does not arrive in time (408) or completely (400), or there is no
    /// memory for it (503).
    pub(crate) async fn read(&self, request: Request) -> Result<RequestBody, ErrorResponse> {
        let announced = announced(request.headers());
        let connection = request.extensions().get::<Connection>().cloned();
        let _waiting = connection.as_ref().map(Connection::wait_for_client);
        let body = request.into_body();
        if let Some(bytes) = announced.filter(|bytes| *bytes > self.most as u64) {
            self.discard(body);
            return Err(self.too_large(format!("the body has {bytes} bytes")));
        }
        let size = announced.map_or(self.most, |bytes| bytes as usize);
        match self.room_for(size).await {
            Ok(room) => Ok(RequestBody { bytes: self.arrive(body, size).await?, _room: room }),
            Err(refusal) => {
                self.discard(body);
                Err(refusal)
            }
        }
    }

    /// Reads and discards a body for a while, as the error response is sent. A client that is still writing
    /// when the connection closes would not see the response.
    fn discard(&self, body: Body) {
        let most = LARGEST * self.most;
        tokio::spawn(timeout(STALL, async move {
            let (mut parts, mut bytes) = (body.into_data_stream(), 0);
            while let Some(Ok(part)) = parts.next().await
                && bytes <= most
            {
                bytes += part.len();
            }
        }));
    }

    async fn room_for(&self, size: usize) -> Result<Option<OwnedSemaphorePermit>, ErrorResponse> {
        if size <= SMALL {
            return Ok(None);
        }
        let wanted = u32::try_from(size.div_ceil(KIB)).unwrap_or(u32::MAX);
        let room = timeout(ROOM, self.room.clone().acquire_many_owned(wanted)).await;
        let room = room.map_err(|_| {
            ErrorResponse::busy(
                "no memory left for request bodies: other requests use all of it; retry later",
            )
        })?;
        Ok(Some(room.expect("the semaphore is never closed")))
    }

    async fn arrive(&self, body: Body, size: usize) -> Result<Vec<u8>, ErrorResponse> {
        let latest = Instant::now() + STALL + Duration::from_secs((size / SLOWEST) as u64);
        let (mut parts, mut bytes) = (body.into_data_stream(), Vec::new());
        loop {
            let deadline = latest.min(Instant::now() + STALL);
            match timeout_at(deadline, parts.next()).await {
                Ok(None) => return Ok(bytes),
                Ok(Some(Ok(part))) if bytes.len() + part.len() > self.most => {
                    return Err(self.too_large("the body is too large".to_owned()));
                }
                Ok(Some(Ok(part))) => bytes.extend_from_slice(&part),
                Ok(Some(Err(_))) => {
                    let message = format!(
                        "the connection closed after {} bytes of the body; send the request again",
                        bytes.len()
                    );
                    return Err(ErrorResponse::invalid(None, message));
                }
                Err(_) => {
                    let message = format!(
                        "timeout of the request body after {} bytes: no data for {} seconds, or too slow in all; send \
                         it without pauses",
                        bytes.len(),
                        STALL.as_secs()
                    );
                    return Err(ErrorResponse::new(StatusCode::REQUEST_TIMEOUT, message));
                }
            }
        }
    }

    fn too_large(&self, what: String) -> ErrorResponse {
        let message = format!(
            "{what}, expected at most {} bytes; raise the limit with xcheck serve --max-body",
            self.most
        );
        ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }
}

/// Returns the content length that a client announces.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
