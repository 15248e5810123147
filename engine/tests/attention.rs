//! Attention in llama.cpp's numerics: every value is the plain dot product of its rows, whatever the shape.

use proptest::prelude::*;
use xcheck_engine::numerics::{KvType, LlamaCpp, Numerics};
use xcheck_engine::ops::attention::{AttentionScale, Mask, head_of};
use xcheck_engine::quant::{self, DotOrder};
use xcheck_engine::tensor::Tensor;
use xcheck_engine::weight::DType;

/// What ggml pads the cache to, with zeros.
const CELLS: usize = 256;

fn tensor(shape: [usize; 3]) -> impl Strategy<Value = Tensor> {
    let values = prop::collection::vec(-2.0f32..2.0, shape.iter().product::<usize>());
    values.prop_map(move |values| Tensor::new(&shape, values))
}

/// Queries, keys and values: whole and broken registers, blocks of keys and blocks of columns.
fn operands() -> impl Strategy<Value = [Tensor; 3]> {
    let width = prop::sample::select(vec![8usize, 20, 32, 40, 64, 72, 77, 96, 128, 136]);
    (1usize..5, 1usize..3, 1usize..4, 0usize..100, width).prop_flat_map(
        |(tokens, key_heads, group, before, width)| {
            let cache = [tokens + before, key_heads, width];
            [tensor([tokens, key_heads * group, width]).boxed(), tensor(cache).boxed(), tensor(cache).boxed()]
        },
    )
}

/// The definition, of rows as they are stored.
fn dot(dtype: DType, order: DotOrder, a: &[f32], b: &[f32]) -> f32 {
    let stored = |row: &[f32]| {
        let mut bytes = vec![0; dtype.bytes_for(row.len()).expect("a float has no blocks")];
        quant::quantise_row(dtype, row, &mut bytes);
        bytes
    };
    quant::plain_dot(dtype, order)(&stored(a), &stored(b))
}

/// As ggml has the cache: whole in cells, of which the last are empty.
fn in_cells(mut row: Vec<f32>) -> Vec<f32> {
    row.resize(row.len().next_multiple_of(CELLS), 0.0);
    row
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_scores_and_contexts_have_the_bits_of_the_plain_dot_product([q, k, v] in operands()) {
        let (tokens, heads, width, keys) = (q.shape()[0], q.shape()[1], q.shape()[2], k.shape()[0]);
        let group = heads / k.shape()[1];
        for kv in [KvType::F16, KvType::F32] {
            let (numerics, dtype) = (LlamaCpp { kv }, kv.dtype());
            let (k, v) = (numerics.to_cache(k.clone()), numerics.to_cache(v.clone()));
            let together = if kv == KvType::F32 && heads > 1 { 1 } else { tokens };
            let order = DotOrder::of(dtype, together, CELLS, width);
            let scores = numerics.scores(&q, &k, AttentionScale::Products(0.3));
            let mask = Mask { position: keys - tokens, window: Some(40), chunks: None };
            let weights = numerics.softmax(&scores, mask);
            let context = numerics.context(&weights, &v);
            let mixing = DotOrder::of(dtype, tokens, width, CELLS);
            for (head, token) in (0..heads).flat_map(|head| (0..tokens).map(move |token| (head, token))) {
                for key in 0..keys {
                    let plain = dot(dtype, order, head_of(&k, key, head / group), head_of(&q, token, head)) * 0.3;
                    let found = scores.row(head)[token * keys + key];
                    prop_assert_eq!(found.to_bits(), plain.to_bits(), "{:?} {:?} key {}", kv, order, key);
                }
                let row = in_cells(weights.row(head)[token * keys..][..keys].to_vec());
                for at in 0..width {
                    let column = in_cells((0..keys).map(|key| head_of(&v, key, head / group)[at]).collect());
                    let plain = dot(dtype, mixing, &column, &row);
                    let found = context.row(token)[head * width + at];
                    prop_assert_eq!(found.to_bits(), plain.to_bits(), "{:?} {:?} column {}", kv, mixing, at);
                }
            }
        }
    }
}
