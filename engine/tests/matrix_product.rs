//! Products in our own order of sums: every kernel of this machine, every number of tokens and every cut gives the same bits.

use proptest::prelude::*;
use xcheck_engine::kernels::dot::{BLOCK, Kernel, PANEL};
use xcheck_engine::kernels::product::{PartialSums, StridedRows, fill, product};
use xcheck_engine::ops::attention::{self, Mask};
use xcheck_engine::tensor::Tensor;

/// Ordinary numbers, tiny ones, and such as are none.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        20 => -10.0f32..10.0,
        1 => prop::sample::select(vec![0.0, -0.0, f32::NAN, f32::INFINITY, 1e-40, -1e-30, f32::MAX]),
    ]
}

fn rows(rows: usize, columns: usize) -> impl Strategy<Value = Tensor> {
    let values = prop::collection::vec(number(), rows * columns);
    values.prop_map(move |values| Tensor::new(&[rows, columns], values))
}

/// Activations and weights of any shape: a few tokens, more than the narrowest panel of outputs, more than a block of columns.
fn operands() -> impl Strategy<Value = (Tensor, Tensor)> {
    let columns = prop_oneof![1usize..80, (BLOCK - 20)..(BLOCK + 40), Just(2 * BLOCK)];
    let shape = (1usize..10, prop_oneof![1usize..6, 30usize..36], columns);
    shape.prop_flat_map(|(tokens, outputs, columns)| (rows(tokens, columns), rows(outputs, columns)))
}

fn by(kernel: Kernel, blocks: PartialSums, x: &Tensor, w: &Tensor) -> Vec<f32> {
    let mut values = vec![0.0; x.rows() * w.rows()];
    let rows = values.chunks_mut(w.rows()).collect();
    fill(kernel, blocks, StridedRows::rows_of(x), &StridedRows::rows_of(w), rows);
    values
}

/// What cannot be told apart: the same bits, or two of no number.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

fn plain() -> Kernel {
    Kernel::all().last().expect("the definition is always there")
}

/// The definition once more, by a second hand: lanes, halves, blocks.
fn defined(a: &[f32], b: &[f32], block: usize) -> f32 {
    let of_block = |(a, b): (&[f32], &[f32])| {
        let mut lanes = [0.0f32; 16];
        for (at, (a, b)) in a.iter().zip(b).enumerate() {
            lanes[at % 16] = a.mul_add(*b, lanes[at % 16]);
        }
        let eight: Vec<f32> = (0..8).map(|at| lanes[at] + lanes[at + 8]).collect();
        let four: Vec<f32> = (0..4).map(|at| eight[at] + eight[at + 4]).collect();
        (four[0] + four[2]) + (four[1] + four[3])
    };
    a.chunks(block).zip(b.chunks(block)).map(of_block).fold(0.0, |sum, of_block| sum + of_block)
}

/// How wide a panel is goes by the outputs and by the threads: of some width in between, and the widest, each with a rest.
#[test]
fn panels_of_every_width_give_the_bits_of_the_definition() {
    let number = |index: usize| (index.wrapping_mul(2_654_435_761) >> 9 & 0xFFFF) as f32 / 65536.0 - 0.5;
    let numbers = |rows: usize, columns: usize| {
        Tensor::new(&[rows, columns], (0..rows * columns).map(number).collect())
    };
    for (width, columns) in [(36, 70), (PANEL, 70), (PANEL, BLOCK + 5)] {
        let outputs = 4 * rayon::current_num_threads() * width - 1;
        let (x, w) = (numbers(5, columns), numbers(outputs, columns));
        for kernel in Kernel::all() {
            let values = by(kernel, PartialSums::Cut, &x, &w);
            for (at, value) in values.iter().enumerate() {
                let defined = defined(x.row(at / outputs), w.row(at % outputs), BLOCK);
                assert_eq!(value.to_bits(), defined.to_bits(), "{}, {outputs} outputs, at {at}", kernel.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_simd_kernel_gives_the_bits_of_the_definition((x, w) in operands()) {
        for (blocks, len) in [(PartialSums::Cut, BLOCK), (PartialSums::Whole, usize::MAX)] {
            let value = |token: usize, output: usize| defined(x.row(token), w.row(output), len);
            let defined: Vec<f32> =
                (0..x.rows()).flat_map(|token| (0..w.rows()).map(move |output| (token, output)))
                    .map(|(token, output)| value(token, output)).collect();
            for kernel in Kernel::all() {
                let values = by(kernel, blocks, &x, &w);
                prop_assert_eq!(bits(&values), bits(&defined), "{}, {:?}", kernel.name, blocks);
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_in_a_batch((x, w) in operands()) {
        let whole = product(StridedRows::rows_of(&x), &StridedRows::rows_of(&w));
        for token in 0..x.rows() {
            let row = Tensor::new(&[1, x.row_len()], x.row(token).to_vec());
            let alone = product(StridedRows::rows_of(&row), &StridedRows::rows_of(&w));
            prop_assert_eq!(bits(whole.row(token)), bits(alone.data()));
        }
    }
}

#[test]
fn another_summation_order_is_seen() {
    let number = |index: usize| (index * 7919 % 1000) as f32 / 999.0;
    let row: Vec<f32> = (0..300).map(number).collect();
    let in_sequence = row.iter().fold(0.0f32, |sum, x| x.mul_add(*x, sum));
    assert_ne!(in_sequence.to_bits(), plain().dot(&row, &row).to_bits());
}

#[test]
fn avx2_and_avx512_products_are_used_if_this_machine_has_them() {
    let names: Vec<&str> = Kernel::all().map(|kernel| kernel.name).collect();
    assert_eq!(names.last(), Some(&"plain"));
    #[cfg(target_arch = "x86_64")]
    {
        assert_eq!(names.contains(&"avx512"), is_x86_feature_detected!("avx512f"));
        assert_eq!(names.contains(&"avx2"), is_x86_feature_detected!("avx2"));
        let missing = ["avx2", "avx512"].into_iter().find(|name| !names.contains(name));
        missing
            .into_iter()
            .for_each(|name| crate::skip::skip(format_args!("no {name}: its products are not compared")));
    }
    #[cfg(target_arch = "aarch64")]
    assert_eq!(names.contains(&"neon"), std::arch::is_aarch64_feature_detected!("neon"));
}

// ---- attention -------------------------------------------------------------------------------------------------

const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDTH: usize = 77; // whole blocks of 64 and of 8 columns, and what is left
const TOKENS: usize = 150;

fn heads(heads: usize, seed: usize) -> Tensor {
    let number = |index: usize| ((index + seed) * 7919 % 2003) as f32 / 1001.0 - 1.0;
    Tensor::new(&[TOKENS, heads, WIDTH], (0..TOKENS * heads * WIDTH).map(number).collect())
}

fn rows_of(x: &Tensor, rows: std::ops::Range<usize>) -> Tensor {
    let data = x.data()[rows.start * x.row_len()..rows.end * x.row_len()].to_vec();
    Tensor::new(&[&[rows.len()], &x.shape()[1..]].concat(), data)
}

/// The context of tokens `of` of a prompt, which see the keys up to their own.
fn attended(of: std::ops::Range<usize>, v: &Tensor) -> Tensor {
    let (q, k) = (rows_of(&heads(HEADS, 1), of.clone()), rows_of(&heads(KEY_HEADS, 2), 0..of.end));
    let scores = attention::scores(&q, &k, 0.3);
    let weights = attention::softmax(&scores, Mask { position: of.start, window: None, chunks: None });
    attention::context(&weights, &rows_of(v, 0..of.end))
}

#[test]
fn attention_has_the_same_bits_in_any_chunked_prefill() {
    let v = heads(KEY_HEADS, 3);
    let whole = attended(0..TOKENS, &v);
    for pieces in [vec![0, 1, 2, 70, TOKENS], vec![0, 149, TOKENS], (0..=TOKENS).collect()] {
        for piece in pieces.windows(2) {
            let part = attended(piece[0]..piece[1], &v);
            let expected = rows_of(&whole, piece[0]..piece[1]);
            assert_eq!(bits(part.data()), bits(expected.data()), "{piece:?}");
        }
    }
}

#[test]
fn an_attention_context_is_what_the_formula_says() {
    let v = heads(KEY_HEADS, 3);
    let scores = attention::scores(&heads(HEADS, 1), &heads(KEY_HEADS, 2), 0.3);
    let weights = attention::softmax(&scores, Mask { position: 0, window: Some(40), chunks: None });
    let context = attention::context(&weights, &v);
    for (token, head, at) in (0..TOKENS).flat_map(|t| (0..HEADS).map(move |h| (t, h, (t + h) % WIDTH))) {
        let row = &weights.row(head)[token * TOKENS..][..TOKENS];
        let value = |key: usize| f64::from(v.row(key)[head / 2 * WIDTH + at]);
        let exact: f64 = row.iter().enumerate().map(|(key, w)| f64::from(*w) * value(key)).sum();
        let error = (exact - f64::from(context.row(token)[head * WIDTH + at])).abs();
        assert!(error <= 4e-7, "{token} {head} {at}: {error:e}");
        let seen: f32 = row.iter().sum();
        assert!((seen - 1.0).abs() < 1e-6 && row[token + 1..].iter().all(|weight| *weight == 0.0));
    }
}

#[test]
fn a_nan_value_with_an_attention_weight_of_zero_is_not_left_out() {
    let mut v = heads(KEY_HEADS, 3).into_data();
    *v.last_mut().expect("values") = f32::NAN;
    let v = Tensor::new(&[TOKENS, KEY_HEADS, WIDTH], v);
    // As in torch, zero times NaN is NaN, for the first token too.
    assert!(attended(0..TOKENS, &v).row(0).iter().any(|value| value.is_nan()));
    assert!(attended(0..TOKENS - 1, &v).data().iter().all(|value| value.is_finite()));
}
