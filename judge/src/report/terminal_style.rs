//! Colour and weight of text in a terminal.

use anstyle::{AnsiColor, Style};

use crate::compare::Verdict;

/// Puts escape sequences around text, or leaves it as it is.
#[derive(Clone, Copy)]
pub struct TerminalStyle {
    /// True for coloured output.
    pub colour: bool,
}

impl TerminalStyle {
    /// A word for a verdict, in its colour.
    pub fn verdict(self, verdict: Verdict, word: &str) -> String {
        let style = match verdict {
            Verdict::Pass => AnsiColor::Green.on_default(),
            Verdict::Tie | Verdict::Known | Verdict::Inconclusive => AnsiColor::Yellow.on_default(),
            Verdict::Fail => AnsiColor::Red.on_default().bold(),
        };
        self.paint(style, word)
    }

    /// A title.
    pub fn strong(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    /// Small print.
    pub fn faint(self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }

    /// Text in a style, where colour is wanted.
    pub(super) fn paint(self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}
