//! Noise floor of a model's log-probabilities for a text, from perturbed runs of our own engine and one run
//! with other numerics.

use crate::checkpoint::{Point, Site};
use crate::engine::{self, PassInput, RunInput};
use crate::error::Result;
use crate::model::Model;
use crate::numerics::{F32, Numerics, moved};
use crate::ops::log_probabilities::log_probabilities;
use crate::ops::sampling::likeliest;
use crate::probe::difference::LogprobDifference;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Returns the largest differences between a run and perturbed runs, at the `top` most likely tokens after each
/// given token. If `is_stated` is false, the server's arithmetic is unknown, so rounding to 8 bits is included.
///
/// # Errors
/// If the model cannot read these tokens, or the numerics do not support it.
pub(crate) fn floor(
    model: &dyn Model,
    numerics: &dyn Numerics,
    is_stated: bool,
    tokens: &[u32],
    top: usize,
) -> Result<LogprobDifference> {
    let script = RunInput { passes: vec![PassInput::given(tokens)], prompt_len: tokens.len() };
    let mut watch = TopTokenTap { top, rows: Vec::new(), at: 0, largest: LogprobDifference::default() };
    engine::run(model, numerics, &script, &mut watch)?;
    let mut again = |numerics: &dyn Numerics| -> Result<()> {
        watch.at = 0;
        engine::run(model, numerics, &script, &mut watch).map(drop)
    };
    moved(numerics, 0, |noisy| if is_stated { noisy } else { noisy.with_eight_bits() }, &mut again)?;
    // The difference between rounding numerics and f32 is the effect of their rounding.
    if engine::check(model, &F32, &script).is_ok() {
        again(&F32)?;
    }
    Ok(watch.largest)
}

/// Returns the distance of the server's log-probabilities from those of a model in these numerics, weighted by
/// probability.
///
/// # Errors
/// Errors of [`floor`].
pub(crate) fn distance(
    model: &dyn Model,
    numerics: &dyn Numerics,
    tokens: &[u32],
    told: &[Vec<(u32, f64)>],
) -> Result<f64> {
    let script = RunInput { passes: vec![PassInput::given(tokens)], prompt_len: tokens.len() };
    let mut rows = LogitsRowTap { told: told.iter(), sum: 0.0 };
    engine::run(model, numerics, &script, &mut rows)?;
    Ok(rows.sum)
}

/// A tap that compares each row of logits with a server's log-probabilities.
struct LogitsRowTap<'t> {
    told: std::slice::Iter<'t, Vec<(u32, f64)>>,
    sum: f64,
}

impl LogitsRowTap<'_> {
    fn row(&mut self, logits: &[f32]) {
        let told = self.told.next().into_iter().flatten().filter(|(id, _)| (*id as usize) < logits.len());
        let (ids, values): (Vec<u32>, Vec<f64>) = told.copied().unzip();
        let own = log_probabilities(logits, &ids, false, 1.0);
        self.sum += own.iter().zip(&values).map(|(own, told)| told.exp() * (own - told).abs()).sum::<f64>();
    }
}

impl Tap for LogitsRowTap<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.wants(site) {
            (0..value.rows()).for_each(|row| self.row(value.row(row)));
        }
        value
    }

    fn wants(&self, site: Site) -> bool {
        site.point == Point::Logits
    }
}

/// A tap that stores the top tokens of each row of the first run. It measures the differences of their
/// log-probabilities in later runs.
struct TopTokenTap {
    top: usize,
    rows: Vec<(Vec<u32>, Vec<f64>)>,
    /// Index of the next row.
    at: usize,
    largest: LogprobDifference,
}

impl TopTokenTap {
    fn row(&mut self, logits: &[f32]) {
        let of = |ids: &[u32]| log_probabilities(logits, ids, false, 1.0);
        match self.rows.get(self.at) {
            None => {
                let ids = likeliest(logits, self.top.max(1));
                let known = of(&ids);
                self.rows.push((ids, known));
            }
            Some((ids, known)) => {
                let pairs = of(ids).into_iter().zip(known);
                self.largest = pairs
                    .fold(self.largest, |most, (moved, &known)| most.or(LogprobDifference::of(moved, known)));
            }
        }
        self.at += 1;
    }
}

impl Tap for TopTokenTap {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point == Point::Logits {
            (0..value.rows()).for_each(|row| self.row(value.row(row)));
        }
        value
    }

    fn wants(&self, site: Site) -> bool {
        site.point == Point::Logits
    }
}
