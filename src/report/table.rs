//! The report for a terminal of 80 columns.

use comfy_table::{CellAlignment, Table};

use crate::compare::Verdict;
use crate::diagnose::{Outcome, Summary};
use crate::report::paint::Paint;
use crate::report::text::{self, NOTHING, count, fit, largest, short_bound, short_place};
use crate::report::{Comparison, Report, conclusion};

/// No line is wider, but for commands to copy, which are never cut or broken.
pub const WIDTH: usize = 80;
/// Between two columns.
const GAP: usize = 2;
const COLUMNS: usize = 6;
const HEADER: [&str; COLUMNS] = ["", "checkpoint", "worst at", "introduced", "total", "allowed"];
/// The column of the worst value's place: it takes the width that the others leave.
const PLACE: usize = 2;
const LEFT_ALIGNED: [usize; 2] = [1, PLACE];

/// The report as text for a terminal: one table, then a verdict per reference and what to do about it.
pub fn table(report: &Report, colour: bool) -> String {
    let paint = Paint { colour };
    let summaries: Vec<Vec<Summary>> =
        report.results.iter().map(|result| result.outcome.summaries(&report.checkpoints)).collect();
    let mut grid = grid(&summaries.concat()).into_iter();

    let mut lines: Vec<String> =
        grid.next().map(|header| paint.faint(&(header + "verdict"))).into_iter().collect();
    for (Comparison { outcome, .. }, summaries) in report.results.iter().zip(&summaries) {
        lines.extend([String::new(), paint.strong(&title(outcome))]);
        let rows = summaries.iter().zip(grid.by_ref());
        lines.extend(rows.map(|(summary, row)| row + &paint.verdict(summary.verdict, word(summary))));
        lines.extend(coverage(outcome).iter().map(|line| paint.faint(line)));
    }
    lines.extend(conclusion::lines(report, paint));
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The lines of all references' rows, header first, aligned with each other; the caller adds the verdicts.
fn grid(summaries: &[Summary]) -> Vec<String> {
    if summaries.is_empty() {
        return Vec::new();
    }
    let mut rows: Vec<[String; COLUMNS]> = summaries.iter().map(cells).collect();
    let width = place_width(&rows, summaries);
    for (row, summary) in rows.iter_mut().zip(summaries) {
        row[PLACE] = summary.worst.map_or(NOTHING.into(), |worst| short_place(worst.site, width));
    }
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(HEADER).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP as u16));
        let left = LEFT_ALIGNED.contains(&index);
        column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.lines().collect()
}

/// A row but for its place.
fn cells(summary: &Summary) -> [String; COLUMNS] {
    [
        summary.checkpoint.number().to_string(),
        summary.checkpoint.to_string(),
        String::new(),
        largest(summary, summary.introduced),
        largest(summary, summary.total),
        summary.worst.map_or(NOTHING.into(), |row| short_bound(row.tolerance.max_abs)),
    ]
}

/// What the other columns leave of the line.
fn place_width(rows: &[[String; COLUMNS]], summaries: &[Summary]) -> usize {
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([HEADER[column].len()]).max().unwrap_or_default()
    };
    let verdicts = summaries.iter().map(|summary| word(summary).len()).max().unwrap_or_default();
    let others: usize = (0..COLUMNS).filter(|&column| column != PLACE).map(widest).sum();
    WIDTH.saturating_sub(others + COLUMNS * GAP + verdicts)
}

fn word(summary: &Summary) -> &'static str {
    match summary.verdict {
        _ if summary.worst.is_none() => "not compared",
        Verdict::Fail => "FAIL",
        verdict => verdict.name(),
    }
}

/// "llama.cpp-q8_0  ·  llama.cpp b1234, q8_0, kv f16  ·  numerics llama.cpp"
fn title(outcome: &Outcome) -> String {
    const SEPARATOR: &str = "  ·  ";
    const END: usize = 30;
    let name = fit(&text::clean(&outcome.name), END);
    let numerics = fit(&text::clean(&format!("numerics {}", outcome.numerics)), END);
    let ends = text::width(&name) + text::width(&numerics) + 2 * text::width(SEPARATOR);
    [name, reference(outcome, WIDTH.saturating_sub(ends)), numerics].join(SEPARATOR)
}

/// Who made the reference, and of its settings the two that change the numbers most: what the weights and
/// the KV cache are stored in. A long version is cut before they are.
fn reference(outcome: &Outcome, width: usize) -> String {
    let producer = &outcome.producer;
    let weights = producer.setting("weights").or(producer.setting("dtype"));
    let weights = weights.map(|kind| format!(", {}", text::clean(kind))).unwrap_or_default();
    let cache = producer.setting("kv_cache").map(|kind| format!(", kv {}", text::clean(kind)));
    let settings = weights + &cache.unwrap_or_default();
    let left = width.saturating_sub(text::width(&settings)).max(width / 2);
    fit(&(fit(&text::producer(outcome), left) + &settings), width)
}

fn coverage(outcome: &Outcome) -> Vec<String> {
    const SHOWN: usize = 4;
    let coverage = &outcome.coverage;
    let (expected, values) = (count(coverage.taps_expected, "tap"), count(coverage.elements, "value"));
    let mut lines = vec![format!("    {} of {expected} compared, {values}", coverage.taps_compared)];
    if coverage.elements > 0 {
        lines.push(format!("    {}", text::identical(coverage)));
    }
    let skipped = coverage.skipped.iter().take(SHOWN);
    lines.extend(skipped.flat_map(|what| text::wrap("    left out: ", what, WIDTH)));
    if coverage.skipped.len() > SHOWN {
        lines.push(format!("    left out: {} more", coverage.skipped.len() - SHOWN));
    }
    lines
}
