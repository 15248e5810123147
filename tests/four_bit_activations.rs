//! Activations of 4 bits, NVFP4 and MXFP4: dumps of compressed-tensors and correct engines pass, engines that scale groups in
//! another way fail with the cause.

use half::bf16;
use serde_json::{Value, json};
use tempfile::TempDir;
use xcheck::checkpoint::{Point, Site};
use xcheck::exact::Float;
use xcheck::numerics::{Numerics, Transformers};
use xcheck::quant::decode_matrix_row;
use xcheck::tensor::Tensor;
use xcheck::weight::{DType, Matrix};

use crate::common::share::one_of;
use crate::common::terminal::Terminal;
use crate::judge::clay::Clay;
use crate::quantised_models::{changed, checked, dumped, folder};
use crate::static_activations::number_of_queries;

#[test]
fn dumps_of_compressed_tensors_show_their_codes() {
    let four = "4-bit floats before products with weights, with one scale for each group";
    let dumps = [
        ("nvfp4-inputs/dump", four),
        ("nvfp4-inputs/dump-f32", four),
        ("mxfp4-inputs/dump", four),
        ("modelopt-nvfp4/dump", four),
        ("modelopt-nvfp4/dump-f32", four),
        ("mxfp4-inputs/dump-f32", four),
        ("mxfp8-inputs/dump", "8-bit floats before products with weights, with one scale for each group"),
    ];
    for (dump, note) in dumps {
        let (name, _) = dump.split_once('/').expect("a folder");
        let file = folder(&format!("{dump}.safetensors"));
        let (code, report) = checked(&folder(name), &file, &["--no-causes"]);
        assert_eq!(code, 0, "{dump}: {report:#}");
        assert!(report["notes"].to_string().contains(note), "{dump}: {report:#}");
    }
}

/// How an engine quantises a group of activations.
struct Way {
    /// Number of values of a group; 0 for all values of a token.
    len: usize,
    /// Returns the step between codes for the largest absolute value of a group. The type rounds 16-bit quotients.
    step: fn(f32, &Matrix, Float) -> f32,
    /// True if decoded activations and weights are not rounded.
    is_fused: bool,
}

/// The number that scales of groups are multiplied by before they are stored.
fn global(w: &Matrix) -> f32 {
    w.input_scale().expect("quantised activations").number
}

/// A scale in 8 bits, divided by the matrix's number. compressed-tensors replaces 0.
fn stored(scale: f32, global: f32) -> f32 {
    let stored = Float::E4m3.round((scale * global).min(448.0).into()) as f32;
    (if stored == 0.0 { 0.125 } else { stored }) / global
}

fn sixth(largest: f32, float: Float) -> f32 {
    float.round((largest / 6.0).into()) as f32
}

/// compressed-tensors: the exponent goes up at 1.75.
fn power(largest: f32, _: &Matrix, _: Float) -> f32 {
    (f64::from(largest) / 7.0).log2().floor().exp2() as f32 * 2.0
}

const WAYS: [Way; 15] = [
    // NVFP4 of compressed-tensors, of vLLM's emulation, and of fused kernels.
    Way { len: 16, step: |x, w, float| stored(sixth(x, float), global(w)), is_fused: false },
    Way { len: 16, step: |x, w, _| stored(x * (1.0 / 6.0), global(w)), is_fused: false },
    Way { len: 16, step: |x, w, _| stored(x * (1.0 / 6.0), global(w)), is_fused: true },
    // Faults.
    Way { len: 16, step: |x, _, float| stored(sixth(x, float), 1.0), is_fused: false },
    Way { len: 16, step: |x, w, float| stored(sixth(x, float), 1.0 / global(w)), is_fused: false },
    Way { len: 16, step: |x, w, float| stored(sixth(x, float), of_queries(w)), is_fused: false },
    Way { len: 16, step: |x, _, float| sixth(x, float), is_fused: false },
    Way { len: 32, step: |x, w, float| stored(sixth(x, float), global(w)), is_fused: false },
    Way { len: 0, step: |x, w, float| stored(sixth(x, float), global(w)), is_fused: false },
    // MXFP4 of compressed-tensors and of OCP's specification.
    Way { len: 32, step: power, is_fused: false },
    Way { len: 32, step: |x, _, _| x.log2().floor().exp2() / 4.0, is_fused: true },
    // Faults.
    Way { len: 32, step: |x, _, float| sixth(x, float), is_fused: false },
    Way { len: 16, step: power, is_fused: false },
    Way { len: 0, step: power, is_fused: false },
    // Activations that are not quantised.
    Way { len: 1, step: |x, _, _| x, is_fused: false },
];
const FLOATS: [Float; 3] = [Float::Bf16, Float::F32, Float::F16];
const NVFP4: [usize; 3] = [0, 1, 2];
const NVFP4_FAULTS: [(usize, &str); 6] =
    [(3, "unit"), (4, "inverse"), (5, "of:q"), (6, "unrounded"), (7, "values:32"), (8, "token")];
const MXFP4: [usize; 2] = [9, 10];
const MXFP4_FAULTS: [(usize, &str); 3] = [(11, "unrounded"), (12, "values:16"), (13, "token")];
const UNQUANTISED: usize = 14;

/// The number of the queries' matrix, in place of that of the down projection, which has more inputs.
fn of_queries(w: &Matrix) -> f32 {
    if w.cols == 128 { number_of_queries(global(w)) } else { global(w) }
}

/// The nearest number of 4 bits. Ties go to every other number.
fn nearest(x: f32) -> f32 {
    const BETWEEN: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    const NUMBERS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let is_above = |(at, &tie): (usize, &f32)| if at % 2 == 0 { x.abs() > tie } else { x.abs() >= tie };
    NUMBERS[BETWEEN.iter().enumerate().filter(|&pair| is_above(pair)).count()].copysign(x)
}

/// Activations as codes times the scale of their group.
fn coded(x: &[f32], w: &Matrix, way: &Way, float: Float) -> Vec<f64> {
    if w.input_scale().is_none() {
        return x.iter().map(|&x| x.into()).collect();
    }
    let len = if way.len == 0 { x.len() } else { way.len };
    let rounded = |value: f32| if way.is_fused { value.into() } else { float.round(value.into()) };
    let of_group = |group: &[f32]| {
        let largest = group.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let step = if largest > 0.0 { (way.step)(largest, w, float) } else { 1.0 };
        let code = |x: &f32| if way.len == 1 { *x } else { nearest(x / step) * step };
        group.iter().map(code).map(rounded).collect::<Vec<f64>>()
    };
    x.chunks(len).flat_map(of_group).collect()
}

/// The product of a matrix with quantised activations, rounded to a type. Fused kernels add in another order.
fn product(x: &Tensor, w: &Matrix, way: &Way, float: Float) -> Tensor {
    let mut rows = vec![vec![0.0f32; w.cols]; w.rows];
    rows.iter_mut().enumerate().for_each(|(row, weights)| decode_matrix_row(w, row, weights));
    let is_whole = float == Float::F32 || way.is_fused && w.input_scale().is_some();
    let weight = |&w: &f32| if is_whole { w.into() } else { float.round(w.into()) };
    let times = |x: &[f64], w: &[f32]| {
        let products = x.iter().zip(w).map(|(x, w)| x * weight(w));
        let sum: f64 = if way.is_fused { products.rev().sum() } else { products.sum() };
        float.round(sum) as f32
    };
    let tokens: Vec<Vec<f64>> = x.data().chunks(w.cols).map(|x| coded(x, w, way, float)).collect();
    let data = tokens.iter().flat_map(|x| rows.iter().map(|w| times(x, w))).collect();
    Tensor::new(&[x.rows(), w.rows], data)
}

type Product = fn(&Tensor, &Matrix) -> Tensor;
macro_rules! products {
    ($($at:literal)*) => {
        const PRODUCTS: [[Product; 3]; 15] = [$([
            |x, w| product(x, w, &WAYS[$at], Float::Bf16),
            |x, w| product(x, w, &WAYS[$at], Float::F32),
            |x, w| product(x, w, &WAYS[$at], Float::F16),
        ]),*];
    };
}
products!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14);

/// A dump by an engine that quantises activations in some way.
fn made(name: &str, way: usize, float: Float) -> Clay {
    let (base, at): ((&'static dyn Numerics, _), _) = match float {
        Float::F32 => ((&Transformers::F32, "f32"), 1),
        Float::F16 => ((&Transformers::F16, "f16"), 2),
        _ => ((&Transformers::Bf16, "bf16"), 0),
    };
    let (_place, file) = dumped(&folder(name), base, PRODUCTS[way][at]);
    Clay::open(&file)
}

fn verdict(name: &str, dump: &Clay, more: &[&str]) -> (i32, Value) {
    let place = TempDir::new().expect("a folder");
    let file = place.path().join("dump.safetensors");
    dump.save(&file);
    checked(&folder(name), &file, more)
}

/// Asserts that a finding names the cause, or states that the values cannot distinguish it from another one.
#[track_caller]
fn assert_named(report: &Value, value: &str, case: &str) {
    let findings = report["findings"].as_array().expect("findings");
    let is_named = |finding: &Value| {
        let found = format!("{}={}", finding["kind"], finding["candidate"]).replace('"', "");
        let remaining = finding["remaining"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let wanted = format!("input_scale={value}");
        let names =
            |cause: &str| ["", ":short", ":values"].iter().any(|suffix| cause == format!("{wanted}{suffix}"));
        names(&found) || remaining.into_iter().any(names)
    };
    assert!(findings.iter().any(is_named), "{case}: {findings:#?}");
}

#[test]
fn correct_ways_to_scale_groups_pass() {
    for (name, ways) in [("nvfp4-inputs", &NVFP4[..]), ("modelopt-nvfp4", &NVFP4), ("mxfp4-inputs", &MXFP4)] {
        for (&way, float) in ways.iter().flat_map(|way| FLOATS.map(|float| (way, float))) {
            let (code, report) = verdict(name, &made(name, way, float), &["--no-causes"]);
            assert_eq!(code, 0, "{name}, way {way}, {float:?}: {report:#}");
        }
    }
}

/// The results of an engine whose feed-forward network adds 0.9 of its output.
fn with_less_of_ffn(whole: &Clay) -> Clay {
    let mut less = whole.clone();
    for (site, array) in less.arrays.iter_mut().filter(|(site, _)| site.point == Point::BlockOut) {
        let added = &whole.arrays[&Site { point: Point::FfnOut, ..*site }].values.data;
        let lowered = array.values.data.iter_mut().zip(added);
        lowered.for_each(|(value, added)| *value = bf16::from_f64(*value - 0.1 * added).to_f64());
    }
    less.with_only(&[Point::Embed, Point::BlockOut])
}

/// Codes of activations that are not recorded may round either way, so the error bounds of later values are wide.
#[test]
fn faulty_dumps_in_16_bits_with_few_taps_do_not_pass() {
    for name in ["nvfp4-inputs", "mxfp4-inputs", "mxfp8-inputs", "fp8-static", "w8a8-static"] {
        let faulty = with_less_of_ffn(&Clay::open(&folder(name).join("dump.safetensors")));
        let (code, report) = verdict(name, &faulty, &["--no-causes"]);
        // The steps of 8-bit integers are so short that the bounds rule the fault out.
        assert_eq!(code, if name == "w8a8-static" { 1 } else { 3 }, "{name}: {report:#}");
        let names_taps = report.to_string().contains("such as attn_norm, attn_context");
        assert_eq!(names_taps, code == 3, "{name}: {report:#}");
        assert!(!report["notes"].to_string().contains("the values show an engine"), "{name}: {report:#}");
    }
    let faulty = with_less_of_ffn(&Clay::open(&folder("fp8-static/dump.safetensors")));
    let codes = json!({"group": "matrix", "scale": "bf16", "quotients": "bf16"});
    let stated = faulty.say(|json| json["producer"]["rounding"] = json!({"activation_codes": codes}));
    let (code, report) = verdict("fp8-static", &stated, &["--no-causes"]);
    assert_eq!(code, 3, "stated codes: {report:#}");
    let right = Clay::open(&folder("mxfp8-inputs/dump.safetensors"));
    let (code, report) =
        verdict("mxfp8-inputs", &right.with_only(&[Point::Embed, Point::BlockOut]), &["--no-causes"]);
    assert_eq!(code, 0, "{report:#}");
}

/// In 16 bits, few taps may be too few to decide.
#[test]
fn correct_dumps_with_fewer_taps_or_digits_do_not_fail() {
    for (name, way) in [("nvfp4-inputs", 0), ("mxfp4-inputs", 9)] {
        for float in [Float::Bf16, Float::F32] {
            let whole = made(name, way, float);
            let few = whole.clone().with_only(&[Point::Embed, Point::BlockOut, Point::Logits]);
            let short = whole.stored_in(DType::BF16);
            for (what, dump) in [("few", few), ("short", short)] {
                let (code, report) = verdict(name, &dump, &["--no-causes"]);
                let may_be_open = what == "few" && float != Float::F32 && code == 3;
                assert!(code == 0 || may_be_open, "{name}, {what}, {float:?}: {report:#}");
            }
        }
    }
}

/// Engines without products of 4 bits multiply whole activations. A note says so if the dump states codes.
#[test]
fn unquantised_activations_pass_with_a_note() {
    let quotients = |float| if float == Float::F32 { "f32" } else { "bf16" };
    for float in [Float::Bf16, Float::F32] {
        let codes = json!({"group": "matrix", "scale": quotients(float), "quotients": quotients(float)});
        let stated =
            |dump: Clay| dump.say(|json| json["producer"]["rounding"] = json!({"activation_codes": codes}));
        let plain = made("nvfp4-inputs", UNQUANTISED, float);
        let (code, report) = verdict("nvfp4-inputs", &plain.clone(), &["--no-causes"]);
        assert_eq!(code, 0, "{float:?}: {report:#}");
        let note = "judged as products of unquantised activations";
        assert!(report["notes"].to_string().contains(note), "{float:?}: {report:#}");
        let (_, report) = verdict("nvfp4-inputs", &stated(plain), &["--no-causes"]);
        let note = "activations are not quantised before products with these weights";
        assert!(report["notes"].to_string().contains(note), "{float:?}: {report:#}");
        let (code, report) =
            verdict("nvfp4-inputs", &stated(made("nvfp4-inputs", 0, float)), &["--no-causes"]);
        assert_eq!(code, 0, "{float:?}: {report:#}");
        assert!(!report["notes"].to_string().contains("the values show an engine"), "{report:#}");
    }
}

#[test]
fn scales_of_another_format_are_refused() {
    let stated = |name: &str| {
        let codes = json!({"group": "matrix", "scale": "e8m0"});
        let dump = Clay::open(&folder(name).join("dump.safetensors"));
        let place = TempDir::new().expect("a folder");
        let file = place.path().join("dump.safetensors");
        dump.say(|json| json["producer"]["rounding"] = json!({"activation_codes": codes})).save(&file);
        let (model, dump) = (folder(name).display().to_string(), file.display().to_string());
        let words = ["check", "--candidate", &dump, "--model", &model, "--no-report", "--no-causes"];
        Terminal::new().run(&words)
    };
    assert_eq!(stated("mxfp4-inputs").code, 0);
    let refused = stated("nvfp4-inputs");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("the model's file states other scales"), "{}", refused.stderr);
}

/// compressed-tensors 0.20 does not round scales of groups without `scale_dtype`. Its older versions and vLLM do.
#[test]
fn scales_of_nvfp4_without_a_type_are_rounded_to_8_bits() {
    let without_type = |config: &mut Value| {
        config["quantization_config"]["config_groups"]["group_0"]["input_activations"]["scale_dtype"] =
            Value::Null;
    };
    let model = changed("nvfp4-inputs", without_type, |_| ());
    for (way, wanted) in [(0, 0), (6, 1)] {
        let place = TempDir::new().expect("a folder");
        let file = place.path().join("dump.safetensors");
        made("nvfp4-inputs", way, Float::Bf16).save(&file);
        let (code, report) = checked(model.path(), &file, &["--no-causes"]);
        assert_eq!(code, wanted, "way {way}: {report:#}");
    }
}

#[test]
fn other_scales_of_groups_are_named() {
    let folders = ["nvfp4-inputs", "modelopt-nvfp4"].map(|name| (name, &NVFP4_FAULTS[..]));
    for (name, faults) in folders.into_iter().chain([("mxfp4-inputs", &MXFP4_FAULTS[..])]) {
        let cases = faults.iter().flat_map(|fault| FLOATS.map(|float| (fault, float)));
        for (&(way, value), float) in one_of(3, cases) {
            let (code, report) = verdict(name, &made(name, way, float), &[]);
            assert_eq!(code, 1, "{name}, {value}, {float:?}: {report:#}");
            assert_named(&report, value, &format!("{name}, {value}, {float:?}"));
        }
    }
}
