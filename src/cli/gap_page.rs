//! HTML page of `xcheck gap`.

use serde_json::{Value, json};

use crate::gap::GapFigure;
use crate::report::HtmlPage;
use crate::tokenizer::Tokenizer;

const SCRIPT: &str = include_str!("page/gap.js");

/// Returns the HTML page of a document. It contains the text of the worst tokens if there is a tokenizer.
pub(super) fn gap_page(mut document: Value, figure: &GapFigure, tokenizer: Option<&dyn Tokenizer>) -> String {
    document["figure"] = json!(figure);
    let ids = figure.worst.iter().map(|token| token.id);
    for (index, id) in ids.enumerate() {
        let text = id.zip(tokenizer).and_then(|(id, tokenizer)| tokenizer.decode_lossy(&[id]).ok());
        document["figure"]["worst"][index]["text"] = json!(text);
    }
    let verdict = document["verdict"].as_str().unwrap_or_default().to_uppercase();
    let title = format!("xcheck gap {verdict}");
    HtmlPage { title: &title, in_words: "the output of xcheck gap", style: "", script: SCRIPT }.with(document)
}
