//! `matrix.md`: the matrix for people, as a comment on a pull request.

use crate::matrix::{CellResult, CellStatus, ComparisonMatrix, MatrixPlan};
use crate::report::{architectures_in_markdown, escape, shell, text};

/// Returns the matrix as GitHub-flavoured Markdown.
pub fn markdown(matrix: &ComparisonMatrix) -> String {
    let standing = matrix.standing();
    let verdict = standing.verdict().map_or("error", |verdict| verdict.name()).to_uppercase();
    let mut text = format!("# xcheck matrix: {verdict}\n\n{}\n\n{}", matrix.tally(), table(matrix));
    let architectures = architectures_in_markdown(&matrix.by_architecture());
    if !architectures.is_empty() {
        text += &format!("\n## By architecture\n{architectures}");
    }
    for &standing in CellStatus::ALL.iter().rev().filter(|standing| **standing != CellStatus::Pass) {
        let cells: String = matrix.that_are(standing).map(section).collect();
        if !cells.is_empty() {
            text += &format!("\n## {}\n\n{cells}", heading(standing));
        }
    }
    text + &format!("\nxcheck {}, called as:\n\n    {}\n", env!("CARGO_PKG_VERSION"), shell(&matrix.command))
}

fn heading(standing: CellStatus) -> &'static str {
    match standing {
        CellStatus::Pass => "Passed",
        CellStatus::Known => "Known",
        CellStatus::Inconclusive => "Could not be judged",
        CellStatus::Unexpected => "Passed against expectation",
        CellStatus::Fail => "Failed",
        CellStatus::Error => "No verdict",
    }
}

fn table(matrix: &ComparisonMatrix) -> String {
    let MatrixPlan { axes, rows, columns, .. } = matrix.plan;
    let heads = matrix.values_on(columns);
    let names = rows.iter().map(|&axis| axes[axis].name.as_str()).collect::<Vec<_>>();
    let words = |values: &Vec<&str>| escape(&values.join(", "));
    let line = |first: &str, cells: Vec<String>| format!("| {first} | {} |\n", cells.join(" | "));
    let mut text = line(&words(&names), heads.iter().map(words).collect());
    text += &line("---", heads.iter().map(|_| "---".to_owned()).collect());
    for side in matrix.values_on(rows) {
        let cell = |head: &Vec<&str>| matrix.at(&side, head).map(short).unwrap_or_default();
        text += &line(&words(&side), heads.iter().map(cell).collect());
    }
    text
}

fn short(done: &CellResult) -> String {
    let standing = done.standing();
    let word =
        if standing.is_good() { standing.name().to_owned() } else { format!("**{}**", standing.name()) };
    let word = match done.has_report {
        true => format!("[{word}](cells/{}/report.md)", done.cell.name),
        false => word,
    };
    let Ok(found) = &done.found else { return word };
    let bound_ratio =
        found.bound_ratio.map(|bound_ratio| format!(" {}", escape(&text::bound_ratio(Some(bound_ratio)))));
    let first = found.first.map(|site| format!(" {}", escape(&site.to_string())));
    word + &bound_ratio.unwrap_or_default() + &first.unwrap_or_default()
}

fn section(done: &CellResult) -> String {
    let found = done.found.as_ref().ok();
    let first = found.and_then(|found| found.first).map(|site| format!("; first at {site}"));
    let because =
        found.and_then(|found| found.because.as_ref()).map(|because| format!("; because: {because}"));
    let said = done.told() + &first.unwrap_or_default() + &because.unwrap_or_default();
    format!("- {}: {}\n", escape(&done.cell.words()), escape(&said))
}
