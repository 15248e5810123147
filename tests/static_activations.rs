//! Stored scales of activations: dumps of compressed-tensors pass, engines that use another scale fail with the cause, and the
//! same engines without the mistake pass.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use half::bf16;
use serde_json::{Value, json};
use tempfile::TempDir;
use xcheck::exact::Float;
use xcheck::model::ModelFiles;
use xcheck::numerics::{Numerics, Transformers};
use xcheck::quant::decode_matrix_row;
use xcheck::tensor::Tensor;
use xcheck::weight::{InputCodes, InputScale, Matrix};

use crate::common::share::one_of;
use crate::common::terminal::Terminal;
use crate::judge::clay::Clay;
use crate::quantised_models::{changed, checked, dumped, each, folder};

const FOLDERS: [&str; 3] = ["fp8-static", "w8a8-static", "w8a8-static-zeros"];

fn check(name: &str, dump: &Path, options: &[&str]) -> (i32, Value) {
    checked(&folder(name), dump, options)
}

#[test]
fn dumps_of_the_libraries_show_the_stored_scales() {
    let dumps = FOLDERS.map(|name| (name, "dump")).into_iter();
    let others = [
        ("modelopt-fp8", "dump"),
        ("modelopt-fp8", "dump-f32"),
        ("modelopt-int8", "dump"),
        ("modelopt-int8", "dump-f32"),
    ];
    for (name, dump) in dumps.chain(others) {
        let file = folder(name).join(format!("{dump}.safetensors"));
        let (code, report) = check(name, &file, &["--no-causes"]);
        assert_eq!(code, 0, "{name}, {dump}: {report:#}");
        let notes = report["notes"].to_string();
        assert!(notes.contains("one scale for each matrix, stored in the file"), "{name}: {notes}");
    }
    // torch's kernel, with f32 quotients, as vLLM calls it.
    let (code, report) =
        check("fp8-static-tensor", &folder("fp8-static-tensor/dump-scaled-mm.safetensors"), &["--no-causes"]);
    assert_eq!(code, 0, "{report:#}");
    assert!(report["notes"].to_string().contains("one scale for each matrix"), "{report:#}");
}

/// Activations as 8-bit codes times a scale. `round` rounds quotients.
fn coded(x: &[f32], input: InputScale, round: fn(f64) -> f64) -> Vec<f64> {
    let step = f64::from(input.number);
    let code = |x: &f32| {
        let quotient = round(round(f64::from(*x) / step) + f64::from(input.zero));
        let code = match input.codes {
            InputCodes::Int8 => quotient.round_ties_even().clamp(-128.0, 127.0),
            _ => Float::E4m3.round(quotient.clamp(-448.0, 448.0)),
        };
        round((code - f64::from(input.zero)) * step)
    };
    x.iter().map(code).collect()
}

/// The product of a matrix with activations that `scale` quantises, rounded to a type.
fn product(x: &Tensor, w: &Matrix, float: Float, scale: impl Fn(&[f32], InputScale) -> InputScale) -> Tensor {
    let mut row = vec![0.0f32; w.cols];
    let round: fn(f64) -> f64 = if float == Float::F32 { |x| x } else { |x| bf16::from_f64(x).to_f64() };
    let of_token = |x: &[f32]| match w.input_scale() {
        Some(stored) => {
            let input = scale(x, stored);
            coded(x, InputScale { number: round(input.number.into()) as f32, ..input }, round)
        }
        None => x.iter().map(|&x| x.into()).collect(),
    };
    let tokens: Vec<Vec<f64>> = x.data().chunks(w.cols).map(of_token).collect();
    let mut data = vec![0.0f32; x.rows() * w.rows];
    for output in 0..w.rows {
        decode_matrix_row(w, output, &mut row);
        for (token, x) in tokens.iter().enumerate() {
            let weight = |&w: &f32| if float == Float::F32 { w.into() } else { bf16::from_f32(w).to_f64() };
            let sum: f64 = x.iter().zip(&row).map(|(x, w)| x * weight(w)).sum();
            data[token * w.rows + output] = float.round(sum) as f32;
        }
    }
    Tensor::new(&[x.rows(), w.rows], data)
}

/// Ways to choose the scale of activations: as stored, and mistakes.
fn stored(_: &[f32], _: &Matrix, input: InputScale) -> InputScale {
    input
}

fn unit(_: &[f32], _: &Matrix, input: InputScale) -> InputScale {
    InputScale { number: 1.0, ..input }
}

fn inverse(_: &[f32], _: &Matrix, input: InputScale) -> InputScale {
    InputScale { number: 1.0 / input.number, ..input }
}

fn dynamic(x: &[f32], _: &Matrix, input: InputScale) -> InputScale {
    let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let step = largest / if input.codes == InputCodes::Int8 { 127.0 } else { 448.0 };
    InputScale { number: if step > 0.0 { step } else { 1.0 }, ..input }
}

/// The file's own scheme: the stored scale, or one for each token.
fn stated(x: &[f32], w: &Matrix, input: InputScale) -> InputScale {
    match input.codes {
        InputCodes::Int8Groups => dynamic(x, w, InputScale { codes: InputCodes::Int8, ..input }),
        _ => input,
    }
}

/// Scales of tokens for all matrices.
fn token_max(x: &[f32], w: &Matrix, input: InputScale) -> InputScale {
    dynamic(x, w, InputScale { codes: InputCodes::Int8, ..input })
}

fn no_zero(_: &[f32], _: &Matrix, input: InputScale) -> InputScale {
    InputScale { zero: 0.0, ..input }
}

/// The scale of queries in place of that of the down projection, which has more inputs.
fn of_queries(_: &[f32], w: &Matrix, input: InputScale) -> InputScale {
    if w.cols == 128 { InputScale { number: number_of_queries(input.number), ..input } } else { input }
}

/// The stored input scale of queries in the model whose down projection has this one.
pub(crate) fn number_of_queries(of_down: f32) -> f32 {
    static NUMBERS: LazyLock<Vec<[f32; 2]>> = LazyLock::new(|| {
        const NAMES: [&str; 7] = [
            "w8a8-static",
            "fp8-static",
            "fp8-static-tensor",
            "modelopt-fp8",
            "modelopt-int8",
            "nvfp4-inputs",
            "modelopt-nvfp4",
        ];
        NAMES.map(numbers).into()
    });
    let of_model = NUMBERS.iter().find(|[_, down]| *down == of_down);
    of_model.expect("a model with this number")[0]
}

/// The input scales that a model stores for queries and for its down projection.
fn numbers(name: &str) -> [f32; 2] {
    let model = ModelFiles::open(&folder(name)).expect("it is a model").load().expect("it loads").model;
    let matrices = model.matrices();
    let stored: Vec<_> =
        matrices.iter().filter_map(|(_, w)| Some((w.cols, w.input_scale()?.number))).collect();
    let down = stored.iter().find(|(cols, _)| *cols == 128).expect("a down projection");
    [stored[0].1, down.1]
}

macro_rules! engines {
    ($($name:ident)*) => {
        /// Products in bf16 and in f32, by the choice of the scale.
        fn engine(scale: &str, float: Float) -> fn(&Tensor, &Matrix) -> Tensor {
            match (scale, float) {
                $((stringify!($name), Float::F32) => |x, w| product(x, w, Float::F32, |x, input| $name(x, w, input)),
                (stringify!($name), _) => |x, w| product(x, w, Float::Bf16, |x, input| $name(x, w, input)),)*
                other => panic!("no engine {other:?}"),
            }
        }
    };
}
engines!(stored stated unit inverse dynamic token_max no_zero of_queries);

/// A dump by an engine that chooses scales in some way.
fn scaled_dump(model: &Path, scale: &str, float: Float) -> (TempDir, PathBuf) {
    let base: (&'static dyn Numerics, _) = match float {
        Float::F32 => (&Transformers::F32, "f32"),
        _ => (&Transformers::Bf16, "bf16"),
    };
    dumped(model, base, engine(scale, float))
}

#[test]
fn other_scales_of_activations_are_named_and_stored_ones_pass() {
    let causes = [("unit", "unit"), ("dynamic", "token"), ("of_queries", "of:q"), ("inverse", "inverse")];
    for name in ["fp8-static", "fp8-static-tensor", "w8a8-static", "modelopt-fp8", "modelopt-int8"] {
        for float in [Float::Bf16, Float::F32] {
            let (_place, file) = scaled_dump(&folder(name), "stored", float);
            let (code, report) = check(name, &file, &["--no-causes"]);
            assert_eq!(code, 0, "{name}, {float:?}: {report:#}");
            // With the inverse scale, nearly all integers are 0.
            let count = if name.contains("fp8") { 4 } else { 3 };
            for (scale, value) in one_of(4, causes.into_iter().take(count)) {
                let (_place, file) = scaled_dump(&folder(name), scale, float);
                let (code, report) = check(name, &file, &[]);
                let case = format!("{name}, {float:?}, {scale}: {report:#}");
                assert_eq!(code, 1, "{case}");
                assert!(
                    report["sentence"].to_string().contains("other scales than the file states"),
                    "{case}"
                );
                let named = [value.to_owned(), format!("{value}:short"), format!("{value}:values")];
                let is_named =
                    |finding: &Value| named.iter().any(|value| finding["candidate"] == *value.as_str());
                let findings = report["findings"].as_array().expect("findings");
                assert!(findings.iter().any(is_named), "{case}");
            }
        }
    }
}

#[test]
fn an_unused_zero_point_of_activations_is_named_and_a_used_one_passes() {
    let name = "w8a8-static-zeros";
    for float in [Float::Bf16, Float::F32] {
        let (_place, file) = scaled_dump(&folder(name), "stored", float);
        let (code, report) = check(name, &file, &["--no-causes"]);
        assert_eq!(code, 0, "{float:?}: {report:#}");
        let (_place, file) = scaled_dump(&folder(name), "no_zero", float);
        let (code, report) = check(name, &file, &[]);
        assert_eq!(code, 1, "{float:?}: {report:#}");
        let findings = report["findings"].as_array().expect("findings");
        let is_named = |finding: &Value| {
            let value = finding["candidate"].as_str().unwrap_or_default();
            value.trim_end_matches(":short") == "no-zero"
        };
        assert!(findings.iter().any(is_named), "{float:?}: {findings:#?}");
    }
}

/// Quotients in bf16 often lie halfway between two codes, and the nearest even code depends on the zero point.
#[test]
fn odd_zero_points_of_activations_pass_and_unused_ones_fail() {
    let add_one = |data: &mut [u8]| data.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    let model = changed("w8a8-static-zeros", |_| (), |tensors| each(tensors, "input_zero_point", add_one));
    for float in [Float::Bf16, Float::F32] {
        for (scale, wanted) in [("stored", 0), ("no_zero", 1)] {
            let (_place, file) = scaled_dump(model.path(), scale, float);
            let (code, report) = checked(model.path(), &file, &["--no-causes"]);
            assert_eq!(code, wanted, "{float:?}, {scale}: {report:#}");
        }
    }
}

#[test]
fn stated_codes_of_stored_scales_need_no_note() {
    let stated = |group: Value| {
        let terminal = Terminal::new();
        let file = terminal.path().join("dump.safetensors");
        let (_place, made) = scaled_dump(&folder("fp8-static"), "stored", Float::F32);
        let dump = xcheck::dump::Dump::open(&made).expect("it is sound");
        let codes = json!({"activation_codes": {"group": group, "codes": "f8_e4m3"}});
        Clay::of(&dump).say(|json| json["producer"]["rounding"] = codes).save(&file);
        check("fp8-static", &file, &["--no-causes"])
    };
    let (code, report) = stated(json!("matrix"));
    assert_eq!(code, 0, "{report:#}");
    assert!(!report["notes"].to_string().contains("the values show an engine"), "{report:#}");
    assert_eq!(stated(json!("token")).0, 1);
}

/// Attention has stored scales, and the feed-forward block scales of each token.
#[test]
fn scales_of_either_kind_are_judged_in_one_checkpoint() {
    let name = "static-and-dynamic";
    let (code, report) = check(name, &folder(name).join("dump.safetensors"), &["--no-causes"]);
    assert_eq!(code, 0, "{report:#}");
    for float in [Float::Bf16, Float::F32] {
        for (scale, wanted) in [("stated", 0), ("unit", 1), ("token_max", 1)] {
            let (_place, file) = scaled_dump(&folder(name), scale, float);
            let (code, report) = check(name, &file, &["--no-causes"]);
            assert_eq!(code, wanted, "{float:?}, {scale}: {report:#}");
        }
    }
}
