//! Every check can fail: known bugs are planted, and the first wrong tap, layer and pass must be named exactly.

use std::ops::Range;

use crate::common::faulty::{At, Faulty};
use crate::common::{LLAMA_CPP_F32, judge, tiny_llama2};
use xcheck::checkpoint::{Point, Site};
use xcheck::model::Model;
use xcheck::numerics::Numerics;
use xcheck::ops::attention::{AttentionScale, softmax_row};
use xcheck::ops::rope::Rope;
use xcheck::tensor::{RopePairing, Tensor};
use xcheck::verdict::{Outcome, Verdict};
use xcheck::weight::{DType, Matrix, StoredTensor};

/// The run must fail, and first there.
#[track_caller]
fn assert_first_wrong(outcome: &Outcome, point: Point, layer: usize, pass: usize) {
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point, layer: Some(layer), pass: Some(pass) }), "{:?}", outcome.reason);
    assert_eq!(outcome.verdict, Verdict::Fail);
}

#[track_caller]
fn assert_model_fails_at(model: &dyn Model, point: Point, layer: usize) {
    assert_first_wrong(&judge(model, &LLAMA_CPP_F32, &mut ()), point, layer, 0);
}

#[test]
fn the_correct_model_passes() {
    let outcome = judge(&tiny_llama2(), &LLAMA_CPP_F32, &mut ());
    assert_eq!((outcome.verdict, outcome.reason), (Verdict::Pass, None));
    assert_eq!(outcome.coverage.taps_compared, outcome.coverage.taps_expected);
    assert!(outcome.coverage.taps_compared > 400);
}

// ---- faults of the model: constants and weights ---------------------------------------------------------

#[test]
fn a_wrong_rms_norm_eps_is_found_in_the_first_norm() {
    let mut model = tiny_llama2();
    model.layers[0].attn_norm.eps = 1e-6;
    assert_model_fails_at(&model, Point::AttnNorm, 0);
}

#[test]
fn a_wrong_attention_scale_is_found_in_the_scores() {
    let mut model = tiny_llama2();
    model.config.attn_scale = AttentionScale::Products(1.0 / 128f32.sqrt());
    assert_model_fails_at(&model, Point::AttnScores, 0);
}

#[test]
fn a_wrong_rope_theta_is_found_in_the_rotated_queries() {
    let mut model = tiny_llama2();
    model.config.rope.theta = 500_000.0;
    assert_model_fails_at(&model, Point::QRope, 0);
}

#[test]
fn swapped_swiglu_gate_and_up_in_one_layer_are_found_there() {
    let mut model = tiny_llama2();
    let layer = &mut model.layers[2];
    std::mem::swap(layer.ffn.gate.as_mut().expect("Llama has a gate"), &mut layer.ffn.up);
    assert_model_fails_at(&model, Point::FfnGate, 2);
}

#[test]
fn one_transposed_weight_is_found_at_its_product() {
    let mut model = tiny_llama2();
    let output = &mut model.layers[1].attn.output.weight;
    *output = transposed(output);
    assert_model_fails_at(&model, Point::AttnOut, 1);
}

#[test]
fn a_dropped_layer_is_found_where_the_next_one_took_its_place() {
    let mut model = tiny_llama2();
    model.layers.remove(2);
    assert_model_fails_at(&model, Point::AttnNorm, 2);
}

#[test]
fn a_dropped_last_layer_fails_after_the_layers_that_remain() {
    let mut model = tiny_llama2();
    model.layers.pop();
    let outcome = judge(&model, &LLAMA_CPP_F32, &mut ());
    let found = outcome.first_divergence().map(|row| row.site);
    assert_eq!(found, Some(Site { point: Point::FinalNorm, layer: None, pass: Some(0) }));
    assert!(outcome.coverage.taps_compared < outcome.coverage.taps_expected);
}

fn transposed(matrix: &Matrix) -> Matrix {
    assert_eq!((matrix.dtype, matrix.rows), (DType::F32, matrix.cols));
    let element = |row: usize, col: usize| &matrix.row(row)[col * 4..][..4];
    let bytes: Vec<u8> = (0..matrix.cols)
        .flat_map(|col| (0..matrix.rows).flat_map(move |row| element(row, col).to_vec()))
        .collect();
    let shape = vec![matrix.cols, matrix.rows];
    let stored = StoredTensor { dtype: matrix.dtype, shape, data: bytes.into() };
    Matrix::from_stored(&stored).expect("it is as large as before")
}

// ---- faults of the computation --------------------------------------------------------------------------

#[test]
fn the_wrong_rope_pairing_is_found_in_the_rotated_queries() {
    let rope_table = |rope: &Rope, positions| {
        LLAMA_CPP_F32.rope_table(&Rope { pairing: RopePairing::Half, ..rope.clone() }, positions)
    };
    let faulty = Faulty { rope_table: Some(rope_table), ..Faulty::default() };
    assert_first_wrong(&judge(&tiny_llama2(), &faulty, &mut ()), Point::QRope, 0, 0);
}

#[test]
fn a_rope_position_off_by_one_is_found_in_the_rotated_queries() {
    let rope_table = |rope: &Rope, at: Range<usize>| LLAMA_CPP_F32.rope_table(rope, at.start + 1..at.end + 1);
    let faulty = Faulty { rope_table: Some(rope_table), ..Faulty::default() };
    assert_first_wrong(&judge(&tiny_llama2(), &faulty, &mut ()), Point::QRope, 0, 0);
}

#[test]
fn a_position_that_does_not_advance_is_found_in_the_first_decode_pass() {
    let rope_table = |rope: &Rope, at: Range<usize>| LLAMA_CPP_F32.rope_table(rope, 0..at.len());
    let faulty = Faulty { rope_table: Some(rope_table), ..Faulty::default() };
    assert_first_wrong(&judge(&tiny_llama2(), &faulty, &mut ()), Point::QRope, 0, 1);
}

#[test]
fn a_missing_causal_mask_is_found_in_the_attention_weights() {
    let softmax = |scores: &Tensor, _| {
        let keys = scores.shape()[2];
        Tensor::from_rows(scores.data().len() / keys, keys, |row, out| {
            softmax_row(&scores.data()[row * keys..][..keys], out);
        })
        .reshaped(scores.shape())
    };
    let faulty = Faulty { softmax: Some(softmax), ..Faulty::default() };
    assert_first_wrong(&judge(&tiny_llama2(), &faulty, &mut ()), Point::AttnWeights, 0, 0);
}

// ---- faults at one place of the data flow ---------------------------------------------------------------

#[track_caller]
fn assert_found_at(point: Point, layer: usize, pass: usize, fault: impl Fn(&mut [f32])) {
    let site = Site { point, layer: Some(layer), pass: Some(pass) };
    let outcome = judge(&tiny_llama2(), &LLAMA_CPP_F32, &mut At(site, fault));
    assert_first_wrong(&outcome, point, layer, pass);
}

#[test]
fn a_stale_kv_cache_entry_is_found_at_its_layer_and_pass() {
    // The keys of position 5 still stand at position 6: [S, 4 heads of 32].
    assert_found_at(Point::KCache, 2, 2, |keys| keys.copy_within(5 * 128..6 * 128, 6 * 128));
}

#[test]
fn one_nan_is_found_where_it_first_appears() {
    assert_found_at(Point::FfnUp, 1, 0, |up| up[77] = f32::NAN);
}

#[test]
fn one_infinity_is_found_where_it_first_appears() {
    assert_found_at(Point::AttnContext, 3, 1, |context| context[0] = f32::INFINITY);
}

#[test]
fn a_scaled_residual_is_found_although_its_cosine_is_one() {
    assert_found_at(Point::BlockOut, 0, 0, |x| x.iter_mut().for_each(|x| *x *= 1.01));
}

#[test]
fn a_value_that_is_wrong_by_little_is_found_in_the_last_layer_and_pass() {
    assert_found_at(Point::FfnOut, 3, 4, |x| x[100] += 2e-4);
}

#[test]
fn a_fault_is_introduced_once_and_inherited_after() {
    let site = Site { point: Point::V, layer: Some(1), pass: Some(0) };
    let mut fault = At(site, |v: &mut [f32]| v.iter_mut().for_each(|v| *v = -*v));
    let outcome = judge(&tiny_llama2(), &LLAMA_CPP_F32, &mut fault);
    let failing: Vec<Site> =
        outcome.rows.iter().filter(|row| row.verdict == Verdict::Fail).map(|row| row.site).collect();
    assert_eq!(failing, [site], "only the stage that made the error fails by its local error");
    let inherited = outcome.rows.iter().filter(|row| row.has_grown()).count();
    assert!(inherited > 50, "what comes after shows the error in the ordinary run: {inherited}");
}
