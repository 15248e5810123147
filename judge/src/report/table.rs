//! The report for a terminal of 80 columns.

use comfy_table::{CellAlignment, Table};

use crate::compare::{Role, Verdict};
use crate::diagnose::Outcome;
use crate::report::map::{LEGEND, Map};
use crate::report::paint::Paint;
use crate::report::shown::Shown;
use crate::report::text::{self, NOTHING, WIDTH, count, fit, largest, short_bound, short_place};
use crate::report::{Comparison, Report, conclusion};

/// Between two columns.
const GAP: usize = 1;
const COLUMNS: usize = 8;
const HEADER: [&str; COLUMNS] =
    ["", "checkpoint", "worst", "introduced", "headroom", "beyond", "total", "spec"];
/// The column of the worst value's place: it takes the width that the others leave.
const PLACE: usize = 2;
const LEFT_ALIGNED: [usize; 2] = [1, PLACE];

/// The report as text for a terminal: one table, then a verdict per reference and what to do about it.
pub fn table(report: &Report, colour: bool) -> String {
    let paint = Paint { colour };
    let shown: Vec<Vec<Shown>> =
        report.results.iter().map(|result| Shown::of(&result.outcome, &report.checkpoints)).collect();
    let mut grid = grid(&shown.concat()).into_iter();

    let served = report.served.iter().flat_map(|served| served.lines(paint));
    let header = grid.next().map(|header| paint.faint(&(header + "verdict")));
    let mut lines: Vec<String> = served.chain(header).collect();
    for (result, shown) in report.results.iter().zip(&shown) {
        lines.extend([String::new(), paint.strong(&title(result))]);
        let rows = shown.iter().zip(grid.by_ref());
        lines.extend(rows.map(|(shown, row)| row + &paint.verdict(shown.verdict, word(shown))));
        lines.extend(coverage(&result.outcome).iter().map(|line| paint.faint(line)));
    }
    lines.extend(conclusion::lines(report, paint));
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The verdict lines alone.
pub fn verdicts(report: &Report, colour: bool) -> String {
    conclusion::verdicts(report, Paint { colour })
        .iter()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

/// Maps of taps and layers: of the first that fails, or of all.
pub fn maps(report: &Report, all: bool, colour: bool) -> String {
    let paint = Paint { colour };
    let outcomes = report.results.iter().map(|result| &result.outcome);
    let wanted = outcomes.filter(|outcome| all || outcome.verdict == Verdict::Fail);
    let drawn = wanted.map(|outcome| (outcome, Map::of(outcome))).filter(|(_, map)| all || map.has_layers());
    let mut lines = Vec::new();
    for (outcome, map) in drawn.take(if all { usize::MAX } else { 1 }) {
        let name = fit(&text::clean(&outcome.subject.name), WIDTH / 2);
        lines.extend([String::new(), paint.strong(&format!("map of {name}"))]);
        lines.extend(map.lines(WIDTH - 2, paint).iter().map(|line| format!("  {line}")));
        lines.push(paint.faint(&format!("  {LEGEND}")));
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The lines of all references' rows, header first, aligned with each other; the caller adds the verdicts.
fn grid(shown: &[Shown]) -> Vec<String> {
    if shown.is_empty() {
        return Vec::new();
    }
    let mut rows: Vec<[String; COLUMNS]> = shown.iter().map(cells).collect();
    let width = place_width(&rows, shown);
    for (cells, shown) in rows.iter_mut().zip(shown) {
        cells[PLACE] = shown.row.map_or(NOTHING.into(), |row| short_place(row.site, width));
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
fn cells(shown: &Shown) -> [String; COLUMNS] {
    let mark = if shown.is_culprit { ">" } else { "" };
    [
        format!("{mark}{:>2}", shown.checkpoint.number()),
        shown.checkpoint.to_string(),
        String::new(),
        largest(shown, shown.introduced),
        text::headroom(shown.headroom),
        text::beyond(shown.beyond),
        largest(shown, shown.total),
        shown.row.map_or(NOTHING.into(), |row| short_bound(row.tolerance.max_abs)),
    ]
}

/// What the other columns leave of the line.
fn place_width(rows: &[[String; COLUMNS]], shown: &[Shown]) -> usize {
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([HEADER[column].len()]).max().unwrap_or_default()
    };
    let verdicts = shown.iter().map(|shown| word(shown).len()).max().unwrap_or_default();
    let others: usize = (0..COLUMNS).filter(|&column| column != PLACE).map(widest).sum();
    WIDTH.saturating_sub(others + COLUMNS * GAP + verdicts)
}

fn word(shown: &Shown) -> &'static str {
    match shown.verdict {
        _ if shown.row.is_none() => "no data",
        Verdict::Fail => "FAIL",
        verdict => verdict.name(),
    }
}

/// "llama.cpp-q8_0  ·  llama.cpp b1234, q8_0, kv f16  ·  numerics llama.cpp", the dump and what it was compared with;
/// that the dump is the candidate, or that the candidate is one too, is said.
fn title(result: &Comparison) -> String {
    const SEPARATOR: &str = "  ·  ";
    const END: usize = 30;
    let outcome = &result.outcome;
    let other = match outcome.subject.role {
        _ if result.is_of_dumps() => format!("candidate {}", outcome.subject.numerics),
        Role::Candidate => format!("reference numerics {}", outcome.subject.numerics),
        Role::Reference => format!("numerics {}", outcome.subject.numerics),
    };
    let [name, other] = [&outcome.subject.name, &other].map(|end| fit(&text::clean(end), END));
    let ends = text::width(&name) + text::width(&other) + 2 * text::width(SEPARATOR);
    [name, producer(outcome, WIDTH.saturating_sub(ends)), other].join(SEPARATOR)
}

/// Who made the dump, and of its settings the two that change the numbers most: what the weights and
/// the KV cache are stored in. A long version is cut before they are.
fn producer(outcome: &Outcome, width: usize) -> String {
    let producer = &outcome.subject.producer;
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
