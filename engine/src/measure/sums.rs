//! The figures of many pairs of numbers, in one pass: lanes of sums and of the largest, which the machine takes several at
//! a time. The order of the sums is the same on every machine and for every number of threads.

use std::ops::Range;

use multiversion::multiversion;

use crate::measure::grain::{Grain, Spacing};
use crate::measure::measurement::Nonfinite;
use crate::spread::Spread;

const LANES: usize = 8;

/// Pairs that are taken together, at most: both sides stay in the nearest cache.
pub(super) const CHUNK: usize = 1024;

/// What has been added up of pairs in ascending order of their indices.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    pub elements: usize,
    pub identical: usize,
    pub nonfinite: Nonfinite,
    pub difference: f64,
    pub difference_squared: f64,
    pub product: f64,
    pub candidate_squared: f64,
    pub reference_squared: f64,
    pub scaled: f64,
    pub past_neighbour: f64,
    pub worst: Option<Pair>,
    pub spread: Spread,
}

/// One element of both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub flat: usize,
    pub difference: f64,
    pub candidate: f64,
    pub reference: f64,
}

/// Neighbouring elements of one row of both sides.
pub(super) struct Chunk<'c> {
    pub candidate: &'c [f64],
    pub reference: &'c [f64],
    /// What the elements of both were multiplied with, if those of one were.
    pub scales: Option<[&'c [f64]; 2]>,
    /// The sum of the reference's squares.
    pub reference_squared: f64,
    /// The mean square of the reference's row, as far as it is compared.
    pub square: f64,
    /// The flat index of an element.
    pub flat: &'c dyn Fn(usize) -> usize,
    /// Whether they follow each other in the array, too.
    pub is_run: bool,
}

impl Sums {
    /// Of arrays of a shape, before any pair.
    pub fn new(shape: &[usize]) -> Self {
        Self {
            elements: 0,
            identical: 0,
            nonfinite: Nonfinite::default(),
            difference: 0.0,
            difference_squared: 0.0,
            product: 0.0,
            candidate_squared: 0.0,
            reference_squared: 0.0,
            scaled: 0.0,
            past_neighbour: 0.0,
            worst: None,
            spread: Spread::new(shape),
        }
    }

    /// Adds a chunk of values that are the same bits on both sides; `squared` is the sum of their squares.
    pub fn add_identical(&mut self, values: &[f64], squared: f64, first: usize) {
        self.elements += values.len();
        self.identical += values.len();
        self.product += squared;
        self.candidate_squared += squared;
        self.reference_squared += squared;
        self.spread.add_identical(values.len());
        if let (None, Some(&value)) = (&self.worst, values.first()) {
            self.worst = Some(Pair { flat: first, difference: 0.0, candidate: value, reference: value });
        }
    }

    /// Adds a chunk.
    pub fn add(&mut self, chunk: &Chunk, grain: Grain) {
        if chunk.scales.is_some() {
            return self.add_each(chunk, grain);
        }
        let known = Known { square: chunk.square, step: grain.spacing(), scaled: self.scaled };
        let lanes = match grain.storage() {
            None => exact_lanes(chunk.candidate, chunk.reference, known),
            Some(storage) => rounded_lanes(chunk.candidate, chunk.reference, known, storage),
        };
        let found = lanes.sum();
        // NaN and infinity, and sizes whose squares are too small or too large for f64, are looked at one by one.
        if !found.is_ordinary() || !is_ordinary(chunk.reference_squared) {
            return self.add_each(chunk, grain);
        }
        self.elements += chunk.reference.len();
        self.identical += found.identical;
        self.difference += found.difference;
        self.difference_squared += found.difference_squared;
        self.product += found.product;
        self.candidate_squared += found.candidate_squared;
        self.reference_squared += chunk.reference_squared;
        self.past_neighbour = larger(self.past_neighbour, found.past_neighbour);
        if found.exceeds {
            self.scale(chunk, grain);
        }
        if self.worst.is_none_or(|worst| found.largest > worst.difference) {
            let error = |at: usize| chunk.error(at, grain);
            let first = (0..chunk.reference.len()).find(|&at| error(at) == found.largest);
            self.worst = first.map(|at| chunk.pair(at, grain)).or(self.worst);
        }
        self.spread_out(chunk, found.largest, grain);
    }

    /// Meets those scaled errors of finite numbers that may be larger than the largest so far.
    fn scale(&mut self, chunk: &Chunk, grain: Grain) {
        // A little less than its square, so that rounding hides nothing.
        let limit = |scaled: f64| scaled * scaled * (1.0 - 1e-9);
        let mut most = limit(self.scaled);
        for (at, reference) in chunk.reference.iter().enumerate() {
            let error = chunk.error(at, grain);
            if error * error > most * (reference * reference + chunk.square) {
                self.scaled = larger(self.scaled, chunk.scaled(chunk.pair(at, grain)));
                most = limit(self.scaled);
            }
        }
    }

    /// Adds to where errors are.
    fn spread_out(&mut self, chunk: &Chunk, largest: f64, grain: Grain) {
        if largest == 0.0 {
            return self.spread.add_identical(chunk.reference.len());
        }
        let error = |at: usize| chunk.error(at, grain);
        let Chunk { candidate, reference, flat, .. } = *chunk;
        let apart = |part: Range<usize>| match grain.storage() {
            None => exactly_apart(&candidate[part.clone()], &reference[part]),
            Some(storage) => apart(&candidate[part.clone()], &reference[part], storage),
        };
        match chunk.is_run {
            true => self.spread.add_run(flat(0)..flat(0) + reference.len(), largest, error, apart),
            false => (0..reference.len()).for_each(|at| self.spread.add(flat(at), error(at))),
        }
    }

    fn add_each(&mut self, chunk: &Chunk, grain: Grain) {
        for at in 0..chunk.reference.len() {
            let pair = chunk.pair(at, grain);
            let Pair { candidate, reference, difference, .. } = pair;
            self.elements += 1;
            self.identical += usize::from(candidate.to_bits() == reference.to_bits() && !candidate.is_nan());
            self.count_nonfinite(candidate, reference);
            self.difference += difference;
            self.difference_squared += difference * difference;
            self.product += candidate * reference;
            self.candidate_squared += candidate * candidate;
            self.reference_squared += reference * reference;
            self.scaled = larger(self.scaled, chunk.scaled(pair));
            if !(difference <= grain.step(reference)) {
                self.past_neighbour = larger(self.past_neighbour, difference);
            }
            self.meet(pair);
            self.spread.add(pair.flat, difference);
        }
    }

    /// The first NaN is worse than any number, and stays the worst; of equals the first does.
    fn meet(&mut self, pair: Pair) {
        let is_worse = |worst: Pair| !worst.difference.is_nan() && !(pair.difference <= worst.difference);
        if self.worst.is_none_or(is_worse) {
            self.worst = Some(pair);
        }
    }

    fn count_nonfinite(&mut self, candidate: f64, reference: f64) {
        let same = candidate == reference || (candidate.is_nan() && reference.is_nan());
        self.nonfinite.candidate += usize::from(!candidate.is_finite());
        self.nonfinite.reference += usize::from(!reference.is_finite());
        self.nonfinite.shared += usize::from(!candidate.is_finite() && same);
    }

    /// Adds what was added up of the pairs that follow these.
    pub fn followed_by(mut self, next: Self) -> Self {
        self.elements += next.elements;
        self.identical += next.identical;
        self.nonfinite.candidate += next.nonfinite.candidate;
        self.nonfinite.reference += next.nonfinite.reference;
        self.nonfinite.shared += next.nonfinite.shared;
        self.difference += next.difference;
        self.difference_squared += next.difference_squared;
        self.product += next.product;
        self.candidate_squared += next.candidate_squared;
        self.reference_squared += next.reference_squared;
        self.scaled = larger(self.scaled, next.scaled);
        self.past_neighbour = larger(self.past_neighbour, next.past_neighbour);
        next.worst.into_iter().for_each(|pair| self.meet(pair));
        self.spread = self.spread.followed_by(&next.spread);
        self
    }
}

impl Chunk<'_> {
    fn pair(&self, at: usize, grain: Grain) -> Pair {
        let (candidate, reference) = (self.candidate[at], self.reference[at]);
        let apart = (candidate - reference).abs();
        // What storing may have changed is no error; NaN stays NaN.
        let scales = self.scales.map_or([1.0; 2], |scales| scales.map(|scales| scales[at]));
        let slack = grain.slack([candidate, reference], scales);
        let difference = if apart <= slack { 0.0 } else { apart - slack };
        Pair { flat: (self.flat)(at), difference, candidate, reference }
    }

    /// How far two elements are apart, past what storing may have changed.
    #[inline]
    fn error(&self, at: usize, grain: Grain) -> f64 {
        match grain.is_plain() {
            true => (self.candidate[at] - self.reference[at]).abs(),
            false => self.pair(at, grain).difference,
        }
    }

    /// An error in units of the size of its element and its row.
    fn scaled(&self, pair: Pair) -> f64 {
        ratio(pair.difference, (pair.reference * pair.reference + self.square).sqrt())
    }
}

/// The larger of two figures; NaN is larger than any number.
pub fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// An error relative to a size; no error is no error whatever the size.
pub(super) fn ratio(error: f64, size: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / size }
}

/// The largest error of finite pairs.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn exactly_apart(candidate: &[f64], reference: &[f64]) -> f64 {
    largest_past(candidate, reference, |_, _| 0.0)
}

/// The same past what storing may have changed.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn apart(candidate: &[f64], reference: &[f64], storage: [Spacing; 2]) -> f64 {
    let [one, other] = storage.map(Spacing::halved);
    largest_past(candidate, reference, |c, r| one.at_finite(c) + other.at_finite(r))
}

#[inline(always)]
fn largest_past(candidate: &[f64], reference: &[f64], slack: impl Fn(f64, f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let (candidates, candidate_rest) = candidate.as_chunks::<LANES>();
    let (references, reference_rest) = reference.as_chunks::<LANES>();
    for (c, r) in candidates.iter().zip(references) {
        for lane in 0..LANES {
            lanes[lane] = maximum(lanes[lane], (c[lane] - r[lane]).abs() - slack(c[lane], r[lane]));
        }
    }
    for (lane, (&c, &r)) in candidate_rest.iter().zip(reference_rest).enumerate() {
        lanes[lane] = maximum(lanes[lane], (c - r).abs() - slack(c, r));
    }
    lanes.into_iter().fold(0.0, maximum)
}

/// The sum of squares.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
pub(super) fn squared(values: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for values in whole {
        for lane in 0..LANES {
            lanes[lane] += values[lane] * values[lane];
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value * value;
    }
    sum(lanes)
}

fn sum(lanes: [f64; LANES]) -> f64 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// What is known of a chunk before it is added up.
#[derive(Clone, Copy)]
struct Known {
    square: f64,
    step: Spacing,
    /// The largest scaled error so far.
    scaled: f64,
}

/// Sums of every eighth pair.
#[derive(Default)]
struct Lanes {
    identical: [u64; LANES],
    difference: [f64; LANES],
    difference_squared: [f64; LANES],
    product: [f64; LANES],
    candidate_squared: [f64; LANES],
    largest: [f64; LANES],
    past_neighbour: [f64; LANES],
    /// By how much squares of errors are larger than the largest so far, at most.
    excess: [f64; LANES],
}

/// The figures of a chunk of finite numbers.
struct Found {
    identical: usize,
    difference: f64,
    difference_squared: f64,
    product: f64,
    candidate_squared: f64,
    largest: f64,
    past_neighbour: f64,
    /// Whether a scaled error may be larger than the largest so far.
    exceeds: bool,
}

/// Whether a sum of squares is of numbers whose squares are neither too small nor too large for f64.
fn is_ordinary(squared: f64) -> bool {
    (1e-150..1e150).contains(&squared) || squared == 0.0
}

impl Found {
    /// Whether every number was finite, and no square has lost its digits.
    fn is_ordinary(&self) -> bool {
        let has_squares = (self.difference == 0.0) == (self.difference_squared == 0.0);
        has_squares && is_ordinary(self.difference_squared) && is_ordinary(self.candidate_squared)
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn exact_lanes(candidate: &[f64], reference: &[f64], known: Known) -> Lanes {
    lanes(candidate, reference, known, |_, _| 0.0)
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn rounded_lanes(candidate: &[f64], reference: &[f64], known: Known, storage: [Spacing; 2]) -> Lanes {
    let [one, other] = storage.map(Spacing::halved);
    lanes(candidate, reference, known, |c, r| one.at_finite(c) + other.at_finite(r))
}

#[inline(always)]
fn lanes(candidate: &[f64], reference: &[f64], known: Known, slack: impl Fn(f64, f64) -> f64) -> Lanes {
    // A little less than the square of the largest so far, so that rounding hides nothing.
    let largest = known.scaled * known.scaled * (1.0 - 1e-9);
    let mut lanes = Lanes::default();
    let (candidates, candidate_rest) = candidate.as_chunks::<LANES>();
    let (references, reference_rest) = reference.as_chunks::<LANES>();
    for (c, r) in candidates.iter().zip(references) {
        for lane in 0..LANES {
            lanes.add(lane, c[lane], r[lane], known, largest, &slack);
        }
    }
    for (lane, (&c, &r)) in candidate_rest.iter().zip(reference_rest).enumerate() {
        lanes.add(lane, c, r, known, largest, &slack);
    }
    lanes
}

impl Lanes {
    #[inline(always)]
    fn add(
        &mut self,
        lane: usize,
        c: f64,
        r: f64,
        known: Known,
        largest: f64,
        slack: &impl Fn(f64, f64) -> f64,
    ) {
        let past_slack = (c - r).abs() - slack(c, r);
        // NaN, too, is kept.
        let difference = if past_slack <= 0.0 { 0.0 } else { past_slack };
        let error = difference * difference;
        let past = if difference > known.step.at_finite(r) { difference } else { 0.0 };
        self.identical[lane] += u64::from(c.to_bits() == r.to_bits());
        self.difference[lane] += difference;
        self.difference_squared[lane] += error;
        self.product[lane] += c * r;
        self.candidate_squared[lane] += c * c;
        self.largest[lane] = maximum(self.largest[lane], difference);
        self.past_neighbour[lane] = maximum(self.past_neighbour[lane], past);
        self.excess[lane] = maximum(self.excess[lane], error - largest * (r * r + known.square));
    }

    fn sum(self) -> Found {
        let largest = |lanes: [f64; LANES]| lanes.into_iter().fold(0.0, maximum);
        Found {
            identical: self.identical.iter().sum::<u64>() as usize,
            difference: sum(self.difference),
            difference_squared: sum(self.difference_squared),
            product: sum(self.product),
            candidate_squared: sum(self.candidate_squared),
            largest: largest(self.largest),
            past_neighbour: largest(self.past_neighbour),
            exceeds: largest(self.excess) > 0.0,
        }
    }
}

/// The larger of two numbers, as one instruction has it; NaN is met elsewhere.
#[inline(always)]
fn maximum(a: f64, b: f64) -> f64 {
    if b > a { b } else { a }
}
