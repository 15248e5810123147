//! `report.html`: one file that contains `report.json` in compressed form and draws it. It makes no network
//! requests.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::format::commands;
use crate::report::schema::ReportFile;
use crate::report::{Report, RunFailure, advice};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// Scripts that every page contains.
const COMMON: &str = concat!(
    include_str!("page/words.js"),
    include_str!("page/dom.js"),
    include_str!("page/terms.js"),
    include_str!("page/map.js"),
    include_str!("page/checkpoints.js"),
);
/// Script that shows a message if the page cannot be drawn.
const FAILED: &str = include_str!("page/failed.js");
const SCRIPT: &str = concat!(
    include_str!("page/block.js"),
    include_str!("page/passes.js"),
    include_str!("page/search.js"),
    include_str!("page/link.js"),
    include_str!("page/story.js"),
    include_str!("page/spread.js"),
    include_str!("page/detail.js"),
    include_str!("page/growth.js"),
    include_str!("page/tokens.js"),
    include_str!("page/main.js"),
);

/// Returns the report as an HTML page.
pub fn html(report: &Report) -> String {
    page(ReportFile::from(report).json())
}

/// Returns an HTML page for a run that ended with an error.
pub(crate) fn refused(refusal: &RunFailure) -> String {
    page(ReportFile::from(refusal).json())
}

fn page(mut report: Value) -> String {
    let command: Vec<String> = serde_json::from_value(report["command"].clone()).unwrap_or_default();
    report["shell"] = advice::shell(&command).into();
    let verdict = report["verdict"].as_str().unwrap_or_default().to_uppercase();
    let model = report["model"]["name"].as_str().map(|name| format!(": {name}")).unwrap_or_default();
    let title = format!("xcheck {verdict}{model}");
    HtmlPage { title: &title, in_words: "report.md", style: "", script: SCRIPT }.with(in_short(report))
}

/// A page with embedded data and the scripts that draw it.
pub struct HtmlPage<'p> {
    /// Window title.
    pub title: &'p str,
    /// Name of the text report with the same content.
    pub in_words: &'p str,
    /// Additional CSS.
    pub style: &'p str,
    /// Additional JavaScript.
    pub script: &'p str,
}

impl HtmlPage<'_> {
    /// Returns the page. Its content security policy only allows the embedded style and scripts, so names
    /// from a file cannot inject code.
    pub fn with(&self, report: Value) -> String {
        let (style, script) = (STYLE.to_owned() + self.style, scripts(self.script));
        let slots = [
            ("style-hash", hash(&style)),
            ("script-hash", hash(&script)),
            ("title", escape(self.title)),
            ("style", style),
            ("in-words", escape(self.in_words)),
            ("report", data(&report)),
            ("script", script),
        ];
        let mut rest = PAGE;
        let mut page = String::new();
        for (name, content) in &slots {
            let (before, after) =
                rest.split_once(&format!("{{{{{name}}}}}")).expect("the page has each slot, in order");
            page += before;
            page += content;
            rest = after;
        }
        page + rest
    }
}

fn hash(content: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(content)))
}

fn escape(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            c if commands(c) => " ".to_owned(),
            c => c.to_string(),
        })
        .collect()
}

/// Returns the scripts of a page, which run when its data is loaded.
fn scripts(own: &str) -> String {
    format!("(async () => {{\n{COMMON}{own}}})().catch(failed);\n{FAILED}")
}

/// Returns compressed JSON for a page. Compression helps, because rows repeat names and many values.
fn data(report: &Value) -> String {
    let mut data = ZlibEncoder::new(Vec::new(), Compression::best());
    data.write_all(report.to_string().as_bytes()).expect("writing to a Vec cannot fail");
    STANDARD.encode(data.finish().expect("writing to a Vec cannot fail"))
}

/// Fields that the page does not use. Null fields are omitted too.
const UNSHOWN: [&str; 10] = [
    "max_rel_rms",
    "max_scaled",
    "past_neighbour",
    "sigma",
    "shape",
    "computed",
    "one_stage",
    "demanded_of",
    "doubt",
    "shard",
];

/// Maximum number of failing rows per reference for which the next worst values are included.
const LISTED: usize = 100;

/// Removes fields that the page does not show, and rounds numbers to the displayed digits. Use `report.json`
/// for calculations.
fn in_short(mut report: Value) -> Value {
    let references = report["references"].as_array_mut();
    for reference in references.into_iter().flatten() {
        let rows = reference["results"].as_array_mut().into_iter().flatten();
        let (failing, others): (Vec<_>, Vec<_>) = rows.partition(|row| row["verdict"] == "fail");
        let unlisted = failing.into_iter().skip(LISTED).chain(others);
        for row in unlisted {
            for side in ["candidate", "reference"] {
                row["exact"].get_mut(side).and_then(Value::as_object_mut).map(|side| side.remove("next"));
            }
        }
    }
    shorten(&mut report, "");
    report
}

/// Rounds a number: values keep enough digits to distinguish two f32 numbers, errors keep two digits.
fn shorten(value: &mut Value, name: &str) {
    let digits = match name {
        "value" | "exact" | "candidate" | "reference" => 9,
        // The page shows the difference to 1, so all digits are needed.
        "cosine" => 17,
        _ => 4,
    };
    match value {
        Value::Number(number) => {
            if let Some(long) = number.as_f64().filter(|_| number.is_f64()) {
                let short: f64 = format!("{long:.*e}", digits - 1).parse().unwrap_or(long);
                *value = Value::from(short);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shorten(item, name)),
        Value::Object(fields) => {
            let is_shown = |name: &str, field: &Value| {
                let are_counts = matches!(name, "nonfinite" | "zero") && field.is_object();
                let is_usual = name == "step" && *field == 1;
                !are_counts && !is_usual && !field.is_null() && !UNSHOWN.contains(&name)
            };
            fields.retain(|name, field| is_shown(name, field));
            fields.iter_mut().for_each(|(name, field)| shorten(field, name));
        }
        _ => {}
    }
}
