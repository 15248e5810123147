//! `xcheck checkpoints`: what is compared, and how strictly.

use crate::checkpoint::{Checkpoint, Point};
use crate::compare::{Tolerances, Verdict};
use crate::error::Result;

/// Lists the checkpoints with their taps, axes, meaning, default tolerance and its source.
pub fn run() -> Result<Verdict> {
    let tolerances = Tolerances::shipped();
    for &checkpoint in Checkpoint::with_input() {
        let tolerance = tolerances.get("any", "any", checkpoint);
        anstream::println!("{:>2}  {checkpoint}: {}", checkpoint.number(), checkpoint.meaning());
        anstream::println!("    max |error| {:e} ({})", tolerance.max_abs, tolerance.source);
        for point in checkpoint.points() {
            anstream::println!("    {point:<15} {:<25} {}", axes(point), point.meaning());
        }
        anstream::println!();
    }
    anstream::println!(
        "Tables of tolerances may say more for an architecture or precision; --tolerance FILE goes before them."
    );
    Ok(Verdict::Pass)
}

fn axes(point: Point) -> String {
    let names: Vec<_> = point.axes().iter().map(|axis| axis.name()).collect();
    format!("[{}]", names.join(", "))
}
