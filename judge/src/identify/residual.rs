//! Classification of the error between an array and a tap as noise or as a pattern.

use std::collections::HashMap;

/// Minimum share of the error, relative to fitted noise, that must remain after a pattern is fitted for the error
/// to count as noise.
const LEFT: f64 = 0.5;

/// Error sums of the values in one row, one channel or one vector.
#[derive(Clone, Copy, Default)]
struct ResidualGroup {
    count: f64,
    error: f64,
    error_ours: f64,
    ours: f64,
}

/// Errors of all values, grouped by row, by channel and by vector.
#[derive(Default)]
pub(super) struct Residual {
    /// Sum of the squared errors.
    squared: f64,
    count: f64,
    groups: [HashMap<usize, ResidualGroup>; 3],
}

impl Residual {
    /// Adds the error of one value. `keys` are its row, its channel and its vector along the last axis.
    pub(crate) fn add(&mut self, keys: [usize; 3], error: f64, ours: f64) {
        self.squared += error * error;
        self.count += 1.0;
        for (groups, key) in self.groups.iter_mut().zip(keys) {
            let group = groups.entry(key).or_default();
            group.count += 1.0;
            group.error += error;
            group.error_ours += error * ours;
            group.ours += ours * ours;
        }
    }

    /// Returns true if no factor and no offset per row, channel or vector explains half of the error. Returns false if
    /// there are too few values to decide.
    pub(crate) fn is_noise(&self) -> bool {
        let factor = |group: &ResidualGroup| (group.error_ours, group.ours);
        let offset = |group: &ResidualGroup| (group.error, group.count);
        self.groups.iter().all(|groups| self.is_left_by(groups, factor) && self.is_left_by(groups, offset))
    }

    /// Returns true if fitting one number per group explains the error no better than it would explain noise.
    fn is_left_by(
        &self,
        groups: &HashMap<usize, ResidualGroup>,
        fit: impl Fn(&ResidualGroup) -> (f64, f64),
    ) -> bool {
        let explained = |group: &ResidualGroup| match fit(group) {
            (along, norm) if norm > 0.0 => along * along / norm,
            _ => 0.0,
        };
        // Each fitted number takes one degree of freedom.
        let expected = 1.0 - groups.len() as f64 / self.count;
        let left = 1.0 - groups.values().map(explained).sum::<f64>() / self.squared;
        expected > 0.0 && left > expected * LEFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 6;
    const CHANNELS: usize = 32;

    fn of(error: impl Fn(usize, usize, f64) -> f64) -> bool {
        let mut residual = Residual::default();
        for (row, channel) in (0..ROWS).flat_map(|row| (0..CHANNELS).map(move |channel| (row, channel))) {
            let ours = noise(row * CHANNELS + channel);
            residual.add([row, channel, row], error(row, channel, ours), ours);
        }
        residual.is_noise()
    }

    /// Returns a pseudo-random number between -1 and 1.
    fn noise(at: usize) -> f64 {
        (at as f64 * 12.9898).sin() * 43_758.545_3 % 1.0
    }

    #[test]
    fn noise_has_no_pattern() {
        assert!(of(|row, channel, _| noise(1000 + row * CHANNELS + channel)));
        assert!(of(|row, channel, ours| ours * noise(2000 + row * CHANNELS + channel)));
    }

    #[test]
    fn factors_and_offsets_are_patterns() {
        assert!(!of(|_, channel, ours| ours * noise(channel)));
        assert!(!of(|row, _, ours| ours * noise(row)));
        assert!(!of(|_, channel, _| noise(channel)));
        assert!(!of(|_, _, _| 0.01));
        assert!(!of(|_, _, ours| ours * 0.01));
    }

    #[test]
    fn one_value_each_decides_nothing() {
        let mut residual = Residual::default();
        (0..CHANNELS).for_each(|channel| residual.add([0, channel, 0], noise(channel), noise(99 + channel)));
        assert!(!residual.is_noise());
    }
}
