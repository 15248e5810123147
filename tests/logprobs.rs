//! Dumps that hold log-probabilities alone: those of real engines pass, what is wrong with others fails and is named, and
//! what is only written otherwise passes.

use std::path::{Path, PathBuf};

use crate::common::share::one_of;
use crate::common::terminal::Terminal;
use serde_json::{Value, json};
use xcheck::check::{ArrayComparison, Tolerance};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Manifest;
use xcheck::measure::{ColumnSelection, ValuePrecision, measure};
use xcheck::tensor::Tensor;
use xcheck::verdict::{SiteResult, Verdict};
use xcheck::view::View;

/// A dump of `reference-scripts/dump/dump_logprobs.py`.
fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logprobs").join(format!("{name}.safetensors"))
}

const REAL: [(&str, &str); 11] = [
    ("tiny-llama3", "tiny-llama3-transformers-f32"),
    ("tiny-llama3", "tiny-llama3-transformers-bf16"),
    ("tiny-llama3-f32", "tiny-llama3-llama.cpp-f32"),
    ("tiny-llama3-q8_0", "tiny-llama3-llama.cpp-q8_0"),
    ("tiny-gemma3", "tiny-gemma3-transformers-f32"),
    ("tiny-gemma3", "tiny-gemma3-transformers-bf16"),
    ("tiny-gemma3-f32", "tiny-gemma3-llama.cpp-f32"),
    ("tiny-gemma3-q8_0", "tiny-gemma3-llama.cpp-q8_0"),
    ("tiny-gpt2", "tiny-gpt2-transformers-f32"),
    ("tiny-gpt2", "tiny-gpt2-transformers-bf16"),
    ("tiny-gpt2-f32", "tiny-gpt2-llama.cpp-f32"),
];

fn check(terminal: &Terminal, model: &str, dump: &Path) -> (i32, Value) {
    let dump = dump.to_str().expect("a plain path");
    terminal.json(&["check", "--model", model, "--candidate", dump, "--no-report"])
}

/// The rows of a report, by tap.
fn row<'r>(report: &'r Value, tap: &str) -> &'r Value {
    let rows = report["references"][0]["results"].as_array().expect("rows");
    rows.iter().find(|row| row["tap"] == tap).unwrap_or_else(|| panic!("no {tap} in {report}"))
}

fn kinds(report: &Value) -> Vec<&str> {
    let findings = report["references"][0]["findings"].as_array().expect("findings");
    findings.iter().map(|finding| finding["kind"].as_str().expect("a kind")).collect()
}

/// A dump of transformers in `f32`, to be written otherwise.
struct Written {
    tokens: Vec<u32>,
    following: Vec<f64>,
    ids: Vec<Vec<u32>>,
    top: Vec<Vec<f64>>,
    settings: Value,
    rows: Option<Vec<usize>>,
    dtype: &'static str,
}

impl Written {
    fn of(name: &str) -> Self {
        let bytes = std::fs::read(shipped(name)).expect("it ships");
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
        let manifest: Value =
            serde_json::from_str(header["__metadata__"]["xcheck"].as_str().expect("a manifest"))
                .expect("JSON");
        let words = |tap: &str| -> Vec<[u8; 4]> {
            let place = &header[&format!("p0/{tap}")]["data_offsets"];
            let at = |end: usize| 8 + length + place[end].as_u64().expect("an offset") as usize;
            bytes[at(0)..at(1)].chunks(4).map(|word| word.try_into().expect("four")).collect()
        };
        let floats = |tap: &str| words(tap).into_iter().map(|word| f64::from(f32::from_le_bytes(word)));
        let tokens = manifest["input"]["tokens"].as_array().expect("tokens");
        let tokens: Vec<u32> = tokens.iter().map(|id| id.as_u64().expect("an id") as u32).collect();
        let ids: Vec<u32> = words("top_ids").into_iter().map(u32::from_le_bytes).collect();
        let k = ids.len() / tokens.len();
        let top: Vec<f64> = floats("top_logprobs").collect();
        Self {
            following: floats("token_logprobs").collect(),
            ids: ids.chunks(k).map(<[u32]>::to_vec).collect(),
            top: top.chunks(k).map(<[f64]>::to_vec).collect(),
            settings: manifest["producer"]["settings"].clone(),
            tokens,
            rows: None,
            dtype: "f32",
        }
    }

    fn each(mut self, f: impl Fn(f64) -> f64) -> Self {
        self.following.iter_mut().for_each(|y| *y = f(*y));
        self.top.iter_mut().flatten().for_each(|y| *y = f(*y));
        self
    }

    fn bytes(&self, values: impl Iterator<Item = f64>) -> Vec<u8> {
        match self.dtype {
            "f16" => values.flat_map(|y| half::f16::from_f64(y).to_le_bytes()).collect(),
            _ => values.flat_map(|y| (y as f32).to_le_bytes()).collect(),
        }
    }

    fn write(&self, path: &Path, architecture: &str) {
        let (rows, k) = (self.top.len(), self.top[0].len());
        let arrays = [
            (
                "token_logprobs",
                self.dtype,
                vec![self.following.len()],
                self.bytes(self.following.iter().copied()),
            ),
            (
                "top_ids",
                "u32",
                vec![rows, self.ids[0].len()],
                self.ids.iter().flatten().flat_map(|id| id.to_le_bytes()).collect(),
            ),
            ("top_logprobs", self.dtype, vec![rows, k], self.bytes(self.top.iter().flatten().copied())),
        ];
        let tensor = |(tap, dtype, shape, _): &(&str, &str, Vec<usize>, Vec<u8>)| {
            let mut row = json!({"tap": tap, "pass": 0, "dtype": dtype, "shape": shape, "file": format!("p0/{tap}.npy")});
            if let (Some(rows), "token_logprobs") = (&self.rows, *tap) {
                row["rows"] = json!(rows);
            }
            row
        };
        let manifest = json!({
            "format": "xcheck-dump", "version": 2,
            "producer": {"name": "test", "settings": self.settings},
            "model": {"architecture": architecture},
            "input": {"tokens": self.tokens, "decode": "forced"},
            "passes": [{"position": 0, "tokens": self.tokens}],
            "tensors": arrays.iter().map(tensor).collect::<Vec<_>>(),
        });
        let mut header = json!({"__metadata__": {"xcheck": manifest.to_string()}});
        let mut body = Vec::new();
        for (tap, dtype, shape, bytes) in &arrays {
            let end = body.len() + bytes.len();
            header[format!("p0/{tap}")] =
                json!({"dtype": dtype.to_uppercase(), "shape": shape, "data_offsets": [body.len(), end]});
            body.extend(bytes);
        }
        let mut text = header.to_string();
        text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
        let file = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &body].concat();
        std::fs::write(path, file).expect("it is written");
    }

    fn check(&self) -> (i32, Value) {
        self.check_with(&[])
    }

    /// Without causes.
    fn check_quickly(&self) -> (i32, Value) {
        self.check_with(&["--no-causes"])
    }

    fn check_with(&self, more: &[&str]) -> (i32, Value) {
        let terminal = Terminal::new();
        let path = terminal.path().join("dump.safetensors");
        self.write(&path, "llama");
        let dump = path.to_str().expect("a plain path");
        let check = ["check", "--model", "tiny-llama3", "--candidate", dump, "--no-report"];
        terminal.json(&[&check[..], more].concat())
    }
}

fn honest() -> Written {
    Written::of("tiny-llama3-transformers-f32")
}

#[test]
fn what_real_engines_give_passes() {
    let terminal = Terminal::new();
    for (model, name) in one_of(2, REAL) {
        let (code, report) = check(&terminal, model, &shipped(name));
        assert_eq!(code, 0, "{name}: {}", report["references"][0]);
        assert_eq!(report["references"][0]["coverage"]["taps_compared"], 3, "{name}");
        let agreement = &row(&report, "top_logprobs")["accumulated"]["agreement"];
        let rows = agreement["rows"].as_array().expect("rows").len();
        assert_eq!(agreement["same_top"], rows, "{name}");
        assert!(agreement["kl_max"].as_f64().expect("a number") < 1e-3, "{name}: {agreement}");
        assert_eq!(row(&report, "top_logprobs")["drift"], Value::Null, "{name}");
    }
}

/// llama-cpp-python 0.3.36 looks a token up in the row that follows it, where no token begins the sequence.
#[test]
fn what_the_api_says_of_a_model_without_a_first_token_fails_by_a_row() {
    let terminal = Terminal::new();
    let (code, report) = check(&terminal, "tiny-gpt2-f32", &shipped("tiny-gpt2-llama.cpp-api"));
    assert_eq!(code, 1, "{report}");
    assert_eq!(row(&report, "top_logprobs")["verdict"], "pass");
    assert_eq!(row(&report, "token_logprobs")["verdict"], "fail");
    let finding = &report["references"][0]["findings"][0];
    assert_eq!((&finding["kind"], &finding["candidate"]), (&json!("logprobs"), &json!("late")), "{finding}");
}

#[track_caller]
fn assert_named(written: &Written, kind: &str, value: &str) {
    let (code, report) = written.check();
    assert_eq!(code, 1, "{report}");
    let finding = &report["references"][0]["findings"][0];
    assert_eq!((&finding["kind"], &finding["candidate"]), (&json!(kind), &json!(value)), "{finding}");
    assert_eq!(finding["remaining"], json!([]), "{finding}");
}

#[test]
fn decimal_logarithms_are_named() {
    assert_named(&honest().each(|y| y / std::f64::consts::LN_10), "logprobs", "log10");
}

#[test]
fn probabilities_in_their_place_are_named() {
    assert_named(&honest().each(f64::exp), "logprobs", "probabilities");
}

#[test]
fn a_sum_over_the_named_tokens_alone_is_named() {
    let mut written = honest();
    for row in &mut written.top {
        let sum = row.iter().map(|y| y.exp()).sum::<f64>().ln();
        row.iter_mut().for_each(|y| *y -= sum);
    }
    let (code, report) = written.check();
    assert_eq!((code, &row(&report, "token_logprobs")["verdict"]), (1, &json!("pass")), "{report}");
    // Nothing is left for what is not named, which the reference finds likely.
    assert_eq!(row(&report, "top_logprobs")["accumulated"]["agreement"]["kl_max"], "inf");
    assert_named(&written, "logprobs", "of-named");
}

#[test]
fn a_logprobs_list_that_is_shifted_by_one_is_named() {
    let mut written = honest();
    written.following.rotate_right(1);
    assert_named(&written, "logprobs", "previous");
    written.following.rotate_left(2);
    assert_named(&written, "logprobs", "next");
}

#[test]
fn a_first_token_that_was_not_read_is_named() {
    let terminal = Terminal::new();
    let (code, report) = check(&terminal, "tiny-llama3", &shipped("tiny-llama3-without-bos"));
    assert_eq!(code, 1, "{report}");
    let finding = &report["references"][0]["findings"][0];
    assert_eq!(
        (&finding["kind"], &finding["candidate"]),
        (&json!("tokens_bos"), &json!("left-out:1")),
        "{finding}"
    );
    assert_eq!(finding["taps"], json!(["token_logprobs", "top_logprobs"]), "{finding}");
}

#[test]
fn a_temperature_is_read_from_the_values() {
    let terminal = Terminal::new();
    let (code, report) = check(&terminal, "tiny-llama3", &shipped("tiny-llama3-temperature"));
    assert_eq!(code, 1, "{report}");
    // It changes no order.
    assert_eq!(row(&report, "top_ids")["verdict"], "pass");
    let finding = &report["references"][0]["findings"][0];
    assert_eq!((&finding["kind"], &finding["candidate"]), (&json!("probs"), &json!("0.85")), "{finding}");
}

/// Of a window that is too wide nothing is seen before the window ends.
#[test]
fn drift_begins_where_a_window_ends() {
    let terminal = Terminal::new();
    let (code, report) = check(&terminal, "tiny-gemma3", &shipped("tiny-gemma3-window"));
    assert_eq!(code, 1, "{report}");
    assert_eq!(row(&report, "token_logprobs")["drift"], 5, "{report}");
    assert_eq!(kinds(&report), ["mask_window"]);
}

/// Two dumps without a model: ids and orders are each one's own.
#[test]
fn two_dumps_are_compared_by_ids() {
    let terminal = Terminal::new();
    let write = |written: &Written, name: &str| {
        let path = terminal.path().join(name);
        written.write(&path, "llama");
        path.to_str().expect("a plain path").to_owned()
    };
    let mut turned = honest();
    turned.ids.iter_mut().for_each(|row| row.reverse());
    turned.top.iter_mut().for_each(|row| row.reverse());
    turned.ids.iter_mut().for_each(|row| _ = row.remove(0));
    turned.top.iter_mut().for_each(|row| _ = row.remove(0));
    let (one, twin) = (write(&honest(), "one.safetensors"), write(&turned, "twin.safetensors"));
    let (code, report) = terminal.json(&["compare", &twin, &one, "--no-report"]);
    assert_eq!(code, 0, "{report}");
    assert_eq!(row(&report, "top_logprobs")["accumulated"]["agreement"]["same_top"], 24);
    let mut other = honest();
    other.ids[7][1] = (0..512).find(|id| !other.ids[7].contains(id)).expect("there are others");
    other.top[3][0] += 0.1;
    let other = write(&other, "other.safetensors");
    let (code, report) = terminal.json(&["compare", &other, &one, "--no-report"]);
    assert_eq!(code, 1, "{report}");
    for tap in ["top_ids", "top_logprobs"] {
        assert_eq!(row(&report, tap)["verdict"], "fail", "{tap}");
    }
}

/// Of one token, or of few, too: another one with nearly all of the probability is no tie, nor is what is no number.
#[test]
fn another_likeliest_token_of_two_dumps_fails_however_few_are_named() {
    let terminal = Terminal::new();
    let write = |written: &Written, name: &str| {
        let path = terminal.path().join(name);
        written.write(&path, "llama");
        path.to_str().expect("a plain path").to_owned()
    };
    let of = |k: usize| {
        let mut written = honest();
        written.ids.iter_mut().for_each(|row| row.truncate(k));
        written.top.iter_mut().for_each(|row| row.truncate(k));
        written
    };
    let all = honest();
    let wrong = |k: usize, value: f64| {
        let mut written = of(k);
        for row in 0..written.ids.len() - 1 {
            written.ids[row][0] = (0..512).find(|id| !all.ids[row].contains(id)).expect("there are others");
            written.top[row][0] = value;
        }
        write(&written, "wrong.safetensors")
    };
    let width = all.ids[0].len();
    for (k, value) in [(1, -0.01), (1, f64::NAN), (1, 5.0), (3, f64::NAN), (width, -0.01)] {
        for known in [1, 3, width] {
            let right = write(&of(known), "right.safetensors");
            let wrong = wrong(k, value);
            for pair in [[&wrong, &right], [&right, &wrong]] {
                let (code, report) = terminal.json(&["compare", pair[0], pair[1], "--no-report"]);
                assert_eq!(code, 1, "{k} with {value} against {known}: {report}");
            }
        }
    }
    let (few, right) = (write(&of(1), "few.safetensors"), write(&all, "right.safetensors"));
    let (code, report) = terminal.json(&["compare", &few, &right, "--no-report"]);
    assert_eq!(code, 0, "fewer of the same: {report}");
}

/// Where logits are held there is nothing between but one operation, which is evaluated.
#[test]
fn beside_logits_a_difference_of_an_hundred_thousandth_fails() {
    let terminal = Terminal::new();
    let honest = shipped("tiny-llama3-with-logits");
    let (code, report) = check(&terminal, "tiny-llama3", &honest);
    assert_eq!(code, 0, "{report}");
    let token = row(&report, "token_logprobs");
    assert_eq!((&token["since"][0]["tap"], &token["judged"]["one_stage"]), (&json!("logits"), &json!(true)));
    assert!(token["bound_ratio"].as_f64() < Some(1.0), "{token}");
    let mut bytes = std::fs::read(honest).expect("it ships");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let at =
        8 + length + header["p0/token_logprobs"]["data_offsets"][0].as_u64().expect("an offset") as usize;
    for value in bytes[at + 4 * 11..][..4 * 12].chunks_mut(4) {
        let moved = f32::from_le_bytes(value.try_into().expect("four")) + 2e-5;
        value.copy_from_slice(&moved.to_le_bytes());
    }
    let path = terminal.path().join("moved.safetensors");
    std::fs::write(&path, bytes).expect("it is written");
    let (code, report) = check(&terminal, "tiny-llama3", &path);
    let token = row(&report, "token_logprobs");
    assert_eq!((code, &token["verdict"], &token["drift"]), (1, &json!("fail"), &json!(11)), "{token}");
    assert_eq!(kinds(&report), ["partial"]);
}

#[test]
fn storage_order_and_number_do_not_matter() {
    let twins = [
        Written { dtype: "f16", ..honest() },
        {
            let mut fewer = honest();
            fewer.ids.iter_mut().for_each(|row| row.truncate(2));
            fewer.top.iter_mut().for_each(|row| row.truncate(2));
            fewer
        },
        {
            let mut turned = honest();
            turned.ids.iter_mut().for_each(|row| row.reverse());
            turned.top.iter_mut().for_each(|row| row.reverse());
            turned
        },
        {
            let mut some = honest();
            let rows = vec![0, 3, 4, 20];
            some.following = rows.iter().map(|&row: &usize| some.following[row]).collect();
            some.rows = Some(rows);
            some
        },
    ];
    for (number, twin) in twins.iter().enumerate() {
        let (code, report) = twin.check_quickly();
        assert_eq!(code, 0, "{number}: {}", report["references"][0]);
    }
}

#[test]
fn another_token_than_the_likeliest_fails() {
    let mut written = honest();
    // The fifth is left out and a less likely one named, with the log-probability of the former.
    let missing = (0..512).find(|id| !written.ids[7].contains(id)).expect("there are others");
    written.ids[7][4] = missing;
    let (code, report) = written.check_quickly();
    assert_eq!(code, 1, "{report}");
    for tap in ["top_ids", "top_logprobs"] {
        assert_eq!(row(&report, tap)["verdict"], "fail", "{tap}");
    }
    assert_eq!(row(&report, "token_logprobs")["verdict"], "pass");
    assert_eq!(row(&report, "top_ids")["accumulated"]["worst_index"], json!([7, 4]));
}

#[test]
fn drift_is_told_from_where_it_begins() {
    let mut written = honest();
    for (row, values) in written.top.iter_mut().enumerate().skip(9) {
        values.iter_mut().for_each(|y| *y += 1e-3 * (row - 8) as f64);
    }
    let (code, report) = written.check_quickly();
    assert_eq!((code, &row(&report, "top_logprobs")["drift"]), (1, &json!(9)), "{report}");
    // One value that is wrong is no drift.
    let mut written = honest();
    written.top[4][0] += 0.01;
    let (code, report) = written.check_quickly();
    assert_eq!((code, &row(&report, "top_logprobs")["drift"]), (1, &Value::Null), "{report}");
    let deltas = &row(&report, "top_logprobs")["accumulated"]["agreement"]["max_delta"];
    assert!(deltas[4].as_f64() > Some(0.009) && deltas[5].as_f64() < Some(1e-5), "{deltas}");
}

#[test]
fn what_is_not_whole_is_refused() {
    let refused = |written: &Written, expected: &str| {
        let terminal = Terminal::new();
        let path = terminal.path().join("dump.safetensors");
        written.write(&path, "llama");
        let dump = path.to_str().expect("a plain path");
        terminal.assert_refused(
            &["check", "--model", "tiny-llama3", "--candidate", dump, "--no-report"],
            expected,
        );
    };
    let mut whole = honest();
    whole.following.push(0.0);
    refused(&whole, "which is unknown");
    let empty = Written { tokens: Vec::new(), ..honest() };
    refused(&empty, "passes[0] has no tokens");
    let mut twice = honest();
    twice.ids[2][1] = twice.ids[2][0];
    refused(&twice, "duplicate id");
    let mut outside = honest();
    outside.ids[2][1] = 512;
    refused(&outside, "for a vocabulary of 512 tokens");
    let mut short = honest();
    short.ids.iter_mut().for_each(|row| row.truncate(3));
    refused(&short, "top_ids of pass 0 needs top_logprobs with the same shape");
}

#[test]
fn an_array_of_no_entry_is_to_be_left_out() {
    let manifest = json!({
        "format": "xcheck-dump", "version": 1, "producer": {"name": "test"}, "model": {"architecture": "llama"},
        "input": {"tokens": [1]}, "passes": [{"position": 0, "tokens": [1]}],
        "tensors": [{"tap": "token_logprobs", "pass": 0, "dtype": "f32", "shape": [0], "file": "p0/token_logprobs.npy"}],
    });
    let refused =
        Manifest::parse(manifest.to_string().as_bytes(), Path::new("empty")).expect_err("it says nothing");
    assert!(refused.to_string().contains("the array is empty"), "{refused}");
}

#[test]
fn the_example_of_the_contract_is_read() {
    let text = include_str!("../docs/reference/dump-format.md");
    let section = text.split("### Log-probabilities alone").nth(1).expect("the section");
    let example =
        section.split("```").nth(1).and_then(|block| block.strip_prefix("json")).expect("an example");
    let manifests = Manifest::parse(example.as_bytes(), Path::new("example")).expect("it is right");
    assert_eq!(manifests[0].tensors[0].rows, Some(vec![0, 1, 2]), "of the last token nothing is said");
}

#[test]
fn a_dump_in_which_nothing_is_compared_is_inconclusive() {
    let terminal = Terminal::new();
    let dump = shipped("tiny-llama3-transformers-f32");
    let dump = dump.to_str().expect("a plain path");
    let run =
        ["check", "--model", "tiny-llama3", "--candidate", dump, "--no-report", "--checkpoint", "block_out"];
    let (code, report) = terminal.json(&run);
    assert_eq!(code, 3, "{report}");
    assert!(kinds(&report).is_empty());
}

/// A value of each side, judged by a table that allows 1e-4.
fn judged(point: Point, candidate: f32, reference: f32) -> Verdict {
    let [candidate, reference] = [candidate, reference].map(|value| Tensor::new(&[1], vec![value]));
    let found = measure(View::from(&candidate), View::from(&reference), ValuePrecision::F32, |_| {
        ColumnSelection::All
    });
    let source = "a test".to_owned();
    let tolerance = Tolerance { max_abs: 1e-4, mean_abs: None, min_cosine: None, source, is_asked: true };
    let row = SiteResult::new(Site { point, layer: None, pass: Some(0) }, 0..1, tolerance);
    row.judge(None, Some(ArrayComparison::Measured(found))).verdict
}

/// Of a token that is certain the logarithm is zero, which is no array that nobody has written.
#[test]
fn a_logarithm_of_zero_is_judged_by_how_far_it_is_off() {
    for point in [Point::TokenLogprobs, Point::TopLogprobs] {
        assert_eq!(judged(point, 0.0, -2e-6), Verdict::Pass, "{point}");
        assert_eq!(judged(point, -0.0, 0.0), Verdict::Pass, "{point}");
        assert_eq!(judged(point, 0.0, -3.0), Verdict::Fail, "{point}");
    }
    assert_eq!(judged(Point::Logits, 0.0, -2e-6), Verdict::Fail);
    assert_eq!(judged(Point::Logits, 0.0, 0.0), Verdict::Inconclusive);
}
