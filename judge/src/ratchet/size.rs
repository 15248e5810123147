//! Size of a failure, and the limit up to which rounding can change it between builds.

use crate::checkpoint::ValueKind;
use crate::error_map;
use crate::noise::NoiseFloor;
use crate::report::{FailureSize, RecordedRow};

/// Expected variation of the bound ratio between correct builds.
const RADIUS: f64 = 1.0;
/// Expected variation of a bias between correct builds, in sigmas; a larger bias fails.
const BIAS: f64 = 8.0;
/// Largest relative change of other figures between builds. It covers rounding of a wrong operation's inputs to 8
/// bits, codes or bf16, the coarsest types.
const MOVED: f64 = 1.0 / 128.0;

impl FailureSize {
    /// Returns true if a row is so close to its error bound that it may pass in another build.
    pub(crate) fn is_just_beyond(row: &RecordedRow) -> bool {
        let over = row.size.over.map(|_| 0);
        let within = Self { bound_ratio: Some(RADIUS), over, sigmas: Some(BIAS), ..row.size };
        within.outgrown_by(row).is_none()
    }

    /// Returns the maximum of each figure of two failure sizes.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            bound_ratio: most(self.bound_ratio, other.bound_ratio),
            rel_l2: most(self.rel_l2, other.rel_l2),
            max_scaled: most(self.max_scaled, other.max_scaled),
            over: self.over.max(other.over),
            sigmas: most(self.sigmas, other.sigmas),
        }
    }

    /// Returns a message if a row is worse than any build of this failure is expected to be.
    pub(crate) fn outgrown_by(&self, row: &RecordedRow) -> Option<String> {
        let now = row.size;
        let is_judged_alike = self.bound_ratio.is_some() == now.bound_ratio.is_some()
            && self.over.is_some() == now.over.is_some();
        if !is_judged_alike {
            return Some("judged differently than in the baseline, so the two cannot be compared".to_owned());
        }
        let [all, one] = row.noise;
        // The difference between two token ids has no meaning.
        let is_of_ids = row.site.point.kind() == ValueKind::Token;
        let figures = [
            ("err/bound", self.bound_ratio, now.bound_ratio, RADIUS),
            ("relative L2 error", self.rel_l2, now.rel_l2, all),
            ("largest relative error", self.max_scaled, now.max_scaled, one),
            ("bias in sigmas", self.sigmas, now.sigmas, BIAS),
        ];
        let grown = figures.into_iter().find_map(|(what, known, now, unit)| {
            let (known, now) = (known?, now?);
            let is_rough = is_of_ids || what == "err/bound" && row.is_measured;
            let most = if is_rough { doubled(known, unit) } else { allowed(known, unit) };
            (!(now <= most)).then(|| format!("{what} {now:.1e}, in the baseline {known:.1e}"))
        });
        grown.or_else(|| self.outnumbered_by(row))
    }

    /// Returns a message if values that were explained by rounding are now further off than a different build would
    /// move them.
    fn outnumbered_by(&self, row: &RecordedRow) -> Option<String> {
        let far = allowed(RADIUS, RADIUS).max(MOVED * self.bound_ratio?).log2().ceil().exp2();
        let known = self.over?;
        // Sizes are counted up to a power of two; above the largest one, all violations are counted.
        if far > f64::from(error_map::ErrorMagnitude::MOST).exp2() {
            let now = row.size.over?;
            return (now as f64 > doubled(known as f64, 1.0))
                .then(|| format!("{now} values are above their error bound, the baseline allows {known}"));
        }
        let now = row.off_by(far)?;
        (now > known as u64)
            .then(|| format!("{now} values have err/bound of at least {far:.0}, the baseline allows {known}"))
    }

    /// Returns the figures to write: `known`, unless they shrank by more than the variation between builds. The file
    /// therefore does not change with every low bit. `noise` are the noise figures of the rows.
    pub(crate) fn kept_as(self, known: Self, noise: [f64; 2]) -> Self {
        let keep = |known: Option<f64>, now: Option<f64>, most: fn(f64, f64) -> f64, unit| match (known, now)
        {
            (Some(known), Some(now)) if now <= known && known <= most(now, unit) => Some(known),
            (_, now) => now,
        };
        let counts = [known.over, self.over].map(|count| count.map(|count| count as f64));
        let [all, one] = noise;
        Self {
            bound_ratio: keep(known.bound_ratio, self.bound_ratio, allowed, RADIUS),
            rel_l2: keep(known.rel_l2, self.rel_l2, allowed, all),
            max_scaled: keep(known.max_scaled, self.max_scaled, allowed, one),
            over: keep(counts[0], counts[1], doubled, 0.0).map(|count| count as usize),
            sigmas: keep(known.sigmas, self.sigmas, allowed, BIAS),
        }
    }
}

/// Returns the largest figure expected in another build. Both builds vary, and the inputs of a wrong
/// operation change.
fn allowed(known: f64, unit: f64) -> f64 {
    known * (1.0 + MOVED) + 2.0 * unit
}

/// Returns the largest figure expected in another build, for counts and for figures from perturbed runs. One
/// more perturbed run can double the largest figure.
fn doubled(known: f64, unit: f64) -> f64 {
    (NoiseFloor::NEAR * known).max(known + 2.0 * unit)
}

fn most(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    [a, b].into_iter().flatten().reduce(f64::max)
}
