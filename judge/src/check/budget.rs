//! The time limit and the effort of the search for causes, and its progress.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::checkpoint::Site;

/// Limits the total time that all units of one comparison spend searching for causes.
pub struct Budget {
    /// `None` for no limit.
    limit: Option<Duration>,
    is_exhaustive: bool,
    spent: Mutex<Duration>,
    show: Box<dyn Fn(Option<SearchStep>) + Send + Sync>,
}

/// Progress of a running search for causes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchStep {
    /// Time spent so far, by all searches of the comparison.
    pub spent: Duration,
    /// The site whose cause is searched.
    pub site: Option<Site>,
    /// Number of layers of the model.
    pub layers: usize,
}

impl Budget {
    /// Makes a budget. A running search calls `show` repeatedly with its progress, and with `None` when it ends.
    pub fn new(limit: Option<Duration>, show: impl Fn(Option<SearchStep>) + Send + Sync + 'static) -> Self {
        Self { limit, is_exhaustive: false, spent: Mutex::default(), show: Box::new(show) }
    }

    /// Tries every candidate, also if a simpler one explains the dump already or a run with it takes long.
    pub fn exhaustive(self) -> Self {
        Self { is_exhaustive: true, ..self }
    }

    fn spent(&self) -> Duration {
        *self.spent.lock().expect("no search panics while it holds the lock")
    }
}

/// The deadline of one search for causes. Without a budget, the search never times out.
pub(crate) struct Deadline<'b> {
    budget: Option<&'b Budget>,
    began: Instant,
    /// The site whose cause is searched, for the progress line.
    site: Cell<Option<Site>>,
    /// Number of layers of the model.
    layers: usize,
}

impl<'b> Deadline<'b> {
    /// Starts the clock of one search in a model of `layers` layers.
    pub(crate) fn new(budget: Option<&'b Budget>, layers: usize) -> Self {
        Self { budget, began: Instant::now(), site: Cell::new(None), layers }
    }

    /// Sets the site whose cause is searched next, for the progress line.
    pub(crate) fn reached(&self, site: Site) {
        self.site.set(Some(site));
    }

    /// Returns true if every candidate must be tried.
    pub(crate) fn is_exhaustive(&self) -> bool {
        self.budget.is_some_and(|budget| budget.is_exhaustive)
    }

    /// Returns true if the time budget is used up, so the search must stop.
    pub(crate) fn is_over(&self) -> bool {
        self.budget.is_some_and(|budget| {
            let spent = budget.spent() + self.began.elapsed();
            (budget.show)(Some(SearchStep { spent, site: self.site.get(), layers: self.layers }));
            budget.limit.is_some_and(|limit| spent >= limit)
        })
    }

    /// Returns the message that the time limit ended the search, and the option that lifts the limit.
    pub fn told(&self) -> String {
        let limit = self.budget.and_then(|budget| budget.limit);
        let limit = limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64());
        format!("the search for causes ended after {limit} s; --causes-limit none lifts the limit")
    }
}

impl Drop for Deadline<'_> {
    fn drop(&mut self) {
        if let Some(budget) = self.budget {
            *budget.spent.lock().expect("no search panics while it holds the lock") += self.began.elapsed();
            (budget.show)(None);
        }
    }
}
