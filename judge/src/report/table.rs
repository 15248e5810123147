//! The report for a terminal of 80 columns.

use comfy_table::{CellAlignment, Table};

use crate::check::Role;
use crate::report::result_map::{LEGEND, ResultMap};
use crate::report::terminal_style::TerminalStyle;
use crate::report::text::{self, NOTHING, WIDTH, count, fit, largest, short_bound, short_place};
use crate::report::{ArchitectureSummary, Comparison, Report, conclusion, headline};
use crate::verdict::{CheckpointSummary, Outcome, Verdict};

/// Spaces between two columns.
const GAP: usize = 1;
/// Columns of every table, followed by those of a detailed table only.
const HEADER: [&str; 10] = [
    "",
    "checkpoint",
    "worst site",
    "max abs",
    "mean abs",
    "cosine",
    "err/bound",
    "over",
    "accumulated",
    "spec tol",
];
/// Header of the last column, which is coloured.
const VERDICT: &str = "verdict";
/// Number of columns in a table without details.
const BRIEF: usize = 8;
/// Width of a detailed table in columns.
const WIDE: usize = 100;
/// Index of the column with the worst site. This column takes the remaining width.
const PLACE: usize = 2;
const LEFT_ALIGNED: [usize; 2] = [1, PLACE];

/// Options for printing the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableOptions<'p> {
    /// True for coloured output.
    pub colour: bool,
    /// True to include accumulated errors and spec tolerances, up to 100 columns wide.
    pub is_detailed: bool,
    /// Path of `report.html`, if it is written.
    pub page: Option<&'p str>,
}

impl TableOptions<'_> {
    fn columns(self) -> usize {
        if self.is_detailed { HEADER.len() } else { BRIEF }
    }

    fn width(self) -> usize {
        if self.is_detailed { WIDE } else { WIDTH }
    }
}

/// Returns the report for a terminal: a sentence, one table, then a verdict and the next step for each
/// reference.
pub fn table(report: &Report, style: TableOptions) -> String {
    let paint = TerminalStyle { colour: style.colour };
    let shown = |outcome: &Outcome| -> Vec<CheckpointSummary> {
        let lines = CheckpointSummary::of(outcome, &report.checkpoints).into_iter();
        // After a pass, checkpoints that the dump did not record are omitted.
        lines.filter(|line| line.site.is_some() || !outcome.verdict.is_good()).collect()
    };
    let shown: Vec<_> = report.results.iter().map(|result| shown(&result.outcome)).collect();
    let rollup = report.rollup();
    let of_architectures = rollup.iter().flat_map(|summary| &summary.checkpoints).cloned();
    let all: Vec<CheckpointSummary> = shown.concat().into_iter().chain(of_architectures).collect();
    let mut grid = grid(&all, style).into_iter();

    let served = report.served.iter().flat_map(|served| served.lines(paint));
    let header = grid.next().map(|header| paint.faint(&(header + VERDICT)));
    let mut lines = headline::lines(report, style.page, paint);
    lines.extend(served.chain(header));
    for (result, shown) in report.results.iter().zip(&shown) {
        lines.extend([String::new(), paint.strong(&title(result))]);
        lines.extend(judged(shown, &mut grid, paint));
        lines.extend(coverage(&result.outcome).iter().map(|line| paint.faint(line)));
    }
    lines.extend(summaries(&rollup, &mut grid, paint));
    lines.extend(conclusion::lines(report, paint));
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns the results per architecture, for a terminal of 80 columns.
pub fn architectures(rollup: &[ArchitectureSummary], paint: TerminalStyle) -> Vec<String> {
    let all: Vec<_> = rollup.iter().flat_map(|summary| &summary.checkpoints).cloned().collect();
    let mut grid = grid(&all, TableOptions::default()).into_iter();
    let header = grid.next().map(|header| paint.faint(&(header + VERDICT)));
    header.into_iter().chain(summaries(rollup, &mut grid, paint)).collect()
}

/// Distributes the lines of the grid to their architectures, each with a title.
fn summaries(
    rollup: &[ArchitectureSummary],
    grid: &mut impl Iterator<Item = String>,
    paint: TerminalStyle,
) -> Vec<String> {
    let mut lines = Vec::new();
    for summary in rollup {
        let title = format!("architecture {}", text::clean(&summary.title()));
        lines.extend([String::new(), paint.strong(&fit(&title, WIDTH))]);
        lines.extend(judged(&summary.checkpoints, grid, paint));
    }
    lines
}

/// Takes the next lines of the grid and appends the verdicts.
fn judged(
    shown: &[CheckpointSummary],
    grid: &mut impl Iterator<Item = String>,
    paint: TerminalStyle,
) -> Vec<String> {
    let rows = shown.iter().zip(grid);
    rows.map(|(shown, row)| row + &paint.verdict(shown.verdict, word(shown))).collect()
}

/// Returns only the verdict lines.
pub fn verdicts(report: &Report, colour: bool) -> String {
    conclusion::verdicts(report, TerminalStyle { colour })
        .iter()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

/// Returns the result maps: of the first dump that fails, or of all dumps.
pub fn maps(report: &Report, all: bool, colour: bool) -> String {
    let paint = TerminalStyle { colour };
    let outcomes = report.results.iter().map(|result| &result.outcome);
    let wanted = outcomes.filter(|outcome| all || outcome.verdict == Verdict::Fail);
    let drawn =
        wanted.map(|outcome| (outcome, ResultMap::of(outcome))).filter(|(_, map)| all || map.has_layers());
    let mut lines = Vec::new();
    for (outcome, map) in drawn.take(if all { usize::MAX } else { 1 }) {
        let name = fit(&text::clean(&outcome.subject.name), WIDTH / 2);
        lines.extend([String::new(), paint.strong(&format!("map of {name}"))]);
        lines.extend(map.lines(WIDTH - 2, paint).iter().map(|line| format!("  {line}")));
        lines.push(paint.faint(&format!("  {LEGEND}")));
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns the aligned lines of all rows, header first. The caller adds the verdicts.
fn grid(shown: &[CheckpointSummary], style: TableOptions) -> Vec<String> {
    if shown.is_empty() {
        return Vec::new();
    }
    let mut rows: Vec<Vec<String>> = shown.iter().map(|shown| cells(shown, style)).collect();
    let width = place_width(&rows, shown, style);
    for (cells, shown) in rows.iter_mut().zip(shown) {
        cells[PLACE] = shown.site.map_or(NOTHING.into(), |site| short_place(site, width));
    }
    aligned(&HEADER[..style.columns()], rows, &LEFT_ALIGNED)
}

/// Returns the lines of a table, header first. The columns in `left` are left-aligned, the others
/// right-aligned.
fn aligned(header: &[&str], rows: Vec<Vec<String>>, left: &[usize]) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP as u16));
        let is_left = left.contains(&index);
        column.set_cell_alignment(if is_left { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.lines().collect()
}

/// Returns the cells of a row, except for its site.
fn cells(shown: &CheckpointSummary, style: TableOptions) -> Vec<String> {
    let mark = if shown.is_culprit { ">" } else { "" };
    let [mean, cosine] = text::mean_and_cosine(shown);
    let mut cells = vec![
        format!("{mark}{:>2}", shown.number),
        shown.checkpoint.to_string(),
        String::new(),
        largest(shown, shown.errors()),
        mean,
        cosine,
        text::bound_ratio(shown.bound_ratio),
        text::over(shown.over),
        largest(shown, shown.accumulated),
        shown.tolerance.map_or(NOTHING.into(), short_bound),
    ];
    cells.truncate(style.columns());
    cells
}

/// Returns the width that the other columns leave for the site.
fn place_width(rows: &[Vec<String>], shown: &[CheckpointSummary], style: TableOptions) -> usize {
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([HEADER[column].len()]).max().unwrap_or_default()
    };
    let verdicts = shown.iter().map(|shown| word(shown).len()).fold(VERDICT.len(), usize::max);
    let others: usize = (0..style.columns()).filter(|&column| column != PLACE).map(widest).sum();
    style.width().saturating_sub(others + style.columns() * GAP + verdicts)
}

fn word(shown: &CheckpointSummary) -> &'static str {
    match shown.verdict {
        _ if shown.site.is_none() => "no data",
        Verdict::Fail => "FAIL",
        Verdict::Inconclusive => "unclear",
        verdict => verdict.name(),
    }
}

/// Returns the title: "llama.cpp-q8_0  ·  llama.cpp b1234, q8_0, kv f16  ·  numerics llama.cpp". It also
/// states that the dump is the candidate, or that both sides are dumps.
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

/// Returns the producer of the dump with its two most important settings: the types of weights and KV cache.
/// A long version is cut before the settings.
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
    lines.extend(skipped.flat_map(|what| text::wrap("    not compared: ", what, WIDTH)));
    if coverage.skipped.len() > SHOWN {
        lines.push(format!("    not compared: {} more", coverage.skipped.len() - SHOWN));
    }
    lines
}
