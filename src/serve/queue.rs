//! Sequences that wait to be computed, as many as there is room for.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use crate::engine::Request;
use crate::serve::refusal::Refusal;
use crate::serve::text::Piece;

/// Where what becomes of a sequence is told, with its number in the request. Nobody at the other end: it was dropped.
pub type Listener = UnboundedSender<(usize, Event)>;

/// A sequence to be computed. Everything about it has been checked.
pub struct Order {
    /// Its number in the request.
    pub index: usize,
    /// What to compute.
    pub request: Request,
    /// Of each token of the prompt, of how many others log-probabilities too; nothing of it where `None`.
    pub scores_prompt: Option<usize>,
    /// The same of each generated token.
    pub scores: Option<usize>,
    /// Whether the prompt's text is wanted.
    pub echo: bool,
    /// Texts that end the text.
    pub stops: Vec<String>,
    /// Who is told.
    pub listener: Listener,
}

/// What becomes of a sequence.
#[derive(Clone, Debug)]
pub enum Event {
    /// The prompt was read. These are its tokens, where they were asked for.
    Prompt(Vec<Piece>),
    /// A token was generated.
    Token(Piece),
    /// It has ended.
    End(End),
    /// It will not be: why.
    Failed(Refusal),
}

/// How a sequence has ended.
#[derive(Clone, Debug)]
pub struct End {
    /// "stop" or "length".
    pub reason: &'static str,
    /// Text that had been held back.
    pub text: String,
}

/// A queue with limited room.
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// How many are computed in turns.
    pub parallel: usize,
    /// How many wait at most.
    pub room: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Order>,
    running: usize,
    /// Until when what was accepted may take, once no more is.
    closing: Option<Instant>,
}

impl Queue {
    /// An empty one.
    pub fn new(parallel: usize, room: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), parallel, room }
    }

    /// Takes all or none of a request's sequences.
    ///
    /// # Errors
    /// If there is no room for them, or will never be, or the server is about to end.
    pub fn admit(&self, orders: Vec<Order>) -> Result<(), Refusal> {
        let most = self.room + self.parallel;
        if orders.len() > most {
            let message =
                format!("{} prompts are more than the {most} that one request may have", orders.len());
            return Err(Refusal::invalid(Some("prompt"), message));
        }
        let mut state = self.lock();
        if state.closing.is_some() {
            return Err(Refusal::closing());
        }
        state.waiting.retain(|order| !order.listener.is_closed());
        if state.waiting.len() + state.running + orders.len() > most {
            return Err(Refusal::full(state.waiting.len()));
        }
        state.waiting.extend(orders);
        self.changed.notify_one();
        Ok(())
    }

    /// What comes next, where `running` are being computed: as many as may join them, or none. Waits where nothing is
    /// running; `None` when nothing will come any more.
    pub fn next(&self, running: usize) -> Option<Vec<Order>> {
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

    /// Takes nothing more. What was accepted has time until `deadline`.
    pub fn close(&self, deadline: Instant) {
        self.lock().closing = Some(deadline);
        self.changed.notify_one();
    }

    /// Whether that time is over.
    pub fn is_over(&self) -> bool {
        self.lock().closing.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Gives up what waits.
    pub fn give_up(&self) {
        for order in self.lock().waiting.drain(..) {
            order.tell(Event::Failed(Refusal::closing()));
        }
    }

    /// How many wait, and how many are computed.
    pub fn lengths(&self) -> (usize, usize) {
        let mut state = self.lock();
        state.waiting.retain(|order| !order.listener.is_closed());
        (state.waiting.len(), state.running)
    }

    /// Nobody leaves it in a state that another could not go on from.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    /// Tells who listens, if anybody still does.
    pub fn tell(&self, event: Event) {
        _ = self.listener.send((self.index, event));
    }
}
