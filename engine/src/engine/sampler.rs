//! Sampling of the next token from logits.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::error::{Error, Result, RunError};
use crate::numerics::Numerics;
use crate::ops::sampling::{self, Candidate, GREEDY_BELOW, argmax};
use crate::tensor::Tensor;

/// Sampling parameters. Filters are applied in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits. Below 1e-6 the most likely token is chosen (the lowest id on a tie) without random
    /// numbers.
    pub temperature: f32,
    /// Number of likeliest tokens to keep; `None` for all.
    pub top_k: Option<usize>,
    /// Keeps the smallest set of likeliest tokens whose cumulative probability exceeds this; `None` for all.
    pub top_p: Option<f64>,
    /// Keeps tokens whose probability is at least this fraction of the likeliest token's; `None` for all.
    pub min_p: Option<f64>,
    /// Seed of the random numbers: ChaCha with 8 rounds, `seed_from_u64` of `rand_core`.
    pub seed: u64,
}

impl Sampling {
    /// Always chooses the largest logit.
    pub const GREEDY: Sampling =
        Sampling { temperature: 0.0, top_k: None, top_p: None, min_p: None, seed: 0 };

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Usage`] for the first invalid setting.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str, found: String, expected: &str| {
            Err(Error::Usage(format!("{what} is {found}, expected {expected}")))
        };
        let share = |p: Option<f64>| p.filter(|p| !(0.0..=1.0).contains(p));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("the temperature", self.temperature.to_string(), "a number of 0 or more");
        }
        if self.top_k == Some(0) {
            return refuse("top-k", "0".to_owned(), "at least 1, or no top-k to allow all tokens");
        }
        match (share(self.top_p), share(self.min_p)) {
            (Some(p), _) => refuse("top-p", p.to_string(), "a number from 0 to 1"),
            (_, Some(p)) => refuse("min-p", p.to_string(), "a number from 0 to 1"),
            _ => Ok(()),
        }
    }

    /// Returns true if sampling is greedy.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// Returns the candidates after the filters, from the probabilities of checkpoint 11; the most likely first.
    pub fn distribution(&self, probabilities: &[f32]) -> Vec<Candidate> {
        let mut left = sampling::candidates(probabilities);
        if let Some(k) = self.top_k {
            left = sampling::top_k(left, k);
        }
        if let Some(p) = self.top_p {
            left = sampling::top_p(left, p);
        }
        if let Some(p) = self.min_p {
            left = sampling::min_p(left, p);
        }
        left
    }
}

/// Chooses one token after another; the same seed and logits give the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
}

impl Sampler {
    /// Creates a sampler from the seed.
    ///
    /// # Errors
    /// See [`Sampling::check`].
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.check()?;
        Ok(Self { sampling, random: ChaCha8Rng::seed_from_u64(sampling.seed) })
    }

    /// Returns the token after `logits` (`[V]`). Uses one random number, or none for greedy sampling.
    ///
    /// # Errors
    /// [`RunError::BadLogits`] if a logit is NaN or positive infinity, or all are negative infinity.
    pub fn choose(&mut self, logits: &Tensor, numerics: &dyn Numerics) -> Result<u32> {
        check_logits(logits.data())?;
        if self.sampling.is_greedy() {
            return Ok(argmax(logits.data()) as u32);
        }
        let probabilities = numerics.probabilities(logits, self.sampling.temperature);
        Ok(sampling::draw(&self.sampling.distribution(probabilities.data()), self.uniform()))
    }

    /// Returns 53 random bits as a number in [0, 1).
    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Checks that the logits leave a token to choose.
fn check_logits(logits: &[f32]) -> Result<()> {
    let broken = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    if let Some(id) = logits.iter().position(broken) {
        let found = if logits[id].is_nan() { "NaN" } else { "infinite" };
        return Err(RunError::BadLogits { problem: format!("the logit of token {id} is {found}") }.into());
    }
    if logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
        return Err(RunError::BadLogits { problem: "every logit is negative infinity".to_owned() }.into());
    }
    Ok(())
}
