//! Portable code of llama2.c's products. It defines the bits.

/// Computes the products of rows of `f32` weights (little-endian, concatenated) with each row of activations. The
/// output has, for each row of weights, one value for each row of activations.
pub type Products = fn(weights: &[u8], activations: &[&[f32]], out: &mut [f32]);

/// Computes the products of `int8` groups.
pub(crate) type GroupProducts = fn(weights: Groups, activations: &[QuantisedRow], out: &mut [f32]);

/// Rows of codes and their scales (little-endian `f32`), concatenated.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'w> {
    /// Signed codes of one byte.
    pub codes: &'w [u8],
    /// Scales, one for each group.
    pub scales: &'w [u8],
}

/// A quantised row of activations.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedRow {
    /// Code of each value.
    pub codes: Vec<i8>,
    /// Scale of each group.
    pub scales: Vec<f32>,
}

impl QuantisedRow {
    /// Quantises a row: `round(x · 127 / max)`, computed as `x` divided by the scale `max / 127`, halves away from
    /// zero.
    ///
    /// A group of zeros has the scale 0 and the quotient NaN, which x86 converts to the `int8` 0.
    pub fn of(row: &[f32], group: usize) -> Self {
        let largest =
            |values: &[f32]| values.iter().map(|x| x.abs()).fold(0.0, |max, x| if x > max { x } else { max });
        let scales: Vec<f32> = row.chunks_exact(group).map(|values| largest(values) / 127.0).collect();
        let groups = row.chunks_exact(group).zip(&scales);
        let codes =
            groups.flat_map(|(values, scale)| values.iter().map(move |x| to_int8((x / scale).round())));
        Self { codes: codes.collect(), scales }
    }
}

/// Returns the low byte of `cvttsd2si`, which gives the smallest integer for values outside of 32 bits.
fn to_int8(rounded: f32) -> i8 {
    if rounded.abs() < 2_147_483_648.0 { rounded as i32 as i8 } else { 0 }
}

/// Portable version of [`Products`], which defines the bits.
pub fn plain_products(weights: &[u8], activations: &[&[f32]], out: &mut [f32]) {
    let columns = activations[0].len();
    for (row, out) in weights.chunks(4 * columns).zip(out.chunks_mut(activations.len())) {
        for (out, x) in out.iter_mut().zip(activations) {
            *out = numbers(row).zip(*x).fold(0.0, |sum, (w, x)| sum + w * x);
        }
    }
}

/// Portable version of `GroupProducts`, which defines the bits.
pub fn plain_group_products(weights: Groups, activations: &[QuantisedRow], out: &mut [f32]) {
    by_row(weights, activations, out, |codes, x| {
        let products = codes.iter().zip(x).map(|(&w, &x)| i32::from(w as i8) * i32::from(x));
        products.fold(0, i32::wrapping_add)
    });
}

/// Adds the products of groups one after the other in `f32`. `dot` returns the integer product of two groups.
#[inline(always)]
pub(in crate::quant) fn by_row(
    weights: Groups,
    activations: &[QuantisedRow],
    out: &mut [f32],
    dot: impl Fn(&[u8], &[i8]) -> i32,
) {
    let (columns, groups) = (activations[0].codes.len(), activations[0].scales.len());
    let rows = weights.codes.chunks(columns).zip(weights.scales.chunks(4 * groups));
    for ((codes, scales), out) in rows.zip(out.chunks_mut(activations.len())) {
        for (out, x) in out.iter_mut().zip(activations) {
            let size = columns / groups;
            let dots = codes.chunks(size).zip(x.codes.chunks(size)).map(|(w, x)| dot(w, x));
            let scaled = dots.zip(numbers(scales)).zip(&x.scales);
            *out = scaled.fold(0.0, |sum, ((dot, w), x)| sum + dot as f32 * w * x);
        }
    }
}

pub(super) fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes))
}
