//! docs/reference/report-format.md is what report.json is.

use std::collections::BTreeSet;

use serde_json::Value;
use xcheck::change::CauseKind;
use xcheck::checkpoint::Point;
use xcheck::noise::NoiseFloor;
use xcheck::report::{Report, json};
use xcheck::verdict::{Finding, Outcome, Verdict, Waiver};

use super::fixture::{failing, report, row, site, small};

const DOCS: &str = include_str!("../../docs/reference/report-format.md");

/// The example, the only block of JSON.
fn example() -> Value {
    let block = DOCS.split("```json\n").nth(1).expect("there is an example");
    let text = block.split("```").next().expect("a block ends");
    serde_json::from_str(text).expect("the example is JSON")
}

/// Every way from the top to a field, whatever its value: of lists, those of all entries. What a producer says of its
/// settings is its own.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields_) => {
            for (name, value) in fields_ {
                let path = format!("{path}.{name}");
                found.insert(path.clone());
                if name != "settings" {
                    fields(value, &path, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, &format!("{path}[]"), found)),
        _ => {}
    }
}

fn all_fields(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    fields(value, "", &mut found);
    found
}

/// A report in which no field is null that can have fields of its own.
fn full() -> Report {
    let mut outcome = failing();
    let place = site(Point::FfnOut, 1, 0);
    let mut weighed = row(place, Some(small(1)), Some(small(1)));
    weighed.weigh(NoiseFloor { max_scaled: 1e-4, rel_l2: 1e-4, max_abs: 2e-4 }, None);
    let said = ["a known bug", "bugs/7", "2026-12-31"].map(str::to_owned);
    let [reason, link, expires] = said;
    weighed.known = Some(Waiver { reason, link, expires });
    outcome.rows.push(weighed);
    let findings = vec![Finding {
        kind: CauseKind::Activation,
        site: place,
        points: vec![place.point],
        layers: vec![1],
        key: Some("hidden_act".into()),
        reference: Some("gelu".into()),
        candidate: Some("silu".into()),
        what: "silu where the reference has gelu".into(),
        sites: vec![place],
        supposed: Some("activation=silu".into()),
        confirm: None,
        confirmed: Some(Verdict::Pass),
        verified_on: vec!["ffn_act, layer 1, pass 0".into()],
        remaining: vec!["activation=relu".into()],
        excluded: vec!["gate_up_swap".into()],
    }];
    report([Outcome { findings, ..outcome }])
}

fn parsed(report: &Report) -> Value {
    serde_json::from_str(&json(report)).expect("the report is JSON")
}

#[test]
fn the_example_of_the_docs_has_the_fields_of_a_report() {
    let (documented, written) = (all_fields(&example()), all_fields(&parsed(&full())));
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| -> Vec<String> {
        one.difference(other).cloned().collect()
    };
    assert_eq!(only(&documented, &written), Vec::<String>::new(), "in the docs only");
    assert_eq!(only(&written, &documented), Vec::<String>::new(), "not in the docs");
}

#[test]
fn the_example_is_of_this_version() {
    let (documented, written) = (example(), parsed(&full()));
    for field in ["schema", "version"] {
        assert_eq!(documented[field], written[field], "{field}");
    }
}

#[test]
fn every_field_is_explained() {
    for field in all_fields(&parsed(&full())) {
        let name = field.rsplit('.').next().expect("a field has a name").trim_end_matches("[]");
        assert!(DOCS.contains(&format!("`{name}`")), "{field}");
    }
}
