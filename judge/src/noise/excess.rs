//! Tests whether the errors of a site are larger than in perturbed runs. Compares whole distributions: by
//! size of the values, by row, and as probabilities.
//!
//! One statistic is not enough: if two large logits are swapped, for example, the largest relative error stays
//! small. Several statistics are therefore compared with those of the perturbed runs, and the largest ratio
//! decides.

use serde::{Deserialize, Serialize};

use crate::json_number;
use crate::measure::{Distribution, SizeClass, larger};

/// Largest ratio that rounding explains: the error over the largest error of a few perturbed runs.
pub(crate) const NEAR: f64 = 2.0;

/// Ratio from which rounding cannot explain an error: the error over the largest error of a few perturbed
/// runs. A Gaussian practically never exceeds four times the largest of some thousand samples.
pub(crate) const FAR: f64 = 4.0;

/// A statistic of a site's errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Statistic {
    /// The largest error among values of similar size.
    Largest,
    /// The root mean square error of values of similar size.
    Size,
    /// The root mean square error of one row.
    Row,
    /// The largest KL divergence among rows of logits.
    Divergence,
    /// The mean KL divergence of rows of logits.
    MeanDivergence,
    /// The margin by which one side prefers its most likely token to the other side's most likely token.
    Lead,
    /// A common factor between the values of the two sides, e.g. a wrong scale.
    Scale,
}

impl Statistic {
    /// Returns the statistic's phrase in messages.
    fn phrase(self) -> &'static str {
        match self {
            Self::Largest => "the largest error among values of similar size, relative to the row's RMS,",
            Self::Size => "the RMS error of values of similar size, relative to the row's RMS,",
            Self::Row => "the RMS error of one row",
            Self::Divergence => "the largest KL divergence of a row",
            Self::MeanDivergence => "the mean KL divergence of the rows",
            Self::Lead => "the reference's largest logit gap between its top token and the candidate's",
            Self::Scale => "the scale factor common to all values, minus 1,",
        }
    }
}

/// The statistic that exceeds its value in perturbed runs the most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Excess {
    /// The statistic with the largest ratio.
    pub(crate) statistic: Statistic,
    /// The statistic of the site's errors.
    #[serde(with = "json_number")]
    pub(crate) error: f64,
    /// The statistic of the perturbed runs.
    #[serde(with = "json_number")]
    pub(crate) noise: f64,
    /// The error relative to the largest error expected in one more perturbed run. Up to 1, rounding explains
    /// the error; from [`Excess::FAR`] on, it does not.
    #[serde(with = "json_number")]
    pub ratio: f64,
}

/// Minimum number of values in a size class, over all runs. Smaller classes are merged with their neighbours,
/// because the largest of few errors depends on chance.
const FEW_VALUES: usize = 4096;
/// Minimum number of values for a meaningful root mean square.
const FEW_ERRORS: usize = 64;
/// Minimum number of rows for a meaningful mean.
const FEW_ROWS: usize = 8;
/// Number of rows, over all runs, below which the largest divergence depends on chance and its limit is doubled.
const FEW_DIVERGENCES: usize = 32;
/// Factor on the perturbed runs' KL divergence that still passes. KL divergences grow with the square of the
/// errors.
const TIMES_DIVERGENCE: f64 = 2.0;

impl Excess {
    /// Ratio from which no rounding explains an error.
    pub(crate) const FAR: f64 = FAR / NEAR;

    /// Compares the errors of a site with the perturbed runs' errors at the site, and at the same tap and
    /// layer in all passes.
    pub(crate) fn of(
        errors: &Distribution,
        noise: &PerturbedErrors,
        all_passes: &PerturbedErrors,
    ) -> Option<Self> {
        let all = [
            of_classes(errors, &all_passes.distribution),
            of_rows(errors, noise, all_passes),
            of_divergences(errors, all_passes),
            of_means(errors, noise, all_passes),
            Some(Self::near(Statistic::Lead, errors.lost_lead, all_passes.max_abs)),
            of_scale(errors, noise, all_passes),
        ];
        worst(all.into_iter().flatten())
    }

    fn new(statistic: Statistic, error: f64, allowed: f64) -> Self {
        let ratio = if error == 0.0 { 0.0 } else { error / allowed };
        Self { statistic, error, noise: allowed, ratio }
    }

    /// Compares a statistic with the largest value expected in one more perturbed run.
    fn near(statistic: Statistic, error: f64, noise: f64) -> Self {
        Self { noise, ..Self::new(statistic, error, NEAR * noise) }
    }

    /// Compares a KL divergence with `times` that of the perturbed runs. The ratio is a square root, since
    /// divergences grow with the square of errors.
    fn divergence(statistic: Statistic, error: f64, noise: f64, times: f64) -> Self {
        let found = Self::new(statistic, error, times * noise);
        Self { noise, ratio: found.ratio.sqrt(), ..found }
    }

    /// Returns a clause that describes the excess, for messages.
    pub fn told(&self) -> String {
        format!(
            "{} is {:.1e}, expected {:.1e} from rounding",
            self.statistic.phrase(),
            self.error,
            self.noise
        )
    }
}

/// The errors of the perturbed runs at one site.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerturbedErrors {
    /// The distribution of errors. Each size class counts the values of all runs. Every other statistic is the maximum
    /// over the runs.
    pub(crate) distribution: Distribution,
    /// The largest absolute error.
    pub(crate) max_abs: f64,
    pub(crate) runs: usize,
}

impl PerturbedErrors {
    /// Adds one more perturbed run of the same site.
    pub(crate) fn add(&mut self, run: &Distribution, max_abs: f64) {
        let all = &mut self.distribution;
        all.classes.iter_mut().zip(run.classes).for_each(|(all, of_run)| *all = all.and(of_run));
        keep_largest(&mut all.rows, &run.rows);
        keep_largest(&mut all.divergences, &run.divergences);
        all.scale = larger(all.scale, run.scale.abs());
        self.max_abs = larger(self.max_abs, max_abs);
        self.runs += 1;
    }

    /// Adds the rows of another pass.
    pub(crate) fn join(&mut self, pass: &Self) {
        let (all, of_pass) = (&mut self.distribution, &pass.distribution);
        all.classes.iter_mut().zip(of_pass.classes).for_each(|(all, of_pass)| *all = all.and(of_pass));
        all.rows.extend(&of_pass.rows);
        all.divergences.extend(&of_pass.divergences);
        all.scale = larger(all.scale, of_pass.scale);
        self.max_abs = larger(self.max_abs, pass.max_abs);
        self.runs = self.runs.max(pass.runs);
    }
}

fn keep_largest(all: &mut Vec<f64>, of_run: &[f64]) {
    all.resize(all.len().max(of_run.len()), 0.0);
    all.iter_mut().zip(of_run).for_each(|(all, of_run)| *all = larger(*all, *of_run));
}

/// Returns the class of similar-sized values with the largest ratio of error to noise.
fn of_classes(errors: &Distribution, noise: &Distribution) -> Option<Excess> {
    let classes = errors.classes.iter().enumerate().filter(|(_, class)| class.count > 0);
    let of_class = classes.flat_map(|(at, class)| {
        let noise = with_neighbours(&noise.classes, at);
        let is_telling = class.count >= FEW_ERRORS;
        let size = is_telling.then(|| Excess::near(Statistic::Size, class.rms(), noise.rms()));
        [Some(Excess::near(Statistic::Largest, class.max, noise.max)), size]
    });
    worst(of_class.flatten())
}

/// Returns a class of values, merged with its neighbours if it has few values.
fn with_neighbours(classes: &[SizeClass], at: usize) -> SizeClass {
    let around = |reach: usize| {
        let range = at.saturating_sub(reach)..classes.len().min(at + reach + 1);
        classes[range].iter().fold(SizeClass::default(), |all, class| all.and(*class))
    };
    let found = (0..classes.len()).map(around).find(|class| class.count >= FEW_VALUES);
    found.unwrap_or_else(|| around(classes.len()))
}

/// Returns the row with the largest ratio of error to noise. Its error is also compared with the noise of all rows,
/// since a few runs may leave a row unchanged by chance.
fn of_rows(errors: &Distribution, noise: &PerturbedErrors, all: &PerturbedErrors) -> Option<Excess> {
    let typical = root_mean_square(&all.distribution.rows);
    let of_row = |(at, error): (usize, &f64)| {
        let noise = noise.distribution.rows.get(at).copied().unwrap_or_default();
        Excess::near(Statistic::Row, *error, larger(noise, typical))
    };
    worst(errors.rows.iter().enumerate().map(of_row))
}

fn of_divergences(errors: &Distribution, all: &PerturbedErrors) -> Option<Excess> {
    let largest = |of: &[f64]| of.iter().copied().reduce(larger);
    let known = &all.distribution.divergences;
    let is_accident = known.len() * all.runs < FEW_DIVERGENCES;
    let times = if is_accident { 2.0 * TIMES_DIVERGENCE } else { TIMES_DIVERGENCE };
    let (error, noise) = largest(&errors.divergences).zip(largest(known))?;
    Some(Excess::divergence(Statistic::Divergence, error, noise, times))
}

fn of_means(errors: &Distribution, noise: &PerturbedErrors, all: &PerturbedErrors) -> Option<Excess> {
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let known = larger(mean(&noise.distribution.divergences), mean(&all.distribution.divergences));
    let is_telling = errors.divergences.len() >= FEW_ROWS;
    is_telling.then(|| {
        Excess::divergence(Statistic::MeanDivergence, mean(&errors.divergences), known, TIMES_DIVERGENCE)
    })
}

/// Tests the common factor of all values. Independent errors of n rows cause a factor of about their own size
/// over √n.
fn of_scale(errors: &Distribution, noise: &PerturbedErrors, all: &PerturbedErrors) -> Option<Excess> {
    let classes = noise.distribution.classes.iter().fold(SizeClass::default(), |all, class| all.and(*class));
    let rows = errors.rows.len();
    let by_chance = classes.rms() / (rows as f64).sqrt();
    let known = larger(all.distribution.scale, by_chance);
    (rows >= FEW_ROWS).then(|| Excess::near(Statistic::Scale, errors.scale.abs(), known))
}

fn root_mean_square(of: &[f64]) -> f64 {
    (of.iter().map(|x| x * x).sum::<f64>() / of.len().max(1) as f64).sqrt()
}

/// Returns the largest ratio. NaN counts as the largest.
fn worst(all: impl Iterator<Item = Excess>) -> Option<Excess> {
    all.reduce(|a, b| if a.ratio.is_nan() || a.ratio >= b.ratio { a } else { b })
}
