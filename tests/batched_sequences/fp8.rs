//! Values of eight bits with scales: each stands for all that round to it, at its place.

use std::path::Path;

use serde_json::{Value, json};
use xcheck::align::Selection;
use xcheck::check::{Mode, Tolerances};
use xcheck::checkpoint::{Point, Site, TapAxis};
use xcheck::diagnose::{cross_check, cross_check_dumps};
use xcheck::dump::Dump;
use xcheck::engine::RunInput;
use xcheck::exact::Float;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::view::View;
use xcheck::weight::DType;

use super::bed::Written;
use crate::common::share::{one_of, pairs};
use crate::common::{counterpart, record_altered, reference_of, rules};

/// What torch says of a type.
fn torch(name: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/float8.json");
    let all: Value = serde_json::from_slice(&std::fs::read(file).expect("it is there")).expect("JSON");
    all[name].clone()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().expect("a name").parse().expect("a number"))
}

/// A type of eight bits.
#[derive(Clone, Copy)]
struct Eighth {
    dtype: DType,
    name: &'static str,
    float: Float,
    largest: f64,
}

const E4M3: Eighth = Eighth { dtype: DType::F8_E4M3, name: "F8_E4M3", float: Float::E4m3, largest: 448.0 };
const E5M2: Eighth = Eighth { dtype: DType::F8_E5M2, name: "F8_E5M2", float: Float::E5m2, largest: 57344.0 };

impl Eighth {
    fn numbers(self) -> Vec<f64> {
        let all: Vec<u8> = (0..=255).collect();
        View::stored(&[256], self.dtype, all).expect("plain numbers").to_vec()
    }

    /// The patterns of numbers, each the nearest.
    fn encode(self, values: &[f64]) -> Vec<u8> {
        let numbers = self.numbers();
        let pattern = |value: &f64| {
            let rounded = self.float.round(*value);
            let same = |number: &f64| number.to_bits() == rounded.to_bits();
            numbers.iter().position(same).unwrap_or_else(|| panic!("{value} has no pattern")) as u8
        };
        values.iter().map(pattern).collect()
    }
}

#[test]
fn every_fp8_pattern_is_the_number_that_torch_says() {
    for eighth in [E4M3, E5M2] {
        let known = torch(eighth.dtype.name());
        let numbers = eighth.numbers();
        for (bits, (number_here, there)) in
            numbers.iter().zip(known["numbers"].as_array().expect("256")).enumerate()
        {
            let there = number(there);
            let is_same = number_here.to_bits() == there.to_bits() || number_here.is_nan() && there.is_nan();
            assert!(is_same, "{} {bits:#x}: {number_here}, torch {there}", eighth.name);
        }
        let rounded = known["rounded"].as_array().expect("a list");
        assert!(rounded.len() > 500);
        for pair in rounded {
            let (value, pattern) = (number(&pair[0]), pair[1].as_u64().expect("a pattern") as usize);
            let here = eighth.float.round(value);
            assert_eq!(here.to_bits(), numbers[pattern].to_bits(), "{} of {value}", eighth.name);
        }
    }
}

/// Taps of a dump in eight bits, each with one scale or with one for each token or key.
fn stored(dump: &Dump, eighth: Eighth, is_by_token: bool, takes: impl Fn(Point) -> bool) -> Written {
    let mut written = Written::of(dump);
    let mut manifest = written.manifest.take();
    for row in manifest["tensors"].as_array_mut().expect("rows") {
        let point: Point = row["tap"].as_str().expect("a tap").parse().expect("a tap point");
        if !takes(point) {
            continue;
        }
        let file = row["file"].as_str().expect("a file").to_owned();
        let (shape, values) = written.arrays.remove(&file).expect("it is there");
        let along = point.axes().iter().position(|axis| matches!(axis, TapAxis::Token | TapAxis::Key));
        let along = along.filter(|_| is_by_token);
        let inner: usize = along.map_or(values.len(), |axis| shape[axis + 1..].iter().product());
        let scales = along.map_or(1, |axis| shape[axis]);
        let which = |flat: usize| flat / inner % scales;
        let mut largest = vec![0f32; scales];
        for (flat, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            largest[which(flat)] = largest[which(flat)].max(value.abs());
        }
        let scale = |&largest: &f32| if largest == 0.0 { 1.0 } else { largest / eighth.largest as f32 };
        let scales: Vec<f32> = largest.iter().map(scale).collect();
        let divided = |(flat, value): (usize, &f32)| f64::from(*value / scales[which(flat)]);
        let divided: Vec<f64> = values
            .iter()
            .enumerate()
            .map(divided)
            .map(|x| x.clamp(-eighth.largest, eighth.largest))
            .collect();
        row["dtype"] = json!(eighth.dtype.name());
        row["scale"] = json!(scales[0]);
        if let Some(axis) = along {
            let mut of_scales = vec![1; shape.len()];
            of_scales[axis] = scales.len();
            let place = file.replace(".npy", ".scale.npy");
            row["scale"] = json!(place);
            written.arrays.insert(place, (of_scales, scales));
        }
        written.others.insert(file, (eighth.name, shape, eighth.encode(&divided)));
    }
    written.manifest = manifest;
    written
}

fn judge(model: &str, name: &str, dump: &Dump) -> Outcome {
    let (loaded, numerics) = counterpart(model, &reference_of(model, name));
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = rules(&selection, &tolerances, "f32", Mode::Both);
    cross_check("eighth", &*loaded.model, &*numerics, dump, rules, &mut ()).expect("the two can be compared")
}

fn compared(one: &Dump, other: &Dump) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = rules(&selection, &tolerances, "f32", Mode::Accumulated);
    cross_check_dumps("eighth", one, other, rules).expect("they can be compared")
}

const CASES: [(&str, &str); 4] = [
    ("tiny-llama2", "llama.cpp-f32"),
    ("tiny-llama3", "transformers-f32"),
    ("tiny-gemma3", "transformers-f32"),
    ("tiny-gpt2", "transformers-f32"),
];

/// All of a dump, or what a quantised engine has so.
fn takings() -> [fn(Point) -> bool; 2] {
    [
        |point| point.axes().iter().any(|axis| *axis != TapAxis::Vocab),
        |point| [Point::Q, Point::KRope, Point::FfnOut, Point::AttnContext].contains(&point),
    ]
}

#[test]
fn honest_values_pass_whatever_they_are_scaled_by() {
    for (model, name) in CASES {
        let dump = reference_of(model, name);
        let types = [(E4M3, false), (E4M3, true), (E5M2, true)];
        for ((eighth, is_by_token), takes) in one_of(3, pairs(types, takings())) {
            let short = stored(&dump, eighth, is_by_token, takes).open();
            let outcome = judge(model, name, &short);
            let first = outcome.first_divergence().map(|row| row.site);
            assert_eq!(
                (outcome.verdict, &outcome.reason),
                (Verdict::Pass, &None),
                "{model} {} {is_by_token}: {first:?}",
                eighth.name
            );
            let outcome = compared(&short, &dump);
            let first = outcome.first_divergence().map(|row| row.site);
            assert_eq!(outcome.verdict, Verdict::Pass, "{model} {}: {first:?}", eighth.name);
        }
    }
}

/// One value that is wrong, by a part of itself, before it is stored.
fn with_fault(dump: &Dump, point: Point, by: f32, is_by_token: bool) -> Dump {
    let mut written = stored(dump, E4M3, is_by_token, |one| one == point);
    let file = format!("p0/l01/{point}.npy");
    let (_, shape, bytes) = written.others.get_mut(&file).expect("it is there");
    let width: usize = shape[1..].iter().product();
    let numbers = E4M3.numbers();
    // One that is neither small nor at the end of the range, in the second row.
    let at = (width..2 * width)
        .find(|&at| (16.0..200.0).contains(&numbers[usize::from(bytes[at])].abs()))
        .expect("there is one");
    let exact = dump.read(site(point)).expect("sound").expect("held").data[at];
    let value = numbers[usize::from(bytes[at])];
    let scale = exact / value;
    let moved = exact * f64::from(1.0 + by) / scale;
    bytes[at] = E4M3.encode(&[moved])[0];
    written.open()
}

fn site(point: Point) -> Site {
    Site { point, layer: Some(1), pass: Some(0) }
}

#[test]
fn a_fault_that_is_larger_than_a_step_is_found_and_a_smaller_one_is_not() {
    for (model, name) in CASES {
        let dump = reference_of(model, name);
        let cases = pairs([Point::Q, Point::FfnOut, Point::AttnNorm], [false, true]);
        for (point, is_by_token) in one_of(2, cases) {
            // Steps are 1/8 to 1/16 of a value.
            let outcome = judge(model, name, &with_fault(&dump, point, 0.3, is_by_token));
            assert_eq!(outcome.verdict, Verdict::Fail, "{model} {point}");
            assert_eq!(outcome.first_divergence().map(|row| row.site), Some(site(point)), "{model}");
            let total = compared(&with_fault(&dump, point, 0.3, is_by_token), &dump);
            assert_ne!(total.verdict, Verdict::Pass, "{model} {point}");
            let outcome = judge(model, name, &with_fault(&dump, point, 0.0, is_by_token));
            assert_eq!(
                outcome.verdict,
                Verdict::Pass,
                "{model} {point}: what is less than a step is not seen"
            );
        }
    }
}

/// Goes on with values of eight bits after a norm.
struct Rounds;

impl Tap for Rounds {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        match site.point {
            Point::FfnNorm => value.map(|x| (Float::E4m3.round(f64::from(x) * 64.0) / 64.0) as f32),
            _ => value,
        }
    }
}

/// A dump of that, which says so.
fn of_eight_bits(dump: &Dump) -> Written {
    let mut written = Written::of(dump);
    let files: Vec<String> =
        written.arrays.keys().filter(|file| file.ends_with("ffn_norm.npy")).cloned().collect();
    for file in files {
        let (shape, values) = written.arrays.remove(&file).expect("it is there");
        let scaled: Vec<f64> = values.iter().map(|&value| f64::from(value) * 64.0).collect();
        written.others.insert(file, (E4M3.name, shape, E4M3.encode(&scaled)));
    }
    written.edit_rows(|row| {
        if row["tap"] == "ffn_norm" {
            row["dtype"] = json!("f8_e4m3");
            row["scale"] = json!(1.0 / 64.0);
            row["computed"] = json!("f8_e4m3");
        }
    });
    written
}

/// An engine that computes with eight bits says so, and its stages are judged from these.
#[test]
fn what_an_engine_went_on_with_is_where_stages_start() {
    let (model, name) = ("tiny-llama3", "transformers-f32");
    let (loaded, numerics) = counterpart(model, &reference_of(model, name));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rounds.safetensors");
    let script = RunInput::greedy(&[1, 33, 35, 60, 34], 2);
    record_altered(&*loaded.model, &*numerics, &script, &path, &mut Rounds);
    let mut written = of_eight_bits(&Dump::open(&path).expect("sound"));
    let local = |written: &Written| {
        let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
        let rules = rules(&selection, &tolerances, "f32", Mode::Local);
        cross_check("eighth", &*loaded.model, &*numerics, &written.open(), rules, &mut ()).expect("compared")
    };
    let outcome = local(&written);
    assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None));
    written.edit_rows(|row| drop(row.as_object_mut().expect("an object").remove("computed")));
    let outcome = local(&written);
    assert_eq!(outcome.verdict, Verdict::Fail, "nothing starts from values that are known to eight bits");
    let first = outcome.first_divergence().expect("a place").site;
    assert!([Point::FfnGate, Point::FfnUp].contains(&first.point), "{first:?}");
}

/// Our run has no values of eight bits, which move logits further than rounding does: whether a choice is right the dump's own
/// logits tell, which are judged.
#[test]
fn an_engine_that_goes_on_with_eight_bits_chooses_by_its_own_logits() {
    let (model, name) = ("tiny-llama3", "transformers-f32");
    let (loaded, numerics) = counterpart(model, &reference_of(model, name));
    let folder = tempfile::tempdir().expect("a folder");
    let run = |script: &RunInput, number: usize, fault: &mut dyn Tap| {
        let path = folder.path().join(format!("{number}.safetensors"));
        record_altered(&*loaded.model, &*numerics, script, &path, fault);
        Dump::open(&path).expect("sound")
    };
    let chosen = |dump: &Dump| dump.manifest.generated.clone().expect("it generates");
    let other = (1..40).find_map(|token: u32| {
        let (script, number) = (RunInput::greedy(&[1, token, 35, 60, 34], 1), 2 * token as usize);
        let rounded = run(&script, number, &mut Rounds);
        (chosen(&rounded) != chosen(&run(&script, number + 1, &mut ()))).then_some(rounded)
    });
    let written = of_eight_bits(&other.expect("eight bits make another choice somewhere"));
    let judged = |written: &Written| {
        let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
        let rules = rules(&selection, &tolerances, "f32", Mode::Both);
        cross_check("eighth", &*loaded.model, &*numerics, &written.open(), rules, &mut ()).expect("compared")
    };
    let outcome = judged(&written);
    assert_eq!((outcome.verdict, &outcome.reason), (Verdict::Pass, &None));
    assert!(outcome.count(Verdict::Tie) > 0, "{:?}", outcome.notes);
    // Another choice than that of its own logits, and logits that nobody sees.
    let mut wrong = written.clone();
    wrong.manifest["generated"][0] = json!(3);
    assert_ne!(judged(&wrong).verdict, Verdict::Pass);
    let mut unseen = written;
    let rows = unseen.manifest["tensors"].as_array_mut().expect("rows");
    rows.retain(|row| row["tap"] != "logits" && row["tap"] != "last_logits");
    let outcome = judged(&unseen);
    assert_eq!(outcome.verdict, Verdict::Inconclusive, "{:?} {:?}", outcome.reason, outcome.notes);
}

#[test]
fn scales_that_are_none_are_refused() {
    let dump = reference_of("tiny-gpt2", "transformers-f32");
    let short = |is_by_token| stored(&dump, E4M3, is_by_token, |point| point == Point::Q);
    let q = |row: &Value| row["tap"] == "q" && row["pass"] == 0 && row["layer"] == 0;
    let refused = |written: &Written| match written.open_all() {
        Err(error) => error.to_string(),
        Ok(dumps) => {
            let site = Site { point: Point::Q, layer: Some(0), pass: Some(0) };
            dumps[0].read(site).expect_err("it is refused").to_string()
        }
    };
    let with = |scale: Value| {
        let mut written = short(false);
        written.edit_rows(|row| {
            if q(row) {
                row["scale"] = scale.clone();
            }
        });
        refused(&written)
    };
    for scale in [json!(0), json!(-1.0), json!(1e-300), json!(1e300)] {
        let said = with(scale.clone());
        assert!(said.contains("expected a positive number"), "{scale}: {said}");
    }
    assert!(with(json!("../scale.npy")).contains("expected a relative path inside the dump"));
    assert!(with(json!("p0/none.npy")).contains("missing array 'p0/none.npy'"));
    assert!(
        with(json!([1.0])).contains("expected a number, or the path of an f32 array"),
        "{}",
        with(json!([1.0]))
    );
    let file = "p0/l00/q.scale.npy";
    for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let mut written = short(true);
        *written.arrays.get_mut(file).expect("it is there").1.last_mut().expect("one") = wrong;
        let said = refused(&written);
        assert!(said.contains(file) && said.contains("expected a positive number"), "{wrong}: {said}");
    }
    let mut written = short(true);
    written.arrays.get_mut(file).expect("it is there").0.rotate_left(1);
    assert!(refused(&written).contains("cannot be broadcast to values of shape"), "{}", refused(&written));
    let mut written = short(true);
    let (shape, values) = written.arrays.remove(file).expect("it is there");
    let doubles = values.iter().flat_map(|&scale| f64::from(scale).to_le_bytes()).collect();
    written.others.insert(file.to_owned(), ("F64", shape, doubles));
    assert!(refused(&written).contains("dtype f64, but the manifest states f32"), "{}", refused(&written));
    let mut written = Written::of(&dump);
    written.edit_rows(|row| row["scale"] = json!(2.0));
    assert!(refused(&written).contains("\"scale\" needs f8_e4m3 or f8_e5m2 values, but these are f32"));
    let mut written = short(false);
    written.edit_rows(|row| row["sketch"] = json!(q(row)));
    assert!(refused(&written).contains("\"sketch\" cannot be used with values of type f8_e4m3"));
}
