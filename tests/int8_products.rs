//! Engines whose order of rounding no manifest states: integers of 8 bits, split operands, sums in more digits, short caches and
//! probabilities. Each passes by what its values show, and the same engine with a mistake fails.

use std::path::Path;

use serde_json::{Value, json};
use xcheck::checkpoint::Point;
use xcheck::dump::{ArrayValues, Dump};
use xcheck::engine::RunInput;
use xcheck::exact::Float;
use xcheck::numerics::{CacheOverride, Numerics, Transformers};
use xcheck::ops::norm::RmsNorm;
use xcheck::quant::decode_matrix_row;
use xcheck::tensor::Tensor;
use xcheck::weight::{DType, Matrix};

use crate::common::faulty::{Base, Faulty};
use crate::common::share::one_of;
use crate::common::terminal::Terminal;
use crate::common::{reference, tiny_llama2};
use crate::judge::clay::Clay;
use crate::judge::scene::{of_pass, recorded, site};

struct Told {
    code: i32,
    json: Value,
}

impl Told {
    fn reason(&self) -> &str {
        self.json["reason"].as_str().unwrap_or_default()
    }

    fn first(&self) -> &str {
        self.json["first_divergence"]["tap"].as_str().unwrap_or_default()
    }

    fn says(&self, what: &str) -> bool {
        self.json["notes"].to_string().contains(what)
    }
}

fn check(clay: &Clay, model: &str, more: &[&str]) -> Told {
    let terminal = Terminal::new();
    let file = terminal.path().join("dump.safetensors");
    clay.save(&file);
    check_file(&file, model, more)
}

fn check_file(file: &Path, model: &str, more: &[&str]) -> Told {
    let file = file.display().to_string();
    let words = [&["check", "--candidate", &file, "--model", model, "--no-report"], more].concat();
    let (code, report) = Terminal::new().json(&words);
    Told { code, json: report["references"][0].clone() }
}

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/integers").join(name)
}

fn made_by(numerics: &dyn Numerics, dtype: &str) -> Dump {
    let given = reference("llama.cpp-f32").manifest.passes[0].tokens.clone();
    recorded(&tiny_llama2(), numerics, dtype, &RunInput::greedy(&given, 2), &mut ())
}

/// A dump by an engine with other products, which says of itself that it computes in `f32`.
fn by(linear: fn(&Tensor, &Matrix) -> Tensor) -> Clay {
    Clay::of(&made_by(
        &Faulty { base: Base(&Transformers::F32), linear: Some(linear), ..Faulty::default() },
        "f32",
    ))
}

/// The same that says nothing, and shows logits alone.
fn silent(clay: Clay) -> Clay {
    clay.with_only(&[Point::Logits]).say(|json| json["producer"] = json!({"name": "an engine"}))
}

/// Products of rounded activations, added up in f64.
fn product(x: &Tensor, w: &Matrix, round: impl Fn(&[f32]) -> Vec<f64>) -> Tensor {
    let mut rows = vec![vec![0.0f32; w.cols]; w.rows];
    rows.iter_mut().enumerate().for_each(|(row, weights)| decode_matrix_row(w, row, weights));
    let times = |x: &[f64], w: &[f32]| x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum::<f64>() as f32;
    let all = round(x.data());
    let data = all.chunks(w.cols).flat_map(|x| rows.iter().map(move |w| times(x, w))).collect();
    Tensor::new(&[x.rows(), w.rows], data)
}

/// Groups of so many values as integers from -127 to 127 times a scale.
fn symmetric(x: &[f32], len: usize, scale: fn(f32) -> f32) -> Vec<f64> {
    let of_group = |group: &[f32]| {
        let step = scale(group.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0);
        let code =
            move |x: &f32| if step > 0.0 { f64::from((x / step).round()) * f64::from(step) } else { 0.0 };
        group.iter().map(code).collect::<Vec<f64>>()
    };
    x.chunks(len).flat_map(of_group).collect()
}

/// The same from 0 to 255, with a zero point.
fn asymmetric(x: &[f32], len: usize) -> Vec<f64> {
    let of_group = |group: &[f32]| {
        let low = group.iter().fold(0.0f32, |low, x| low.min(*x));
        let step = (group.iter().fold(0.0f32, |high, x| high.max(*x)) - low) / 255.0;
        let zero = (-low / step).round_ties_even();
        let code = move |x: &f32| (x / step).round_ties_even() + zero;
        group
            .iter()
            .map(|x| f64::from(code(x).clamp(0.0, 255.0) - zero) * f64::from(step))
            .collect::<Vec<f64>>()
    };
    x.chunks(len).flat_map(of_group).collect()
}

fn whole(scale: f32) -> f32 {
    scale
}

fn in_bf16(scale: f32) -> f32 {
    Float::Bf16.round(scale.into()) as f32
}

/// ONNX Runtime's MatMulNBits.
fn in_blocks(x: &Tensor, w: &Matrix) -> Tensor {
    product(x, w, |x| symmetric(x, 32, whole))
}

// ---- activations of 8-bit integers ----------------------------------------------------------------------

#[test]
fn int8_activations_pass_however_they_are_grouped() {
    type Product = fn(&Tensor, &Matrix) -> Tensor;
    let ways: [(&str, Product); 5] = [
        ("32 values", in_blocks),
        ("64 values", |x, w| product(x, w, |x| symmetric(x, 64, whole))),
        ("each token", |x, w| product(x, w, |x| symmetric(x, w.cols, in_bf16))),
        ("each token", |x, w| product(x, w, |x| asymmetric(x, w.cols))),
        ("each pass", |x, w| product(x, w, |x| asymmetric(x, x.len()))),
    ];
    for (group, linear) in one_of(2, ways) {
        let told = check(&by(linear), "tiny-llama2-f32", &["--no-causes"]);
        assert_eq!(told.code, 0, "{group}: {}", told.reason());
        assert!(told.says(&format!("one scale for {group}")), "{group}: {}", told.json["notes"]);
    }
}

#[test]
fn an_int8_lm_head_over_int8_activations_passes() {
    let clay = by(|x, w| {
        if w.rows == 512 { product(x, w, |x| x.iter().map(|&x| x.into()).collect()) } else { in_blocks(x, w) }
    });
    let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!(told.code, 0, "{}", told.reason());
    assert!(told.says("except in the head of the model"), "{}", told.json["notes"]);
}

#[test]
fn int8_products_that_a_manifest_states_need_no_note() {
    let stated = json!({"activation_codes": {"group": {"values": 32}}});
    let clay = by(in_blocks).say(|json| json["producer"]["rounding"] = stated);
    let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!(told.code, 0, "{}", told.reason());
    assert!(!told.says("the values show an engine"), "{}", told.json["notes"]);
    // What is stated is held against the values.
    let stated = json!({"activation_codes": {"group": {"values": 64}}});
    let clay = by(in_blocks).say(|json| json["producer"]["rounding"] = stated);
    assert_eq!(check(&clay, "tiny-llama2-f32", &["--no-causes"]).code, 1);
    let wrong = json!({"activation_codes": {"group": {"values": 0}}});
    let clay = by(in_blocks).say(|json| json["producer"]["rounding"] = wrong);
    assert_eq!(check(&clay, "tiny-llama2-f32", &["--no-causes"]).code, 2);
}

#[test]
fn logits_of_int8_engines_alone_pass_and_those_of_a_wrong_engine_fail() {
    let told = check(&silent(by(in_blocks)), "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!(told.code, 0, "{}", told.reason());
    let other_eps: fn(&Tensor, &RmsNorm) -> Tensor =
        |x, norm| Transformers::F32.rms_norm(x, &RmsNorm { eps: 1e-3, ..norm.clone() });
    let numerics = Faulty {
        base: Base(&Transformers::F32),
        linear: Some(in_blocks),
        rms_norm: Some(other_eps),
        ..Faulty::default()
    };
    let clay = Clay::of(&made_by(&numerics, "f32"));
    assert_eq!(check(&silent(clay.clone()), "tiny-llama2-f32", &["--no-causes"]).code, 1);
    // With its taps, it is found where it is.
    let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!((told.code, told.first()), (1, "attn_norm"), "{}", told.reason());
}

#[test]
fn a_wrong_value_among_int8_products_is_found_where_it_is() {
    let wrong = site(Point::FfnUp, 1, 0);
    let clay = by(in_blocks).edit(wrong, |values| values[7] += 1e-3);
    let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!((told.code, told.first()), (1, "ffn_up"), "{}", told.reason());
    // A head of integers alone is a way to compute, and is named.
    let clay = by(|x, w| {
        if w.rows == 512 { in_blocks(x, w) } else { product(x, w, |x| x.iter().map(|&x| x.into()).collect()) }
    });
    let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!(told.code, 0, "{}", told.reason());
    assert!(told.says("8-bit integers"), "{}", told.json["notes"]);
}

// ---- torchao, quanto --------------------------------------------------------------------------------------------

#[test]
fn int8_dumps_of_torchao_and_quanto_pass_and_those_with_another_rope_fail_there() {
    for (way, note) in [
        (
            "int8-weight-only",
            "the product with integer weights is rounded before the scale of its row is applied",
        ),
        ("int8-dynamic", "one scale for each token"),
        // Its rows of 16 values fit both orders in single passes: the other layers decide.
        (
            "int8-quanto",
            "k: the scale of a row is applied after the product with integer weights is summed; this explains 12 of 12",
        ),
    ] {
        let model = data(way).display().to_string();
        let told = check_file(&data(&format!("{way}.safetensors")), &model, &[]);
        assert_eq!(told.code, 0, "{way}: {}", told.reason());
        assert!(told.says(note), "{way}: {}", told.json["notes"]);
        let told = check_file(&data(&format!("{way}-theta.safetensors")), &model, &[]);
        assert_eq!((told.code, told.first()), (1, "k_rope"), "{way}: {}", told.reason());
        assert!(told.json.to_string().contains("rope_theta"), "{way}: {}", told.json["findings"]);
    }
}

#[test]
fn a_wrong_product_with_int8_weights_is_found_where_it_is() {
    let model = data("int8-weight-only").display().to_string();
    let dump = Dump::open(&data("int8-weight-only.safetensors")).expect("it is sound");
    for (point, layer) in [(Point::FfnGate, 1), (Point::V, 0)] {
        let wrong = site(point, layer, 0);
        // Two steps of bf16.
        let clay = Clay::of(&dump).edit(wrong, |values| values[3] *= 1.0 + 1.0 / 64.0);
        let told = check(&clay, &model, &["--no-causes"]);
        assert_eq!((told.code, told.first()), (1, point.name()), "{}", told.reason());
    }
}

// ---- split operands, wide sums, attention in another type ----------------------------------------------

fn halves(x: f32) -> (f64, f64) {
    let high = Float::Bf16.round(x.into());
    (high, Float::Bf16.round(f64::from(x) - high))
}

/// Three of the four products of numbers that are split in two of bf16.
fn in_three(x: &Tensor, w: &Matrix) -> Tensor {
    let mut row = vec![0.0f32; w.cols];
    let mut data = vec![0.0f32; x.rows() * w.rows];
    for output in 0..w.rows {
        decode_matrix_row(w, output, &mut row);
        for token in 0..x.rows() {
            let of = |(&x, &w): (&f32, &f32)| {
                let ((a, b), (c, d)) = (halves(x), halves(w));
                a * c + a * d + b * c
            };
            data[token * w.rows + output] = x.row(token).iter().zip(&row).map(of).sum::<f64>() as f32;
        }
    }
    Tensor::new(&[x.rows(), w.rows], data)
}

#[test]
fn products_of_split_operands_pass_and_a_wrong_value_among_them_fails() {
    let told = check(&by(in_three), "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!(told.code, 0, "{}", told.reason());
    assert!(told.says("operands are split into two numbers of bf16"), "{}", told.json["notes"]);
    let clay = by(in_three).edit(site(Point::FfnGate, 2, 0), |values| values[5] += 1e-3);
    let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!((told.code, told.first()), (1, "ffn_gate"), "{}", told.reason());
}

#[test]
fn sums_in_more_digits_than_the_rest_pass_and_wrong_ones_fail() {
    let sum: fn(&Tensor, &Tensor) -> Tensor =
        |a, b| Tensor::new(a.shape(), a.data().iter().zip(b.data()).map(|(a, b)| a + b).collect());
    let numerics = Faulty { base: Base(&Transformers::Bf16), add: Some(sum), ..Faulty::default() };
    let wide = |point| matches!(point, Point::AttnResidual | Point::BlockOut);
    let mut clay = Clay::of(&made_by(&numerics, "bf16")).stored_in(DType::BF16);
    clay.arrays
        .iter_mut()
        .filter(|(site, _)| wide(site.point))
        .for_each(|(_, array)| array.dtype = DType::F32);
    let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!(told.code, 0, "{}", told.reason());
    let wrong = clay.edit(site(Point::BlockOut, 1, 0), |values| values[9] += 1e-2);
    let told = check(&wrong, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!((told.code, told.first()), (1, "block_out"), "{}", told.reason());
}

/// Exponentials of the distance to the largest, rounded to bf16 where they meet values, and divided by their sum in the end.
fn flash_in_bf16(weights: &Tensor, v: &Tensor) -> Tensor {
    let keys = weights.row_len();
    let mut rounded = weights.data().to_vec();
    for row in rounded.chunks_mut(keys) {
        let largest = row.iter().fold(0.0f32, |most, x| most.max(*x));
        row.iter_mut()
            .for_each(|x| *x = (Float::Bf16.round(f64::from(*x / largest)) * f64::from(largest)) as f32);
    }
    Transformers::F32.context(&Tensor::new(weights.shape(), rounded), v)
}

#[test]
fn flash_attention_in_bf16_that_is_stated_passes_in_total_and_a_wrong_one_fails() {
    let numerics =
        Faulty { base: Base(&Transformers::F32), context: Some(flash_in_bf16), ..Faulty::default() };
    let stated = json!({"flash": true, "attention": "bf16"});
    let clay = Clay::of(&made_by(&numerics, "f32")).without(&[Point::AttnScores, Point::AttnWeights]);
    let clay = clay.say(|json| json["producer"]["rounding"] = stated);
    let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!(told.code, 0, "{}", told.reason());
    let wrong = clay.edit_all(
        |at| at == site(Point::AttnContext, 1, 0),
        |values: &mut ArrayValues| {
            values.data.iter_mut().for_each(|x| *x *= 1.02);
        },
    );
    let told = check(&wrong, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!((told.code, told.first()), (1, "attn_context"), "{}", told.reason());
}

// ---- probabilities --------------------------------------------------------------------------------------

#[test]
fn probabilities_in_the_type_of_their_engine_pass_and_those_of_another_temperature_fail() {
    let clay = Clay::of(&made_by(&Transformers::Bf16, "bf16")).stored_in(DType::BF16);
    let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!(told.code, 0, "{}", told.reason());
    let logits = clay.arrays[&of_pass(Point::LastLogits, 0)].values.data.clone();
    let wrong = clay.edit(of_pass(Point::Probs, 0), |probs| {
        let exponentials: Vec<f64> = logits.iter().map(|logit| (logit / 1.1).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        probs.iter_mut().zip(exponentials).for_each(|(prob, exponential)| *prob = exponential / sum);
    });
    let told = check(&wrong, "tiny-llama2-f32", &["--no-causes"]);
    assert_eq!((told.code, told.first()), (1, "probs"), "{}", told.reason());
}

// ---- caches ---------------------------------------------------------------------------------------------

fn with_cache(kv: DType) -> Clay {
    let numerics = CacheOverride::over(Box::new(Transformers::F32), kv).expect("it is known");
    Clay::of(&made_by(&*numerics, "f32")).with_only(&[Point::Logits])
}

#[test]
fn logits_over_an_int8_kv_cache_pass_if_it_is_stated_and_else_are_inconclusive() {
    for (kv, name) in
        one_of(2, [(DType::I8, "int8"), (DType::F8_E4M3, "f8_e4m3"), (DType::F8_E5M2, "f8_e5m2")])
    {
        let clay = with_cache(kv);
        let told = check(&clay, "tiny-llama2-f32", &["--kv-cache", name, "--no-causes"]);
        assert_eq!(told.code, 0, "{name}: {}", told.reason());
        let told = check(&clay, "tiny-llama2-f32", &["--no-causes"]);
        assert_eq!(told.code, 3, "{name}: {}", told.reason());
        assert!(told.reason().contains("settings.kv_cache"), "{name}: {}", told.reason());
        let stated = clay.say(|json| json["producer"]["settings"]["kv_cache"] = json!(name));
        let told = check(&stated, "tiny-llama2-f32", &["--no-causes"]);
        assert_eq!(told.code, 0, "{name}: {}", told.reason());
        let wrong = stated.edit_all(
            |site| site.pass == Some(0),
            |values| {
                values.data.iter_mut().for_each(|x| *x = -*x);
            },
        );
        assert_eq!(check(&wrong, "tiny-llama2-f32", &["--no-causes"]).code, 1, "{name}");
    }
}

#[test]
fn logits_over_a_kv_cache_of_unknown_scales_do_not_fail_if_its_dtype_is_stated() {
    let to_cache: fn(Tensor) -> Tensor =
        |x| x.map(|x| (Float::E4m3.round(f64::from(x) / 0.05) * 0.05) as f32);
    let numerics = Faulty { base: Base(&Transformers::F32), to_cache: Some(to_cache), ..Faulty::default() };
    let clay = Clay::of(&made_by(&numerics, "f32")).with_only(&[Point::Logits]);
    let stated = clay.say(|json| json["producer"]["settings"]["kv_cache"] = json!("f8_e4m3"));
    let told = check(&stated, "tiny-llama2-f32", &["--no-causes"]);
    assert!([0, 3].contains(&told.code), "{}", told.reason());
    assert!(told.says("the scales of the KV cache are not recorded"), "{}", told.json["notes"]);
}
