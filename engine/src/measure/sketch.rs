//! Sketches: twelve numbers that stand for the values of one token. Equal checksums mean equal bits. If checksums
//! differ, the projections estimate the distance, because the projection of a difference is the difference of the
//! projections.

/// Number of values in a sketch: a checksum, the sum, the sum of squares, the largest absolute value, and the
/// projections.
pub const WIDTH: usize = 4 + PROJECTIONS;

/// Number of projections of a row. The mean of their squared differences estimates the squared distance of one row
/// with an error of about a third. The mean over many rows is much more precise.
pub const PROJECTIONS: usize = 8;

/// Returns the sketch of a row.
pub fn of_row(values: &[f64]) -> [f64; WIDTH] {
    let mut checksum = crc32fast::Hasher::new();
    let (mut sum, mut squares, mut largest) = (0.0, 0.0, 0.0f64);
    let mut projections = [0.0; PROJECTIONS];
    for (index, &value) in values.iter().enumerate() {
        checksum.update(&(value as f32).to_le_bytes());
        (sum, squares, largest) = (sum + value, squares + value * value, largest.max(value.abs()));
        let signs = signs(index as u64);
        for (bit, projection) in projections.iter_mut().enumerate() {
            let sign = !(signs >> bit) << 63;
            *projection += f64::from_bits(value.to_bits() ^ sign);
        }
    }
    let mut row = [0.0; WIDTH];
    row[..4].copy_from_slice(&[checksum.finalize().into(), sum, squares, largest]);
    row[4..].copy_from_slice(&projections);
    row
}

/// Returns the signs of an element in all projections; a set bit means plus. Uses splitmix64, which can be written
/// in two lines in any language.
fn signs(index: u64) -> u64 {
    let z = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
