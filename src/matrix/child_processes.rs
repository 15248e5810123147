//! Child processes of cells. Each ends at its time limit, and all end with this process.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::shutdown;

/// Interval at which it is checked whether a program has ended.
const TICK: Duration = Duration::from_millis(10);

/// Running programs, each with its child processes in a process group of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChildProcesses(Arc<Mutex<BTreeSet<u32>>>);

impl ChildProcesses {
    /// Creates an empty set. If a signal ends this program, the programs that are running at that time are killed
    /// first.
    ///
    /// # Errors
    /// If signal handlers cannot be installed.
    pub(crate) fn new() -> io::Result<Self> {
        let children = Self::default();
        let seen = children.clone();
        shutdown::before(move || {
            let running = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
            running.iter().for_each(|&group| end_group(group));
            std::mem::forget(running); // keeps the lock, so that no program is started any more
        })?;
        Ok(children)
    }

    /// Runs a program to its end; kills it at the time limit and returns `None`.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub(crate) fn run(&self, command: &mut Command, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let mut child = self.start(command)?;
        let deadline = Instant::now().checked_add(limit);
        let ended = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    end(&mut child);
                    child.wait()?;
                    break None;
                }
                None => thread::sleep(TICK),
            }
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&child.id());
        Ok(ended)
    }

    /// Starts a program in such a way that a signal handler cannot miss it.
    fn start(&self, command: &mut Command) -> io::Result<Child> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        running.insert(child.id());
        Ok(child)
    }
}

/// Kills a program and, if it has its own process group, all processes of the group.
fn end(child: &mut Child) {
    #[cfg(unix)]
    end_group(child.id());
    _ = child.kill();
}

#[cfg(unix)]
fn end_group(group: u32) {
    use rustix::process::{Pid, Signal, kill_process_group};
    if let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        _ = kill_process_group(group, Signal::KILL); // it may have ended already
    }
}
