//! Mixtures of experts (Shazeer et al., 2017): choice of experts, products with their matrices, and the weighted sum of
//! their outputs.
//!
//! T = tokens, E = experts, k = experts that each token chooses. A token's experts are in ascending index order,
//! regardless of the engine's own order, so that engines can be compared.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::parallel;
use crate::tensor::Tensor;

/// Rules for the choice of experts and for their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertRouting {
    /// Number of experts per token.
    pub used: usize,
    /// Arithmetic of the router's logits.
    pub(crate) precision: RouterPrecision,
    /// Function of the logits that gives each expert's score.
    pub(crate) function: ScoreFunction,
    /// Correction bias of each expert, `[E]`. It is added to the scores only for the choice. Empty without one.
    pub(crate) bias: Vec<f32>,
    /// Groups of experts, if a token may choose from some groups only.
    pub(crate) groups: Option<ExpertGroups>,
    /// Factor of the weights, applied after they are divided by their sum.
    pub(crate) scale: f32,
    /// Additional factor of each expert's weight, `[E]`. Empty without such factors.
    pub(crate) scales: Vec<f32>,
    /// Constant that is added to the sum of weights before the weights are divided by it.
    pub(crate) added: f32,
    /// True if the weights are divided by their sum.
    pub(crate) is_normalised: bool,
    /// True if experts are chosen by their logits, and the score function reads only the logits of the chosen experts.
    /// For softmax, the result then differs only by rounding from the weights of all experts divided by the sum of the
    /// chosen ones.
    pub(crate) is_of_chosen: bool,
    /// True if the architecture's authors round the weights to the type of activations.
    pub(crate) is_rounded: bool,
    /// True if the architecture's authors round only the weighted sum, not its products and partial sums.
    pub(crate) mixes_whole: bool,
    /// True if the architecture's authors also round the scores, before the bias is added, and the sum of the weights.
    pub(crate) rounds_scores: bool,
}

/// Function of a router's logits that gives each expert's score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreFunction {
    /// Softmax over all experts.
    Softmax,
    /// The logistic function of each logit.
    Sigmoid,
}

/// Arithmetic in which the architecture's authors compute the router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterPrecision {
    /// Like all products: logits are rounded to the type of activations.
    Activations,
    /// Logits are not rounded.
    Unrounded,
    /// Neither logits nor the router's weights are rounded.
    Whole,
}

/// Groups of neighbouring experts. Each token chooses from the groups with the largest scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that a token chooses from.
    pub used: usize,
    /// Number of a group's largest scores whose sum is the group's score.
    pub summed: usize,
}

impl ExpertGroups {
    /// Returns the scores of the groups: `[E]` to the number of groups.
    pub fn scores(&self, scores: &[f32]) -> Vec<f32> {
        let of_group = |group: &[f32]| {
            let order = ExpertOrder::Scores.of(group);
            order.iter().take(self.summed).map(|&at| group[at]).sum()
        };
        scores.chunks((scores.len() / self.count).max(1)).map(of_group).collect()
    }

    /// Returns a flag for each group that is true if a token chooses from it.
    pub fn chosen(&self, scores: &[f32]) -> Vec<bool> {
        let mut chosen = vec![false; self.count];
        let order = ExpertOrder::Scores.of(&self.scores(scores));
        order.into_iter().take(self.used).for_each(|group| chosen[group] = true);
        chosen
    }

    /// Replaces the scores of experts in all other groups by negative infinity.
    fn masked(&self, scores: &[f32]) -> Vec<f32> {
        let (chosen, size) = (self.chosen(scores), (scores.len() / self.count).max(1));
        let masked = |(expert, &score): (usize, &f32)| match chosen.get(expert / size) {
            Some(true) => score,
            _ => f32::NEG_INFINITY,
        };
        scores.iter().enumerate().map(masked).collect()
    }
}

impl ExpertRouting {
    /// Returns true if experts are not chosen by the plain softmax of the logits.
    pub(crate) fn has_scores(&self) -> bool {
        let is_of_all = !self.is_of_chosen && self.function != ScoreFunction::Softmax;
        is_of_all || !self.bias.is_empty() || self.groups.is_some()
    }

    /// Returns true if experts are chosen by their logits, because only the chosen experts get scores.
    pub(crate) fn chooses_by_logits(&self) -> bool {
        self.is_of_chosen && self.function == ScoreFunction::Sigmoid
    }

    /// Adds the correction bias: `[T, E]` to `[T, E]`.
    pub(crate) fn biased(&self, scores: Tensor) -> Tensor {
        if self.bias.is_empty() {
            return scores;
        }
        let (shape, mut data) = (scores.shape().to_vec(), scores.into_data());
        for row in data.chunks_mut(self.bias.len()) {
            row.iter_mut().zip(&self.bias).for_each(|(score, bias)| *score += bias);
        }
        Tensor::new(&shape, data)
    }

    /// Multiplies weights by their factor: `[T, k]`.
    pub(crate) fn scaled(&self, weights: Tensor) -> Tensor {
        if self.scale == 1.0 { weights } else { weights.map(|weight| weight * self.scale) }
    }

    /// Multiplies weights by the factors of their experts. Both are `[T, k]`, and so is the result.
    pub(crate) fn scaled_each(&self, weights: Tensor, chosen: &Tensor) -> Tensor {
        if self.scales.is_empty() {
            return weights;
        }
        let (shape, mut data) = (weights.shape().to_vec(), weights.into_data());
        let experts = chosen.data().iter().map(|&expert| expert as usize);
        data.iter_mut().zip(experts).for_each(|(weight, expert)| *weight *= self.scales[expert]);
        Tensor::new(&shape, data)
    }
}

/// Order in which the outputs of the chosen experts are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertOrder {
    /// Order of the experts' indices.
    Numbers,
    /// Order of the scores by which experts are chosen, largest first; equal scores by ascending index.
    Scores,
}

impl ExpertOrder {
    /// Returns the indices of a row of weights in this order.
    pub(crate) fn of(self, weights: &[f32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        if self == ExpertOrder::Scores {
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
        }
        order
    }
}

/// Chooses the experts of each token with the largest scores, lowest indices first on ties: `[T, E]` to `[T, k]`,
/// ascending.
pub(crate) fn choose(scores: &Tensor, routing: &ExpertRouting) -> Tensor {
    let of_token = |token: usize| {
        let all = scores.row(token);
        let mut chosen = match &routing.groups {
            Some(groups) => ExpertOrder::Scores.of(&groups.masked(all)),
            None => ExpertOrder::Scores.of(all),
        };
        chosen.truncate(routing.used);
        chosen.sort_unstable();
        chosen.into_iter().map(|expert| expert as f32)
    };
    Tensor::new(&[scores.rows(), routing.used], (0..scores.rows()).flat_map(of_token).collect())
}

/// Returns the scores of the chosen experts: `[T, E]`, `[T, k]` to `[T, k]`.
pub(crate) fn of_chosen(scores: &Tensor, chosen: &Tensor) -> Tensor {
    let of_token = |token: usize| {
        let all = scores.row(token);
        chosen.row(token).iter().map(move |&expert| all[expert as usize])
    };
    Tensor::new(chosen.shape(), (0..chosen.rows()).flat_map(of_token).collect())
}

/// Divides each row by its sum, which `sum` computes.
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

/// Applies the chosen experts to each token. The input is `[T, d]`, or `[T, k, d]` with one input per expert; the
/// result is `[T, k, outputs]`. `product` multiplies rows by the matrix of an expert.
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

/// Returns the row of `x` that each entry of `[T, k]` reads: a row of its own, or its token's row.
pub(crate) fn row_of_each(x: &Tensor, used: usize) -> impl Fn(usize) -> usize + Copy + use<> {
    let per_row = if x.shape().len() == 3 { 1 } else { used };
    move |entry| entry / per_row
}

/// Computes the weighted sum over the chosen experts, and rounds each product and each partial sum: `[T, k, d]`, `[T,
/// k]` twice, to `[T, d]`. `scores` decide the order of the sum.
pub(crate) fn mixed(
    outputs: &Tensor,
    weights: &Tensor,
    scores: &Tensor,
    order: ExpertOrder,
    round: impl Fn(f32) -> f32 + Sync,
) -> Tensor {
    let width = outputs.shape()[2];
    let mut data = vec![0.0; outputs.rows() * width];
    let used = outputs.shape()[1];
    parallel::chunks(&mut data, width, 4 * used * width, |token, out| {
        let (weights, all) = (weights.row(token), outputs.row(token));
        for (nth, at) in order.of(scores.row(token)).into_iter().enumerate() {
            for (out, &value) in out.iter_mut().zip(&all[at * width..][..width]) {
                let product = round(value * weights[at]);
                *out = if nth == 0 { product } else { round(*out + product) };
            }
        }
    });
    Tensor::new(&[outputs.rows(), width], data)
}
