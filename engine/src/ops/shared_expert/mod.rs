//! The shared expert of a mixture (Dai et al., 2024), which every token uses in addition to its chosen experts:
//! `routed + weight · output`, or `routed + output`. `[T, d]` twice and `[T]` to `[T, d]`.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::parallel;
use crate::tensor::Tensor;

/// Adds the shared expert's outputs to the sum over the chosen experts, `[T, d]` twice. `weights`, `[T]`, multiply the
/// outputs first. `round` is applied to each product and each sum.
pub(crate) fn added(
    routed: &Tensor,
    outputs: &Tensor,
    weights: Option<&Tensor>,
    round: impl Fn(f32) -> f32 + Sync,
) -> Tensor {
    let width = outputs.row_len();
    let mut data = outputs.data().to_vec();
    parallel::chunks(&mut data, width, width, |token, out| {
        let weight = weights.map(|weights| weights.data()[token]);
        for (out, &routed) in out.iter_mut().zip(routed.row(token)) {
            let product = weight.map_or(*out, |weight| round(weight * *out));
            *out = round(routed + product);
        }
    });
    Tensor::new(outputs.shape(), data)
}
