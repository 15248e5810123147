//! The time limit of the search for causes.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The time that the searches of one comparison may take, all units together.
pub struct Budget {
    limit: Duration,
    spent: Mutex<Duration>,
    show: Box<dyn Fn(Duration) + Send + Sync>,
}

impl Budget {
    /// `show` is called with the time spent, again and again while a search runs.
    pub fn new(limit: Duration, show: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        Self { limit, spent: Mutex::default(), show: Box::new(show) }
    }

    fn spent(&self) -> Duration {
        *self.spent.lock().expect("no search panics while it holds the lock")
    }
}

/// The end of one search; none without a budget.
pub(in crate::diagnose) struct Deadline<'b> {
    budget: Option<&'b Budget>,
    began: Instant,
}

impl<'b> Deadline<'b> {
    /// Starts a search.
    pub fn new(budget: Option<&'b Budget>) -> Self {
        Self { budget, began: Instant::now() }
    }

    /// Returns true if the search has to end.
    pub fn is_over(&self) -> bool {
        self.budget.is_some_and(|budget| {
            let spent = budget.spent() + self.began.elapsed();
            (budget.show)(spent);
            spent >= budget.limit
        })
    }

    /// Says that the search has ended, and how to continue it.
    pub fn told(&self) -> String {
        let limit = self.budget.map_or(f64::INFINITY, |budget| budget.limit.as_secs_f64());
        format!("the search for causes ended after {limit} s; --causes-limit none lifts the limit")
    }
}

impl Drop for Deadline<'_> {
    fn drop(&mut self) {
        if let Some(budget) = self.budget {
            *budget.spent.lock().expect("no search panics while it holds the lock") += self.began.elapsed();
        }
    }
}
