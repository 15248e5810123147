//! Names and texts out of a file, made fit for a message.

use std::fmt::{self, Display, Write};

/// A text that a file chose, on one line of bounded length: it may hold anything, escape sequences included.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a>(pub &'a str);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 300;
        for character in self.0.chars().take(LONGEST) {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?;
            } else {
                f.write_char(character)?;
            }
        }
        if self.0.chars().nth(LONGEST).is_some() { f.write_char('…') } else { Ok(()) }
    }
}
