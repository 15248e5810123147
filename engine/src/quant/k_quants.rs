//! Blocks of 256 codes in groups of 16, each with its own integer scale: value = scale · group scale · code. Some types
//! also subtract a minimum. Activations are Q8_K.

use zerocopy::transmute;

use super::block::{QuantBlock, blocks};
use super::lanes::{LaneSums, sum4};
use super::q8_k;

pub(super) trait KQuantBlock: QuantBlock {
    /// Offset that is subtracted from each code.
    const OFFSET: i8;

    /// Factor of the scale, a power of two. Dot products for fewer than eight tokens apply it to the whole sum.
    const FACTOR: f32 = 1.0;

    /// Returns the scale by which the group scales are multiplied, without [`Self::FACTOR`].
    fn scale(&self) -> f32;

    /// Returns the scale of each 16 codes.
    fn scales(&self) -> [i8; 16];

    /// Returns the codes before the offset is subtracted, in the order of the values.
    fn codes(&self) -> [i8; 256];
}

/// A block whose groups have minima.
pub(super) trait KQuantBlockWithMins: KQuantBlock {
    /// Returns the scale of the minima.
    fn min_scale(&self) -> f32;

    /// Returns the minimum of each 16 codes.
    fn mins(&self) -> [i8; 16];
}

/// Decodes a block; implements [`QuantBlock::decode`].
pub(super) fn decode<B: KQuantBlock>(block: &B, out: &mut [f32]) {
    let (groups, codes) = (out.as_chunks_mut::<16>().0, block.codes());
    let codes = codes.as_chunks::<16>().0;
    for ((out, scale), codes) in groups.iter_mut().zip(block.scales()).zip(codes) {
        let scale = block.scale() * B::FACTOR * f32::from(scale);
        *out = codes.map(|code| scale * f32::from(code - B::OFFSET));
    }
}

/// Decodes a block with minima; implements [`QuantBlock::decode`].
pub(super) fn decode_with_mins(block: &impl KQuantBlockWithMins, out: &mut [f32]) {
    decode(block, out);
    for (out, min) in out.as_chunks_mut::<16>().0.iter_mut().zip(block.mins()) {
        let min = block.min_scale() * f32::from(min);
        *out = out.map(|value| value - min);
    }
}

/// Unpacks codes 32 at a time.
pub(super) fn by_rows(row: impl Fn(usize) -> [i8; 32]) -> [i8; 256] {
    transmute!(std::array::from_fn::<_, 8, _>(row))
}

/// Computes the dot product of blocks without minima. The codes' offset is subtracted for whole groups: the
/// activations store the sum of each 16 values, and the sums of group pair l are subtracted in lane l.
pub(super) fn dot<B: KQuantBlock>(weights: &[u8], activations: &[u8]) -> f32 {
    let mut lanes = LaneSums::default();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let (mut sums, offsets) = (weighted_sums(w, a), pair_sums(w.scales(), a));
        for (sum, offset) in sums.iter_mut().zip(offsets) {
            *sum -= i32::from(B::OFFSET) * offset;
        }
        lanes.add_scaled(w.scale() * a.scale(), sums);
    }
    lanes.sum() * B::FACTOR
}

/// Computes the dot product of Q2_K. The minima are added to the same lanes as the codes, before them.
pub(super) fn dot_with_mins<B: KQuantBlockWithMins>(weights: &[u8], activations: &[u8]) -> f32 {
    let mut lanes = LaneSums::default();
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        lanes.add_scaled(-a.scale() * w.min_scale(), pair_sums(w.mins(), a));
        lanes.add_scaled(w.scale() * a.scale(), weighted_sums(w, a));
    }
    lanes.sum()
}

/// Computes the dot product of Q4_K. The minima are summed in four separate lanes.
pub(super) fn dot_with_mins_in_four<B: KQuantBlockWithMins>(weights: &[u8], activations: &[u8]) -> f32 {
    let (mut lanes, mut min_lanes) = (LaneSums::default(), [0.0f32; 4]);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let (min_scale, sums) = (-a.scale() * w.min_scale(), pair_sums(w.mins(), a));
        for (index, lane) in min_lanes.iter_mut().enumerate() {
            let sum = sums[2 * index] + sums[2 * index + 1];
            *lane = min_scale.mul_add(sum as f32, *lane);
        }
        lanes.add_scaled(w.scale() * a.scale(), weighted_sums(w, a));
    }
    lanes.sum() + sum4(min_lanes)
}

/// Computes the dot product of Q5_K. The minima are added in a single sum.
pub(super) fn dot_with_mins_in_one<B: KQuantBlockWithMins>(weights: &[u8], activations: &[u8]) -> f32 {
    let (mut lanes, mut mins) = (LaneSums::default(), 0.0f32);
    for (w, a) in blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations)) {
        let sum: i32 = pair_sums(w.mins(), a).iter().sum();
        mins = (-a.scale() * w.min_scale()).mul_add(sum as f32, mins);
        lanes.add_scaled(w.scale() * a.scale(), weighted_sums(w, a));
    }
    lanes.sum() + mins
}

/// Computes the dot product for eight tokens or more. Each block is added to a single sum.
pub(super) fn batch_dot<B: KQuantBlock>(weights: &[u8], activations: &[u8]) -> f32 {
    let blocks = blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations));
    blocks.fold(0.0, |sum, (w, a)| (w.scale() * B::FACTOR * whole_sum(w, a)).mul_add(a.scale(), sum))
}

/// Computes the dot product of blocks with minima, for eight tokens or more.
pub(super) fn batch_dot_with_mins<B: KQuantBlockWithMins>(weights: &[u8], activations: &[u8]) -> f32 {
    let blocks = blocks::<B>(weights).iter().zip(blocks::<q8_k::BlockQ8K>(activations));
    blocks.fold(0.0, |sum, (w, a)| {
        let mins: i32 = pair_sums(w.mins(), a).iter().sum();
        let block = (-w.min_scale()).mul_add(mins as f32, w.scale() * whole_sum(w, a));
        block.mul_add(a.scale(), sum)
    })
}

/// Returns the integer sum of a whole block.
fn whole_sum<B: KQuantBlock>(weights: &B, activations: &q8_k::BlockQ8K) -> f32 {
    let sum: i32 = weighted_sums(weights, activations).iter().sum();
    let offset: i32 = pair_sums(weights.scales(), activations).iter().sum();
    (sum - i32::from(B::OFFSET) * offset) as f32
}

/// Returns the sums of codes times activations times group scales. Lane l contains values 4l to 4l + 3 of each 32.
fn weighted_sums(weights: &impl KQuantBlock, activations: &q8_k::BlockQ8K) -> [i32; 8] {
    weighted(&weights.codes(), weights.scales(), activations)
}

/// Returns the sums of [`weighted_sums`] for any codes.
pub(super) fn weighted(codes: &[i8; 256], scales: [i8; 16], activations: &q8_k::BlockQ8K) -> [i32; 8] {
    let product = |at: usize| i32::from(codes[at]) * i32::from(activations.codes[at]);
    let quad = |at: usize| i32::from(scales[at / 16]) * (at..at + 4).map(product).sum::<i32>();
    std::array::from_fn(|lane| (0..8).map(|row| quad(32 * row + 4 * lane)).sum())
}

/// Multiplies each group's factor by the sum of its activations, and adds two groups in each lane.
fn pair_sums(factors: [i8; 16], activations: &q8_k::BlockQ8K) -> [i32; 8] {
    let sums = activations.sums();
    let product = |group: usize| i32::from(factors[group]) * sums[group];
    std::array::from_fn(|lane| product(2 * lane) + product(2 * lane + 1))
}
