//! Exact evaluation of attention in three operations: scores, softmax, and the weighted mean of the values.

use multiversion::multiversion;

use crate::exact::dot::{cut_off, dot, dot_in_order, means, sum_of, total};
use crate::exact::input::{InputTensor, InputValues};
use crate::exact::operand::Operand;
use crate::exact::operation::{by_row, is_run, per_row, rows_around};
use crate::exact::tiles::{InterleavedRows, PANEL, PanelTile, SIDE};
use crate::exact::value::{K, U, both, lost};
use crate::exact::{Choice, ExactValue, Float, LAMBDA, Operation, Profile, ScaledOperand, is_given};
use crate::exponential::exp;
use crate::ops::attention::{AttentionScale, Mask};
use crate::parallel;
use crate::quant::{CACHES, activation_type};
use crate::tensor::Tensor;
use crate::weight::DType;

/// Returns the effect of inexact stored sums on q·k. Some activation formats store the sum of each block, which may
/// exceed the sum of the block's codes. The effect is that surplus times the key block's minimum, summed over
/// blocks.
fn surplus_of(surplus: Option<&[f64]>, key: &InputValues) -> f64 {
    let least = |block: &[f64]| block.iter().copied().fold(f64::INFINITY, f64::min);
    surplus
        .map_or(0.0, |surplus| key.values.chunks(32).zip(surplus).map(|(block, by)| least(block) * by).sum())
}

/// Attention scores, `scale · q·k`: `[T, H, D]`, `[S, Hkv, D]` to `[H, T, S]`.
pub(crate) struct Scores {
    /// `[T, H, D]`
    pub(crate) q: Tensor,
    /// `[S, Hkv, D]`
    pub(crate) k: Tensor,
    /// Factor of q·k.
    pub(crate) scale: AttentionScale,
    /// Type of the cache. Queries are quantised for products with blocks.
    pub(crate) cache: DType,
}

impl Operation for Scores {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let (tokens, keys) = (self.q.shape()[0], self.k.shape()[0]);
        let profile = &profile.attending(tokens);
        let known = [InputTensor::of(&self.q, profile), InputTensor::of(&self.k, profile)];
        let is_plain =
            profile.attended() == Float::F32 && !profile.scales_both() && known[0].given().is_some();
        let is_plain = is_plain && !CACHES.contains(&self.cache);
        if let Some(k) = known[1].given().filter(|_| is_plain && wanted.len() >= PANEL * SIDE) {
            return self.tiled(profile, &known[0], k, wanted);
        }
        per_row(wanted, keys, |flats, exacts| self.row(profile, [&known[0], &known[1]], flats, exacts))
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
            Choice::Tf32Scores,
            Choice::Tf32Away,
            Choice::Tf32Cut,
        ]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.q, &self.k]
    }

    fn dependence(&self) -> f64 {
        (self.k.shape()[0] as f64 / self.k.shape()[2] as f64).max(1.0)
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn is_unbiased(&self, profile: &Profile) -> bool {
        !is_cut(profile) && is_given(&self.q) && is_given(&self.k)
    }
}

impl Scores {
    /// Returns the head, the token and the key head that a row of scores belongs to.
    fn place(&self, row: usize) -> [usize; 3] {
        let (tokens, heads) = (self.q.shape()[0], self.q.shape()[1]);
        let head = row / tokens;
        [head, row % tokens, head * self.k.shape()[1] / heads]
    }

    /// Returns true if scaling the queries is a separate operation, so that the scaled queries are rounded.
    fn rounds_queries(&self, profile: &Profile) -> bool {
        matches!(self.scale, AttentionScale::RoundedQueries(_)) && profile.scaled == ScaledOperand::Model
    }

    /// Returns a query, rounded for the product with keys, and the factor of its products.
    fn query(&self, profile: &Profile, q: &InputTensor, row: usize) -> (Operand, f64) {
        let &[_, heads, head_dim] = self.q.shape() else { panic!("queries are [T, H, D]") };
        let [head, token, _] = self.place(row);
        let of_queries = match (self.scale, profile.scaled) {
            (
                AttentionScale::Queries(factor) | AttentionScale::RoundedQueries(factor),
                ScaledOperand::Model,
            ) => Some(f64::from(factor)),
            (scale, ScaledOperand::Queries) => Some(profile.results.round(scale.factor().into())),
            (scale, ScaledOperand::Both) => Some(profile.results.round(f64::from(scale.factor()).sqrt())),
            _ => None,
        };
        let query = q.part((token * heads + head) * head_dim, head_dim);
        let short = if self.rounds_queries(profile) { profile.results } else { profile.queries };
        let query = match of_queries {
            None if short == Float::F32 => query,
            _ => query.map(|q| {
                let q = of_queries.map_or(q, |factor| times(q, factor));
                q.rounded(short)
            }),
        };
        let factor = f64::from(self.scale.factor());
        let factor =
            of_queries.map_or(factor, |of_queries| if profile.scales_both() { of_queries } else { 1.0 });
        match CACHES.contains(&self.cache) {
            true => (Operand::coded(&query, activation_type(self.cache)), factor),
            false => (Operand::plain(query), factor),
        }
    }

    /// Returns a key, rounded for the product with queries, and the factor of its products.
    fn key(&self, profile: &Profile, k: &InputTensor, place: usize, factor: f64) -> (InputValues, f64) {
        let key = k.part(place * self.k.shape()[2], self.k.shape()[2]);
        if !profile.scales_both() {
            return (key, factor);
        }
        (key.map(|k| times(k, factor).rounded(profile.queries)), 1.0)
    }

    fn scaled(product: ExactValue, profile: &Profile, factor: f64) -> ExactValue {
        scaled(product.rounded(profile.dots), factor)
    }

    /// Evaluates scores of one row. Engines of models that scale queries may scale the products instead; this makes a
    /// difference if operands are rounded.
    fn row(
        &self,
        profile: &Profile,
        inputs: [&InputTensor; 2],
        wanted: &[usize],
        exacts: &mut Vec<ExactValue>,
    ) {
        let first = exacts.len();
        self.row_by(profile, inputs, wanted, exacts);
        let scales_queries =
            !matches!(self.scale, AttentionScale::Products(_)) && profile.scaled == ScaledOperand::Model;
        let is_rounded = profile.operands.tf32().is_some()
            || self.rounds_queries(profile) && profile.results != Float::F32;
        if scales_queries && is_rounded {
            let mut of_products = Vec::with_capacity(wanted.len());
            let profile = Profile { scaled: ScaledOperand::Products, ..*profile };
            self.row_by(&profile, inputs, wanted, &mut of_products);
            exacts[first..].iter_mut().zip(of_products).for_each(|(exact, other)| *exact = exact.or(other));
        }
    }

    fn row_by(
        &self,
        profile: &Profile,
        [q, k]: [&InputTensor; 2],
        wanted: &[usize],
        exacts: &mut Vec<ExactValue>,
    ) {
        let &[keys, key_heads, _] = self.k.shape() else { panic!("keys are [S, Hkv, D]") };
        let row = wanted[0] / keys;
        let [.., key_head] = self.place(row);
        let (Operand { row: query, surplus, .. }, factor) = self.query(profile, q, row);
        let unit = unit(profile, Float::F32);
        let operand = |x: InputValues| if unit == Float::F32 { x } else { x.map(|x| x.rounded(unit)) };
        let query = operand(query);
        let one = |&flat: &usize| {
            let (key, factor) = self.key(profile, k, flat % keys * key_heads + key_head, factor);
            let key = operand(key);
            let cut = if is_cut(profile) { cut_off(&query.values, &key.values) } else { 0.0 };
            let product = dot(&query, &key).moved(0.0, cut);
            let value = product.value + surplus_of(surplus.as_deref(), &key);
            Self::scaled(ExactValue { value, ..product }, profile, factor)
        };
        exacts.extend(wanted.iter().map(one));
    }

    /// Computes the scores of recorded values: four queries that share a key head with a panel of keys at once.
    fn tiled(&self, profile: &Profile, q: &InputTensor, k: &[f32], wanted: &[usize]) -> Vec<ExactValue> {
        let &[keys, key_heads, head_dim] = self.k.shape() else { panic!("keys are [S, Hkv, D]") };
        let rows: Vec<&[usize]> = by_row(wanted, keys).collect();
        let of_key_head = |flats: &&[usize]| self.place(flats[0] / keys)[2];
        let mut exacts = Vec::with_capacity(wanted.len());
        for rows in rows.chunk_by(|a, b| of_key_head(a) == of_key_head(b)) {
            let offset = of_key_head(&rows[0]) * head_dim;
            let key = |key: usize| &k[key * key_heads * head_dim + offset..][..head_dim];
            let seen = rows.iter().map(|flats| flats[flats.len() - 1] % keys + 1).max().unwrap_or(0);
            let panel = |first: usize| {
                let keys = (first..seen.min(first + PANEL)).map(key);
                let keys: Vec<Vec<f64>> = keys.map(|key| key.iter().map(|&k| k.into()).collect()).collect();
                InterleavedRows::<PANEL>::of(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>())
            };
            let panels: Vec<InterleavedRows<PANEL>> = (0..seen).step_by(PANEL).map(panel).collect();
            for four in rows.chunks(SIDE) {
                self.four(profile, q, (&panels, &key), four, &mut exacts);
            }
        }
        exacts
    }

    fn four<'k>(
        &self,
        profile: &Profile,
        q: &InputTensor,
        (panels, key): (&[InterleavedRows<PANEL>], &dyn Fn(usize) -> &'k [f32]),
        four: &[&[usize]],
        exacts: &mut Vec<ExactValue>,
    ) {
        let (keys, head_dim) = (self.k.shape()[0], self.k.shape()[2]);
        let of_row = |flats: &&[usize]| {
            let (query, factor) = self.query(profile, q, flats[0] / keys);
            (query.row, factor)
        };
        let queries: Vec<(InputValues, f64)> = four.iter().map(of_row).collect();
        let rows: Vec<&[f64]> = queries.iter().map(|(query, _)| query.values.as_slice()).collect();
        let side = InterleavedRows::<SIDE>::of(&rows);
        let tiles: Vec<PanelTile> = panels.iter().map(|panel| PanelTile::new(panel, &side)).collect();
        for (row, (flats, (query, factor))) in four.iter().zip(&queries).enumerate() {
            let first = flats[0] / keys * keys;
            let alone = |flat: usize| {
                let key = InputTensor::Given(key(flat - first)).part(0, head_dim);
                Self::scaled(dot(query, &key), profile, *factor)
            };
            let mut rest = *flats;
            for (index, (panel, tile)) in panels.iter().zip(&tiles).enumerate() {
                let place = |flat: usize| flat - first - index * PANEL;
                let (here, later) = rest.split_at(rest.partition_point(|&flat| place(flat) < PANEL));
                rest = later;
                if here.is_empty() {
                    continue;
                }
                let (sums, squares) = tile.row(row);
                let mut products = products_of_panel(head_dim, (sums, &squares), panel.sizes(&side, row));
                if profile.dots == Float::F32 {
                    scale(&mut products, *factor);
                }
                exacts.extend(here.iter().map(|&flat| match products[place(flat)] {
                    exact if exact.sigma.is_nan() || query.doubt.is_some() => alone(flat),
                    exact if profile.dots == Float::F32 => exact,
                    product => Self::scaled(product, profile, *factor),
                }));
            }
        }
    }
}

/// Returns the products of a query with a panel of keys. Sigma is NaN if a sum may lose terms, or if the tile's
/// sums do not show whether it loses any.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn products_of_panel(
    head_dim: usize,
    (sums, squares): (&[f64; PANEL], &[f64; PANEL]),
    (least, largest): ([f64; PANEL], [f64; PANEL]),
) -> [ExactValue; PANEL] {
    let mut products = [ExactValue::default(); PANEL];
    for (place, product) in products.iter_mut().enumerate() {
        let (value, largest) = (sums[place], largest[place]);
        *product = sum_of(head_dim, value, squares[place]);
        let largest = if value.abs() > largest { value.abs() } else { largest };
        // A sum loses no term if every product is at least U times the largest product and the sum.
        product.sigma = if least[place] >= U * largest { product.sigma } else { f64::NAN };
    }
    products
}

/// Scales products, with one rounding each.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn scale(products: &mut [ExactValue; PANEL], factor: f64) {
    products.iter_mut().for_each(|product| *product = scaled(*product, factor));
}

/// Scales a product, with one rounding.
#[inline(always)]
fn scaled(product: ExactValue, factor: f64) -> ExactValue {
    let value = product.value * factor;
    product.through(value, factor).moved(K * U * value.abs(), U * value.abs())
}

/// Multiplies a value by a constant.
fn times(x: ExactValue, factor: f64) -> ExactValue {
    let value = x.value * factor;
    x.through(value, factor).moved(0.0, U * value.abs())
}

/// Returns the type that an attention operand is rounded to: `own`, or the profile's type for attention if `own` is
/// `f32`.
fn unit(profile: &Profile, own: Float) -> Float {
    if own == Float::F32 { profile.attended() } else { own }
}

/// Returns true if matrix units accumulate the sums of attention in `f32` and truncate them.
fn is_cut(profile: &Profile) -> bool {
    profile.truncates && profile.operands.tf32().is_some()
}

/// Softmax over the keys that a token sees: `[H, T, S]`.
pub(crate) struct Softmax {
    /// `[H, T, S]`
    pub(crate) scores: Tensor,
    /// Attention mask.
    pub(crate) mask: Mask,
    /// Sink of each head, if there are any: `[H]`.
    pub(crate) sinks: Option<Vec<f32>>,
}

impl Operation for Softmax {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let &[_, tokens, keys] = self.scores.shape() else { panic!("scores are [H, T, S]") };
        let scores = InputTensor::read(&self.scores, profile, rows_around(wanted, keys));
        per_row(wanted, keys, |flats, exacts| {
            let row = flats[0] / keys;
            let visible = self.mask.visible(row % tokens, keys);
            let first = row * keys + visible.start;
            let part = scores.part(first, visible.len());
            let weights = match &self.sinks {
                Some(sinks) => softmax_with_sink(&part, sinks[row / tokens], profile),
                None => softmax(&part, profile),
            };
            let wanted = flats[0].checked_sub(first).map(|at| at..at + flats.len());
            let run = wanted.filter(|_| is_run(flats)).and_then(|wanted| weights.get(wanted));
            if let Some(weights) = run {
                return exacts.extend_from_slice(weights);
            }
            let at = |flat: &usize| flat.checked_sub(first).and_then(|at| weights.get(at)).copied();
            exacts.extend(flats.iter().map(|flat| at(flat).unwrap_or_default()));
        })
    }

    fn results(&self, profile: &Profile) -> Float {
        profile.softmax
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::Softmax, Choice::ChainedNorms]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.scores]
    }
}

/// Evaluates softmax, e^-L / Σ, where L is a score's distance from the largest. An error of L is amplified by the
/// exponential.
pub(crate) fn softmax(scores: &InputValues, profile: &Profile) -> Vec<ExactValue> {
    let max = scores.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut exponentials = vec![0.0; scores.len()];
    exponentials_below(&scores.values, max, &mut exponentials);
    let sum = total(&exponentials);
    let lost = lost(exponentials.iter().copied(), sum);
    let mut weights = vec![ExactValue::default(); scores.len()];
    weigh(&scores.values, &exponentials, [max, sum, lost, profile.library_ulps], &mut weights);
    let Some(doubt) = &scores.doubt else { return weights };
    let unsure = weights.iter().zip(&doubt.sigma).map(|(weight, sigma)| (weight.value * sigma).powi(2));
    let shared = unsure.sum::<f64>().sqrt();
    for ((weight, sigma), score) in weights.iter_mut().zip(&doubt.sigma).zip(&scores.values) {
        if *score != f64::NEG_INFINITY {
            let from_input = weight.value * both(*sigma, shared);
            *weight = weight.moved(from_input, LAMBDA * from_input);
        }
    }
    weights
}

/// Evaluates softmax with a sink among the logits. Engines may round the distances from the largest logit.
fn softmax_with_sink(scores: &InputValues, sink: f32, profile: &Profile) -> Vec<ExactValue> {
    let logits = (0..scores.len()).map(|at| scores.get(at)).chain([ExactValue::bounded(sink.into(), 0.0)]);
    let all = InputValues::new(logits);
    let max = all.values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights = softmax(&all, profile);
    if profile.results != Float::F32 {
        let rounded = |score: f64| profile.results.unit() * (max - score);
        // A score far below the largest, or -inf, has no weight and no share of the error.
        let is_seen = |weight: &ExactValue| weight.value != 0.0;
        let seen = weights.iter().zip(&all.values).filter(|(weight, _)| is_seen(weight));
        let shared: f64 = seen.map(|(weight, &score)| weight.value * rounded(score)).sum();
        for (weight, &score) in weights.iter_mut().zip(&all.values).filter(|(weight, _)| is_seen(weight)) {
            let bound = weight.value * (rounded(score) + shared);
            *weight = weight.moved(bound / 2.0, bound);
        }
    }
    weights.pop();
    weights
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn exponentials_below(scores: &[f64], max: f64, exponentials: &mut [f64]) {
    for (exponential, &score) in exponentials.iter_mut().zip(scores) {
        // Hidden keys have weight 0.
        *exponential = if score == f64::NEG_INFINITY { 0.0 } else { exp(score - max) };
    }
}

/// Computes the attention weights from recorded scores.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn weigh(scores: &[f64], exponentials: &[f64], [max, sum, lost, p]: [f64; 4], weights: &mut [ExactValue]) {
    let n = scores.len() as f64;
    let steps = p + 1.0 + K * (n / 3.0).sqrt();
    for ((exact, &score), &exponential) in weights.iter_mut().zip(scores).zip(exponentials) {
        let weight = exponential / sum;
        let below = if score == f64::NEG_INFINITY { 0.0 } else { max - score };
        *exact = ExactValue::statistical(weight, weight * U * (0.42 * below + steps))
            .losing(lost * weight)
            .within(weight * U * (below + 2.0 * p + 2.0 + n));
    }
}

/// The weighted sum of values, with heads merged: `[H, T, S]`, `[S, Hkv, D]` to `[T, H·D]`.
pub(crate) struct AttentionContext {
    /// `[H, T, S]`
    pub(crate) weights: Tensor,
    /// `[S, Hkv, D]`
    pub(crate) v: Tensor,
}

impl Operation for AttentionContext {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let head_dim = self.v.shape()[2];
        let profile = &profile.attending(self.weights.shape()[1]);
        let weights = InputTensor::of(&self.weights, profile);
        let profile = &profile.of_values();
        let v = InputTensor::of(&self.v, profile).rounded(unit(profile, Float::F32));
        let widened = v.sure();
        per_row(wanted, head_dim, |flats, exacts| {
            self.head(profile, &weights, (&v, widened.as_deref()), flats, exacts);
        })
    }

    fn choices(&self) -> &'static [Choice] {
        &[
            Choice::ScaledQueries,
            Choice::Fused,
            Choice::Flash,
            Choice::HalfAttention,
            Choice::GgmlFlash,
            Choice::Tf32,
            Choice::Tf32Scores,
            Choice::Tf32Away,
            Choice::Tf32Cut,
        ]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.weights, &self.v]
    }

    fn is_unbiased(&self, profile: &Profile) -> bool {
        // If one weight is nearly 1, the sum loses the smallest terms. This error is systematic if values share a sign.
        let loses = |row: &[f32]| lost(row.iter().map(|&weight| weight.into()), 1.0) > U;
        let keys = self.weights.shape()[2];
        let is_given = !is_cut(profile) && is_given(&self.weights) && is_given(&self.v);
        let rows: Vec<&[f32]> = self.weights.data().chunks(keys).collect();
        is_given && parallel::first(rows.len(), keys, |row| loses(rows[row]).then_some(row)).is_none()
    }
}

impl AttentionContext {
    fn head(
        &self,
        profile: &Profile,
        weights: &InputTensor,
        (v, widened): (&InputTensor, Option<&[f64]>),
        wanted: &[usize],
        exacts: &mut Vec<ExactValue>,
    ) {
        let &[heads, tokens, keys] = self.weights.shape() else { panic!("weights are [H, T, S]") };
        let &[_, key_heads, head_dim] = self.v.shape() else { panic!("values are [S, Hkv, D]") };
        let (token, head) = (wanted[0] / head_dim / heads, wanted[0] / head_dim % heads);
        let first = (head * tokens + token) * keys;
        let offset = head * key_heads / heads * head_dim;
        let (stride, width) = (key_heads * head_dim, wanted.iter().map(|flat| flat % head_dim));
        let operand = if profile.flash { Float::F32 } else { unit(profile, profile.attention) };
        let weights = match operand {
            Float::F32 => weights.part(first, keys),
            float => weights.part(first, keys).map(|x| x.rounded(float)),
        };
        let all = match (&weights.doubt, widened) {
            (None, Some(v)) => means(&weights.values, &v[offset..], stride, head_dim),
            _ => {
                let seen: Vec<usize> =
                    (0..keys).filter(|&key| weights.get(key) != ExactValue::default()).collect();
                let of_seen = InputValues::new(seen.iter().map(|&key| weights.get(key)));
                let mean = |at: usize| {
                    dot_in_order(
                        &of_seen,
                        &InputValues::new(seen.iter().map(|&key| v.get(key * stride + offset + at))),
                    )
                };
                (0..head_dim).map(mean).collect()
            }
        };
        let one = |at: usize| {
            let exact: ExactValue = all[at];
            let value = |key: usize| v.get(key * stride + offset + at).value;
            if profile.sums != Float::F32 {
                let values = weights.values.iter().enumerate();
                return added_in(profile.sums, exact, values.map(|(key, weight)| (*weight, value(key))));
            }
            if is_cut(profile) {
                let values: Vec<f64> = (0..keys).map(value).collect();
                return exact.moved(0.0, cut_off(&weights.values, &values));
            }
            if !profile.flash {
                return exact;
            }
            // Exponentials are rounded before the division by their sum, and again where the largest score changes.
            let term = |(key, p): (usize, &f64)| (p * value(key)).powi(2);
            let squares: f64 = weights.values.iter().enumerate().map(term).sum();
            let sigma = K * profile.attention.unit() * squares.sqrt();
            exact.moved(sigma, LAMBDA * sigma)
        };
        exacts.extend(width.map(one));
    }
}

/// Evaluates a weighted sum of values that is rounded after each key, and once more whenever the largest score so
/// far changes. The weights are exponentials relative to the largest score so far; the sum is divided by their sum
/// at the end. A term below the last bit of the sum does not change it.
fn added_in(sums: Float, exact: ExactValue, terms: impl Iterator<Item = (f64, f64)>) -> ExactValue {
    let (mut sum, mut largest, mut squares, mut lost) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    // Below the smallest normal number, the rounding error stays that of the smallest normal number.
    let rounded = |sum: f64, largest: f64| sum.abs().max(sums.least() * largest);
    for (weight, value) in terms.filter(|(weight, _)| *weight != 0.0) {
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
