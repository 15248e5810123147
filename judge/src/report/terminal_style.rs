//! Colour and weight of text in a terminal.

use anstyle::{AnsiColor, Style};

use crate::verdict::Verdict;

/// A text style that adds escape sequences if colour is enabled.
#[derive(Clone, Copy)]
pub struct TerminalStyle {
    /// True for coloured output.
    pub colour: bool,
}

impl TerminalStyle {
    /// Returns a word in the colour of a verdict.
    pub fn verdict(self, verdict: Verdict, word: &str) -> String {
        let style = match verdict {
            Verdict::Pass => AnsiColor::Green.on_default(),
            Verdict::Tie | Verdict::Known | Verdict::Inconclusive => AnsiColor::Yellow.on_default(),
            Verdict::Fail => AnsiColor::Red.on_default().bold(),
        };
        self.paint(style, word)
    }

    /// Returns text in the style of titles.
    pub(crate) fn strong(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    /// Returns text in the style of secondary information.
    pub(crate) fn faint(self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }

    /// Returns text in a style, if colour is enabled.
    pub(super) fn paint(self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}
