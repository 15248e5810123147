//! Attention in its three steps, as engines compute them.

use xcheck_engine::numerics::Numerics;
use xcheck_engine::ops::attention::{AttentionScale, Mask};
use xcheck_engine::tensor::Tensor;

use super::dice::{Law, normal};
use super::order::Adder;
use super::specimen::{Specimen, Store};

/// Queries, keys and values of one pass: heads that share keys by twos, tokens that stand behind all keys but their own.
pub struct Heads {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// Tokens, heads, keys, values of a head.
    pub sizes: [usize; 4],
    pub store: Store,
}

/// Query heads that read one key head.
const GROUP: usize = 2;

impl Heads {
    pub fn new(law: Law, sizes: [usize; 4], store: Store, seed: u64) -> Self {
        let [tokens, heads, keys, dim] = sizes;
        let rows = |rows: usize, seed| store.rounded(&law.numbers(rows, dim, seed));
        let shared = heads / GROUP;
        let [q, k, v] = [(tokens * heads, seed), (keys * shared, seed + 1), (keys * shared, seed + 2)]
            .map(|(count, seed)| rows(count, seed));
        Self { q, k, v, sizes, store }
    }

    pub fn scale(&self) -> f32 {
        1.0 / (self.sizes[3] as f32).sqrt()
    }

    /// The first token sees all keys but those of the tokens behind it.
    pub fn mask(&self) -> Mask {
        Mask { position: self.sizes[2] - self.sizes[0], window: None, chunks: None }
    }

    fn keys_of(&self, data: &[f32]) -> Tensor {
        let [_, heads, keys, dim] = self.sizes;
        Tensor::new(&[keys, heads / GROUP, dim], data.to_vec())
    }

    fn row<'d>(&self, data: &'d [f32], key: usize, head: usize) -> &'d [f32] {
        let [_, heads, _, dim] = self.sizes;
        &data[(key * (heads / GROUP) + head / GROUP) * dim..][..dim]
    }

    pub fn traced_scores(&self, by: &impl Numerics) -> Tensor {
        let [tokens, heads, _, dim] = self.sizes;
        let q = Tensor::new(&[tokens, heads, dim], self.q.clone());
        by.scores(&q, &self.keys_of(&self.k), AttentionScale::Products(self.scale()))
    }

    /// `score(query, key)` of all pairs.
    pub fn scores_by(&self, score: impl Fn(&[f32], &[f32]) -> f32) -> Vec<f32> {
        let [tokens, heads, keys, dim] = self.sizes;
        let mut out = Vec::with_capacity(heads * tokens * keys);
        for head in 0..heads {
            for token in 0..tokens {
                let query = &self.q[(token * heads + head) * dim..][..dim];
                out.extend((0..keys).map(|key| score(query, self.row(&self.k, key, head))));
            }
        }
        out
    }

    /// The product is rounded, and scaled, and rounded.
    pub fn scores(&self, adder: &Adder, scale: f32) -> Vec<f32> {
        self.scores_by(|q, k| self.store.round(self.store.round(adder.dot(q, k)) * scale))
    }

    /// Weights that add up to 1 over the keys each token sees.
    pub fn weights(&self, seed: u64) -> Tensor {
        self.weights_with_sink(0.0, seed)
    }

    /// The first key of each head has a score that is larger: a sink, as trained models have (Xiao et al., 2023).
    pub fn weights_with_sink(&self, larger: f32, seed: u64) -> Tensor {
        let [tokens, heads, keys, _] = self.sizes;
        let mut scores = normal(heads * tokens * keys, 1.5, seed);
        scores.iter_mut().step_by(keys).for_each(|score| *score += larger);
        let scores = Tensor::new(&[heads, tokens, keys], scores);
        let weights = xcheck_engine::ops::attention::softmax(&scores, self.mask());
        weights.map(|weight| self.store.round(weight))
    }

    pub fn traced_context(&self, weights: &Tensor) -> Tensor {
        self.store.traced().context(weights, &self.keys_of(&self.v))
    }

    /// The mean of values over all keys, in the order of an adder.
    pub fn context(&self, weights: &Tensor, adder: &Adder) -> Vec<f32> {
        let [tokens, heads, keys, dim] = self.sizes;
        let mut out = Vec::with_capacity(tokens * heads * dim);
        for token in 0..tokens {
            for head in 0..heads {
                let weights = &weights.data()[(head * tokens + token) * keys..][..keys];
                out.extend((0..dim).map(|at| {
                    let column: Vec<f32> = (0..keys).map(|key| self.row(&self.v, key, head)[at]).collect();
                    self.store.round(adder.dot(weights, &column))
                }));
            }
        }
        out
    }

    pub fn context_specimen(&self, name: impl Into<String>, weights: &Tensor, own: Vec<f32>) -> Specimen {
        Specimen::new(name, self.traced_context(weights), own)
    }

    pub fn scores_specimen(&self, name: impl Into<String>, own: Vec<f32>) -> Specimen {
        Specimen::new(name, self.traced_scores(&self.store.traced()), own)
    }
}

/// Scores of one head, and the softmax of each of their rows.
pub struct Rows {
    pub scores: Vec<f32>,
    pub keys: usize,
    pub store: Store,
}

/// How an exponential becomes a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Reciprocal,
    Divided,
    /// A power of two, as kernels of GPUs have it.
    BaseTwo,
    /// In one pass over the keys, with the largest score so far (Milakov and Gimelshein, 2018).
    Online,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Reciprocal, Way::Divided, Way::BaseTwo, Way::Online];
}

impl Rows {
    pub fn new(law: Law, [tokens, keys]: [usize; 2], store: Store, seed: u64) -> Self {
        Self { scores: store.rounded(&law.numbers(tokens, keys, seed)), keys, store }
    }

    pub fn mask(&self) -> Mask {
        Mask { position: self.keys - self.scores.len() / self.keys, window: None, chunks: None }
    }

    pub fn traced(&self) -> Tensor {
        let shape = [1, self.scores.len() / self.keys, self.keys];
        self.store.traced().softmax(&Tensor::new(&shape, self.scores.clone()), self.mask())
    }

    pub fn specimen(&self, name: impl Into<String>, own: Vec<f32>) -> Specimen {
        Specimen::new(name, self.traced(), own)
    }

    /// Softmax of what each row's token sees; the rest is zero. `change` has a look at the visible scores first.
    pub fn softmax(&self, adder: &Adder, way: Way, change: impl Fn(&mut [f32])) -> Vec<f32> {
        let mut out = vec![0.0; self.scores.len()];
        for (token, row) in self.scores.chunks(self.keys).enumerate() {
            let visible = self.mask().visible(token, usize::MAX);
            let mut scores = row[visible.clone()].to_vec();
            change(&mut scores);
            let weights = softmax(&scores, adder, way);
            out[token * self.keys..][visible].copy_from_slice(&self.store.rounded(&weights));
        }
        out
    }
}

fn softmax(scores: &[f32], adder: &Adder, way: Way) -> Vec<f32> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp = |score: &f32| match way {
        Way::BaseTwo => ((score - max) * std::f32::consts::LOG2_E).exp2(),
        _ => (score - max).exp(),
    };
    let exponentials: Vec<f32> = scores.iter().map(exp).collect();
    let sum = match way {
        Way::Online => online(scores),
        _ => adder.sum(&exponentials),
    };
    exponentials.iter().map(|e| if way == Way::Divided { e / sum } else { e * (1.0 / sum) }).collect()
}

fn online(scores: &[f32]) -> f32 {
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
    for &score in scores {
        let larger = f32::max(max, score);
        sum = sum * (max - larger).exp() + (score - larger).exp();
        max = larger;
    }
    sum
}
