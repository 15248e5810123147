//! Errors of a gated delta rule that is computed in chunks of tokens, by products of matrices and the solution of a
//! triangular system (Yang et al., 2024).
//!
//! In a chunk, the update of a token, β(v - S·k), is the sum of two parts: the update with a state that starts from zero,
//! and a part from the state at the chunk's beginning. Both are sums over the chunk's tokens, which may be larger than the
//! update itself. The decay between two tokens is the exponential of a difference of two sums of g. Its rounding error
//! grows with these sums.

use crate::exact::Profile;
use crate::exact::value::{K, U};
use crate::ops::delta_rule::exact::inputs::{TokenInputs, dot, sizes};

/// Tokens of a chunk up to the current one.
pub(super) struct Chunk {
    /// Number of tokens of a whole chunk. 1 for an engine that computes one token at a time.
    len: usize,
    /// Variance of rounding an operand of a product, relative to the operand's square.
    of_operand: f64,
    /// Error of the exponential, in units in the last place.
    ulps: f64,
    tokens: Vec<ChunkToken>,
    /// State that starts from zero at the chunk's beginning, `[Dv][Dk]`.
    local: Vec<Vec<f64>>,
    /// State at the chunk's beginning, `[Dv][Dk]`.
    start: Vec<Vec<f64>>,
    /// Square of the total decay since the chunk's beginning.
    kept: f64,
    /// Sum of g since the chunk's beginning.
    sum: f64,
}

/// A token of the chunk, with its effect on the current token.
struct ChunkToken {
    q: Vec<f64>,
    k: Vec<f64>,
    beta: f64,
    /// Update β(v - S·k) with the state that starts from zero, one entry per value dimension.
    local: Vec<f64>,
    /// Update β(v - S·k) with the whole state, one entry per value dimension.
    whole: Vec<f64>,
    /// Square of the total decay since this token.
    kept: f64,
    /// Product of the token's key with the current key: its square, and the sum of the squared terms.
    by_key: [f64; 2],
    /// Product of the token's key with the current query: its square, and the sum of the squared terms.
    by_query: [f64; 2],
}

impl Chunk {
    /// Starts the first chunk of a pass.
    pub(super) fn new(profile: &Profile) -> Self {
        Self {
            len: profile.chunk,
            of_operand: (K * profile.chunk_products.unit()).powi(2),
            ulps: profile.library_ulps,
            tokens: Vec::new(),
            local: Vec::new(),
            start: Vec::new(),
            kept: 1.0,
            sum: 0.0,
        }
    }

    fn is_recurrent(&self) -> bool {
        self.len <= 1
    }

    /// Moves to the next token. `state` is the state before this token. Starts a new chunk after a whole one.
    pub(super) fn enter(&mut self, token: &TokenInputs, state: &[Vec<f64>]) {
        if self.is_recurrent() {
            return;
        }
        if self.start.is_empty() || self.tokens.len() == self.len {
            let zeros = |row: &Vec<f64>| vec![0.0; row.len()];
            self.local = state.iter().map(zeros).collect();
            self.start = state.to_vec();
            (self.kept, self.sum) = (1.0, 0.0);
            self.tokens.clear();
        }
        let kept = (2.0 * token.decay.value).exp();
        self.kept *= kept;
        self.sum += token.decay.value;
        let squared = |(sum, squares): (f64, f64)| [sum * sum, squares];
        for earlier in &mut self.tokens {
            earlier.kept *= kept;
            earlier.by_key = squared(dot(&earlier.k, &token.k.values));
            earlier.by_query = squared(dot(&earlier.k, &token.q.values));
        }
        let k = token.k.values.clone();
        let [by_key, by_query] = [&token.k, &token.q].map(|x| squared(dot(&k, &x.values)));
        let decay = token.decay.value.exp();
        self.local.iter_mut().flatten().for_each(|s| *s *= decay);
        self.tokens.push(ChunkToken {
            q: token.q.values.clone(),
            k,
            beta: token.beta.value,
            local: Vec::new(),
            whole: Vec::new(),
            kept: 1.0,
            by_key,
            by_query,
        });
    }

    /// Returns true if the current token is the last of a whole chunk.
    pub(super) fn is_whole(&self) -> bool {
        self.tokens.len() == self.len
    }

    /// Returns the variance of a sum over the chunk's tokens, in units of the variance of one rounding.
    pub(super) fn terms(&self) -> f64 {
        if self.is_recurrent() { 1.0 } else { self.tokens.len() as f64 / 2.0 + 1.0 }
    }

    /// Returns the variance of the relative error of a decay between two tokens of the chunk.
    pub(super) fn of_decay(&self) -> f64 {
        if self.is_recurrent() {
            return 0.0;
        }
        let of_sums = 2.0 * (self.tokens.len() as f64 / 3.0 + 1.0) * self.sum * self.sum;
        (K * U).powi(2) * of_sums + (self.ulps * U).powi(2)
    }

    /// Returns the variance of the error of a dot product: a term of a sum over the chunk's tokens, or a row of the
    /// state times a vector. `product` is the square of the dot product, `squares` the sum of its squared terms.
    ///
    /// Both operands of each product are rounded once. The dot product is rounded up to three times as an operand of
    /// the next product: as an entry of the matrix of products, of its inverse, and as a part of the update. Sums are
    /// `f32`.
    fn of_products(&self, [product, squares]: [f64; 2], width: usize) -> f64 {
        let n = width as f64;
        let in_f32 = (self.terms() + n / 3.0 + 1.0) * product + (n / 2.0 + 1.0) * squares;
        self.of_operand * (3.0 * product + 2.0 * squares) + (K * U).powi(2) * in_f32
    }

    /// Returns the variance of the error of a row of the state at the chunk's beginning times a vector, relative to the
    /// square of the decay since then.
    fn of_start(&self, column: usize, vector: &[f64]) -> f64 {
        let row = &self.start[column];
        let ((product, squares), [_, length]) = (dot(row, vector), sizes(row));
        self.of_products([product * product, squares], row.len())
            + (self.of_decay() + self.terms() * (K * U).powi(2)) * length
    }

    /// Returns the variance of the update's error that the chunked form adds to the error of the recurrence.
    pub(super) fn update(&mut self, column: usize, v: f64) -> f64 {
        let Some((current, earlier)) = self.tokens.split_last() else { return 0.0 };
        let (row, beta) = (&mut self.local[column], current.beta);
        let local = beta * (v - dot(row, &current.k).0);
        row.iter_mut().zip(&current.k).for_each(|(s, k)| *s += local * k);
        let (mut variance, mut size) = (3.0 * self.of_operand * local * local, 0.0);
        for token in earlier {
            let of_token = token.local[column].powi(2) * token.kept;
            variance += beta * beta * self.of_products(token.by_key, current.k.len()) * of_token;
            size += beta * (token.by_key[0] * of_token).sqrt();
        }
        variance += self.of_decay() * size * size;
        variance += self.kept * beta * beta * self.of_start(column, &current.k);
        if let Some(current) = self.tokens.last_mut() {
            current.local.push(local);
        }
        variance
    }

    /// Returns the variance of the error of S·q that the chunked form adds to the error of the recurrence. `update` is
    /// the current token's update.
    pub(super) fn output(&mut self, column: usize, update: f64) -> f64 {
        if let Some(current) = self.tokens.last_mut() {
            current.whole.push(update);
        }
        let Some(current) = self.tokens.last() else { return 0.0 };
        let (mut variance, mut size) = (0.0, 0.0);
        for token in &self.tokens {
            let of_token = token.whole[column].powi(2) * token.kept;
            variance += self.of_products(token.by_query, current.k.len()) * of_token;
            size += (token.by_query[0] * of_token).sqrt();
        }
        variance + self.of_decay() * size * size + self.kept * self.of_start(column, &current.q)
    }
}
