//! `xcheck causes`: list of causes that findings can name and that `--suppose` accepts.

use clap::Args;
use serde_json::{Value, json};

use crate::catalogue::catalogue;
use crate::change::{CatalogueEntry, CauseKind};
use crate::cli::options::FormatOptions;
use crate::error::Result;
use crate::verdict::Verdict;

/// Arguments of `xcheck causes`.
#[derive(Debug, Args)]
pub(crate) struct CausesArgs {
    #[command(flatten)]
    output: FormatOptions,
}

/// Lists every kind of cause with its meaning, its operation, and the value that `--suppose` takes.
pub(crate) fn run(args: &CausesArgs) -> Result<Verdict> {
    for &kind in CauseKind::ALL {
        args.output.line(format_args!("{:<20} {}", kind.name(), kind.meaning()));
        for entry in catalogue().filter(|entry| entry.kind == kind) {
            let value = if entry.takes.is_empty() { String::new() } else { format!("={}", entry.takes) };
            args.output.line(format_args!("    --suppose {kind}{value}"));
            args.output.line(format_args!("    at {}", taps(entry).join(", ")));
        }
    }
    args.output.line(format_args!(
        "\nKinds without --suppose can be found but not injected: they are not a change \
            of a single operation."
    ));
    args.output.document(|| json!({"causes": CauseKind::ALL.iter().map(as_json).collect::<Vec<_>>()}));
    Ok(Verdict::Pass)
}

fn taps(entry: &CatalogueEntry) -> Vec<&'static str> {
    entry.at.iter().map(|point| point.name()).collect()
}

fn as_json(kind: &CauseKind) -> Value {
    let ways = catalogue().filter(|entry| entry.kind == *kind);
    let ways = ways.map(|entry| json!({"takes": entry.takes, "at": taps(entry)}));
    json!({"kind": kind.name(), "family": kind.family(), "meaning": kind.meaning(), "suppose": ways.collect::<Vec<_>>()})
}
