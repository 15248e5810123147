//! Products with a matrix of weights: `x · wᵀ (+ bias)`.
//!
//! A sum of n products xᵢwᵢ, added up one after the other in `f32`, has the sigma k·u·√(n/2·Q² + (n/3 + 1)·y²), with
//! Q² = Σ(xᵢwᵢ)²: each partial sum is rounded, and partial sums walk at random or drift towards y. Every other order has
//! shorter chains. Where activations are codes, products within a block are exact integers, and n counts blocks.

use std::ops::Range;

use rayon::prelude::*;

use crate::exact::dot::{cut_off, inherit, sums};
use crate::exact::input::Known;
use crate::exact::operand::{Operand, operand_type, unit_of_products};
use crate::exact::profile::{Choice, Float, Profile};
use crate::exact::stage::{Stage, is_given};
use crate::exact::value::{Exact, K, U};
use crate::quant::{self, decode_matrix_row};
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// `x · wᵀ`, and a bias: `[T, cols]` to `[T, rows]`.
pub struct Linear {
    /// `[T, cols]`
    pub x: Tensor,
    /// `[rows, cols]`
    pub w: Matrix,
    /// `[rows]`
    pub bias: Option<Vec<f32>>,
}

impl Stage for Linear {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<Exact> {
        let tokens = self.operands(profile, wanted);
        let (Some(&first), Some(&last)) = (wanted.first(), wanted.last()) else { return Vec::new() };
        if wanted.len() == last + 1 - first {
            return self.all(profile, &tokens, first..last + 1);
        }
        self.some(profile, &tokens, wanted)
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::Tf32, Choice::Truncates]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.x]
    }

    fn dependence(&self) -> f64 {
        (self.w.rows as f64 / self.w.cols as f64).max(1.0)
    }

    fn is_unbiased(&self, profile: &Profile) -> bool {
        // Where a code may be either of two, all results of its token are off in one direction.
        let is_coded = Float::of(operand_type(profile, self.w.dtype)).is_none();
        is_given(&self.x) && !profile.truncates && !is_coded
    }
}

/// Rows of weights whose results are written together.
const PANEL: usize = 32;

impl Linear {
    /// All results of a range.
    fn all(&self, profile: &Profile, tokens: &[Operand], range: Range<usize>) -> Vec<Exact> {
        let rows = self.w.rows;
        let first_token = range.start / rows;
        let of_panel = |panel: usize| {
            let outputs = panel * PANEL..rows.min((panel + 1) * PANEL);
            let weights =
                outputs.map(|output| (Row::new(&self.w, output, profile), self.bias(output, profile)));
            let weights: Vec<_> = weights.collect();
            let times = |x: &Operand| {
                weights.iter().map(|(row, bias)| row.times(x, *bias, profile)).collect::<Vec<_>>()
            };
            tokens.iter().map(times).collect::<Vec<_>>()
        };
        let panels: Vec<_> = (0..rows.div_ceil(PANEL)).into_par_iter().map(of_panel).collect();
        let mut exacts = Vec::with_capacity(tokens.len() * rows);
        for token in 0..tokens.len() {
            panels.iter().for_each(|panel| exacts.extend_from_slice(&panel[token]));
        }
        exacts.drain(..range.start - first_token * rows);
        exacts.truncate(range.len());
        exacts
    }

    /// By output, so that a row of weights is decoded once for all tokens.
    fn some(&self, profile: &Profile, tokens: &[Operand], wanted: &[usize]) -> Vec<Exact> {
        let rows = self.w.rows;
        let first_token = wanted.first().map_or(0, |flat| flat / rows);
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_unstable_by_key(|&index| wanted[index] % rows);
        let outputs: Vec<&[usize]> = order.chunk_by(|&a, &b| wanted[a] % rows == wanted[b] % rows).collect();
        let of_output = |indices: &&[usize]| {
            let output = wanted[indices[0]] % rows;
            let (row, bias) = (Row::new(&self.w, output, profile), self.bias(output, profile));
            let at = |&index: &usize| row.times(&tokens[wanted[index] / rows - first_token], bias, profile);
            indices.iter().map(at).collect::<Vec<_>>()
        };
        let found: Vec<Vec<Exact>> = outputs.par_iter().map(of_output).collect();
        let mut exacts = vec![Exact::default(); wanted.len()];
        for (indices, found) in outputs.into_iter().zip(found) {
            indices.iter().zip(found).for_each(|(&index, exact)| exacts[index] = exact);
        }
        exacts
    }

    fn bias(&self, output: usize, profile: &Profile) -> Option<f64> {
        self.bias.as_ref().map(|bias| profile.weights.round(bias[output].into()))
    }

    /// The rows of activations from the first to the last that is wanted.
    fn operands(&self, profile: &Profile, wanted: &[usize]) -> Vec<Operand> {
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Vec::new() };
        let (tokens, width) = (first / self.w.rows..last / self.w.rows + 1, self.w.cols);
        let x = Known::of(&self.x, profile);
        let operand = |token: usize| Operand::new(x.part(token * width, width), profile, self.w.dtype);
        tokens.into_par_iter().map(operand).collect()
    }
}

/// A row of weights. Where they have minima, these meet the activations in a sum of their own.
struct Row {
    codes: Vec<f64>,
    minima: Option<Vec<f64>>,
    /// Values that are added up exactly.
    block: usize,
}

impl Row {
    fn new(w: &Matrix, output: usize, profile: &Profile) -> Self {
        let mut decoded = vec![0.0f32; w.cols];
        decode_matrix_row(w, output, &mut decoded);
        let (stored, unit) = (profile.weights, unit_of_products(profile));
        let is_whole = stored == Float::F32 && unit == Float::F32;
        let weight = |&x: &f32| if is_whole { x.into() } else { unit.round(stored.round(x.into())) };
        let block = w.dtype.block_len();
        let is_coded = Float::of(operand_type(profile, w.dtype)).is_none();
        match is_coded.then(|| quant::parts(w.dtype, w.row(output))).flatten() {
            Some([codes, minima]) => Self { codes, minima: Some(minima), block },
            None => Self { codes: decoded.iter().map(weight).collect(), minima: None, block },
        }
    }

    fn times(&self, x: &Operand, bias: Option<f64>, profile: &Profile) -> Exact {
        let block = if x.is_coded { self.block } else { 1 };
        let (mut value, mut squares) = sums(&self.codes, &x.row.values, block);
        let mut drift = value * value;
        if let Some(minima) = &self.minima {
            let (mins, more) = sums(minima, &x.row.values, block);
            let surplus = x.surplus.iter().flatten().enumerate().map(|(at, by)| minima[32 * at] * by);
            let mins = mins + surplus.sum::<f64>();
            (value, squares, drift) = (value + mins, squares + more, drift + mins * mins);
        }
        let n = (self.codes.len().div_ceil(block * profile.lanes)) as f64;
        // The eight lanes of a block are scaled, and added up in three steps.
        let steps = if block > 1 { n / 2.0 + 4.0 } else { n / 2.0 + 1.0 };
        let sigma = K * U * (steps * squares + (n / 3.0 + 2.0) * drift).sqrt();
        let mut exact = Exact::statistical(value, sigma);
        if profile.truncates {
            exact = exact.moved(0.0, cut_off(&self.codes, &x.row.values));
        }
        if let Some(doubt) = &x.row.doubt {
            let whole = |at: usize| self.codes[at] + self.minima.as_ref().map_or(0.0, |minima| minima[at]);
            exact = inherit(exact, whole, &doubt.sigma, &doubt.radius);
        }
        match bias {
            Some(bias) => {
                let sum = exact.value + bias;
                Exact { value: sum, ..exact }.moved(K * U * sum.abs(), U * sum.abs())
            }
            None => exact,
        }
    }
}
