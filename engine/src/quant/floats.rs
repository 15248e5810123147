//! F32, F16 and BF16: values without blocks. Activations have the type of the weights.
//!
//! Dot products use four registers of sums and steps of 32 elements; remaining elements are added one by one.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

pub(super) use super::block::StoredF16;
use super::block::blocks;
use super::lanes::LaneSums;

/// A stored floating-point value, little-endian.
pub(super) trait StoredFloat: Copy + FromBytes + Immutable + KnownLayout + Unaligned {
    /// Converts to `f32` exactly.
    fn widen(self) -> f32;
}

/// A stored `f32`: four bytes.
pub(super) type StoredF32 = [u8; 4];

/// A stored `bf16`: two bytes.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub(super) struct StoredBf16([u8; 2]);

impl StoredFloat for StoredF32 {
    #[inline]
    fn widen(self) -> f32 {
        f32::from_le_bytes(self)
    }
}

impl StoredFloat for StoredF16 {
    #[inline]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl StoredFloat for StoredBf16 {
    #[inline]
    fn widen(self) -> f32 {
        bf16::from_le_bytes(self.0).to_f32()
    }
}

pub(super) fn decode<E: StoredFloat>(row: &[u8], out: &mut [f32]) {
    for (out, element) in out.iter_mut().zip(blocks::<E>(row)) {
        *out = element.widen();
    }
}

/// Decodes a row of F16, many at a time.
pub(super) fn decode_f16(row: &[u8], out: &mut [f32]) {
    for (out, row) in out.chunks_mut(64).zip(row.chunks(128)) {
        let mut halves = [f16::ZERO; 64];
        let (bits, _) = row.as_chunks::<2>();
        halves.iter_mut().zip(bits).for_each(|(half, &bits)| *half = f16::from_le_bytes(bits));
        halves[..out.len()].convert_to_f32_slice(out);
    }
}

/// Copies a row of activations.
pub(super) fn to_f32(row: &[f32], out: &mut [u8]) {
    store(row, out, f32::to_le_bytes);
}

/// Rounds a row of activations to the nearest `f16`, ties to even.
pub(super) fn to_f16(row: &[f32], out: &mut [u8]) {
    store(row, out, |value| f16::from_f32(value).to_le_bytes());
}

/// Rounds a row of activations to the nearest `bf16`, ties to even.
pub(super) fn to_bf16(row: &[f32], out: &mut [u8]) {
    store(row, out, |value| bf16::from_f32(value).to_le_bytes());
}

fn store<const N: usize>(row: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    let (elements, _) = out.as_chunks_mut::<N>();
    elements.iter_mut().zip(row).for_each(|(out, &value)| *out = bytes(value));
}

/// Computes the dot product of F32.
pub(super) fn dot_f32(weights: &[u8], activations: &[u8]) -> f32 {
    let [a, b, c, d] = sums::<StoredF32>(weights, activations);
    let sum = in_neighbours(a.plus(c).plus(b.plus(d)));
    f32_leftovers(sum, leftovers::<StoredF32>(weights, activations))
}

/// Computes the dot product of F16. Elements after the last whole step are added in `f64`.
pub(super) fn dot_f16(weights: &[u8], activations: &[u8]) -> f32 {
    let [a, b, c, d] = sums::<StoredF16>(weights, activations);
    let sum = in_neighbours(a.plus(c).plus(b.plus(d)));
    f64_leftovers(sum, leftovers::<StoredF16>(weights, activations))
}

/// Computes the dot product of BF16 like that of F16, but adds the registers in another order.
pub(super) fn dot_bf16(weights: &[u8], activations: &[u8]) -> f32 {
    let [a, b, c, d] = sums::<StoredBf16>(weights, activations);
    let sum = a.plus(c).plus(b.plus(d)).sum();
    f64_leftovers(sum, leftovers::<StoredBf16>(weights, activations))
}

/// Computes the dot product that is used for several tokens, with one register of sums.
pub(super) fn batch_dot<E: StoredFloat>(weights: &[u8], activations: &[u8]) -> f32 {
    batch_dot_of::<E, E>(weights, activations)
}

/// Computes the dot product with activations of another type.
pub(super) fn batch_dot_of<W: StoredFloat, A: StoredFloat>(weights: &[u8], activations: &[u8]) -> f32 {
    let mut lanes = LaneSums::default();
    for (index, (w, a)) in blocks::<W>(weights).iter().zip(blocks::<A>(activations)).enumerate() {
        let lane = &mut lanes.0[index % 8];
        *lane = w.widen().mul_add(a.widen(), *lane);
    }
    lanes.sum()
}

/// Sums products of whole steps of 32 elements in four registers.
fn sums<E: StoredFloat>(weights: &[u8], activations: &[u8]) -> [LaneSums; 4] {
    let mut registers = [LaneSums::default(); 4];
    let (weights, _) = blocks::<E>(weights).as_chunks::<32>();
    let (activations, _) = blocks::<E>(activations).as_chunks::<32>();
    for (w, a) in weights.iter().zip(activations) {
        for index in 0..32 {
            let lane = &mut registers[index / 8].0[index % 8];
            *lane = w[index].widen().mul_add(a[index].widen(), *lane);
        }
    }
    registers
}

/// Returns the elements after the last full SIMD step, as pairs of one element from each array.
pub(super) fn leftovers<'r, E: StoredFloat + 'r>(
    weights: &'r [u8],
    activations: &'r [u8],
) -> impl ExactSizeIterator<Item = (f32, f32)> {
    let (_, weights) = blocks::<E>(weights).as_chunks::<32>();
    let (_, activations) = blocks::<E>(activations).as_chunks::<32>();
    weights.iter().zip(activations).map(|(w, a)| (w.widen(), a.widen()))
}

/// Adds all lanes, in neighbouring pairs first.
fn in_neighbours(LaneSums([a, b, c, d, e, f, g, h]): LaneSums) -> f32 {
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

/// Adds the remaining elements. gcc vectorises this loop by fours without FMA, and adds the last elements with FMA.
pub(super) fn f32_leftovers(sum: f32, pairs: impl ExactSizeIterator<Item = (f32, f32)>) -> f32 {
    let fours = pairs.len() / 4 * 4;
    pairs.enumerate().fold(sum, |sum, (index, (w, a))| match index < fours {
        true => sum + w * a,
        false => w.mul_add(a, sum),
    })
}

pub(super) fn f64_leftovers(sum: f32, pairs: impl Iterator<Item = (f32, f32)>) -> f32 {
    pairs.fold(f64::from(sum), |sum, (w, a)| sum + f64::from(w * a)) as f32
}
