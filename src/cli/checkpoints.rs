//! `xcheck checkpoints`: checkpoints and their tolerances.

use clap::Args;
use serde_json::{Value, json};

use crate::check::Tolerances;
use crate::checkpoint::{Checkpoint, Point};
use crate::cli::options::FormatOptions;
use crate::error::Result;
use crate::verdict::Verdict;

/// Arguments of `xcheck checkpoints`.
#[derive(Debug, Args)]
pub(crate) struct CheckpointsArgs {
    #[command(flatten)]
    output: FormatOptions,
}

/// Lists the checkpoints with their taps, axes, meaning, default tolerance and its source.
pub(crate) fn run(args: &CheckpointsArgs) -> Result<Verdict> {
    let tolerances = Tolerances::shipped();
    for &checkpoint in Checkpoint::with_input() {
        let tolerance = tolerances.get("any", "any", checkpoint);
        args.output.line(format_args!("{:>2}  {checkpoint}: {}", checkpoint.number(), checkpoint.meaning()));
        args.output.line(format_args!("    max |error| {:e} ({})", tolerance.max_abs, tolerance.source));
        for point in checkpoint.points() {
            args.output.line(format_args!("    {point:<15} {:<25} {}", axes(point), point.meaning()));
        }
        args.output.line("");
    }
    args.output.line(format_args!(
        "A tolerance table may have other values for an architecture or precision. --tolerance FILE \
            overrides all of them."
    ));
    args.output.document(|| {
        let all = Checkpoint::with_input().iter();
        json!({"checkpoints": all.map(|&checkpoint| as_json(checkpoint, &tolerances)).collect::<Vec<_>>()})
    });
    Ok(Verdict::Pass)
}

fn as_json(checkpoint: Checkpoint, tolerances: &Tolerances) -> Value {
    let tolerance = tolerances.get("any", "any", checkpoint);
    let taps = checkpoint.points().map(|point| {
        let axes: Vec<_> = point.axes().iter().map(|axis| axis.name()).collect();
        json!({"tap": point.name(), "axes": axes, "meaning": point.meaning()})
    });
    json!({
        "number": checkpoint.number(),
        "checkpoint": checkpoint.name(),
        "meaning": checkpoint.meaning(),
        "max_abs": tolerance.max_abs,
        "source": tolerance.source,
        "taps": taps.collect::<Vec<_>>(),
    })
}

fn axes(point: Point) -> String {
    let names: Vec<_> = point.axes().iter().map(|axis| axis.name()).collect();
    format!("[{}]", names.join(", "))
}
