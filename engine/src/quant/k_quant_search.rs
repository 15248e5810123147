//! Rounding of weights to K-quants. The scale of each group is the candidate with the smallest weighted error, as
//! in ggml's quantisation without an importance matrix.

use half::f16;

/// Smallest absolute value for which a group of Q6_K gets a scale.
const TINY: f32 = 1e-15;

/// Rounds a block to Q4_K: eight groups of 32 codes from 0 to 15, each with a 6-bit scale and minimum.
pub(super) fn round_to_q4_k(block: &mut [f32; 256]) {
    let groups: Vec<GroupFit> = block.as_chunks::<32>().0.iter().map(GroupFit::with_minimum).collect();
    let most = |of: fn(&GroupFit) -> f32| groups.iter().map(of).fold(0.0f32, f32::max);
    let [scale, minimum] = [most(|group| group.scale), most(|group| group.minimum)].map(SixBitUnit::of);
    for (values, group) in block.as_chunks_mut::<32>().0.iter_mut().zip(&groups) {
        let (scale, minimum) = (scale.stored(group.scale), minimum.stored(group.minimum));
        for (value, &code) in values.iter_mut().zip(&group.codes) {
            let code = match scale == 0.0 {
                true => code,
                false => ((*value + minimum) / scale).round_ties_even().clamp(0.0, 15.0),
            };
            *value = scale * code - minimum;
        }
    }
}

/// Rounds a block to Q6_K: sixteen groups of 16 codes from −32 to 31, each with an 8-bit scale.
pub(super) fn round_to_q6_k(block: &mut [f32; 256]) {
    let scales: Vec<f32> = block.as_chunks::<16>().0.iter().map(symmetric_scale).collect();
    let largest =
        scales.iter().fold(0.0f32, |most, scale| if scale.abs() > most.abs() { *scale } else { most });
    if largest.abs() < TINY {
        return block.fill(0.0);
    }
    let inverse = -128.0 / largest;
    let unit = f16::from_f32(1.0 / inverse).to_f32();
    for (values, scale) in block.as_chunks_mut::<16>().0.iter_mut().zip(scales) {
        let scale = unit * (inverse * scale).round_ties_even().min(127.0);
        for value in values {
            *value = match scale == 0.0 {
                true => 0.0,
                false => scale * (*value / scale).round_ties_even().clamp(-32.0, 31.0),
            };
        }
    }
}

/// Unit in which the 6-bit scales of a block are stored.
struct SixBitUnit {
    inverse: f32,
    unit: f32,
}

impl SixBitUnit {
    fn of(largest: f32) -> Self {
        let inverse = if largest > 0.0 { 63.0 / largest } else { 0.0 };
        Self { inverse, unit: f16::from_f32(largest / 63.0).to_f32() }
    }

    fn stored(&self, scale: f32) -> f32 {
        self.unit * (self.inverse * scale).round_ties_even().min(63.0)
    }
}

/// Scale, minimum and codes of a group: value = scale · code − minimum.
struct GroupFit {
    scale: f32,
    minimum: f32,
    codes: [f32; 32],
}

impl GroupFit {
    /// Fits 4-bit codes. The weight of each value is its absolute value plus the root mean square of the group.
    fn with_minimum(values: &[f32; 32]) -> Self {
        let squares: f32 = values.iter().map(|x| x * x).sum();
        let typical = (squares / 32.0).sqrt();
        let weights = values.map(|x| typical + x.abs());
        let low = values.iter().fold(values[0], |least, &x| least.min(x)).min(0.0);
        let high = values.iter().fold(values[0], |most, &x| most.max(x));
        if high == low {
            return Self { scale: 0.0, minimum: -low, codes: [0.0; 32] };
        }
        let codes = |steps: f32, low: f32| {
            let inverse = steps / (high - low);
            values.map(|x| (inverse * (x - low)).round_ties_even().clamp(0.0, 15.0))
        };
        let error = |codes: &[f32; 32], scale: f32, low: f32| {
            let parts = codes.iter().zip(values).zip(&weights);
            parts.map(|((code, x), w)| w * (scale * code + low - x).powi(2)).sum::<f32>()
        };
        let first = codes(15.0, low);
        let scale = 1.0 / (15.0 / (high - low));
        let mut best = (error(&first, scale, low), scale, low, first);
        for step in 0..=20 {
            // Like ggml, each candidate starts from the minimum of the best one so far.
            let codes = codes(-1.0 + 0.1 * step as f32 + 15.0, best.2);
            let Some((scale, low)) = least_squares(values, &weights, &codes) else { continue };
            let error = error(&codes, scale, low);
            if error < best.0 {
                best = (error, scale, low, codes);
            }
        }
        let (_, scale, low, codes) = best;
        Self { scale, minimum: -low, codes }
    }
}

/// Returns the scale and the offset with the smallest weighted error for these codes. The offset is zero or
/// negative.
fn least_squares(values: &[f32; 32], weights: &[f32; 32], codes: &[f32; 32]) -> Option<(f32, f32)> {
    let (mut w, mut x, mut l, mut ll, mut xl) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for ((&value, &weight), &code) in values.iter().zip(weights).zip(codes) {
        w += weight;
        x += weight * value;
        l += weight * code;
        ll += weight * code * code;
        xl += weight * code * value;
    }
    let determinant = w * ll - l * l;
    let fit = ((w * xl - x * l) / determinant, (ll * x - l * xl) / determinant);
    (determinant > 0.0).then_some(if fit.1 > 0.0 { (xl / ll, 0.0) } else { fit })
}

/// Returns the scale of a group of Q6_K: the candidate with the smallest error, weighted by the squares of the values.
fn symmetric_scale(values: &[f32; 16]) -> f32 {
    let most = values.iter().fold(0.0f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    if most.abs() < TINY {
        return 0.0;
    }
    let sums = |levels: f32| {
        let inverse = -levels / most;
        values.iter().fold((0.0f32, 0.0f32), |(xl, ll), &x| {
            let code = (inverse * x).round_ties_even().clamp(-32.0, 31.0);
            (xl + x * x * x * code, ll + x * x * code * code)
        })
    };
    let (xl, ll) = sums(32.0);
    let mut scale = if ll > 0.0 { xl / ll } else { 0.0 };
    let mut best = scale * xl;
    for step in (-9..=9).filter(|&step| step != 0) {
        let (xl, ll) = sums(32.0 + 0.1 * step as f32);
        if ll > 0.0 && xl * xl > best * ll {
            scale = xl / ll;
            best = scale * xl;
        }
    }
    scale
}
