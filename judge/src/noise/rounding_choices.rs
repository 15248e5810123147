//! Search for the rounding choices of a 16-bit engine by the errors of whole rows.
//!
//! Between two recorded values, several operations may round, so their rounding cannot be judged value by value.
//! But the engines have few rounding choices ([`FusedStep`]), and our engine can compute with each of them. With
//! the choices of the dump's engine, our values come nearer to the dump's. The remaining difference comes from the
//! order of sums.

use std::collections::{HashMap, HashSet};

use crate::check::{ContinuationValues, RunContext, SiteCheck};
use crate::checkpoint::Site;
use crate::error::Result;
use crate::measure::Distribution;
use crate::noise::excess::PerturbedErrors;
use crate::numerics::{FusedKernels, FusedStep, Numerics, Transformers};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::weight::DType;

/// Errors of the rows at which the dump differs from our run, and errors of the same rows in perturbed runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowNoise {
    /// For each site, the rows and the largest error of each in perturbed runs.
    noise: HashMap<Site, Vec<(usize, f64)>>,
    /// Typical ratio of the dump's error to the noise, over all rows.
    pub(crate) ratio: TypicalRatio,
    /// Number of rows in the mean.
    pub(crate) count: usize,
}

/// The geometric mean of the ratios of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TypicalRatio {
    /// Geometric mean.
    pub(crate) mean: f64,
    /// Geometric mean, less three standard errors. With few rows, or rows that differ much, the mean is uncertain.
    pub(crate) least: f64,
}

impl TypicalRatio {
    /// Computes the mean of ratios. NaN if a ratio is NaN.
    fn of(ratios: &[f64]) -> Self {
        let n = ratios.len().max(1) as f64;
        let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / n;
        let squares = ratios.iter().map(|ratio| (ratio.ln() - mean).powi(2)).sum::<f64>();
        let standard_error = (squares / (n - 1.0).max(1.0) / n).sqrt();
        Self { mean: mean.exp(), least: (mean - 3.0 * standard_error).exp() }
    }
}

impl RowNoise {
    /// Smallest ratio that enters the mean. Without it, a row that becomes identical would make the mean zero.
    const LEAST: f64 = 1.0 / 64.0;

    pub(super) fn of(errors: &HashMap<Site, Distribution>, noise: &HashMap<Site, PerturbedErrors>) -> Self {
        let of_site = |(site, errors): (&Site, &Distribution)| {
            let known = &noise.get(site)?.distribution.rows;
            let differs = |&(row, noise): &(usize, f64)| noise > 0.0 && errors.rows.get(row) != Some(&0.0);
            Some((*site, known.iter().copied().enumerate().filter(differs).collect()))
        };
        let noise: HashMap<Site, Vec<(usize, f64)>> = errors.iter().filter_map(of_site).collect();
        let count = noise.values().map(Vec::len).sum();
        let known = Self { noise, ratio: TypicalRatio::default(), count };
        Self { ratio: known.typical(|site| errors.get(&site)), ..known }
    }

    /// Returns the geometric mean of the ratios of errors to noise, so that a few rows with growing rounding errors do
    /// not decide. NaN if an error is missing or NaN.
    fn typical<'e>(&self, errors: impl Fn(Site) -> Option<&'e Distribution>) -> TypicalRatio {
        let ratio = |site: Site, &(row, noise): &(usize, f64)| {
            let error = errors(site).and_then(|errors| errors.rows.get(row)).copied().unwrap_or(f64::NAN);
            if error / noise < Self::LEAST { Self::LEAST } else { error / noise }
        };
        let of_site = |(&site, rows): (&Site, &Vec<(usize, f64)>)| -> Vec<f64> {
            rows.iter().map(|row| ratio(site, row)).collect()
        };
        TypicalRatio::of(&self.noise.iter().flat_map(of_site).collect::<Vec<_>>())
    }

    /// Returns the smallest ratio of error to noise at `sites` over the rounding choices that were tried. If the
    /// numerics have no known choices, returns the ratio of our own run. Each choice is tried once, and kept if it
    /// brings our values nearer to the dump's.
    ///
    /// # Errors
    /// The errors of a run.
    pub(crate) fn left_by_choices(
        &self,
        context: &RunContext,
        go_on: ContinuationValues,
        sites: &HashSet<Site>,
    ) -> Result<TypicalRatio> {
        let Some(mut kernels) = eager(context).map(FusedKernels::new) else { return Ok(self.ratio) };
        let mut least = self.ratio;
        for step in FusedStep::ALL {
            let other = kernels.with_other(step);
            let comparison = context.comparing(go_on).distributing(sites);
            let mut rounding = RoundingTap { sites, context };
            let (checks, _) = context.run_comparing(&other, &context.script(), comparison, &mut rounding)?;
            let left = self.typical(|site| distribution(&checks, site));
            if left.mean < least.mean {
                (kernels, least) = (other, left);
            }
        }
        Ok(least)
    }
}

fn distribution(checks: &[SiteCheck], site: Site) -> Option<&Distribution> {
    checks.iter().find(|check| check.site == site)?.distribution.as_ref()
}

/// Returns the eager numerics with the run's 16-bit type, whose steps other engines fuse. `None` for other
/// numerics.
fn eager(context: &RunContext) -> Option<Transformers> {
    let numerics = context.numerics;
    let computed = numerics.activation_type();
    let is_eager = numerics.name() == Transformers::Bf16.name() && numerics.cache_type() == computed;
    let of_type = |eager: &Transformers| is_eager && eager.activation_type() == computed;
    [Transformers::Bf16, Transformers::F16].into_iter().find(of_type)
}

/// A tap that rounds compared values to the type in which the engine stores them.
struct RoundingTap<'s> {
    sites: &'s HashSet<Site>,
    context: &'s RunContext<'s>,
}

impl Tap for RoundingTap<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        match self.context.computed_at(site.point) {
            DType::BF16 if self.sites.contains(&site) => value.map(|x| half::bf16::from_f32(x).to_f32()),
            DType::F16 if self.sites.contains(&site) => value.map(|x| half::f16::from_f32(x).to_f32()),
            _ => value,
        }
    }
}
