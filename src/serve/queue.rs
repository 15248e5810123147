//! Bounded queue of sequences that wait to be computed.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::engine::Request;
use crate::serve::error_response::ErrorResponse;
use crate::serve::text::TokenPiece;

/// Channel for the events of a sequence, with its number in the request. If its receiver is closed, the client has
/// disconnected.
pub(crate) type EventSender = UnboundedSender<(usize, SequenceEvent)>;

/// A checked request to compute one sequence.
pub(crate) struct SequenceRequest {
    /// Index of the sequence in the request.
    pub(crate) index: usize,
    /// Prompt, limits and sampling for the engine.
    pub(crate) request: Request,
    /// Number of top tokens to return with each prompt token; `None` for no log-probabilities.
    pub(crate) scores_prompt: Option<usize>,
    /// Number of top tokens to return with each generated token; `None` for no log-probabilities.
    pub(crate) scores: Option<usize>,
    /// True if the answer includes the text of the prompt.
    pub(crate) echo: bool,
    /// Stop strings of the request.
    pub(crate) stops: Vec<String>,
    /// Channel for the events of the sequence.
    pub(crate) listener: EventSender,
}

#[derive(Clone, Debug)]
pub(crate) enum SequenceEvent {
    /// The prompt was read; has its tokens if the request asks for them.
    Prompt(Vec<TokenPiece>),
    /// A token was generated.
    Token(TokenPiece),
    /// The sequence has ended.
    End(SequenceEnd),
    /// The sequence failed, with the error.
    Failed(ErrorResponse),
}

#[derive(Clone, Debug)]
pub(crate) struct SequenceEnd {
    /// Reason for the end: "stop" or "length".
    pub(crate) reason: &'static str,
    /// Remaining text that was held back because a stop string might have started in it.
    pub(crate) text: String,
}

/// A queue of bounded length.
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    /// Number of sequences that are computed in turns.
    pub(crate) parallel: usize,
    /// Maximum number of waiting sequences.
    pub(crate) room: usize,
}

/// The state of the queue.
#[derive(Default)]
struct QueueState {
    waiting: VecDeque<SequenceRequest>,
    running: usize,
    /// Deadline of accepted sequences after shutdown has begun.
    closing: Option<Instant>,
}

impl Queue {
    /// Creates an empty queue.
    pub(crate) fn new(parallel: usize, room: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), parallel, room }
    }

    /// Accepts all sequences of a request, or none.
    ///
    /// # Errors
    /// If the queue has no room for them, can never have, or the server is shutting down.
    pub(crate) fn admit(&self, orders: Vec<SequenceRequest>) -> Result<(), ErrorResponse> {
        let most = self.room + self.parallel;
        if orders.len() > most {
            let message = format!("the request has {} prompts, expected at most {most}", orders.len());
            return Err(ErrorResponse::invalid(Some("prompt"), message));
        }
        let mut state = self.lock();
        if state.closing.is_some() {
            return Err(ErrorResponse::closing());
        }
        state.waiting.retain(|order| !order.listener.is_closed());
        if state.waiting.len() + state.running + orders.len() > most {
            return Err(ErrorResponse::full(state.waiting.len()));
        }
        state.waiting.extend(orders);
        self.changed.notify_one();
        Ok(())
    }

    /// Returns the waiting sequences that may start while `running` sequences are being computed, possibly none. If no
    /// sequence is running, waits for one. Returns `None` after shutdown.
    pub(crate) fn next(&self, running: usize) -> Option<Vec<SequenceRequest>> {
        let mut state = self.lock();
        loop {
            state.waiting.retain(|order| !order.listener.is_closed());
            let joining = state.waiting.len().min(self.parallel.saturating_sub(running));
            state.running = running + joining;
            if state.running > 0 {
                return Some(state.waiting.drain(..joining).collect());
            }
            if state.closing.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Rejects new requests. Accepted sequences have time until `deadline`.
    pub(crate) fn close(&self, deadline: Instant) {
        self.lock().closing = Some(deadline);
        self.changed.notify_one();
    }

    /// Returns true if the shutdown deadline has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().closing.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Drops all waiting sequences with an error.
    pub(crate) fn give_up(&self) {
        for order in self.lock().waiting.drain(..) {
            order.tell(SequenceEvent::Failed(ErrorResponse::closing()));
        }
    }

    /// Returns the number of waiting and of running sequences.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        let mut state = self.lock();
        state.waiting.retain(|order| !order.listener.is_closed());
        (state.waiting.len(), state.running)
    }

    /// Locks the state. A panic leaves it consistent, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SequenceRequest {
    /// Sends an event to the client, if it is still connected.
    pub(crate) fn tell(&self, event: SequenceEvent) {
        _ = self.listener.send((self.index, event));
    }
}
