//! Text output on standard output and standard error; no other module prints.
//!
//! Text from a file could contain terminal commands. Control characters are therefore removed from all output,
//! except line ends and the styles of reports. If an output cannot be written, the program finishes its work and
//! then ends with an error.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use comfy_table::{Table, presets};

use crate::error::{Error, Result};
use crate::format::{commands, write_out};

/// First error of standard output.
static FAILED: OnceLock<ErrorKind> = OnceLock::new();

/// Prints a line on standard output.
macro_rules! say {
    ($($text:tt)*) => { _ = $crate::cli::terminal::out(&format!("{}\n", format_args!($($text)*))) };
}

/// Prints a line on standard error, for everything that is not part of the result.
macro_rules! tell {
    ($($text:tt)*) => { $crate::cli::terminal::err(&format!("{}\n", format_args!($($text)*))) };
}

pub(super) use {say, tell};

/// Makes a table without lines.
pub(super) fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    table
}

/// Prints text immediately; returns `false` if the output was closed.
pub(super) fn out(text: &str) -> bool {
    write(&harmless(text, |_| None))
}

/// Prints the text of a report, including its styles.
pub(super) fn painted(text: &str) {
    _ = write(&harmless(text, style));
}

/// Prints a JSON document, with control characters escaped as `\uXXXX`.
pub(super) fn document(json: &str) {
    let plain = |text: &mut String, c: char| match commands(c) && c != '\n' {
        true => *text += &format!("\\u{:04x}", u32::from(c)), // control characters need at most four digits
        false => text.push(c),
    };
    let text = json.trim_end().chars().fold(String::new(), |mut text, c| {
        plain(&mut text, c);
        text
    });
    _ = write(&(text + "\n"));
}

fn write(text: &str) -> bool {
    let mut stdout = anstream::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.inspect_err(|error| _ = FAILED.set(error.kind())).is_ok()
}

/// Prints text on standard error and ignores errors.
pub(super) fn err(text: &str) {
    _ = anstream::stderr().lock().write_all(harmless(text, |_| None).as_bytes());
}

/// Checks that everything was printed. A closed pipe is not an error.
///
/// # Errors
/// If standard output could not be written.
pub(super) fn check() -> Result<()> {
    match FAILED.get() {
        None | Some(ErrorKind::BrokenPipe) => Ok(()),
        Some(&kind) => {
            Err(Error::Io { action: "write", path: "standard output".into(), source: io::Error::from(kind) })
        }
    }
}

/// Prints a message with indented further lines, so that text from a file cannot imitate a message. Long
/// lines are cut.
pub(super) fn message(head: &str, text: Arguments) {
    let text = text.to_string();
    let lines: Vec<_> = text.trim_end().lines().filter(|line| !line.is_empty()).map(beginning).collect();
    err(&format!("{head}{}\n", lines.join("\n  ")));
}

/// Cuts a line to a readable length.
fn beginning(line: &str) -> String {
    const READ: usize = 2000;
    match line.char_indices().nth(READ) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Escapes control characters in a text, except line ends, tabs, and sequences that `kept` accepts.
fn harmless(text: &str, kept: impl Fn(&str) -> Option<&str>) -> String {
    let mut harmless = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| commands(c) && c != '\n' && c != '\t') {
        let (before, from) = rest.split_at(at);
        harmless.push_str(before);
        let character = from.chars().next().expect("the search found a character");
        rest = match kept(from) {
            Some(kept) => {
                harmless.push_str(kept);
                &from[kept.len()..]
            }
            None => {
                write_out(&mut harmless, character).expect("writing to a String cannot fail");
                &from[character.len_utf8()..]
            }
        };
    }
    harmless + rest
}

/// Returns the style sequence at the start of a text, such as `ESC [ 1 ; 31 m`. Names in reports cannot
/// contain one: see `report::text::clean`.
fn style(text: &str) -> Option<&str> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters[end..].starts_with('m').then(|| &text[..2 + end + 1])
}
