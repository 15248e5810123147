//! Parallel elementwise operations.

use crate::parallel;
use crate::tensor::Tensor;

/// Number of values that one thread takes at a time.
const PIECE: usize = 4096;

/// Computes `f(a, b)`, element by element.
///
/// # Panics
/// If the shapes differ.
pub fn zip(a: &Tensor, b: &Tensor, f: impl Fn(f32, f32) -> f32 + Sync) -> Tensor {
    assert_eq!(a.shape(), b.shape(), "only tensors of one shape go together");
    let mut data = vec![0.0; a.data().len()];
    parallel::chunks(&mut data, PIECE, PIECE, |piece, out| {
        let values = a.data()[piece * PIECE..].iter().zip(&b.data()[piece * PIECE..]);
        out.iter_mut().zip(values).for_each(|(out, (&a, &b))| *out = f(a, b));
    });
    Tensor::new(a.shape(), data)
}

/// Applies `f` to pieces of `x`. `f` writes as many values as it reads.
pub(crate) fn piecewise(x: &Tensor, f: impl Fn(&[f32], &mut [f32]) + Sync) -> Tensor {
    let mut data = vec![0.0; x.data().len()];
    parallel::chunks(&mut data, PIECE, PIECE, |piece, out| f(&x.data()[piece * PIECE..][..out.len()], out));
    Tensor::new(x.shape(), data)
}

/// Adds a bias to every row, if there is one.
pub(crate) fn plus_bias(x: Tensor, bias: Option<&[f32]>) -> Tensor {
    match bias {
        Some(bias) => per_column(x, bias.iter().copied(), |x, bias| x + bias),
        None => x,
    }
}

/// Computes `f(x, v)` for every value of every row, where the rows of `x` are as long as `v`.
///
/// # Panics
/// If the number of values is not a multiple of the row length.
pub fn per_column(x: Tensor, v: impl IntoIterator<Item = f32>, f: impl Fn(f32, f32) -> f32 + Sync) -> Tensor {
    let (shape, v) = (x.shape().to_vec(), v.into_iter().collect::<Vec<_>>());
    assert!(x.data().len().is_multiple_of(v.len()), "rows of {} in {shape:?}", v.len());
    let mut data = x.into_data();
    parallel::chunks(&mut data, v.len(), v.len(), |_, row| {
        row.iter_mut().zip(&v).for_each(|(x, &v)| *x = f(*x, v));
    });
    Tensor::new(&shape, data)
}
