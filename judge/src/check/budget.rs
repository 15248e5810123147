//! The time limit of the search for causes.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Limits the total time that all units of one comparison spend searching for causes.
pub struct Budget {
    limit: Duration,
    spent: Mutex<Duration>,
    show: Box<dyn Fn(Duration) + Send + Sync>,
}

impl Budget {
    /// Makes a budget. A running search calls `show` repeatedly with the time spent so far.
    pub fn new(limit: Duration, show: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        Self { limit, spent: Mutex::default(), show: Box::new(show) }
    }

    fn spent(&self) -> Duration {
        *self.spent.lock().expect("no search panics while it holds the lock")
    }
}

/// The deadline of one search for causes. Without a budget, the search never times out.
pub(crate) struct Deadline<'b> {
    budget: Option<&'b Budget>,
    began: Instant,
}

impl<'b> Deadline<'b> {
    /// Starts the clock of one search.
    pub fn new(budget: Option<&'b Budget>) -> Self {
        Self { budget, began: Instant::now() }
    }

    /// Returns true if the time budget is used up, so the search must stop.
    pub fn is_over(&self) -> bool {
        self.budget.is_some_and(|budget| {
            let spent = budget.spent() + self.began.elapsed();
            (budget.show)(spent);
            spent >= budget.limit
        })
    }

    /// Returns the message that the time limit ended the search, and the option that lifts the limit.
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
