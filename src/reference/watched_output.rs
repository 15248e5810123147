//! The output of a worker process. A worker that writes nothing for too long is killed.

use std::io::{self, Read};
use std::process::{Child, ChildStdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A worker process, shared with the thread that may kill it.
#[derive(Clone)]
pub(super) struct WatchedProcess {
    child: Arc<Mutex<Child>>,
    is_stalled: Arc<AtomicBool>,
}

/// The standard output of a watched process.
pub(crate) struct WatchedOutput {
    output: ChildStdout,
    /// Channel that receives true before a read and false after it.
    reads: Sender<bool>,
}

impl WatchedProcess {
    /// Watches a process. It is killed if a read of its output takes longer than `limit`.
    pub(super) fn new(child: Child, output: ChildStdout, limit: Duration) -> (Self, WatchedOutput) {
        let watched = Self { child: Arc::new(Mutex::new(child)), is_stalled: Arc::default() };
        let (reads, events) = channel();
        let process = watched.clone();
        thread::spawn(move || {
            if is_stalled(&events, limit) {
                process.is_stalled.store(true, Ordering::SeqCst);
                _ = process.with(Child::kill);
            }
        });
        (watched, WatchedOutput { output, reads })
    }

    /// Locks the process and calls a function with it.
    pub(super) fn with<T>(&self, function: impl FnOnce(&mut Child) -> T) -> T {
        function(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if the process was killed because it wrote nothing.
    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::SeqCst)
    }
}

/// Waits for the end of the reads. Returns true if a read takes too long.
fn is_stalled(reads: &Receiver<bool>, limit: Duration) -> bool {
    while let Ok(begins) = reads.recv() {
        if begins && reads.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            return true;
        }
    }
    false
}

impl Read for WatchedOutput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        _ = self.reads.send(true);
        let read = self.output.read(bytes);
        _ = self.reads.send(false);
        read
    }
}
