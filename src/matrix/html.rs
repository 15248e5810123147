//! `matrix.html`: one file that contains `matrix.json` and draws it, with links to the reports of the cells.

use crate::matrix::{ComparisonMatrix, json};
use crate::report::{HtmlPage, shell};

const STYLE: &str = include_str!("page/matrix.css");
const SCRIPT: &str = include_str!("page/matrix.js");

/// Returns the matrix as an HTML page.
pub fn html(matrix: &ComparisonMatrix) -> String {
    let mut data = json::value(matrix);
    data["shell"] = shell(&matrix.command).into();
    data["tally"] = matrix.tally().into();
    for (cell, done) in data["cells"].as_array_mut().into_iter().flatten().zip(&matrix.done) {
        cell["shell"] = shell(&done.command).into();
    }
    let verdict = data["verdict"].as_str().unwrap_or_default().to_uppercase();
    let title = format!("xcheck matrix {verdict}");
    HtmlPage { title: &title, in_words: "matrix.md", style: STYLE, script: SCRIPT }.with(data)
}
