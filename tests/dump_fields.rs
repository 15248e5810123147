//! Manifests of which one field has an odd value: read, or refused in one message, never a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::share::{one_of, pairs};
use crate::common::{LLAMA_CPP_F32, rules, tiny_llama2};
use serde_json::{Value, json};
use xcheck::align::Selection;
use xcheck::check::{Mode, Tolerances};
use xcheck::checkpoint::{Point, TapAxis, TapScope, ValueKind};
use xcheck::diagnose::{cross_check, cross_check_dumps};
use xcheck::dump::Dump;
use xcheck::error::Error;
use xcheck::format::FileBytes;

const DUMP: &[u8] = include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/checkpoints/tiny-llama2/dumps/llama.cpp-f32.safetensors"
));

/// Two passes, of three tokens and of one.
const PASSES: [usize; 2] = [3, 1];

/// A dump with an array of every tap, in one layer, that says in each field what it may say.
struct Bed {
    manifest: Value,
    header: serde_json::Map<String, Value>,
    data: Vec<u8>,
}

impl Bed {
    fn new() -> Self {
        let mut bed = Self { manifest: Value::Null, header: serde_json::Map::new(), data: Vec::new() };
        let taps = Point::ALL.iter().filter(|point| **point != Point::Tokens);
        let rows: Vec<Value> = taps.flat_map(|&point| bed.rows_of(point)).collect();
        bed.manifest = json!({
            "format": "xcheck-dump", "version": 2,
            "producer": {"name": "p", "version": "1", "settings": {"dtype": "f32", "kv_cache": "f32"}},
            "model": {"name": "m", "architecture": "llama"},
            "layout": {"rope_pairing": "half"},
            "input": {"prompt": "", "tokens": [1, 2, 3], "decode": "greedy"},
            "passes": [{"position": 0, "tokens": [1, 2, 3], "temperature": 1.0}, {"position": 3, "tokens": [0]}],
            "generated": [0, 1],
            "tensors": rows,
        });
        bed
    }

    fn rows_of(&mut self, point: Point) -> Vec<Value> {
        let passes = if point.scope() == TapScope::Run { 1 } else { PASSES.len() };
        (0..passes).map(|pass| self.row_of(point, pass)).collect()
    }

    fn row_of(&mut self, point: Point, pass: usize) -> Value {
        let length = |axis: &TapAxis| match axis {
            TapAxis::Token if point.scope() == TapScope::Run => 2,
            TapAxis::Token => PASSES[pass],
            TapAxis::Key => PASSES[..=pass].iter().sum(),
            TapAxis::Batch => 1,
            _ => 2,
        };
        let shape: Vec<usize> = point.axes().iter().map(length).collect();
        let count = shape.iter().product::<usize>();
        let (dtype, stored) = if point.kind() == ValueKind::Token { ("u32", "U32") } else { ("f32", "F32") };
        let begin = self.data.len();
        for at in 0..count as u32 {
            let value =
                if stored == "U32" { (at % 2).to_le_bytes() } else { (0.25 + at as f32).to_le_bytes() };
            self.data.extend(value);
        }
        let file = format!("p{pass}/{point}.npy");
        let offsets = [begin, self.data.len()];
        self.header.insert(
            file.trim_end_matches(".npy").to_owned(),
            json!({"dtype": stored, "shape": shape, "data_offsets": offsets}),
        );
        let mut row = json!({"tap": point.name(), "dtype": dtype, "shape": shape, "file": file});
        if point.scope() != TapScope::Run {
            row["pass"] = pass.into();
        }
        if point.scope() == TapScope::Layer {
            row["layer"] = 0.into();
        }
        row
    }

    /// The file with another manifest.
    fn with(&self, manifest: &Value) -> FileBytes {
        let mut header = self.header.clone();
        header.insert("__metadata__".to_owned(), json!({"xcheck": manifest.to_string()}));
        let header = Value::Object(header).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(&self.data);
        FileBytes { path: "odd.safetensors".into(), data: bytes.into() }
    }
}

/// Values that a field may have by mistake.
fn odd_values() -> Vec<Value> {
    let texts =
        ["", "x", "f16", "bf16", "f64", "u32", "i64", "f8_e4m3", "argmax", "generated", "logits", "forced"];
    let numbers = [
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(65535),
        json!(u64::MAX),
        json!(-1),
        json!(0.04),
        json!(1e308),
    ];
    let lists = [
        json!([]),
        json!([0]),
        json!([1]),
        json!([2]),
        json!([0, 1]),
        json!([0, 2]),
        json!([1, 0]),
        json!([1, 3]),
        json!([0, 0]),
        json!([5]),
        json!([1, 1, 2]),
        json!([2, 3, 2]),
        json!([u64::MAX]),
        json!([u32::MAX, u32::MAX]),
        json!([-1]),
        json!([0.5]),
        json!(["token"]),
        json!(["hidden"]),
        json!(["key", "token"]),
        json!(["vocab", "token"]),
        json!(["batch", "token", "hidden"]),
        json!(["x"]),
    ];
    let parts = [
        json!({"shape": [2]}),
        json!({"shape": [6, 2], "start": [0, 0], "end": [3, 2]}),
        json!({"shape": [3, 2], "start": [1, 0]}),
        json!({"shape": [], "start": [], "end": []}),
        json!({"shape": [u64::MAX, 2]}),
        json!({}),
    ];
    let texts = texts.into_iter().map(Value::from);
    texts.chain(numbers).chain(lists).chain(parts).chain([Value::Null, json!(true), json!(false)]).collect()
}

/// A field of a manifest, and the value that it is given.
type Odd = (String, Value);

/// Each odd value in each field of each row.
fn odd_rows(manifest: &Value) -> Vec<Odd> {
    const FIELDS: [&str; 14] = [
        "tap", "pass", "layer", "dtype", "shape", "file", "sketch", "axes", "sha256", "rows", "of",
        "computed", "scale", "step",
    ];
    let rows = manifest["tensors"].as_array().expect("rows").len();
    let places = (0..rows).flat_map(|row| FIELDS.map(|field| format!("/tensors/{row}/{field}")));
    pairs(places, odd_values()).collect()
}

/// The same of the fields that are no row's.
fn odd_heads() -> Vec<Odd> {
    const PLACES: [&str; 24] = [
        "/version",
        "/producer/name",
        "/producer/settings",
        "/producer/settings/dtype",
        "/producer/settings/kv_cache",
        "/producer/settings/weights",
        "/producer/settings/numerics",
        "/producer/rounding",
        "/producer/rounding/profile",
        "/producer/rounding/accumulation",
        "/model/architecture",
        "/model/sha256",
        "/layout",
        "/layout/rope_pairing",
        "/input/tokens",
        "/input/decode",
        "/passes",
        "/passes/0/position",
        "/passes/0/tokens",
        "/passes/0/temperature",
        "/passes/1/position",
        "/passes/1/tokens",
        "/generated",
        "/sequences",
    ];
    pairs(PLACES.map(str::to_owned), odd_values()).collect()
}

/// The manifest with an odd value.
fn with_odd(manifest: &Value, (place, value): &Odd) -> Value {
    let mut odd = manifest.clone();
    let (parent, field) = place.rsplit_once('/').expect("a place");
    if parent == "/producer/rounding" {
        odd["producer"]["rounding"] = json!({});
    }
    odd.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"))[field] = value.clone();
    odd
}

/// Runs each case; tells all that panic, or that are refused in anything but one line.
fn assert_read_or_refused(
    cases: impl Iterator<Item = (String, FileBytes)>,
    judge: impl Fn(&Dump) -> Result<(), Error>,
) {
    let mut wrong = Vec::new();
    let mut read = 0;
    for (what, source) in cases {
        let found = catch_unwind(AssertUnwindSafe(|| {
            for dump in Dump::all_from_source(source)? {
                dump.sites().try_for_each(|site| dump.read(site).map(drop))?;
                judge(&dump)?;
            }
            Ok(())
        }));
        match found {
            Err(panic) => wrong.push(format!("{what}: panic: {:?}", panic.downcast_ref::<String>())),
            Ok(Ok(())) => read += 1,
            Ok(Err(error)) => {
                let error: Error = error;
                let said = error.to_string();
                if said.is_empty() || said.contains('\n') {
                    wrong.push(format!("{what}: no message of one line: {said:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(read > 0, "nothing was read");
}

#[test]
fn an_odd_value_in_any_field_of_a_manifest_is_read_or_refused() {
    let bed = Bed::new();
    let right = Dump::from_source(bed.with(&bed.manifest)).expect("it is right as it is");
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = rules(&selection, &tolerances, "f32", Mode::Accumulated);
    let cases = one_of(59, odd_rows(&bed.manifest)).chain(one_of(5, odd_heads()));
    let cases = cases.map(|odd| (format!("{odd:?}"), bed.with(&with_odd(&bed.manifest, &odd))));
    assert_read_or_refused(cases, |dump| {
        cross_check_dumps("odd", dump, &right, rules)?;
        cross_check_dumps("odd", &right, dump, rules).map(drop)
    });
}

/// What is left after reading meets the engine: a run along the dump, and what is made of its values.
#[test]
fn an_odd_value_in_a_manifest_is_judged_or_refused() {
    let header = 8 + u64::from_le_bytes(*DUMP.first_chunk().expect("it is a dump")) as usize;
    let mut bed =
        Bed { manifest: Value::Null, header: serde_json::Map::new(), data: DUMP[header..].to_vec() };
    bed.header = serde_json::from_slice(&DUMP[8..header]).expect("it is JSON");
    let manifest = bed.header["__metadata__"]["xcheck"].as_str().expect("a text");
    bed.manifest = serde_json::from_str(manifest).expect("it is JSON");
    bed.manifest["version"] = 2.into();
    let is_kept =
        |row: &Value| row["layer"].as_u64().unwrap_or(0) < 1 && row["pass"].as_u64().unwrap_or(0) < 2;
    bed.manifest["tensors"].as_array_mut().expect("rows").retain(is_kept);
    let (selection, tolerances, model) = (Selection::everything(), Tolerances::shipped(), tiny_llama2());
    let rules = rules(&selection, &tolerances, "f32", Mode::Both);
    let cases = one_of(701, odd_rows(&bed.manifest)).chain(one_of(41, odd_heads()));
    let cases = cases.map(|odd| (format!("{odd:?}"), bed.with(&with_odd(&bed.manifest, &odd))));
    assert_read_or_refused(cases, |dump| {
        cross_check("odd", &model, &LLAMA_CPP_F32, dump, rules, &mut ()).map(drop)
    });
}

/// Ids may be stored in any type; what they are is whole.
#[test]
fn every_tap_of_ids_refuses_what_is_no_whole_number() {
    let taps = Point::ALL.iter().filter(|point| point.kind() == ValueKind::Token && **point != Point::Tokens);
    for &point in taps {
        for (value, told) in
            [(0.0f32, None), (1.5, Some(" 1.5")), (f32::NAN, Some(" NaN")), (-1.0, Some(" -1"))]
        {
            let mut bed = Bed::new();
            let mut manifest = bed.manifest.clone();
            let rows = manifest["tensors"].as_array_mut().expect("rows").iter_mut();
            for row in rows.filter(|row| row["tap"] == point.name()) {
                row["dtype"] = "f32".into();
                let stored = &mut bed.header[row["file"].as_str().expect("a path").trim_end_matches(".npy")];
                stored["dtype"] = "F32".into();
                let [begin, end] =
                    [0, 1].map(|at| stored["data_offsets"][at].as_u64().expect("a number") as usize);
                for (at, id) in bed.data[begin..end].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let whole = u32::from_le_bytes(*id) as f32;
                    *id = (if at == 0 { value } else { whole }).to_le_bytes();
                }
            }
            let read = Dump::from_source(bed.with(&manifest))
                .and_then(|dump| dump.sites().try_for_each(|site| dump.read(site).map(drop)));
            match (read, told) {
                (read, None) => read.unwrap_or_else(|error| panic!("{point}: {error}")),
                (read, Some(told)) => {
                    let refused = read.expect_err("it is no id").to_string();
                    assert!(
                        refused.contains(&format!("{point}.npy: ")) && refused.contains(told.trim_start()),
                        "{refused}"
                    );
                }
            }
        }
    }
}
