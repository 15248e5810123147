//! Columns of the rows of a tensor.

use crate::numerics::Numerics;
use crate::tensor::Tensor;

/// Returns `width` columns of each row from `first` on.
pub(super) fn columns(n: &dyn Numerics, x: &Tensor, first: usize, width: usize) -> Tensor {
    let all = x.shape().last().copied().unwrap_or(1);
    let mut shape = x.shape().to_vec();
    shape.pop();
    shape.push(width);
    n.rearranged(&[x], &shape, &|flat| (0, flat / width * all + first + flat % width))
}
