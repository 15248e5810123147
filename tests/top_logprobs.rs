//! Two dumps without a model whose passes are cut, written and rounded differently: what is the same passes, and nothing is left
//! out without a word.

use crate::common::terminal::Terminal;
use serde_json::{Value, json};

/// One array of a pass.
#[derive(Clone)]
struct Array {
    tap: &'static str,
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Array {
    fn new(tap: &'static str, rows: &[Vec<f64>]) -> Self {
        Self { tap, shape: vec![rows.len(), rows[0].len()], values: rows.concat() }
    }

    fn is_of_ids(&self) -> bool {
        self.tap == "top_ids"
    }
}

/// Tokens of each pass, with what is held of it, and what log-probabilities are multiples of.
type Passes<'p> = &'p [(&'p [u32], Vec<Array>, Option<f64>)];

fn written(terminal: &Terminal, name: &str, passes: Passes) -> String {
    let (mut position, mut body) = (0, Vec::new());
    let (mut told, mut rows) = (Vec::new(), Vec::new());
    let mut header = json!({});
    for (pass, (tokens, arrays, step)) in passes.iter().enumerate() {
        told.push(json!({"position": position, "tokens": tokens}));
        position += tokens.len();
        for array in arrays {
            let key = format!("p{pass}/{}", array.tap);
            let dtype = if array.is_of_ids() { "u32" } else { "f32" };
            let mut row = json!({"tap": array.tap, "pass": pass, "dtype": dtype, "shape": array.shape, "file": format!("{key}.npy")});
            if let (Some(step), true) = (step, array.tap.ends_with("logprobs")) {
                row["step"] = json!(step);
            }
            rows.push(row);
            let start = body.len();
            for &value in &array.values {
                let word = if array.is_of_ids() {
                    (value as u32).to_le_bytes()
                } else {
                    (value as f32).to_le_bytes()
                };
                body.extend(word);
            }
            header[key] = json!({"dtype": dtype.to_uppercase(), "shape": array.shape, "data_offsets": [start, body.len()]});
        }
    }
    let tokens: Vec<u32> = passes.iter().flat_map(|(tokens, ..)| tokens.iter().copied()).collect();
    let manifest = json!({
        "format": "xcheck-dump", "version": 2,
        "producer": {"name": name, "settings": {"dtype": "f32"}}, "model": {"architecture": "llama"},
        "input": {"tokens": tokens, "decode": "forced"}, "passes": told, "tensors": rows,
    });
    header["__metadata__"] = json!({"xcheck": manifest.to_string()});
    let mut text = header.to_string();
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    let path = terminal.path().join(format!("{name}.safetensors"));
    let file = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &body].concat();
    std::fs::write(&path, file).expect("it is written");
    path.to_str().expect("a plain path").to_owned()
}

fn compared(candidate: Passes, reference: Passes) -> (i32, Value) {
    let terminal = Terminal::new();
    let (one, other) = (written(&terminal, "mine", candidate), written(&terminal, "theirs", reference));
    terminal.json(&["compare", &one, &other, "--no-report"])
}

#[track_caller]
fn assert_code(candidate: Passes, reference: Passes, wanted: i32) -> Value {
    let (code, report) = compared(candidate, reference);
    assert_eq!(code, wanted, "{report}");
    report
}

/// The first `k` of four ids after each token, with their log-probabilities; `alter` gets the row of the sequence.
fn named(
    rows: std::ops::Range<usize>,
    k: usize,
    alter: impl Fn(usize, &mut [f64], &mut [f64]),
) -> Vec<Array> {
    let row = |row: usize| {
        let (mut ids, mut values) = ([3.0, 4.0, 5.0, 7.0], [-0.7, -1.2, -2.0, -4.6]);
        alter(row, &mut ids, &mut values);
        (ids[..k].to_vec(), values[..k].to_vec())
    };
    let (ids, values): (Vec<_>, Vec<_>) = rows.map(row).unzip();
    vec![Array::new("top_ids", &ids), Array::new("top_logprobs", &values)]
}

const TOKENS: [u32; 4] = [1, 5, 9, 7];

fn honest(_: usize, _: &mut [f64], _: &mut [f64]) {}

#[test]
fn another_number_of_top_logprobs_in_each_pass_is_compared_row_by_row() {
    let whole = |alter: fn(usize, &mut [f64], &mut [f64])| vec![(&TOKENS[..], named(0..4, 4, alter), None)];
    let cut = |alter: fn(usize, &mut [f64], &mut [f64])| {
        vec![(&TOKENS[..2], named(0..2, 4, alter), None), (&TOKENS[2..], named(2..4, 2, alter), None)]
    };
    for (one, other) in [(whole as fn(_) -> _, cut as fn(_) -> _), (cut, whole)] {
        let report = assert_code(&one(honest), &other(honest), 0);
        assert_eq!(report["references"][0]["coverage"]["skipped"], json!([]), "{report}");
        let values =
            |row: usize, _: &mut [f64], values: &mut [f64]| values[0] -= if row == 3 { 0.5 } else { 0.0 };
        assert_code(&one(values), &other(honest), 1);
        // What both name is the likeliest two there, and here the fourth.
        let ids = |row: usize, ids: &mut [f64], values: &mut [f64]| {
            if row == 1 {
                (ids[3], values[3]) = (8.0, -3.0);
            }
        };
        assert_code(&one(ids), &other(honest), 1);
        let beyond_both = |row: usize, ids: &mut [f64], _: &mut [f64]| {
            if row == 3 {
                ids[3] = 8.0;
            }
        };
        assert_code(&one(beyond_both), &other(honest), 0);
    }
}

#[test]
fn passes_of_other_shapes_are_told_and_not_left_out() {
    let norm = |rows: usize, width: usize| Array::new("final_norm", &vec![vec![1.0; width]; rows]);
    let whole = [(&TOKENS[..], [named(0..4, 4, honest), vec![norm(4, 6)]].concat(), None)];
    let cut = |width: usize| {
        [
            (&TOKENS[..2], [named(0..2, 4, honest), vec![norm(2, 6)]].concat(), None),
            (&TOKENS[2..], [named(2..4, 4, honest), vec![norm(2, width)]].concat(), None),
        ]
    };
    assert_code(&whole, &cut(6), 0);
    let report = assert_code(&whole, &cut(3), 3);
    let told = report["references"][0]["coverage"].to_string();
    assert!(told.contains("shapes differ between passes"), "{told}");
}

/// Logits of every token stand beside those of the last one that the other has kept only where these are compared.
#[test]
fn logits_of_which_the_other_kept_a_row_are_not_left_out_unless_that_is_compared() {
    let logits = |rows: usize| Array::new("logits", &vec![vec![1.0, 2.0, 3.0]; rows]);
    let last = || Array { tap: "last_logits", shape: vec![3], values: vec![1.0, 2.0, 3.0] };
    let both = |rows: usize| vec![logits(rows), last()];
    let reference = [(&TOKENS[..2], both(2), None), (&TOKENS[2..], vec![last()], None)];
    let complete = [(&TOKENS[..2], both(2), None), (&TOKENS[2..], both(2), None)];
    let without = [(&TOKENS[..2], both(2), None), (&TOKENS[2..], vec![logits(2)], None)];
    assert_code(&complete, &reference, 0);
    assert_code(&without, &reference, 3);
}

#[test]
fn a_top_logprobs_id_that_is_named_twice_is_refused() {
    let twice = |row: usize, ids: &mut [f64], _: &mut [f64]| {
        if row == 2 {
            ids[1] = ids[0];
        }
    };
    let (wrong, right) =
        ([(&TOKENS[..], named(0..4, 4, twice), None)], [(&TOKENS[..], named(0..4, 4, honest), None)]);
    for (one, other) in [(&wrong, &right), (&right, &wrong)] {
        let report = assert_code(one, other, 2);
        assert!(
            report["error"].as_str().is_some_and(|told| told.contains("row 2: duplicate id 3")),
            "{report}"
        );
    }
}

#[test]
fn a_logprob_rounded_to_decimals_hides_no_more_than_its_step() {
    let with = |step: f64, by: f64| {
        let alter = move |_: usize, _: &mut [f64], values: &mut [f64]| {
            values.iter_mut().for_each(|value| *value += by)
        };
        [(&TOKENS[..], named(0..4, 4, alter), Some(step))]
    };
    let reference = [(&TOKENS[..], named(0..4, 4, honest), None)];
    assert_code(&with(0.05, 0.0), &reference, 0);
    assert_code(&with(1e-4, 0.0), &reference, 0);
    assert_code(&with(0.05, -0.1), &reference, 1);
    for (step, by, told) in
        [(1e6, 0.0, "of at most 0.05"), (0.05, 0.02, "is not a multiple of"), (f64::MAX, -3.0, "at most")]
    {
        let report = assert_code(&with(step, by), &reference, 2);
        assert!(report["error"].as_str().is_some_and(|error| error.contains(told)), "{report}");
    }
}

/// The step of one pass says nothing of the others.
#[test]
fn a_step_is_that_of_its_own_pass() {
    let cut = |steps: [Option<f64>; 2], by: f64| {
        let alter =
            move |row: usize, _: &mut [f64], values: &mut [f64]| values[0] -= if row == 3 { by } else { 0.0 };
        [(&TOKENS[..2], named(0..2, 4, alter), steps[0]), (&TOKENS[2..], named(2..4, 4, alter), steps[1])]
    };
    let whole = [(&TOKENS[..], named(0..4, 4, honest), None)];
    assert_code(&whole, &cut([Some(0.05), None], 0.024), 3);
    assert_code(&whole, &cut([Some(0.05); 2], 0.0), 0);
}

/// Of a sure prediction one less the sum is rounding, whether of decimals or of `f32`.
#[test]
fn another_token_far_behind_a_sure_one_is_a_tie_where_rounding_makes_it_likely() {
    let sure = |third: f64, first: f64, value: f64| {
        move |_: usize, ids: &mut [f64], values: &mut [f64]| {
            ids.copy_from_slice(&[3.0, 4.0, third, 9.0]);
            values.copy_from_slice(&[first, -12.0, value, -30.0]);
        }
    };
    let of = |third: f64, first: f64, value: f64, step: Option<f64>| {
        [(&TOKENS[..], named(0..4, 3, sure(third, first, value)), step)]
    };
    // Four decimals leave nothing of the first token's distance from 1.
    assert_code(&of(7.0, 0.0, -12.5, Some(1e-4)), &of(8.0, 0.0, -12.5, Some(1e-4)), 0);
    // In f32 of logits about 30, where the logarithm of the sum is known to 1e-6.
    assert_code(&of(7.0, -9.5367431640625e-6, -12.5, None), &of(8.0, -9.5367431640625e-6, -12.5, None), 0);
    // What is likely by itself is another token.
    assert_code(&of(7.0, -0.1, -2.5, Some(1e-4)), &of(8.0, -0.1, -4.5, Some(1e-4)), 1);
}
