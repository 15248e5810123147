//! Columns of the rows of a tensor.

use crate::numerics::Numerics;
use crate::tensor::Tensor;

/// Returns `width` columns of each row, starting at column `first`.
pub(crate) fn columns(n: &dyn Numerics, x: &Tensor, first: usize, width: usize) -> Tensor {
    let all = x.shape().last().copied().unwrap_or(1);
    let mut shape = x.shape().to_vec();
    shape.pop();
    shape.push(width);
    n.rearranged(&[x], &shape, &|flat| (0, flat / width * all + first + flat % width))
}

/// Joins the rows of several tensors.
pub(super) fn joined(n: &dyn Numerics, parts: &[Tensor]) -> Tensor {
    let widths: Vec<usize> = parts.iter().map(Tensor::row_len).collect();
    let (rows, width) = (parts.first().map_or(0, Tensor::rows), widths.iter().sum::<usize>());
    let from = |flat: usize| {
        let (row, mut column) = (flat / width, flat % width);
        let mut part = 0;
        while column >= widths[part] {
            column -= widths[part];
            part += 1;
        }
        (part, row * widths[part] + column)
    };
    n.rearranged(&parts.iter().collect::<Vec<_>>(), &[rows, width], &from)
}
