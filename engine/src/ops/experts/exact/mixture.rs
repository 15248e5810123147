//! Exact evaluation of the weighted sum of experts' outputs.

use crate::exact::dot::dot;
use crate::exact::input::{InputTensor, InputValues};
use crate::exact::value::{K, U};
use crate::exact::{Choice, ExactValue, Float, Operation, Profile};
use crate::tensor::Tensor;

/// The weighted sum of the chosen experts' outputs: `[T, k, d]`, `[T, k]` to `[T, d]`.
pub(crate) struct ExpertMixture {
    /// `[T, k, d]`
    pub(crate) outputs: Tensor,
    /// `[T, k]`
    pub(crate) weights: Tensor,
    /// Scores by which experts are chosen, `[T, k]`. They decide the order of the sum.
    pub(crate) scores: Tensor,
    /// True if the architecture's authors round only the sum. Other engines may round products and partial sums.
    pub(crate) is_whole: bool,
}

impl Operation for ExpertMixture {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let &[_, used, width] = self.outputs.shape() else { panic!("outputs are [T, k, d]") };
        let (outputs, weights) =
            (InputTensor::of(&self.outputs, profile), InputTensor::of(&self.weights, profile));
        let is_rounded = [profile.weighted, profile.mixed] != [Float::F32; 2];
        let one = |&flat: &usize| {
            let (token, column) = (flat / width, flat % width);
            let product = |slot: usize| {
                let (weight, output) =
                    (weights.get(token * used + slot), outputs.get((token * used + slot) * width + column));
                weight.times(output)
            };
            let whole: Vec<ExactValue> = (0..used).map(product).collect();
            if !is_rounded {
                return sum(&whole);
            }
            let terms: Vec<ExactValue> = whole.iter().map(|term| term.rounded(profile.weighted)).collect();
            let mixed = match profile.mixed {
                Float::F32 => sum(&terms),
                short => sum_in(short, &terms),
            };
            if self.is_whole { mixed.or(sum(&whole)) } else { mixed }
        };
        wanted.iter().map(one).collect()
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::Weighted, Choice::Mixed]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.outputs, &self.weights]
    }
}

/// Sums the terms, for any order of summation.
fn sum(terms: &[ExactValue]) -> ExactValue {
    dot(
        &InputValues::new(terms.iter().copied()),
        &InputValues::new(terms.iter().map(|_| ExactValue::sure(1.0))),
    )
}

/// Sums expert after expert in index order, and rounds each partial sum.
fn sum_in(short: Float, terms: &[ExactValue]) -> ExactValue {
    let add = |sum: ExactValue, term: &ExactValue| {
        let value = sum.value + term.value;
        ExactValue { value, sigma: sum.sigma.hypot(term.sigma), radius: sum.radius + term.radius }
            .moved(K * U * value.abs(), U * value.abs())
            .rounded(short)
    };
    let (first, rest) = terms.split_first().expect("each token chooses at least one expert");
    rest.iter().fold(*first, add)
}
