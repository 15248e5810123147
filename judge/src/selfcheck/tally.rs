//! Comparison of rows of logits that should be bit-identical.

use crate::selfcheck::CheckResult;
use crate::selfcheck::variety::Variety;
use crate::verdict::Verdict;

/// Number of logits that differ, and their largest difference.
#[derive(Clone, Debug, Default)]
pub(super) struct LogitsTally {
    numbers: usize,
    different: usize,
    /// Largest difference, in units of the root mean square of its row.
    largest: f64,
    variety: Variety,
}

impl LogitsTally {
    /// Compares a row with the expected row.
    pub(super) fn add(&mut self, row: &[f32], wanted: &[f32]) {
        let pairs = || row.iter().zip(wanted);
        let square = |x: &f32| f64::from(*x) * f64::from(*x);
        let rms = (wanted.iter().map(square).sum::<f64>() / wanted.len() as f64).sqrt();
        self.numbers += row.len().max(wanted.len());
        self.different += pairs().filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        self.different += row.len().abs_diff(wanted.len());
        for (a, b) in pairs() {
            let apart = (f64::from(*a) - f64::from(*b)).abs();
            // NaN counts as infinitely far apart; so does a difference from a row of zeros.
            let apart = if apart == 0.0 { 0.0 } else { apart / rms };
            if !(apart <= self.largest) {
                self.largest = apart;
            }
        }
        self.variety.add(row);
        self.variety.add(wanted);
    }

    pub(super) fn checked(self, check: &'static str) -> CheckResult {
        let LogitsTally { numbers, different, largest, variety } = self;
        let found = |verdict, detail: String| CheckResult::new(check, verdict, detail);
        if let Some(number) = variety.broken() {
            return found(Verdict::Fail, format!("a logit is {number}"));
        }
        match (numbers, different, variety.lacking()) {
            (0, ..) => found(Verdict::Inconclusive, "nothing was compared".to_owned()),
            (_, 0, None) => found(Verdict::Pass, format!("{numbers} values bit-identical")),
            (_, 0, Some(why)) => {
                found(Verdict::Inconclusive, format!("these logits would hide a difference: {why}"))
            }
            _ => {
                let apart = format!("by up to {largest:.1e} of the RMS");
                found(Verdict::Fail, format!("{different} of {numbers} values differ, {apart}"))
            }
        }
    }
}
