//! Progress of a run through a model, and the remaining time.

use std::time::Duration;

/// Returns the finished share of a run at the start of a layer. Each token of each layer counts equally.
pub(super) fn part_done(passes: &[usize], pass: usize, layer: usize, layers: usize) -> Option<f64> {
    let tokens = |passes: &[usize]| passes.iter().sum::<usize>() as f64;
    let here = *passes.get(pass)? as f64 * layer as f64 / layers.max(1) as f64;
    Some((tokens(&passes[..pass]) + here) / tokens(passes)).filter(|done| done.is_finite())
}

/// Estimates the remaining time from the speed so far; `None` at the start.
pub(super) fn time_left(elapsed: Duration, done: f64) -> Option<Duration> {
    const ENOUGH: f64 = 0.02;
    (done >= ENOUGH).then(|| elapsed.mul_f64((1.0 - done).max(0.0) / done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_tokens_and_layers() {
        // Six of eight tokens are done, and half the layers of the seventh.
        let done = part_done(&[6, 1, 1], 1, 2, 4).expect("it is known");
        assert_eq!(done, 6.5 / 8.0);
        assert_eq!(time_left(Duration::from_secs(65), done), Some(Duration::from_secs(15)));
    }

    #[test]
    fn nothing_is_told_that_is_not_known() {
        assert_eq!(part_done(&[], 0, 1, 4), None);
        assert_eq!(part_done(&[0], 0, 0, 4), None);
        assert_eq!(time_left(Duration::from_secs(1), 0.0), None);
    }
}
