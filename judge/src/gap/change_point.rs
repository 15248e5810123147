//! Change point of differences: the index at which their root mean square changes.

/// Minimum number of tokens before and after a step in one sequence.
pub(super) const LEAST_SIDE: usize = 4;

/// A step in the size of differences along an axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangePoint {
    /// Index of the first group after the step.
    pub(crate) at: usize,
    /// Root mean square of the differences before the step.
    pub(crate) before: f64,
    /// Root mean square of the differences after the step.
    pub(crate) after: f64,
}

impl ChangePoint {
    /// Finds the most likely step of the root mean square. Each group is a sum of squares and the number of its terms.
    /// There must be at least `least` values before and after the step; `None` if no index satisfies this.
    pub(super) fn of(groups: &[(f64, usize)], least: usize) -> Option<Self> {
        let (all, count) =
            groups.iter().fold((0.0, 0), |(sum, count), group| (sum + group.0, count + group.1));
        let (mut sum, mut before, mut best) = (0.0, 0, None::<(f64, Self)>);
        for (at, group) in groups.iter().enumerate() {
            let after = count - before;
            if before >= least && after >= least {
                let [one, other] =
                    [(sum, before), (all - sum, after)].map(|(sum, count)| (sum / count as f64).max(1e-30));
                let likelihood = -(before as f64) * one.ln() - after as f64 * other.ln();
                let step = Self { at, before: one.sqrt(), after: other.sqrt() };
                if best.as_ref().is_none_or(|(known, _)| likelihood > *known) {
                    best = Some((likelihood, step));
                }
            }
            sum += group.0;
            before += group.1;
        }
        best.map(|(_, step)| step)
    }
}
