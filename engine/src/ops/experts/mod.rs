//! Mixtures of experts (Shazeer et al., 2017): choice of experts, products with their matrices, and the weighted sum of
//! their outputs.
//!
//! T = tokens, E = experts, k = experts that each token chooses. A token's experts are in ascending index order,
//! whatever order an engine finds them in, so that engines can be compared.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::parallel;
use crate::tensor::Tensor;

/// Rules for the weights of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRouting {
    /// Number of experts per token.
    pub used: usize,
    /// True if the weights are divided by their sum.
    pub(crate) is_normalised: bool,
    /// True if softmax reads the logits of the chosen experts alone. The values are those of weights divided by their
    /// sum, in other roundings.
    pub(crate) is_of_chosen: bool,
    /// True if the architecture's authors round the weights to the type of activations.
    pub(crate) is_rounded: bool,
}

/// Order in which the outputs of the chosen experts are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertOrder {
    /// Order of the experts' indices.
    Numbers,
    /// Largest weight first; equal weights by ascending index.
    Weights,
}

impl ExpertOrder {
    /// Returns the indices of a row of weights in this order.
    pub(crate) fn of(self, weights: &[f32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        if self == ExpertOrder::Weights {
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
        }
        order
    }
}

/// Chooses the `used` likeliest experts of each token, lowest indices first on ties: `[T, E]` to `[T, k]`, ascending.
pub(crate) fn choose(likelihoods: &Tensor, used: usize) -> Tensor {
    let of_token = |token: usize| {
        let mut chosen = ExpertOrder::Weights.of(likelihoods.row(token));
        chosen.truncate(used);
        chosen.sort_unstable();
        chosen.into_iter().map(|expert| expert as f32)
    };
    Tensor::new(&[likelihoods.rows(), used], (0..likelihoods.rows()).flat_map(of_token).collect())
}

/// Returns the likelihoods of the chosen experts: `[T, E]`, `[T, k]` to `[T, k]`.
pub(crate) fn of_chosen(likelihoods: &Tensor, chosen: &Tensor) -> Tensor {
    let of_token = |token: usize| {
        let all = likelihoods.row(token);
        chosen.row(token).iter().map(move |&expert| all[expert as usize])
    };
    Tensor::new(chosen.shape(), (0..chosen.rows()).flat_map(of_token).collect())
}

/// Divides each row by its `sum`.
pub(crate) fn normalised(weights: Tensor, sum: impl Fn(&[f32]) -> f32) -> Tensor {
    let (shape, width) = (weights.shape().to_vec(), weights.row_len());
    let mut data = weights.into_data();
    for row in data.chunks_mut(width) {
        let sum = sum(row);
        row.iter_mut().for_each(|weight| *weight /= sum);
    }
    Tensor::new(&shape, data)
}

/// Returns the entries of `[T, k]` by chosen expert, in order.
pub(crate) fn by_expert(chosen: &Tensor) -> Vec<(usize, Vec<usize>)> {
    let mut entries: Vec<(usize, usize)> =
        chosen.data().iter().enumerate().map(|(entry, &expert)| (expert as usize, entry)).collect();
    entries.sort_unstable();
    let of_expert = |group: &[(usize, usize)]| (group[0].0, group.iter().map(|(_, entry)| *entry).collect());
    entries.chunk_by(|one, other| one.0 == other.0).map(of_expert).collect()
}

/// Applies the chosen experts to each token: `[T, d]`, or `[T, k, d]` with an input for each expert, to `[T, k,
/// outputs]`. `product` multiplies rows by the matrix of an expert.
pub(crate) fn routed(
    x: &Tensor,
    chosen: &Tensor,
    outputs: usize,
    product: impl Fn(&Tensor, usize) -> Tensor,
) -> Tensor {
    let (tokens, used) = (chosen.rows(), chosen.row_len());
    let (each, width) = (row_of_each(x, used), x.shape().last().copied().unwrap_or(1));
    let mut data = vec![0.0; tokens * used * outputs];
    for (expert, entries) in by_expert(chosen) {
        let rows = entries.iter().flat_map(|&entry| &x.data()[each(entry) * width..][..width]);
        let rows = Tensor::new(&[entries.len(), width], rows.copied().collect());
        let made = product(&rows, expert);
        for (row, entry) in entries.into_iter().enumerate() {
            data[entry * outputs..][..outputs].copy_from_slice(made.row(row));
        }
    }
    Tensor::new(&[tokens, used, outputs], data)
}

/// Returns the row of `x` for each entry of `[T, k]`: the entry's own row, or its token's row.
pub(crate) fn row_of_each(x: &Tensor, used: usize) -> impl Fn(usize) -> usize + Copy + use<> {
    let per_row = if x.shape().len() == 3 { 1 } else { used };
    move |entry| entry / per_row
}

/// Computes the weighted sum over the chosen experts, and rounds each product and each partial sum: `[T, k, d]`, `[T,
/// k]` to `[T, d]`.
pub(crate) fn mixed(
    outputs: &Tensor,
    weights: &Tensor,
    order: ExpertOrder,
    round: impl Fn(f32) -> f32 + Sync,
) -> Tensor {
    let width = outputs.shape()[2];
    let mut data = vec![0.0; outputs.rows() * width];
    let used = outputs.shape()[1];
    parallel::chunks(&mut data, width, 4 * used * width, |token, out| {
        let (weights, all) = (weights.row(token), outputs.row(token));
        for (nth, at) in order.of(weights).into_iter().enumerate() {
            for (out, &value) in out.iter_mut().zip(&all[at * width..][..width]) {
                let product = round(value * weights[at]);
                *out = if nth == 0 { product } else { round(*out + product) };
            }
        }
    });
    Tensor::new(&[outputs.rows(), width], data)
}
