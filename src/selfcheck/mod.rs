//! What the engine must find of itself, without any reference: one check per function.
//!
//! A check compares bits where the numerics add every row of a product in one order, however many rows there are. Those
//! of llama.cpp do not for some types of weights: there, values are held to [`Exactness::Bound`], and the bits once more
//! with the order of a single row for all of them ([`OneOrder`]), so that nothing else can hide behind the bound.

mod cache;
mod formats;
mod record;
mod sequences;

pub use cache::{cache_on_equals_off, prefill_equals_decode, window_equals_whole};
pub use formats::formats_agree;
pub use sequences::{batch_equals_single, recorded_equals_unrecorded};

use crate::compare::Verdict;
use crate::error::Result;
use crate::model::Model;
use crate::numerics::{Numerics, OneOrder};
use crate::weight::DType;

/// Tokens that a check reads, in two parts: more than kernels for several tokens need, and than a cache drops at once.
const TOKENS: usize = 48;
/// Of them, the prompt.
const PROMPT: usize = 40;

/// What a check found.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Which check.
    pub check: &'static str,
    /// `None` where there is nothing of the kind to check.
    pub verdict: Option<Verdict>,
    /// How much was compared and how far apart it is; or why not.
    pub detail: String,
}

impl Finding {
    fn new(check: &'static str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { check, verdict: Some(verdict), detail: detail.into() }
    }

    /// That there is nothing of the kind to check.
    pub fn not_applicable(check: &'static str, why: impl Into<String>) -> Self {
        Self { check, verdict: None, detail: why.into() }
    }
}

/// Who is checked.
#[derive(Clone, Copy)]
pub struct Subject<'m> {
    /// The model.
    pub model: &'m dyn Model,
    /// How it computes.
    pub numerics: &'m dyn Numerics,
}

/// How close two ways to the same value must come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exactness {
    /// Bit for bit.
    Bits,
    /// Within so many root mean squares of the value.
    Bound(f64),
}

impl Subject<'_> {
    /// Tokens to read, the same for every check of a model: as many as the context takes.
    fn tokens(&self) -> Vec<u32> {
        let dimensions = self.model.dimensions();
        let length = TOKENS.min(dimensions.context_length);
        (0..length).map(|position| ((7 + position * 37) % dimensions.vocab_size) as u32).collect()
    }

    /// How close several tokens read at once must come to the same ones read one by one.
    pub fn exactness(&self) -> Exactness {
        let bound = |weights: DType| match weights {
            DType::F32 | DType::F16 => 0.03,
            // One int8 that flips is squared by the activation that ternary models have.
            DType::I2_S | DType::TL => 1.0,
            // Activations have 8 bits, in int8 or bf16: what is rounded the other way is off by much at once.
            _ => 0.2,
        };
        // Embeddings are looked up; a tied head is named apart.
        let is_table = |name: &str| name == "token_embd" || name == "position_embd";
        let matrices = self.model.matrices().into_iter().filter(|(name, _)| !is_table(name));
        let differing = matrices.filter(|(_, matrix)| !self.numerics.adds_rows_alike(matrix, PROMPT));
        let bounds = differing.map(|(_, matrix)| bound(matrix.dtype));
        bounds.reduce(f64::max).map_or(Exactness::Bits, Exactness::Bound)
    }
}

/// Every check of one model and one way of computing.
///
/// # Errors
/// If the model cannot be run at all.
pub fn check_all(subject: Subject) -> Result<Vec<Finding>> {
    let mut findings = vec![prefill_equals_decode(subject)?, cache_on_equals_off(subject)?];
    if subject.exactness() != Exactness::Bits {
        findings.extend(in_one_order(subject)?);
    }
    findings.push(window_equals_whole(subject)?);
    findings.push(batch_equals_single(subject)?);
    findings.push(recorded_equals_unrecorded(subject)?);
    Ok(findings)
}

/// The checks of the cache, bit for bit, with sums in the order of a single row.
///
/// # Errors
/// If the model cannot be run at all.
pub fn in_one_order(subject: Subject) -> Result<[Finding; 2]> {
    let numerics = OneOrder(subject.numerics);
    let subject = Subject { numerics: &numerics, ..subject };
    Ok([
        Finding { check: "prefill equals decode, one order of sums", ..prefill_equals_decode(subject)? },
        Finding { check: "cache on equals cache off, one order of sums", ..cache_on_equals_off(subject)? },
    ])
}

/// Counts rows of numbers that should be the same, and how far apart they are.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    numbers: usize,
    different: usize,
    /// In units of the root mean square of the row.
    largest: f64,
}

impl Tally {
    fn add(&mut self, ours: &[f32], theirs: &[f32]) {
        let pairs = || ours.iter().zip(theirs);
        let square = |x: &f32| f64::from(*x) * f64::from(*x);
        let rms = (theirs.iter().map(square).sum::<f64>() / theirs.len() as f64).sqrt();
        self.numbers += ours.len().max(theirs.len());
        self.different += pairs().filter(|(a, b)| a.to_bits() != b.to_bits() || a.is_nan()).count();
        self.different += ours.len().abs_diff(theirs.len());
        for (a, b) in pairs() {
            let apart = (f64::from(*a) - f64::from(*b)).abs();
            // NaN, and a difference where the other side is all zero, are further apart than anything.
            let apart = if apart == 0.0 { 0.0 } else { apart / rms };
            if !(apart <= self.largest) {
                self.largest = apart;
            }
        }
    }

    fn finding(self, check: &'static str, exactness: Exactness) -> Finding {
        let Tally { numbers, different, largest } = self;
        match exactness {
            _ if numbers == 0 => Finding::new(check, Verdict::Inconclusive, "nothing was compared"),
            Exactness::Bits if different == 0 => {
                Finding::new(check, Verdict::Pass, format!("{numbers} numbers, bit for bit"))
            }
            Exactness::Bound(bound) if largest <= bound => {
                let detail =
                    format!("{numbers} numbers, at most {largest:.1e} of the RMS apart, {bound} allowed");
                Finding::new(check, Verdict::Pass, detail)
            }
            _ => {
                let detail =
                    format!("{different} of {numbers} numbers differ, by {largest:.1e} of the RMS at most");
                Finding::new(check, Verdict::Fail, detail)
            }
        }
    }
}
