//! `xcheck causes`: what a finding may name, and what can be supposed.

use crate::change::{Kind, catalogue};
use crate::compare::Verdict;
use crate::error::Result;

/// Lists every kind with its meaning, where it is made, and what `--suppose` takes.
pub fn run() -> Result<Verdict> {
    for &kind in Kind::ALL {
        anstream::println!("{:<20} {}", kind.name(), kind.meaning());
        for entry in catalogue().filter(|entry| entry.kind == kind) {
            let taps: Vec<_> = entry.at.iter().map(|point| point.name()).collect();
            let value = if entry.takes.is_empty() { String::new() } else { format!("={}", entry.takes) };
            anstream::println!("    --suppose {kind}{value}");
            anstream::println!("    at {}", taps.join(", "));
        }
    }
    anstream::println!("\nKinds without --suppose are found, but are no change of a single operation.");
    Ok(Verdict::Pass)
}
