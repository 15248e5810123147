//! Distance between an array and a tap, estimated from a sample first and then measured on all values.

use crate::checkpoint::Point;
use crate::identify::array_layout::{ArrayLayout, ValueIndices};
use crate::identify::residual::Residual;

/// Number of sampled values, from which it is decided whether all values are compared.
const SAMPLED: usize = 256;
/// Relative residual above which two arrays count as unrelated, even with the best scale.
const HOPELESS: f64 = 0.8;
/// Minimum number of values to compare. Six values of noise are within 5 % of each other once in about ten
/// million times.
const FEWEST: usize = 6;
/// Largest deviation of a scale from 1 that counts as rounding.
const NO_SCALE: f64 = 0.02;
/// Largest relative error of two roundings to bf16, the smallest type of stored activations: one rounding of
/// the value, one of its inputs.
pub(super) const ROUNDED: f64 = 1.0 / 256.0;
/// Largest relative error of a correct engine. The shipped dumps, including f16 and Q8_0, are within 0.003; 4-bit
/// arithmetic has larger errors.
pub(super) const HONEST: f64 = 0.05;

/// The distance between an array and a tap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TapDistance {
    /// Relative L2 error after scaling.
    pub(crate) rel_l2: f64,
    /// Factor from the tap's values to the array's.
    pub(crate) scale: f64,
    /// True if the error has no pattern, like rounding errors. A factor or an offset on a row, a channel or a
    /// head is a pattern.
    pub(crate) is_noise: bool,
}

impl TapDistance {
    /// Returns true if rounding explains the error: it is tiny, or it has no pattern and is no larger than that of
    /// coarse arithmetic.
    pub(crate) fn is_honest(&self) -> bool {
        self.rel_l2 <= ROUNDED || self.rel_l2 < HONEST && self.is_noise
    }
}

/// An array and a tap to compare.
pub(super) struct ArrayAndTap<'s> {
    pub(crate) theirs: &'s [f32],
    pub(crate) ours: &'s [f32],
    pub(crate) point: Point,
    /// Size of the sliding attention window, in positions.
    pub(crate) window: Option<usize>,
}

#[derive(Default)]
struct ProductSums {
    theirs: f64,
    ours: f64,
    both: f64,
    count: usize,
}

impl ProductSums {
    fn add(&mut self, theirs: f32, ours: f32) {
        let (theirs, ours) = (f64::from(theirs), f64::from(ours));
        self.theirs += theirs * theirs;
        self.ours += ours * ours;
        self.both += theirs * ours;
        self.count += 1;
    }

    /// Returns the distance without a scale if it is small enough, otherwise the distance with the scale that fits
    /// best.
    fn nearness(&self) -> Option<TapDistance> {
        let scale = self.both / self.ours;
        let is_something = self.theirs > 0.0 && self.ours > 0.0 && scale > 0.0;
        if self.count < FEWEST || !is_something || !self.theirs.is_finite() || !self.ours.is_finite() {
            return None;
        }
        let of = |squared: f64| (squared.max(0.0) / self.theirs).sqrt();
        let plain = of(self.theirs - 2.0 * self.both + self.ours);
        let scaled = of(self.theirs - self.both * scale);
        match (scale - 1.0).abs() < NO_SCALE || plain <= 1.5 * scaled {
            true => Some(TapDistance { rel_l2: plain, scale: 1.0, is_noise: false }),
            false => Some(TapDistance { rel_l2: scaled, scale, is_noise: false }),
        }
    }
}

impl ArrayAndTap<'_> {
    /// Returns true if a value is compared. Masked scores are not compared, since their values are arbitrary.
    fn counts(&self, way: &ArrayLayout, at: ValueIndices) -> bool {
        let Some(key) = at.key.filter(|_| self.point == Point::AttnScores) else { return true };
        let token = at.token + way.rows.map_or(0, |(first, _)| first);
        key <= token && self.window.is_none_or(|window| key + window > token)
    }

    /// Returns the distance of the array to the tap; `None` if they are unrelated.
    pub(crate) fn nearness(&self, way: &ArrayLayout) -> Option<TapDistance> {
        let len = way.len();
        if len > SAMPLED {
            let mut sums = ProductSums::default();
            for draw in 0..SAMPLED as u64 {
                self.add(&mut sums, way, (scattered(draw) % len as u64) as usize);
            }
            sums.nearness().filter(|near| near.rel_l2 < HOPELESS)?;
        }
        let mut sums = ProductSums::default();
        (0..len).for_each(|flat| self.add(&mut sums, way, flat));
        let near = sums.nearness().filter(|near| near.rel_l2 < HOPELESS)?;
        let is_between = near.rel_l2 > ROUNDED && near.rel_l2 < HONEST;
        Some(TapDistance { is_noise: is_between && self.is_noise(way, near.scale), ..near })
    }

    fn is_noise(&self, way: &ArrayLayout, scale: f64) -> bool {
        let mut residual = Residual::default();
        for at in (0..way.len()).map(|flat| way.at(flat)).filter(|at| self.counts(way, *at)) {
            let (theirs, ours) = (f64::from(self.theirs[at.theirs]), f64::from(self.ours[at.ours]));
            residual.add(way.groups(at), theirs - scale * ours, ours);
        }
        residual.is_noise()
    }

    fn add(&self, sums: &mut ProductSums, way: &ArrayLayout, flat: usize) {
        let at = way.at(flat);
        if self.counts(way, at) {
            sums.add(self.theirs[at.theirs], self.ours[at.ours]);
        }
    }

    /// Returns the tap's values, replaced by the array's values where the array has them.
    pub(crate) fn replaced(&self, way: &ArrayLayout, scale: f64) -> Vec<f32> {
        let mut values = self.ours.to_vec();
        for at in (0..way.len()).map(|flat| way.at(flat)) {
            let theirs = f64::from(self.theirs[at.theirs]) / scale;
            if self.counts(way, at) && theirs.is_finite() {
                values[at.ours] = theirs as f32;
            }
        }
        values
    }
}

/// Returns a pseudo-random number from `draw`, by splitmix64.
fn scattered(draw: u64) -> u64 {
    let mut state = draw.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}
