//! Arrays of some rows: what is held is compared, what is not is not.

use serde_json::json;
use xcheck::align::{AlignedDump, Selection};
use xcheck::check::{Mode, Tolerances};
use xcheck::checkpoint::{Point, Site, TapAxis};
use xcheck::diagnose::{cross_check, cross_check_dumps};
use xcheck::dump::{ArrayValues, Dump};
use xcheck::verdict::{Outcome, Verdict};

use super::bed::{Written, ravel, unravel};
use crate::common::{counterpart, reference_of, rules};

/// A place's values with the tap point's own axes.
pub fn canonical(dump: &Dump, site: Site) -> ArrayValues {
    let view = AlignedDump::new(dump).expect("sound").values(site, None).expect("sound").expect("held");
    ArrayValues::from(&view)
}

/// Of each array with an axis of tokens in the prompt's pass only these rows.
fn thinned(dump: &Dump, rows: &[usize], takes: impl Fn(Point) -> bool) -> Written {
    let mut written = Written::of(dump);
    let mut manifest = written.manifest.take();
    for row in manifest["tensors"].as_array_mut().expect("rows") {
        let point: Point = row["tap"].as_str().expect("a tap").parse().expect("a tap point");
        let tokens = point.axes().iter().position(|&axis| axis == TapAxis::Token);
        let (Some(axis), true) = (tokens, row["pass"] == 0 && takes(point)) else { continue };
        let file = row["file"].as_str().expect("a file").to_owned();
        let (shape, values) = written.arrays.remove(&file).expect("it is there");
        let mut thin = shape.clone();
        thin[axis] = rows.len();
        let from = |flat: usize| {
            let mut at = unravel(flat, &thin);
            at[axis] = rows[at[axis]];
            values[ravel(&at, &shape)]
        };
        let taken = (0..thin.iter().product()).map(from).collect();
        row["shape"] = json!(thin);
        row["rows"] = json!(rows);
        written.arrays.insert(file, (thin, taken));
    }
    written.manifest = manifest;
    written
}

fn judge(model: &str, name: &str, dump: &Dump) -> Outcome {
    let (loaded, numerics) = counterpart(model, &reference_of(model, name));
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = rules(&selection, &tolerances, "f32", Mode::Both);
    cross_check("rows", &*loaded.model, &*numerics, dump, rules, &mut ()).expect("the two can be compared")
}

const CASES: [(&str, &str); 3] = [
    ("tiny-llama2", "llama.cpp-f32"),
    ("tiny-gemma3", "transformers-f32"),
    ("tiny-gpt2", "transformers-f32"),
];

#[test]
fn some_rows_pass_and_count_as_what_they_are() {
    for (model, name) in CASES {
        let dump = reference_of(model, name);
        let (whole, scores) =
            (judge(model, name, &dump), thinned(&dump, &[0, 3], |point| point == Point::AttnScores));
        let outcome = judge(model, name, &scores.open());
        assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None), "{model}");
        let count = |outcome: &Outcome| {
            let row =
                outcome.rows.iter().find(|row| row.site.point == Point::AttnScores).expect("it is judged");
            row.judged().expect("it was compared").elements
        };
        assert!(count(&outcome) > 0 && count(&outcome) < count(&whole), "{model}: {}", count(&outcome));
        let everywhere = thinned(&dump, &[0, 2, 3], |_| true);
        let outcome = judge(model, name, &everywhere.open());
        assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None), "{model}");
    }
}

#[test]
fn a_fault_in_a_row_that_is_held_is_found_there() {
    for (model, name) in CASES {
        let dump = reference_of(model, name);
        for point in [Point::AttnScores, Point::AttnNorm, Point::FfnOut] {
            let mut written = thinned(&dump, &[1, 3], |one| one == point);
            let file = format!("p0/l01/{point}.npy");
            let values = &mut written.arrays.get_mut(&file).expect("it is there").1;
            // The first row's first key is seen by it.
            values[0] = values[0] * 1.01 + 0.01;
            let outcome = judge(model, name, &written.open());
            assert_eq!(outcome.verdict, Verdict::Fail, "{model}, {point}");
            let first = outcome.first_divergence().expect("a place");
            assert_eq!(
                (first.site.point, first.site.layer, first.site.pass),
                (point, Some(1), Some(0)),
                "{model}"
            );
        }
    }
}

/// Scores of some queries, over fewer keys than there are: told, as of all queries.
#[test]
fn some_rows_over_another_number_of_keys_are_told() {
    let (model, name) = ("tiny-llama2", "llama.cpp-f32");
    let mut written = thinned(&reference_of(model, name), &[0, 3], |point| point == Point::AttnScores);
    let (shape, values) = written.arrays.get_mut("p0/l01/attn_scores.npy").expect("it is there");
    let keys = shape[2];
    *values = values.chunks(keys).flat_map(|row| row[..keys - 1].to_vec()).collect();
    shape[2] = keys - 1;
    let shape = shape.clone();
    written.edit_rows(|row| {
        if row["file"] == "p0/l01/attn_scores.npy" {
            row["shape"] = json!(shape);
        }
    });
    let outcome = judge(model, name, &written.open());
    assert_eq!(outcome.verdict, Verdict::Fail);
    let first = outcome.first_divergence().expect("a place");
    assert_eq!((first.site.point, first.site.layer), (Point::AttnScores, Some(1)));
}

/// Of two dumps the rows that both hold are compared, whatever lies elsewhere.
#[test]
fn two_dumps_are_compared_in_rows_that_both_hold() {
    let compared = |one: &Dump, other: &Dump| {
        let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
        let rules = rules(&selection, &tolerances, "f32", Mode::Accumulated);
        cross_check_dumps("rows", one, other, rules).expect("they can be compared")
    };
    for (model, name) in CASES {
        let dump = reference_of(model, name);
        let takes = |point: Point| [Point::FfnOut, Point::AttnScores, Point::AttnWeights].contains(&point);
        let [one, other] = [[1, 3], [2, 3]].map(|rows| thinned(&dump, &rows, takes));
        for (a, b) in [(&one.open(), &dump), (&dump, &one.open()), (&one.open(), &other.open())] {
            let outcome = compared(a, b);
            assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None), "{model}");
        }
        // The fault stands in row 3, the second of both.
        let mut wrong = one.clone();
        let (shape, values) = wrong.arrays.get_mut("p0/l00/ffn_out.npy").expect("it is there");
        values[shape[1]] += 1.0;
        assert_eq!(compared(&wrong.open(), &other.open()).verdict, Verdict::Fail, "{model}");
        // And here in row 1, which the other has not.
        let mut apart = one.clone();
        apart.arrays.get_mut("p0/l00/ffn_out.npy").expect("it is there").1[0] += 1.0;
        assert_eq!(compared(&apart.open(), &other.open()).verdict, Verdict::Pass, "{model}");
        let none = thinned(&dump, &[0], takes).open();
        let outcome = compared(&one.open(), &none);
        assert_eq!(outcome.verdict, Verdict::Inconclusive, "{model}");
        assert!(outcome.reason.is_some_and(|reason| reason.contains("no row in common")), "{model}");
    }
}

#[test]
fn values_that_were_rounded_before_they_were_stored_say_so() {
    let (model, name) = ("tiny-qwen3", "transformers-f32");
    let mut written = Written::of(&reference_of(model, name));
    for (_, values) in written.arrays.values_mut() {
        values.iter_mut().for_each(|value| *value = half::bf16::from_f32(*value).to_f32());
    }
    written.edit_rows(|row| row["computed"] = json!("bf16"));
    let outcome = judge(model, name, &written.open());
    assert_eq!(outcome.verdict, Verdict::Pass, "{:?}", outcome.reason);
    written.edit_rows(|row| drop(row.as_object_mut().expect("an object").remove("computed")));
    assert_ne!(judge(model, name, &written.open()).verdict, Verdict::Pass);
}
