//! Long-running programs. Their output goes to a log file, and line by line to an observer.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::error::{Error, ReferenceError, Result};

/// Receives the output of a program.
pub(crate) trait ProcessObserver {
    /// Receives a line, or a progress bar's current text.
    fn line(&mut self, line: &str);
}

/// Command, its purpose, and the advice if it fails.
pub(super) struct ProcessTask<'t> {
    pub(crate) what: &'t str,
    pub(crate) advice: &'t str,
    pub(crate) log: &'t Path,
}

/// Returns the reason why a program ended: its last line, and the signal that killed it.
pub(super) fn reason_of_end(status: ExitStatus, last_line: &str) -> String {
    match (last_line, status.code()) {
        ("", _) => status.to_string(),
        (line, Some(_)) => line.to_owned(),
        (line, None) => format!("{status}, after: {line}"),
    }
}

impl ProcessTask<'_> {
    /// Runs the program to its end.
    ///
    /// # Errors
    /// If the program cannot be started, or its exit code is not 0. The message has the reason and the path
    /// of the log.
    pub(crate) fn run(&self, command: &mut Command, watch: &mut dyn ProcessObserver) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log);
        let mut log = log.map_err(Error::io("write", self.log))?;
        let program = PathBuf::from(command.get_program());
        let start = |error| Error::io("start", &program)(error);
        _ = writeln!(log, "$ {command:?}");
        let (reader, writer) = io::pipe().map_err(start)?;
        command.stdin(Stdio::null()).stderr(writer.try_clone().map_err(start)?).stdout(writer);
        let mut child = command.spawn().map_err(start)?;
        command.stdout(Stdio::null()).stderr(Stdio::null()); // closes our ends of the pipe, which would keep it open
        let said = follow(reader, &mut log, watch);
        let status = child.wait().map_err(start)?;
        match status.success() {
            true => Ok(()),
            false => Err(self.failed(status, said.reason())),
        }
    }

    /// Returns an error of the program's execution.
    pub(crate) fn refuse(&self, said: String) -> Error {
        let (what, advice) = (self.what.to_owned(), self.advice.to_owned());
        ReferenceError { what, said, advice, log: self.log.to_owned() }.into()
    }

    fn failed(&self, status: ExitStatus, reason: &str) -> Error {
        self.refuse(reason_of_end(status, reason))
    }
}

/// Creates an empty log.
///
/// # Errors
/// If the log cannot be written.
pub(super) fn begin_log(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    fs::write(path, "").map_err(Error::io("write", path))
}

/// The output lines that may explain a program's failure.
#[derive(Default)]
struct ErrorLines {
    error: String,
    last: String,
}

impl ErrorLines {
    fn hear(&mut self, line: &str) {
        if line.to_ascii_lowercase().starts_with("error") {
            line.clone_into(&mut self.error);
        }
        line.clone_into(&mut self.last);
    }

    /// Returns the line that explains a failure: the one that starts with "error", or otherwise the last line, as for a
    /// Python exception.
    fn reason(&self) -> &str {
        let reason = if self.error.is_empty() { &self.last } else { &self.error };
        let plain = ["error: ", "ERROR: "].into_iter().find_map(|start| reason.strip_prefix(start));
        plain.unwrap_or(reason)
    }
}

/// Copies all output to the log, and passes each nonempty line to the observer. A carriage return ends a line
/// too, as progress bars use it.
fn follow(mut reader: io::PipeReader, log: &mut File, watch: &mut dyn ProcessObserver) -> ErrorLines {
    const LONGEST: usize = 4096; // longer lines are cut
    let (mut said, mut line) = (ErrorLines::default(), Vec::new());
    let mut end = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line).trim().to_owned();
        line.clear();
        if !text.is_empty() {
            said.hear(&text);
            watch.line(&text);
        }
    };
    let mut chunk = [0; 4096];
    loop {
        let read = match reader.read(&mut chunk) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        _ = log.write_all(&chunk[..read]); // the program itself reports a full disk
        for &byte in &chunk[..read] {
            match byte {
                b'\n' | b'\r' => end(&mut line),
                byte if line.len() < LONGEST => line.push(byte),
                _ => {}
            }
        }
    }
    end(&mut line);
    said
}
