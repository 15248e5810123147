//! Numerics that are moved within their rounding: by as much as honest engines differ, and by nothing else.

use half::bf16;
use xcheck_engine::numerics::{F32, Numerics, PerturbedResults, Transformers};
use xcheck_engine::ops::log_probabilities::Picks;
use xcheck_engine::tensor::Tensor;
use xcheck_engine::weight::{DType, Matrix, StoredTensor};

const COLUMNS: usize = 1024;
const ROWS: usize = 256;
const TOKENS: usize = 8;

/// Numbers that are spread about zero, the same for the same seed.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() + next()).collect()
}

fn matrix() -> Matrix {
    let data: Vec<u8> = numbers(ROWS * COLUMNS, 1).iter().flat_map(|x| x.to_le_bytes()).collect();
    let stored = StoredTensor { dtype: DType::F32, shape: vec![ROWS, COLUMNS], data: data.into() };
    Matrix::from_stored(&stored).expect("a matrix")
}

fn activations() -> Tensor {
    Tensor::new(&[TOKENS, COLUMNS], numbers(TOKENS * COLUMNS, 2))
}

/// The root mean square of the differences.
fn apart(one: &Tensor, other: &Tensor) -> f64 {
    let differences = one.data().iter().zip(other.data()).map(|(a, b)| f64::from(*a) - f64::from(*b));
    (differences.map(|d| d * d).sum::<f64>() / one.data().len() as f64).sqrt()
}

/// The products with sums in the order of the columns, one after the other.
fn sequential(x: &Tensor, w: &Matrix) -> Tensor {
    let weights: Vec<f32> = (0..w.rows)
        .flat_map(|row| {
            w.row(row).chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<_>>()
        })
        .collect();
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).fold(0.0f32, |sum, (x, w)| sum + x * w);
    let rows = (0..x.rows()).flat_map(|token| weights.chunks(COLUMNS).map(move |w| (token, w)));
    Tensor::new(&[x.rows(), w.rows], rows.map(|(token, w)| dot(x.row(token), w)).collect())
}

#[test]
fn the_same_seed_moves_alike_and_another_moves_otherwise() {
    let (x, w) = (activations(), matrix());
    let moved = |seed| PerturbedResults::new(&F32, seed).linear(&x, &w);
    assert_eq!(moved(1), moved(1));
    assert_ne!(moved(1), moved(2));
}

#[test]
fn products_move_by_as_much_as_another_order_of_sums_makes() {
    let (x, w) = (activations(), matrix());
    let still = F32.linear(&x, &w);
    let (moved, honest) =
        (apart(&PerturbedResults::new(&F32, 1).linear(&x, &w), &still), apart(&sequential(&x, &w), &still));
    assert!(honest > 0.0, "the orders differ");
    assert!((0.3..3.0).contains(&(moved / honest)), "moved by {moved:e}, another order is {honest:e} away");
}

#[test]
fn a_fault_that_is_small_moves_products_by_far_more() {
    let (x, w) = (activations(), matrix());
    let still = F32.linear(&x, &w);
    let moved = apart(&PerturbedResults::new(&F32, 1).linear(&x, &w), &still);
    let scaled = still.clone().map(|x| x * (1.0 + 1e-4));
    let in_f16 = F32.linear(&x.clone().map(|x| half::f16::from_f32(x).to_f32()), &w);
    assert!(apart(&scaled, &still) > 8.0 * moved);
    assert!(apart(&in_f16, &still) > 8.0 * moved);
}

#[test]
fn what_is_rounded_to_16_bits_stays_so_and_moves_to_a_neighbour_at_most() {
    let (x, w) = (activations().map(|x| bf16::from_f32(x).to_f32()), matrix());
    let (still, moved) =
        (Transformers::Bf16.linear(&x, &w), PerturbedResults::new(&Transformers::Bf16, 1).linear(&x, &w));
    let steps: Vec<i32> = still
        .data()
        .iter()
        .zip(moved.data())
        .map(|(still, moved)| {
            assert_eq!(bf16::from_f32(*moved).to_f32(), *moved);
            i32::from(bf16::from_f32(*moved).to_bits()) - i32::from(bf16::from_f32(*still).to_bits())
        })
        .collect();
    assert!(steps.iter().all(|step| step.abs() <= 1), "{:?}", steps.iter().max());
    let share = steps.iter().filter(|step| **step != 0).count() as f64 / steps.len() as f64;
    assert!((0.15..0.35).contains(&share), "a second rounding changes a quarter: {share}");
}

#[test]
fn what_is_looked_up_does_not_move() {
    let w = matrix();
    assert_eq!(PerturbedResults::new(&F32, 1).embed(&w, &[3, 5]), F32.embed(&w, &[3, 5]));
}

#[test]
fn eight_bits_move_products_by_as_much_as_rounding_to_eight_bits_does() {
    let (x, w) = (activations(), matrix());
    let still = F32.linear(&x, &w);
    let moved = apart(&PerturbedResults::new(&F32, 1).with_eight_bits().linear(&x, &w), &still);
    let rounded: Vec<f32> = (0..x.rows())
        .flat_map(|row| {
            let step = x.row(row).iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
            x.row(row).iter().map(move |x| (x / step).round() * step).collect::<Vec<_>>()
        })
        .collect();
    let honest = apart(&F32.linear(&Tensor::new(x.shape(), rounded), &w), &still);
    assert!((0.3..3.0).contains(&(moved / honest)), "moved by {moved:e}, 8 bits are {honest:e} away");
}

/// log softmax in `f32`, as torch has it: the largest is subtracted first, and vectors of eight are added up.
fn log_softmax(logits: &[f32], id: usize) -> f32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let lane =
        |lane: usize| logits.iter().skip(lane).step_by(8).map(|logit| (logit - max).exp()).sum::<f32>();
    logits[id] - max - (0..8).map(lane).sum::<f32>().ln()
}

#[test]
fn log_probabilities_near_nothing_move_by_what_f32_rounds_of_their_sum() {
    let mut logits = numbers(512, 3);
    logits[7] = 18.0;
    let (picks, row) = (Picks::new(&[1], vec![7]), Tensor::new(&[1, 512], logits.clone()));
    let still = F32.log_probabilities(&row, &picks, 1.0).data()[0];
    let moved = |seed| {
        (PerturbedResults::new(&F32, seed).log_probabilities(&row, &picks, 1.0).data()[0] - still).abs()
    };
    let largest = (1..=4).map(moved).fold(0.0, f32::max);
    let honest = (log_softmax(&logits, 7) - still).abs();
    assert!(
        still > -1e-4 && honest > 0.01 * still.abs(),
        "{still:e} and {honest:e}: a sum that f32 cannot hold"
    );
    assert!(honest <= 2.0 * largest, "moved by {largest:e}, f32 is {honest:e} off");
    // No more than the last digits of the logits, whatever the values are.
    assert!(largest < 8.0 * 18.0 * f32::EPSILON, "{largest:e}");
}

#[test]
fn a_log_probability_of_nothing_stays_one() {
    let row = Tensor::new(&[1, 2], vec![1.0, f32::NEG_INFINITY]);
    let moved = PerturbedResults::new(&F32, 1).log_probabilities(&row, &Picks::new(&[1, 2], vec![0, 1]), 1.0);
    assert!(moved.data()[0].is_finite() && moved.data()[1] == f32::NEG_INFINITY, "{:?}", moved.data());
}
