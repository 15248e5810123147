//! Colour, where it is wanted: for verdicts, and weight to tell titles from small print.

use anstyle::{Ansi256Color, AnsiColor, Style};

use crate::compare::Verdict;
use crate::report::map::Mark;

/// Puts escape sequences around text, or leaves it as it is.
#[derive(Clone, Copy)]
pub struct Paint {
    /// Whether colour is wanted.
    pub colour: bool,
}

impl Paint {
    pub fn verdict(self, verdict: Verdict, word: &str) -> String {
        let style = match verdict {
            Verdict::Pass => AnsiColor::Green.on_default(),
            Verdict::Tie | Verdict::Known | Verdict::Inconclusive => AnsiColor::Yellow.on_default(),
            Verdict::Fail => AnsiColor::Red.on_default().bold(),
        };
        self.paint(style, word)
    }

    /// A block of colour, the hotter the further beyond rounding; its characters tell the same.
    pub fn mark(self, mark: Mark, cells: &str) -> String {
        const HEAT: [u8; 4] = [208, 202, 196, 160];
        let (text, block) = match mark {
            Mark::Same => (250, 22),
            Mark::Fine => (255, 28),
            Mark::Known => (16, 252),
            Mark::Doubtful => (16, 220),
            Mark::Fails(decades) => (231, HEAT[usize::from(decades / 2).min(HEAT.len() - 1)]),
        };
        self.paint(Ansi256Color(text).on(Ansi256Color(block)), cells)
    }

    pub fn strong(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    pub fn faint(self, text: &str) -> String {
        self.paint(Style::new().dimmed(), text)
    }

    fn paint(self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}
