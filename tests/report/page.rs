//! `report.html` holds the report, runs nothing but its own script, and stays small.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use serde_json::Value;
use sha2::{Digest, Sha256};
use xcheck::checkpoint::{Point, TapScope};
use xcheck::report::{Report, html, json};

use super::fixture::{everything, measurement, outcome, report, row, site};

fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).expect("it starts");
    rest.split_once(end).expect("it ends").0
}

/// The report that a page holds, as a browser reads it.
pub fn held(page: &str) -> Value {
    let data = between(page, r#"<script type="text/plain" id="report">"#, "</script>");
    let data = STANDARD.decode(data).expect("it is base64");
    serde_json::from_reader(ZlibDecoder::new(&*data)).expect("it is JSON")
}

#[test]
fn it_holds_the_report() {
    let written: Value = serde_json::from_str(&json(&everything())).expect("it is JSON");
    let held = held(&html(&everything()));
    assert_eq!(held["command"], written["command"]);
    let (held, written) = (&held["references"], &written["references"]);
    for (held, written) in held.as_array().unwrap().iter().zip(written.as_array().unwrap()) {
        for field in ["name", "verdict", "reason", "notes", "findings", "next"] {
            assert_eq!(held[field], written[field]);
        }
        let rows = |reference: &Value| reference["results"].as_array().unwrap().len();
        assert_eq!(rows(held), rows(written));
        let value = |reference: &Value| reference["first_divergence"]["candidate"].as_f64();
        assert_eq!(value(held).map(|value| value as f32), value(written).map(|value| value as f32));
    }
}

#[test]
fn only_its_own_style_and_script_may_run() {
    let page = html(&everything());
    let policy = between(&page, r#"http-equiv="Content-Security-Policy" content=""#, "\"");
    assert!(policy.starts_with("default-src 'none';"));
    let script =
        page.rsplit_once("<script>").expect("it has one").1.split_once("</script>").expect("it ends").0;
    let style = between(&page, "<style>", "</style>");
    for (name, content) in [("script", script), ("style", style)] {
        let hash = STANDARD.encode(Sha256::digest(content));
        assert!(policy.contains(&format!("{name}-src 'sha256-{hash}'")), "{name}: {policy}");
    }
    assert!(
        !page.contains("http://") || page.matches("http://").all(|_| page.contains("www.w3.org/2000/svg"))
    );
    assert!(!page.contains("https://"), "it asks nothing of a network");
}

#[test]
fn names_from_files_end_no_element() {
    let hostile = "</script><script>alert(1)</script><!--";
    let mut hostile_report = everything();
    for result in &mut hostile_report.results {
        result.model.name = hostile.to_owned();
        result.outcome.subject.name = hostile.to_owned();
        result.outcome.notes.push(hostile.to_owned());
    }
    let page = html(&hostile_report);
    assert!(!page.contains("<script>alert") && !page.contains("<!--"));
    assert_eq!(page.matches("</script>").count(), html(&everything()).matches("</script>").count());
    assert_eq!(held(&page)["references"][0]["name"], hostile);
}

/// A report of the size of a model with 13 billion parameters: 40 layers, four passes, everything failing or nothing.
fn large(candidate: f64) -> Report {
    let layers = (0..4).flat_map(|pass| (0..40).map(move |layer| (layer, pass)));
    let points = || {
        let of_layers = Point::ALL.iter().filter(|point| point.scope() == TapScope::Layer);
        let of_all = of_layers.filter(|point| !point.is_of_experts() && !point.is_of_recurrent_layers());
        of_all.filter(|point| !["sub_norm", "attn_gate"].iter().any(|part| point.name().contains(part)))
    };
    let found = || measurement(&[3, 17], candidate, 0.25);
    let rows = layers.flat_map(|(layer, pass)| points().map(move |&point| (point, layer, pass)));
    let rows = rows.map(|(point, layer, pass)| row(site(point, layer, pass), Some(found()), Some(found())));
    report([outcome("llama.cpp-q8_0", rows.collect())])
}

#[test]
fn a_page_of_a_large_model_stays_below_one_and_a_half_megabytes() {
    for candidate in [0.250_000_01, 0.75] {
        let page = html(&large(candidate));
        assert!(held(&page)["references"][0]["results"].as_array().unwrap().len() >= 40 * 4 * 20);
        assert!(page.len() < 1_500_000, "{} bytes", page.len());
    }
}
