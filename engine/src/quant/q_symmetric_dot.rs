//! Dot products of blocks of 32 signed codes with one scale. Activations are Q8_0.

use super::block::blocks;
use super::lanes::{LaneSums, dot4};
use super::q_symmetric::SymmetricBlock;
use super::q8_0;

/// Computes the dot product with one register of sums.
pub(super) fn dot<B: SymmetricBlock>(weights: &[u8], activations: &[u8]) -> f32 {
    let mut lanes = LaneSums::default();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks(activations)) {
        add(&mut lanes, w, a);
    }
    lanes.sum()
}

/// Computes the dot product with two registers of sums: one for blocks with an even index, one for blocks with an
/// odd index. If the number of blocks is odd, the last block is added at the end.
pub(super) fn dot_in_pairs<B: SymmetricBlock>(weights: &[u8], activations: &[u8]) -> f32 {
    let (weights, last) = blocks::<B>(weights).as_chunks::<2>();
    let (activations, last_activations) = blocks::<q8_0::BlockQ8_0>(activations).as_chunks::<2>();
    let (mut even, mut odd) = (LaneSums::default(), LaneSums::default());
    for ([w0, w1], [a0, a1]) in weights.iter().zip(activations) {
        add(&mut even, w0, a0);
        add(&mut odd, w1, a1);
    }
    let sum = even.plus(odd).sum();
    last.iter().zip(last_activations).fold(sum, |sum, (w, a)| add_whole(sum, w, a))
}

fn add(lanes: &mut LaneSums, weights: &impl SymmetricBlock, activations: &q8_0::BlockQ8_0) {
    lanes.add_scaled(weights.scale() * activations.scale(), dot4(&weights.codes(), &activations.codes));
}

/// Adds a block to a single sum.
pub(super) fn add_whole(sum: f32, weights: &impl SymmetricBlock, activations: &q8_0::BlockQ8_0) -> f32 {
    let products = weights.codes().into_iter().zip(activations.codes);
    let dot: i32 = products.map(|(weight, activation)| i32::from(weight) * i32::from(activation)).sum();
    (weights.scale() * activations.scale()).mul_add(dot as f32, sum)
}
