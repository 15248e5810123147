//! Escaping of external text for Markdown, so that it creates no emphasis, HTML, links or mentions.

use crate::report::text::clean;

/// Invisible separator that prevents GitHub's automatic links.
const APART: char = '\u{200b}';

/// Escapes one line of text for any position in Markdown, including the start of a line or list item.
pub fn escape(text: &str) -> String {
    let characters: Vec<char> = clean(text).trim_start().chars().collect();
    let starts = start_of_block(&characters);
    let is_word = |index: Option<usize>| {
        index.and_then(|index| characters.get(index)).is_some_and(|c| c.is_alphanumeric())
    };
    let mut escaped = String::new();
    for (index, &c) in characters.iter().enumerate() {
        let inside_word = is_word(index.checked_sub(1)) && is_word(Some(index + 1));
        if r"\`*[]<>|~&$".contains(c) || (c == '_' && !inside_word) || starts == Some(index) {
            escaped.push('\\');
        }
        escaped.push(c);
        if links(&characters[..=index], characters.get(index + 1).copied()) {
            escaped.push(APART);
        }
    }
    escaped
}

/// Returns the position of a character to escape, if the line would start a heading, a list item or a rule:
/// #, -, +, 1. and 1).
fn start_of_block(line: &[char]) -> Option<usize> {
    let at = line.iter().take_while(|c| c.is_ascii_digit()).count();
    let ends = |mark: char| line.get(at + 1).is_none_or(|&next| next == ' ' || next == mark);
    match (at, *line.get(at)?) {
        (0, '#') => Some(0),
        (0, mark @ ('-' | '+' | '=')) | (1.., mark @ ('.' | ')')) if ends(mark) => Some(at),
        _ => None,
    }
}

/// Returns true if the text would become a link on GitHub: @name, #123, GH-123, https://, www.
fn links(before: &[char], next: Option<char>) -> bool {
    let ends = |what: &str| {
        let end = before.len().saturating_sub(what.len());
        before[end..].iter().map(char::to_ascii_lowercase).eq(what.chars())
    };
    match next {
        Some('/') => ends(":"),
        Some('.') => ends("www"),
        Some(next) if next.is_alphanumeric() => ends("@") || ends("#") || ends("gh-"),
        _ => false,
    }
}
