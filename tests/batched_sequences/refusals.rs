//! What contradicts itself is refused with what is wrong.

use serde_json::{Value, json};

use super::bed::{Stand, Written, twice};
use crate::common::reference_of;

fn packed(tokens: usize) -> Stand {
    let own = |whose| (0..tokens).map(move |at| Some((whose, at)));
    Stand { is_batch: false, entries: vec![own(0).chain(own(1)).collect()] }
}

fn batch() -> Written {
    twice(&reference_of("tiny-gpt2", "transformers-f32"), packed)
}

#[track_caller]
fn assert_refused(mut written: Written, edit: impl FnOnce(&mut Value), expected: &str) {
    edit(&mut written.manifest);
    let message = written.open_all().expect_err("it is refused").to_string();
    assert!(message.contains(expected), "{message}");
}

fn row_of<'m>(manifest: &'m mut Value, tap: &str) -> &'m mut Value {
    let rows = manifest["tensors"].as_array_mut().expect("rows").iter_mut();
    rows.into_iter().find(|row| row["tap"] == tap && row["pass"] == 0).expect("the row is there")
}

#[test]
fn sequences_that_do_not_fit_are_refused() {
    assert_refused(batch(), |json| json["version"] = json!(1), "missing field `tokens`");
    assert_refused(batch(), |json| json["input"] = json!({}), "neither tokens nor sequences");
    assert_refused(batch(), |json| json["input"]["sequences"] = json!([]), "input.sequences is empty");
    let same = "of input.sequences[0] and [1]";
    let name = |number: usize, name: &'static str| {
        move |json: &mut Value| json["input"]["sequences"][number]["name"] = json!(name)
    };
    assert_refused(batch(), |json| (0..2).for_each(|number| name(number, "a")(json)), same);
    assert_refused(
        batch(),
        |json| {
            json["input"]["sequences"][0].as_object_mut().expect("a sequence").remove("name");
            name(1, "0")(json);
        },
        same,
    );
    assert_refused(batch(), |json| json["passes"][0]["sequence"][0] = json!(2), "invalid sequence 2");
    assert_refused(
        batch(),
        |json| drop(json["passes"][0]["position"].as_array_mut().map(Vec::pop)),
        "\"sequence\" has",
    );
    assert_refused(
        batch(),
        |json| json["passes"][0]["position"][1] = json!(5),
        "expected consecutive positions",
    );
    assert_refused(
        batch(),
        |json| json["passes"][1]["position"] = json!([9, 9]),
        "passes[1] starts at position 9",
    );
    assert_refused(
        batch(),
        |json| json["input"]["sequences"][1]["tokens"][0] = json!(500),
        "sequence 1: the tokens of the passes differ from input.tokens",
    );
    assert_refused(batch(), |json| row_of(json, "q")["shape"][0] = json!(5), "do not give the expected");
    assert_refused(
        batch(),
        |json| row_of(json, "last_logits")["shape"] = json!([3, 512]),
        "reads 2 sequences",
    );
    assert_refused(
        batch(),
        |json| row_of(json, "k_cache")["shape"][0] = json!(99),
        "describe them in \"keys\"",
    );
    let keys = json!({"sequence": [0, 0], "position": [0, 2]});
    assert_refused(batch(), |json| json["passes"][0]["keys"] = keys, "keys");
    for rows in [json!([3, 1]), json!([0, 99]), json!([])] {
        assert_refused(batch(), |json| row_of(json, "q")["rows"] = rows, "invalid \"rows\"");
    }
    let cut = json!({"shape": [4, 2], "end": [2, 2]});
    assert_refused(batch(), |json| row_of(json, "q")["of"] = cut, "\"of\" selects shape");
    assert_refused(
        batch(),
        |json| row_of(json, "q")["shape"] = json!([1u64 << 40, 1u64 << 40, 2]),
        "too large",
    );
    assert_refused(
        batch(),
        |json| row_of(json, "q")["shape"] = json!([0, 1u64 << 40, 1u64 << 40]),
        "is empty",
    );
    let last = u64::MAX;
    assert_refused(
        batch(),
        |json| json["passes"][1]["position"] = json!(last),
        "passes[1] starts at position",
    );
    assert_refused(
        batch(),
        |json| json["passes"][1]["position"] = json!([last, 0]),
        "passes[1] starts at position",
    );
    assert_refused(batch(), |json| row_of(json, "q")["sketch"] = json!(true), "\"sketch\" cannot be used");
}

#[test]
fn rows_and_parts_that_do_not_fit_are_refused() {
    let alone = || Written::of(&reference_of("tiny-gpt2", "transformers-f32"));
    let tokens = alone().arrays["p0/l00/q.npy"].0[0];
    alone().open_all().expect("unedited it is sound");
    for rows in [json!([1, 0]), json!([0, 0]), json!([0, tokens]), json!([])] {
        let edit = |json: &mut Value| row_of(json, "q")["rows"] = rows;
        assert_refused(alone(), edit, "invalid \"rows\"");
    }
    assert_refused(alone(), |json| row_of(json, "q")["rows"] = json!([0]), "axis 'token' has length");
    assert_refused(alone(), |json| row_of(json, "k_cache")["rows"] = json!([0]), "that has a token axis");
    let of = |shape: Value, end: Value| json!({"shape": shape, "end": end});
    let shape = alone().arrays["p0/l00/q.npy"].0.clone();
    let beyond = of(json!(shape), json!([shape[0], shape[1] + 1, shape[2]]));
    assert_refused(alone(), |json| row_of(json, "q")["of"] = beyond, "is outside shape");
    let smaller = of(json!(shape), json!([shape[0], 1, shape[2]]));
    assert_refused(alone(), |json| row_of(json, "q")["of"] = smaller, "\"of\" selects shape");
    assert_refused(
        alone(),
        |json| row_of(json, "q")["computed"] = json!("q8_0"),
        "invalid \"computed\" 'q8_0'",
    );
    let own = |json: &mut Value| row_of(json, "q")["computed"] = json!("f8_e4m3");
    assert_refused(alone(), own, "invalid \"computed\" 'f8_e4m3'");
    assert_refused(alone(), |json| row_of(json, "q")["dtype"] = json!("f8_e3m4"), "expected one of f32");
    // Of as many elements in all, which only the array itself can tell.
    let mut written = alone();
    row_of(&mut written.manifest, "q")["of"] =
        json!({"shape": [2, shape[0], shape[1], shape[2]], "end": [1, shape[0], shape[1], shape[2]]});
    row_of(&mut written.manifest, "q")["shape"] = json!([1, shape[0], shape[1], shape[2]]);
    let dump = written.open();
    let site =
        dump.sites().find(|site| site.point.name() == "q" && site.pass == Some(0) && site.layer == Some(0));
    let message = dump.read(site.expect("it is listed")).expect_err("refused").to_string();
    assert!(message.contains("cannot be reshaped to"), "{message}");
}
