//! Comparison of each operation of a run with one pass over all tokens, with teacher forcing.
//!
//! An operation that sums in another order has a rounding error. In a free run, rounding is hard to
//! distinguish from a fault: an activation that rounds to a neighbouring int8 value has a much larger error
//! than any sum. With the same inputs, each operation only has the error of its own sums. Runs with random
//! errors of that size ([`PerturbedResults`]) measure how large the resulting error can be.

use std::collections::HashMap;
use std::ops::Range;

use zerocopy::IntoBytes;

use crate::checkpoint::{Point, Site};
use crate::engine::{self, PassInput, RunInput};
use crate::error::Result;
use crate::measure::larger;
use crate::noise::NoiseFloor;
use crate::numerics::{PerturbedResults, PerturbedTerms};
use crate::selfcheck::single_pass::{PassRow, SinglePass};
use crate::selfcheck::{CheckResult, CheckSubject, Exactness};
use crate::tap::Tap;
use crate::tensor::{RopePairing, Tensor};
use crate::verdict::Verdict;

/// Number of perturbed runs that measure the noise floor.
const RUNS: u64 = 4;

/// One pass over all tokens, with the noise floor of each operation.
pub(super) struct OperationFloors {
    whole: PassPair,
    /// Noise floor by site, relative to the size of a value; `None` if bits are compared.
    floors: Option<HashMap<Site, f64>>,
}

impl OperationFloors {
    /// Runs the subject over all tokens in one pass. If rounding is allowed, perturbed runs follow.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub(super) fn of(subject: CheckSubject, exactness: Exactness) -> Result<Self> {
        let whole = PassPair::of(subject)?;
        let floors = match exactness {
            Exactness::Bits => None,
            Exactness::Rounding => Some(floors(subject, &whole)?),
        };
        Ok(Self { whole, floors })
    }

    /// Compares a subject that reads the same tokens in passes of the given lengths.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub(super) fn judge(
        &self,
        check: &'static str,
        subject: CheckSubject,
        lengths: &[usize],
    ) -> Result<CheckResult> {
        if let Some((site, number)) = self.whole.all.broken() {
            return Ok(CheckResult::new(check, Verdict::Fail, format!("{site} contains {number}")));
        }
        let found = match self.floors {
            None => compare(&self.whole, subject, lengths)?,
            // A re-read sequence passes through several operations, so each part starts from an empty cache.
            Some(_) => {
                let parts = self.whole.apart(lengths).into_iter();
                let found = parts.map(|lengths| compare(&self.whole, subject, &lengths));
                found.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()
            }
        };
        if let Some(why) = found.iter().find_map(|apart| self.too_far(apart)) {
            return Ok(CheckResult::new(check, Verdict::Fail, format!("first at {why}")));
        }
        if let Some((site, why)) = self.whole.all.lacking() {
            let why = format!("{site} shows nothing: {why}");
            return Ok(CheckResult::new(check, Verdict::Inconclusive, why));
        }
        Ok(self.agreement(check, &found))
    }

    fn floor(&self, site: Site) -> Option<f64> {
        let floors = self.floors.as_ref()?;
        floors.get(&of_all_positions(site)).copied()
    }

    fn too_far(&self, apart: &PassDifference) -> Option<String> {
        let PassDifference { site, numbers, different, largest, other_length } = apart;
        if let Some(wanted) = other_length {
            return Some(format!("{site}: {numbers} values, but {wanted} in one pass over all tokens"));
        }
        let Some(floor) = self.floor(*site) else {
            let differ = format!("{different} of {numbers} values differ");
            return (*different > 0)
                .then(|| format!("{site}: {differ}, with relative error up to {largest:.1e}"));
        };
        let is_close = floor.is_finite() && *largest <= NoiseFloor::FAR * floor;
        (!is_close).then(|| {
            format!(
                "{site}: relative error {largest:.1e}, noise floor {floor:.1e}, allowed {} times that",
                NoiseFloor::FAR
            )
        })
    }

    fn agreement(&self, check: &'static str, found: &[PassDifference]) -> CheckResult {
        let sum = |count: fn(&PassDifference) -> usize| found.iter().map(count).sum::<usize>();
        let (numbers, different) = (sum(|apart| apart.numbers), sum(|apart| apart.different));
        if numbers == 0 {
            return CheckResult::new(check, Verdict::Inconclusive, "nothing was compared");
        }
        let detail = match self.furthest(found) {
            _ if self.floors.is_none() => format!("{numbers} values of every tap bit-identical"),
            None => {
                format!("{numbers} values of every tap bit-identical, each operation from the same inputs")
            }
            Some((site, times)) => format!(
                "{numbers} values of every tap, each operation from the same inputs: {} bit-identical, the \
                 others within {times:.2} times the noise floor ({site}), {} allowed",
                numbers - different,
                NoiseFloor::FAR
            ),
        };
        CheckResult::new(check, Verdict::Pass, detail)
    }

    /// Returns the operation with the largest error relative to the noise floor.
    fn furthest(&self, found: &[PassDifference]) -> Option<(Site, f64)> {
        let off = found.iter().filter(|apart| apart.largest > 0.0);
        let times = off.filter_map(|apart| Some((apart.site, apart.largest / self.floor(apart.site)?)));
        times.max_by(|(_, one), (_, other)| one.total_cmp(other))
    }
}

/// Returns the corresponding site in a pass that has the logits of all positions. The last logits are one row of
/// them.
fn of_all_positions(site: Site) -> Site {
    let point = if site.point == Point::LastLogits { Point::Logits } else { site.point };
    Site { point, pass: None, ..site }
}

/// Measures the noise floor of each operation with a few perturbed runs.
fn floors(subject: CheckSubject, whole: &PassPair) -> Result<HashMap<Site, f64>> {
    let mut floors: HashMap<Site, f64> = HashMap::new();
    for seed in 1..=RUNS {
        let resummed = PerturbedTerms::new(subject.numerics, seed).rounding_to_f16();
        let numerics = PerturbedResults::new(&resummed, seed);
        for apart in
            compare(whole, CheckSubject { numerics: &numerics, ..subject }, &[whole.all.tokens.len()])?
        {
            let floor = floors.entry(of_all_positions(apart.site)).or_default();
            *floor = larger(*floor, apart.largest);
        }
    }
    Ok(floors)
}

/// Values of one pass over all tokens, and of one pass that stays within LongRoPE's short factors.
struct PassPair {
    all: SinglePass,
    short: Option<SinglePass>,
}

impl PassPair {
    fn of(subject: CheckSubject) -> Result<Self> {
        let tokens = subject.tokens();
        let within = subject.model.rereads_beyond().filter(|&within| within < tokens.len());
        let short = within.map(|within| SinglePass::of(subject, &tokens[..within])).transpose()?;
        Ok(Self { all: SinglePass::of(subject, &tokens)?, short })
    }

    /// Returns the whole pass that a pass ending at position `end` is compared with.
    fn up_to(&self, end: usize) -> &SinglePass {
        self.short.as_ref().filter(|short| end <= short.tokens.len()).unwrap_or(&self.all)
    }

    /// Splits the passes at the limit of LongRoPE's short factors. The first pass beyond the limit reads all earlier
    /// tokens again.
    fn apart(&self, lengths: &[usize]) -> Vec<Vec<usize>> {
        let Some(within) = self.short.as_ref().map(|short| short.tokens.len()) else {
            return vec![lengths.to_vec()];
        };
        let mut end = 0;
        let is_within = |length: &&usize| {
            end += **length;
            end <= within
        };
        let before = lengths.iter().take_while(is_within).count();
        let (short, long) = lengths.split_at(before);
        match (short, long.split_first()) {
            ([], _) | (_, None) => vec![lengths.to_vec()],
            (_, Some((first, rest))) => {
                let first = short.iter().sum::<usize>() + first;
                vec![short.to_vec(), [&[first], rest].concat()]
            }
        }
    }
}

/// Reads the tokens of `whole` in passes of these lengths. Each operation gets the inputs of the single pass.
fn compare(whole: &PassPair, subject: CheckSubject, lengths: &[usize]) -> Result<Vec<PassDifference>> {
    let mut start = 0;
    let positions = lengths.iter().map(|length| {
        start += length;
        start - length..start
    });
    let positions: Vec<Range<usize>> = positions.collect();
    let passes =
        positions.iter().map(|positions| PassInput::given(&whole.all.tokens[positions.clone()])).collect();
    let script = RunInput { passes, prompt_len: whole.all.tokens.len() };
    let mut against = PassComparison {
        whole,
        positions,
        pairing: subject.model.dimensions().rope_pairing,
        found: Vec::new(),
    };
    engine::run(subject.model, subject.numerics, &script, &mut against)?;
    Ok(against.found)
}

/// Difference between one value and the single pass over all tokens.
struct PassDifference {
    site: Site,
    numbers: usize,
    different: usize,
    /// Largest error relative to √(x² + mean square of the row). NaN if a value is not a number.
    largest: f64,
    /// Expected number of values, if the actual number differs.
    other_length: Option<usize>,
}

/// A tap that compares each value and continues with the value of the single pass.
struct PassComparison<'w> {
    whole: &'w PassPair,
    /// Positions of each pass.
    positions: Vec<Range<usize>>,
    pairing: Option<RopePairing>,
    found: Vec<PassDifference>,
}

impl Tap for PassComparison<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let positions = site.pass.map(|pass| self.positions[pass].clone());
        let Some(positions) = positions else { return value };
        let whole = self.whole.up_to(positions.end);
        let Some(rows) = whole.rows(site, &positions) else { return value };
        let wanted: usize = rows.iter().map(|row| row.numbers.len()).sum();
        if wanted != value.data().len() {
            let (numbers, other_length) = (value.data().len(), Some(wanted));
            self.found.push(PassDifference {
                site,
                numbers,
                different: numbers,
                largest: f64::NAN,
                other_length,
            });
            return value;
        }
        // Heads may have another RoPE pairing: values are compared in that of the single pass, and continue
        // in their own.
        let follows = site.point.follows_rope_pairing();
        let pairings = self.pairing.zip(whole.pairing).filter(|(own, other)| follows && own != other);
        let shape = value.shape().to_vec();
        let in_order = match pairings {
            Some((own, other)) => paired_as(value, own, other),
            None => value,
        };
        self.found.push(measured(site, &in_order, &rows));
        let same = Tensor::new(&shape, rows.iter().map(|row| row.numbers).collect::<Vec<_>>().concat());
        match pairings {
            Some((own, other)) => paired_as(same, other, own),
            None => same,
        }
    }
}

fn measured(site: Site, value: &Tensor, rows: &[PassRow]) -> PassDifference {
    let mut apart =
        PassDifference { site, numbers: value.data().len(), different: 0, largest: 0.0, other_length: None };
    let mut left = value.data();
    for expected in rows {
        let (row, rest) = left.split_at(expected.numbers.len());
        left = rest;
        if row.as_bytes() == expected.numbers.as_bytes() {
            continue;
        }
        let square = expected.mean_square();
        let pairs = row.iter().zip(expected.numbers);
        for (own, wanted) in pairs.filter(|(own, wanted)| own.to_bits() != wanted.to_bits()) {
            let (own, wanted) = (f64::from(*own), f64::from(*wanted));
            let error = (own - wanted).abs();
            let scaled = if error == 0.0 { 0.0 } else { error / (wanted * wanted + square).sqrt() };
            apart.different += 1;
            apart.largest = larger(apart.largest, scaled);
        }
    }
    apart
}

/// Reorders the values of each head from one RoPE pairing to another.
fn paired_as(x: Tensor, from: RopePairing, to: RopePairing) -> Tensor {
    let shape = x.shape().to_vec();
    let head_dim = shape.last().copied().unwrap_or(1).max(1);
    let mut data = x.into_data();
    for head in data.chunks_exact_mut(head_dim) {
        let before = head.to_vec();
        for pair in 0..head_dim / 2 {
            let (old, new) = (from.members(pair, head_dim), to.members(pair, head_dim));
            (head[new.0], head[new.1]) = (before[old.0], before[old.1]);
        }
    }
    Tensor::new(&shape, data)
}
