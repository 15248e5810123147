//! Attention in its three steps: scores, their softmax, and the mean of the values that it weighs.

use rayon::prelude::*;

use crate::exact::dot::{dot, dot_in_order, means, sum_of_products};
use crate::exact::input::{Input, Known};
use crate::exact::profile::{Choice, Float, Profile, Scaled};
use crate::exact::stage::{Stage, is_given};
use crate::exact::value::{Exact, K, LAMBDA, U, lost};
use crate::ops::attention::{Mask, Scale};
use crate::tensor::Tensor;

/// `scale · q·k`: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
pub struct Scores {
    /// `[T, H, D]`
    pub q: Tensor,
    /// `[S, Hkv, D]`
    pub k: Tensor,
    /// What the products are multiplied with.
    pub scale: Scale,
}

impl Stage for Scores {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<Exact> {
        let (tokens, keys) = (self.q.shape()[0], self.k.shape()[0]);
        let profile = &profile.attending(tokens);
        let rows: Vec<&[usize]> = wanted.chunk_by(|a, b| a / keys == b / keys).collect();
        let mut known = [Known::of(&self.q, profile), Known::of(&self.k, profile)];
        if profile.operands == super::Operands::Tf32 {
            known = known.map(|known| known.map(|x| x.rounded(Float::Tf32)));
        }
        let of_row = |flat: &&[usize]| {
            let (head, token) = (flat[0] / keys / tokens, flat[0] / keys % tokens);
            self.row(profile, [&known[0], &known[1]], [head, token], flat)
        };
        rows.par_iter().flat_map_iter(of_row).collect()
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.scores
    }

    fn choices(&self) -> &'static [Choice] {
        &[
            Choice::ScaledQueries,
            Choice::Dots,
            Choice::Scores,
            Choice::HalfAttention,
            Choice::GgmlFlash,
            Choice::Tf32,
        ]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.q, &self.k]
    }

    fn dependence(&self) -> f64 {
        (self.k.shape()[0] as f64 / self.k.shape()[2] as f64).max(1.0)
    }

    fn is_unbiased(&self, _: &Profile) -> bool {
        is_given(&self.q) && is_given(&self.k)
    }
}

impl Scores {
    fn row(
        &self,
        profile: &Profile,
        [q, k]: [&Known; 2],
        [head, token]: [usize; 2],
        wanted: &[usize],
    ) -> Vec<Exact> {
        let &[_, heads, head_dim] = self.q.shape() else { panic!("queries are [T, H, D]") };
        let &[keys, key_heads, _] = self.k.shape() else { panic!("keys are [S, Hkv, D]") };
        let of_queries = match (self.scale, profile.scaled) {
            (Scale::Queries(factor), Scaled::Model) => Some(f64::from(factor)),
            (scale, Scaled::Queries) => Some(profile.results.round(scale.factor().into())),
            _ => None,
        };
        let query = q.part((token * heads + head) * head_dim, head_dim).map(|q| {
            let q = match of_queries {
                Some(factor) => q.through(q.value * factor, factor).moved(0.0, U * (q.value * factor).abs()),
                None => q,
            };
            q.rounded(profile.queries)
        });
        let factor = if of_queries.is_some() { 1.0 } else { f64::from(self.scale.factor()) };
        let one = |&flat: &usize| {
            let at = (flat % keys * key_heads + head * key_heads / heads) * head_dim;
            let product = match (query.doubt.is_none(), k.given()) {
                (true, Some(keys)) => sum_of_products(&query.values, &keys[at..at + head_dim]),
                _ => dot(&query, &k.part(at, head_dim)),
            };
            let product = product.rounded(profile.dots);
            let value = product.value * factor;
            product.through(value, factor).moved(K * U * value.abs(), U * value.abs())
        };
        wanted.iter().map(one).collect()
    }
}

/// Operands of attention are rounded where those of products with weights are.
fn unit(profile: &Profile, own: Float) -> Float {
    if own == Float::F32 && profile.operands == super::Operands::Tf32 { Float::Tf32 } else { own }
}

/// Softmax over the keys that a token sees: `[H, T, S]`.
pub struct Softmax {
    /// `[H, T, S]`
    pub scores: Tensor,
    /// Who sees whom.
    pub mask: Mask,
}

impl Stage for Softmax {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<Exact> {
        let &[_, tokens, keys] = self.scores.shape() else { panic!("scores are [H, T, S]") };
        let rows: Vec<&[usize]> = wanted.chunk_by(|a, b| a / keys == b / keys).collect();
        let scores = Known::of(&self.scores, profile);
        let of_row = |flat: &&[usize]| {
            let row = flat[0] / keys;
            let visible = self.mask.visible(row % tokens, keys);
            let first = row * keys + visible.start;
            let weights = softmax(&scores.part(first, visible.len()), profile);
            let at = |&flat: &usize| {
                (flat % keys).checked_sub(visible.start).and_then(|at| weights.get(at)).copied()
            };
            flat.iter().map(|flat| at(flat).unwrap_or_default()).collect::<Vec<_>>()
        };
        rows.par_iter().flat_map_iter(of_row).collect()
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.softmax
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::Softmax]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.scores]
    }
}

/// e^-L / Σ, where L is how far a score lies below the largest: the exponential repeats what L was off by.
pub(super) fn softmax(scores: &Input, profile: &Profile) -> Vec<Exact> {
    let max = scores.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = scores.values.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    let (n, p) = (exponentials.len() as f64, profile.library_ulps);
    let lost = lost(exponentials.iter().copied(), sum);
    let weights = || exponentials.iter().map(|exponential| exponential / sum);
    let shared = match &scores.doubt {
        None => 0.0,
        Some(doubt) => {
            weights().zip(&doubt.sigma).map(|(weight, sigma)| (weight * sigma).powi(2)).sum::<f64>().sqrt()
        }
    };
    let one = |(at, weight): (usize, f64)| {
        let score = scores.get(at);
        if score.value == f64::NEG_INFINITY {
            return Exact::default();
        }
        let below = max - score.value;
        let sigma = weight * U * (0.42 * below + p + 1.0 + K * (n / 3.0).sqrt());
        let from_input = weight * score.sigma.hypot(shared);
        Exact::statistical(weight, sigma)
            .losing(lost * weight)
            .within(weight * U * (below + 2.0 * p + 2.0 + n))
            .moved(from_input, LAMBDA * from_input)
    };
    weights().enumerate().map(one).collect()
}

/// `weights · v`, heads merged: `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`.
pub struct Context {
    /// `[H, T, S]`
    pub weights: Tensor,
    /// `[S, Hkv, D]`
    pub v: Tensor,
}

impl Stage for Context {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<Exact> {
        let head_dim = self.v.shape()[2];
        let profile = &profile.attending(self.weights.shape()[1]);
        let heads: Vec<&[usize]> = wanted.chunk_by(|a, b| a / head_dim == b / head_dim).collect();
        let (weights, v) = (Known::of(&self.weights, profile), Known::of(&self.v, profile));
        heads.par_iter().flat_map_iter(|flat| self.head(profile, &weights, &v, flat)).collect()
    }

    fn choices(&self) -> &'static [Choice] {
        &[
            Choice::ScaledQueries,
            Choice::Fused,
            Choice::Flash,
            Choice::HalfAttention,
            Choice::GgmlFlash,
            Choice::Tf32,
        ]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.weights, &self.v]
    }

    fn is_unbiased(&self, _: &Profile) -> bool {
        // Beside a weight that is nearly 1, the smallest are lost: that has a direction where values share a sign.
        let loses = |row: &[f32]| lost(row.iter().map(|&weight| weight.into()), 1.0) > U;
        let keys = self.weights.shape()[2];
        let is_given = is_given(&self.weights) && is_given(&self.v);
        is_given && !self.weights.data().chunks(keys).any(loses)
    }
}

impl Context {
    fn head(&self, profile: &Profile, weights: &Known, v: &Known, wanted: &[usize]) -> Vec<Exact> {
        let &[heads, tokens, keys] = self.weights.shape() else { panic!("weights are [H, T, S]") };
        let &[_, key_heads, head_dim] = self.v.shape() else { panic!("values are [S, Hkv, D]") };
        let (token, head) = (wanted[0] / head_dim / heads, wanted[0] / head_dim % heads);
        let first = (head * tokens + token) * keys;
        let offset = head * key_heads / heads * head_dim;
        let (stride, width) = (key_heads * head_dim, wanted.iter().map(|flat| flat % head_dim));
        let weights = match profile.flash {
            true => weights.part(first, keys),
            false => weights.part(first, keys).map(|x| x.rounded(unit(profile, profile.attention))),
        };
        let all = match (&weights.doubt, v.given()) {
            (None, Some(v)) => means(&weights.values, &v[offset..], stride, head_dim),
            _ => {
                let seen: Vec<usize> =
                    (0..keys).filter(|&key| weights.get(key) != Exact::default()).collect();
                let of_seen = Input::new(seen.iter().map(|&key| weights.get(key)));
                let mean = |at: usize| {
                    dot_in_order(
                        &of_seen,
                        &Input::new(seen.iter().map(|&key| v.get(key * stride + offset + at))),
                    )
                };
                (0..head_dim).map(mean).collect()
            }
        };
        let one = |at: usize| {
            let exact: Exact = all[at];
            if profile.sums != Float::F32 {
                let values = weights.values.iter().enumerate();
                let values = values.map(|(key, weight)| (*weight, v.get(key * stride + offset + at).value));
                return added_in(profile.sums, exact, values);
            }
            if !profile.flash {
                return exact;
            }
            // Exponentials are rounded before they are divided by their sum, and again where the largest score changes.
            let term = |(key, p): (usize, &f64)| (p * v.get(key * stride + offset + at).value).powi(2);
            let squares: f64 = weights.values.iter().enumerate().map(term).sum();
            let sigma = K * profile.attention.unit() * squares.sqrt();
            exact.moved(sigma, LAMBDA * sigma)
        };
        width.map(one).collect()
    }
}

/// A sum over values, of weights and values, that is rounded after each key, and once more where the largest score changes:
/// exponentials are of the largest weight so far, and divided by their sum at the end. What is less than the last bit of the sum
/// leaves it as it is.
fn added_in(sums: Float, exact: Exact, terms: impl Iterator<Item = (f64, f64)>) -> Exact {
    let (mut sum, mut largest, mut squares, mut lost) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    // Numbers that are closer to zero than the least normal one are rounded as that is.
    let rounded = |sum: f64, largest: f64| sum.abs().max(sums.least() * largest);
    for (weight, value) in terms.filter(|(weight, _)| *weight > 0.0) {
        if weight > largest {
            squares += if largest > 0.0 { sum * sum } else { 0.0 };
            largest = weight;
        }
        let product = weight * value;
        sum += product;
        squares += rounded(sum, largest).powi(2);
        lost += if product.abs() < sums.unit() * rounded(sum, largest) { product.abs() } else { 0.0 };
    }
    let sigma = K * sums.unit() * squares.sqrt();
    exact.moved(sigma, LAMBDA * sigma).losing(lost)
}
