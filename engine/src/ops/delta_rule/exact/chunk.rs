//! Errors of a gated delta rule that is computed in chunks of tokens, by products of matrices and the solution of a
//! triangular system (Yang et al., 2024).
//!
//! In a chunk, a token's replaced value is the sum of the part that a state of zero at the chunk's beginning would give,
//! and of a part from that state. Both are sums over the chunk's tokens, which may be larger than the value itself.
//! Decays between two tokens are exponentials of differences of sums of g, whose rounding errors grow with the sums.

use crate::exact::Profile;
use crate::exact::value::{K, U};
use crate::ops::delta_rule::exact::inputs::{TokenInputs, dot, sizes};

/// Tokens of a chunk up to the current one.
pub(super) struct Chunk {
    /// Number of tokens of a whole chunk; 1 for an engine that computes token by token.
    len: usize,
    /// Square of the standard deviation of a rounding relative to its result.
    unit: f64,
    ulps: f64,
    tokens: Vec<ChunkToken>,
    /// State that starts from zero at the chunk's beginning, `[Dv][Dk]`.
    local: Vec<Vec<f64>>,
    /// Largest square and sum of squares of each row of the state at the chunk's beginning.
    start: Vec<[f64; 2]>,
    /// Square of the decay since the chunk's beginning.
    kept: f64,
    /// Sum of g since the chunk's beginning.
    sum: f64,
}

/// A token of the chunk, as the current token reads it.
struct ChunkToken {
    k: Vec<f64>,
    beta: f64,
    /// Value replaced in the local state, of each value.
    local: Vec<f64>,
    /// Value replaced in the state, of each value.
    whole: Vec<f64>,
    /// Square of the decay since the token.
    kept: f64,
    /// Products of its key with the current key, and with the current query: their squares, and the sums of squares of
    /// their terms.
    by_key: [f64; 2],
    by_query: [f64; 2],
}

impl Chunk {
    /// Starts the first chunk of a pass.
    pub(super) fn new(profile: &Profile) -> Self {
        Self {
            len: profile.chunk,
            unit: (K * profile.chunk_products.unit()).powi(2),
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

    /// Moves to the next token, with the state before it. Starts a new chunk after a whole one.
    pub(super) fn enter(&mut self, token: &TokenInputs, state: &[Vec<f64>]) {
        if self.is_recurrent() {
            return;
        }
        if self.start.is_empty() || self.tokens.len() == self.len {
            let zeros = |row: &Vec<f64>| vec![0.0; row.len()];
            self.local = state.iter().map(zeros).collect();
            self.start = state.iter().map(|row| sizes(row)).collect();
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

    /// Returns the number of terms of a sum over the chunk's tokens, in units of the variance of one rounding.
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

    /// Returns the variance of the replaced value's error in addition to that of the recurrence.
    pub(super) fn replaced(&mut self, column: usize, v: f64) -> f64 {
        let (of_decay, terms, unit) = (self.of_decay(), self.terms(), self.unit);
        let Some((current, earlier)) = self.tokens.split_last_mut() else { return 0.0 };
        let (beta, n) = (current.beta, current.k.len() as f64 / 2.0 + 1.0);
        let row = &mut self.local[column];
        let local = beta * (v - dot(row, &current.k).0);
        row.iter_mut().zip(&current.k).for_each(|(s, k)| *s += local * k);
        current.local.push(local);
        let (mut variance, mut size) = (unit * local * local, 0.0);
        for token in earlier.iter() {
            let [product, squares] = token.by_key;
            let of_token = token.local[column].powi(2) * token.kept;
            variance += unit * beta * beta * (terms * product + n * squares) * of_token;
            size += beta * (product * of_token).sqrt();
        }
        let [most, length] = self.start[column];
        let start = self.kept * beta * beta;
        variance + of_decay * size * size + start * (unit * (n * most + terms * length) + of_decay * length)
    }

    /// Returns the variance of the output's error, before its scale, in addition to that of the recurrence. `delta` is
    /// the current token's replaced value.
    pub(super) fn output(&mut self, column: usize, delta: f64) -> f64 {
        let (of_decay, terms, unit) = (self.of_decay(), self.terms(), self.unit);
        let Some(current) = self.tokens.last_mut() else { return 0.0 };
        current.whole.push(delta);
        let n = current.k.len() as f64 / 2.0 + 1.0;
        let (mut variance, mut size) = (0.0, 0.0);
        for token in &self.tokens {
            let [product, squares] = token.by_query;
            let of_token = token.whole[column].powi(2) * token.kept;
            variance += unit * (terms * product + n * squares) * of_token;
            size += (product * of_token).sqrt();
        }
        // A query has length 1.
        let [most, length] = self.start[column];
        variance + of_decay * size * size + self.kept * (unit * n * most + of_decay * length)
    }
}
