//! Upgrade of `report.json` from version 3.

use serde_json::{Value, json};

/// Fields of version 3, with their names in version 4.
const FIELDS: [(&str, &str); 7] = [
    ("headroom", "bound_ratio"),
    ("beyond", "over"),
    ("introduced", "local"),
    ("total", "accumulated"),
    ("in_total", "accumulated"),
    ("rounding", "noise_floor"),
    ("rounding_of_total", "accumulated_noise_floor"),
];

/// Changes a report of version 3 to version 4.
pub(crate) fn from_version_3(mut report: Value) -> Value {
    for reference in report.get_mut("references").and_then(Value::as_array_mut).into_iter().flatten() {
        for part in ["first_divergence", "checkpoints", "results"] {
            reference.get_mut(part).into_iter().for_each(|value| rename(value, part));
        }
        reference.get_mut("mode").into_iter().for_each(rename_word);
        reference.pointer_mut("/first_divergence/judged").into_iter().for_each(rename_word);
        add(reference, json!({"gate": "rounding"}));
        let judged = json!({"gate": reference["gate"], "computed": "f32", "one_stage": false, "demanded_of": null, "doubt": "none"});
        for row in reference.get_mut("results").and_then(Value::as_array_mut).into_iter().flatten() {
            add(row, json!({"judged": judged}));
        }
    }
    report.get_mut("architectures").into_iter().for_each(|value| rename(value, ""));
    report
}

/// Renames the fields of a value, and adds fields that the first reports of version 3 do not have.
fn rename(value: &mut Value, name: &str) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, name)),
        Value::Object(fields) => {
            for (old, new) in FIELDS {
                if let Some(field) = fields.remove(old) {
                    fields.insert(new.to_owned(), field);
                }
            }
            fields.iter_mut().for_each(|(name, field)| rename(field, name));
            add(
                value,
                match name {
                    "local" | "accumulated" => {
                        json!({"past_neighbour": "nan", "zero": {"candidate": false, "reference": false}})
                    }
                    "nonfinite" => json!({"shared": 0}),
                    "tolerance" => json!({"asked": false}),
                    "exact" => json!({"shape": []}),
                    "spread" => json!({"step": 1}),
                    "worst" | "next" => json!({"sigma": 0.0, "bound_ratio": "nan"}),
                    _ => json!({}),
                },
            );
        }
        _ => {}
    }
}

fn rename_word(word: &mut Value) {
    if let Some((_, new)) = FIELDS.iter().find(|(old, _)| *word == *old) {
        *word = (*new).into();
    }
}

/// Adds the missing fields of an object.
fn add(value: &mut Value, defaults: Value) {
    if let (Value::Object(fields), Value::Object(defaults)) = (value, defaults) {
        defaults.into_iter().for_each(|(name, default)| _ = fields.entry(name).or_insert(default));
    }
}
