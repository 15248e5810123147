//! Names and texts from files, escaped for messages.

use std::fmt::{self, Display, Write};

/// Displays a text from a file on one line of bounded length, with control characters escaped.
#[derive(Clone, Copy)]
pub struct EscapedText<'a>(pub &'a str);

/// Escapes a text of any length.
pub fn plain(text: impl Display) -> String {
    text.to_string().chars().fold(String::new(), |mut plain, character| {
        write_out(&mut plain, character).expect("writing to a String cannot fail");
        plain
    })
}

/// Returns true if a character controls a terminal or changes the text direction.
pub fn commands(character: char) -> bool {
    const TURNS: [std::ops::RangeInclusive<char>; 3] =
        ['\u{200e}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
    character.is_control() || TURNS.iter().any(|turns| turns.contains(&character))
}

/// Writes a character, escaped if it controls a terminal.
///
/// # Errors
/// Errors of writing to `to`.
pub fn write_out(to: &mut impl Write, character: char) -> fmt::Result {
    if commands(character) { write!(to, "{}", character.escape_default()) } else { to.write_char(character) }
}

impl Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 300;
        for character in self.0.chars().take(LONGEST) {
            write_out(f, character)?;
        }
        if self.0.chars().nth(LONGEST).is_some() { f.write_char('…') } else { Ok(()) }
    }
}
