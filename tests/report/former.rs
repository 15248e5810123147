//! Reports of version 3, whose fields have other names, are still read.

use std::fs;

use serde_json::Value;
use xcheck::report::{ReportContent, json, parse, program};

use crate::common::terminal::Terminal;

/// A report that the program wrote before version 4: local and accumulated errors, noise floors and exact values.
const OLD: &str = "tests/data/reports/version-3.json";

const RENAMED: [(&str, &str); 7] = [
    ("headroom", "bound_ratio"),
    ("beyond", "over"),
    ("introduced", "local"),
    ("total", "accumulated"),
    ("in_total", "accumulated"),
    ("rounding", "noise_floor"),
    ("rounding_of_total", "accumulated_noise_floor"),
];

fn old() -> Value {
    let text = fs::read_to_string(format!("{}/{OLD}", env!("CARGO_MANIFEST_DIR"))).expect("it ships");
    let mut report: Value = serde_json::from_str(&text).expect("it is JSON");
    report["xcheck"] = program();
    report
}

/// Gives the fields of rows and checkpoints their names of version 4.
fn renamed(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(renamed),
        Value::Object(fields) => {
            for (old, new) in RENAMED {
                if let Some(field) = fields.remove(old) {
                    fields.insert(new.to_owned(), field);
                }
            }
            fields.values_mut().for_each(renamed);
        }
        _ => {}
    }
}

/// Leaves out fields that do not apply: since version 4, an exact value has none of them.
fn without_empty_fields(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(without_empty_fields),
        Value::Object(fields) => {
            fields.values_mut().for_each(without_empty_fields);
            fields.retain(|_, field| !field.is_null() && *field != Value::Array(Vec::new()));
        }
        _ => {}
    }
}

#[test]
fn a_report_of_version_3_is_read_with_every_figure() {
    let mut expected = old();
    for name in ["headroom", "beyond", "introduced", "total", "in_total", "rounding", "rounding_of_total"] {
        assert!(expected.to_string().contains(&format!("\"{name}\":")), "the old report has no {name}");
    }
    let Ok(ReportContent::Report(report)) = parse(&expected.to_string()) else { panic!("it is a report") };
    let mut written: Value = serde_json::from_str(&json(&report)).expect("it is JSON");
    assert_eq!((&expected["version"], &written["version"]), (&3.into(), &4.into()));
    for part in ["results", "checkpoints"] {
        let expected = &mut expected["references"][0][part];
        renamed(expected);
        let written = &mut written["references"][0][part];
        without_empty_fields(expected);
        without_empty_fields(written);
        assert_eq!(written, expected, "{part}");
    }
}

#[test]
fn reports_of_both_versions_can_be_compared() {
    let terminal = Terminal::new();
    let mut report = old();
    report["references"][0]["mode"] = "introduced".into();
    fs::write(terminal.path().join("old.json"), report.to_string()).expect("it can be written");
    renamed(&mut report["references"][0]);
    (report["version"], report["references"][0]["mode"]) = (4.into(), "local".into());
    fs::write(terminal.path().join("new.json"), report.to_string()).expect("it can be written");
    let (code, diff) = terminal.json(&["diff", "old.json", "new.json"]);
    assert_eq!((code, &diff["changes"]), (0, &Value::Array(Vec::new())), "{diff:#}");
}
