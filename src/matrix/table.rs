//! The matrix for a terminal: a table if it fits, otherwise one line per cell; then the necessary actions.

use std::iter::once;

use comfy_table::{CellAlignment, Table};

use crate::checkpoint::Site;
use crate::matrix::{CellResult, CellStatus, ComparisonMatrix};
use crate::report::{TerminalStyle, WIDTH, architectures, text};
use crate::verdict::Verdict;

/// Spaces between two columns.
const GAP: u16 = 2;
/// Maximum number of characters of a reason; the cell's report has the full text.
const LONGEST_REASON: usize = 400;

/// Returns the matrix as text for a terminal. `folder` is the folder with the reports of the cells.
pub fn table(matrix: &ComparisonMatrix, folder: &str, colour: bool) -> String {
    let paint = TerminalStyle { colour };
    let wide = grid(matrix);
    let fits = wide.iter().all(|line| text::width(line) <= WIDTH);
    let mut lines = if fits { wide } else { list(matrix) };
    lines.push(String::new());
    lines.extend(architectures(&matrix.by_architecture(), paint));
    for done in matrix.done.iter().filter(|done| done.standing() != CellStatus::Pass) {
        lines.push(String::new());
        lines.extend(told(done, folder, paint));
    }
    lines.extend([String::new(), paint.verdict(verdict(matrix.standing()), &matrix.tally())]);
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Returns the table of rows and columns. Excluded combinations are empty.
fn grid(matrix: &ComparisonMatrix) -> Vec<String> {
    let heads = matrix.values_on(&matrix.plan.columns);
    let words = |values: &Vec<&str>| text::clean(&values.join(", "));
    let row = |side: Vec<&str>| {
        let cells = heads.iter().map(|head| matrix.at(&side, head).map(short).unwrap_or_default());
        once(words(&side)).chain(cells).collect::<Vec<_>>()
    };
    let header = once(String::new()).chain(heads.iter().map(words)).collect();
    aligned(header, matrix.values_on(&matrix.plan.rows).into_iter().map(row).collect())
}

fn list(matrix: &ComparisonMatrix) -> Vec<String> {
    let axes = matrix.plan.axes.iter().map(|axis| text::clean(&axis.name));
    let row = |done: &CellResult| {
        let values = done.cell.values.iter().map(|value| text::fit(&text::clean(value), WIDTH / 3));
        values.chain([short(done)]).collect::<Vec<_>>()
    };
    aligned(axes.chain([String::new()]).collect(), matrix.done.iter().map(row).collect())
}

fn aligned(header: Vec<String>, rows: Vec<Vec<String>>) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
        column.set_cell_alignment(CellAlignment::Left);
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Returns a cell's result in short form, such as "FAIL 2.5e7 q_rope L0".
fn short(done: &CellResult) -> String {
    let standing = done.standing();
    let word = match standing {
        CellStatus::Fail | CellStatus::Error | CellStatus::Unexpected => standing.name().to_uppercase(),
        CellStatus::Inconclusive => "unclear".to_owned(),
        _ => standing.name().to_owned(),
    };
    let Ok(found) = &done.found else { return word };
    let bound_ratio =
        found.bound_ratio.map(|bound_ratio| format!(" {}", text::bound_ratio(Some(bound_ratio))));
    let layer = |site: Site| site.layer.map(|layer| format!(" L{layer}")).unwrap_or_default();
    let first = found.first.map(|site| format!(" {}{}", site.point, layer(site)));
    word + &bound_ratio.unwrap_or_default() + &first.unwrap_or_default()
}

fn told(done: &CellResult, folder: &str, paint: TerminalStyle) -> Vec<String> {
    let (standing, name) = (done.standing(), text::clean(&done.cell.words()));
    let head = format!("{}: {}", name, paint.verdict(verdict(standing), standing.name()));
    let mut lines = vec![head];
    let mut tell = |what: &str, sentence: &str| {
        let sentence = text::fit(sentence, LONGEST_REASON);
        lines.extend(text::wrap(&format!("  {what:<9} "), &sentence, WIDTH));
    };
    tell("why", &done.told());
    if let Some(found) = done.found.as_ref().ok().filter(|_| !standing.is_good()) {
        found.first.iter().for_each(|site| tell("first", &site.to_string()));
        found.because.iter().for_each(|because| tell("because", because));
    }
    if done.has_report {
        lines.push(format!("  report    {folder}/cells/{}/report.md", done.cell.name));
    }
    lines
}

fn verdict(standing: CellStatus) -> Verdict {
    standing.verdict().unwrap_or(Verdict::Fail)
}
