//! A fault is a fault whatever the size of the values: an absolute tolerance knows nothing of it.

use xcheck::align::Selection;
use xcheck::check::{Mode, Tolerances};
use xcheck::checkpoint::{Point, ValueKind};
use xcheck::diagnose::cross_check;
use xcheck::dump::Dump;
use xcheck::engine::RunInput;
use xcheck::model::llama::Llama;
use xcheck::numerics::{Numerics, Transformers};
use xcheck::quant::decode_matrix_row;
use xcheck::tap::Tap;
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::{DType, Matrix, StoredTensor};

use super::scene::{Everywhere, assert_first_wrong, assert_passes, recorded, site, told};
use crate::common::share::{one_of, pairs};
use crate::common::{rules, tiny_llama2};

/// Down to a residual stream as small as in the first layers of an 8B model.
const SCALES: [f32; 4] = [1.0, 0.03, 0.01, 0.003];
const PRECISIONS: [(Transformers, &str, &str); 2] =
    [(Transformers::Bf16, "bf16", "torch-bf16"), (Transformers::F32, "f32", "f32")];

/// tiny-llama2 whose embeddings and what layers add to the residual stream are smaller: the norms make the same of it.
fn small(scale: f32) -> Llama {
    let mut model = tiny_llama2();
    model.token_embd = scaled(&model.token_embd, scale);
    for layer in &mut model.layers {
        layer.attn.output.weight = scaled(&layer.attn.output.weight, scale);
        layer.ffn.down.weight = scaled(&layer.ffn.down.weight, scale);
    }
    model
}

fn scaled(matrix: &Matrix, scale: f32) -> Matrix {
    let mut row = vec![0.0; matrix.cols];
    let mut data = Vec::new();
    for index in 0..matrix.rows {
        decode_matrix_row(matrix, index, &mut row);
        row.iter().for_each(|weight| data.extend((weight * scale).to_le_bytes()));
    }
    let shape = vec![matrix.rows, matrix.cols];
    Matrix::from_stored(&StoredTensor { dtype: DType::F32, shape, data: data.into() }).expect("it is whole")
}

fn judge(
    dump: &Dump,
    model: &Llama,
    numerics: &dyn Numerics,
    precision: &str,
    fault: &mut dyn Tap,
) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = rules(&selection, &tolerances, precision, Mode::Both);
    cross_check("reference", model, numerics, dump, rules, fault).expect("the two can be compared")
}

fn for_each_scale(check: impl Fn(&dyn Fn(&mut dyn Tap) -> Outcome, &str)) {
    for (scale, (numerics, dtype, precision)) in one_of(2, pairs(SCALES, PRECISIONS)) {
        let model = small(scale);
        let script = RunInput::greedy(&[1, 393, 395, 260, 394, 486], 2);
        let dump = recorded(&model, &numerics, dtype, &script, &mut ());
        let judge = |fault: &mut dyn Tap| judge(&dump, &model, &numerics, precision, fault);
        check(&judge, &format!("{dtype}, scaled by {scale}"));
    }
}

fn assert_fault_is_found(point: Point, layer: usize, fault: fn(&mut [f32])) {
    for_each_scale(|judge, name| {
        let outcome = judge(&mut Everywhere(point, Some(layer), fault));
        println!("{name}, {point} of layer {layer}");
        assert_first_wrong(&outcome, site(point, layer, 0));
        let ties = outcome.rows.iter().filter(|row| row.verdict == Verdict::Tie);
        assert_eq!(
            ties.filter(|row| row.site.point.kind() == ValueKind::Token).count(),
            0,
            "{}",
            told(&outcome)
        );
    });
}

fn zero(values: &mut [f32]) {
    values.fill(0.0);
}

fn halve(values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value /= 2.0);
}

#[test]
fn an_honest_run_passes_however_small_its_values_are() {
    for_each_scale(|judge, name| {
        println!("{name}");
        assert_passes(&judge(&mut ()));
    });
}

#[test]
fn a_first_layers_attention_that_is_all_zero_is_found_however_small_its_values_are() {
    assert_fault_is_found(Point::AttnOut, 0, zero);
}

#[test]
fn a_later_layers_attention_that_is_all_zero_is_found_however_small_its_values_are() {
    assert_fault_is_found(Point::AttnOut, 2, zero);
}

#[test]
fn an_ffn_that_is_all_zero_is_found_however_small_its_values_are() {
    assert_fault_is_found(Point::FfnOut, 0, zero);
    assert_fault_is_found(Point::FfnOut, 3, zero);
}

#[test]
fn an_attention_that_is_halved_is_found_however_small_its_values_are() {
    assert_fault_is_found(Point::AttnOut, 0, halve);
    assert_fault_is_found(Point::AttnOut, 3, halve);
}

#[test]
fn an_ffn_that_is_halved_is_found_however_small_its_values_are() {
    assert_fault_is_found(Point::FfnOut, 1, halve);
    assert_fault_is_found(Point::FfnOut, 3, halve);
}

#[test]
fn what_is_below_every_tolerance_fails_at_the_first_stage_that_has_it() {
    let (numerics, dtype, precision) = PRECISIONS[1];
    let script = RunInput::greedy(&[1, 393, 395, 260, 394, 486], 2);
    let dump = recorded(&tiny_llama2(), &numerics, dtype, &script, &mut ());
    let drift = |values: &mut [f32]| {
        let size = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
        let by = |index: usize| if index * index % 7 < 3 { 2.3e-5 * size } else { -2.3e-5 * size };
        values.iter_mut().enumerate().for_each(|(index, x)| *x += by(index));
    };
    let points = [Point::AttnResidual, Point::BlockOut, Point::FfnOut, Point::AttnOut, Point::V];
    let [a, b, c, d, e] = points.map(|point| Everywhere(point, None, drift));
    let outcome = judge(&dump, &tiny_llama2(), &numerics, precision, &mut (a, (b, (c, (d, e)))));
    let first = outcome.first_divergence().expect("it is named");
    assert_eq!(first.site, site(Point::V, 0, 0), "{}", told(&outcome));
}
