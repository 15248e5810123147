//! Bytes of tensors, from storages and strides.

use std::ops::Range;

use bytes::Bytes;

use super::super::escape::EscapedText;
use super::super::stored_bytes;
use super::FileBytes;
use super::archive::Archive;
use super::value::{PickleTensor, StridedAxis};
use crate::error::Result;
use crate::lazy_bytes::LazyBytes;
use crate::weight::{DType, StoredTensor};

/// Creates tensors from the storages of an archive.
pub(super) struct Layouts<'s> {
    archive: Archive<'s>,
    /// Number of bytes that may still be copied. Tensors can share a storage, or repeat one element, so a small file
    /// could otherwise require more memory than there is.
    budget: usize,
}

impl<'s> Layouts<'s> {
    pub(crate) fn new(archive: Archive<'s>) -> Self {
        let budget = archive.source.data.len();
        Self { archive, budget }
    }

    /// Returns a tensor's elements in row-major order: a view if the file stores them in that order, otherwise a copy.
    pub(crate) fn stored(
        &mut self,
        pickle: &FileBytes,
        name: EscapedText,
        tensor: &PickleTensor,
    ) -> Result<StoredTensor> {
        let PickleTensor { at, dtype, ref axes, offset, .. } = *tensor;
        let storage = self.storage(pickle, name, tensor)?;
        let shape: Vec<usize> = axes.iter().map(|axis| axis.size).collect();
        let Some(len) = stored_bytes(dtype, &shape) else {
            return Err(pickle.bad_tensor(name, at, "shape", "too large", "a size that fits in memory"));
        };
        let element = dtype.block_bytes();
        let Some(span) = span(offset, axes).filter(|span| span.end <= storage.len() / element) else {
            let expected = format_args!("positions in a storage of {} elements", storage.len() / element);
            return Err(pickle.bad_tensor(name, at, "offset and strides", "past the end", expected));
        };
        let view = storage.slice(span.start * element..span.end * element);
        if is_row_major(axes) {
            return Ok(StoredTensor { dtype, shape, data: view });
        }
        self.budget = self.budget.checked_sub(len).ok_or_else(|| {
            let expected = "tensors no larger than the file; save tensor.contiguous()";
            pickle.bad_tensor(name, at, "layout", "strided or repeated", expected)
        })?;
        Ok(StoredTensor { dtype, shape, data: gather(&view, element, axes, len).into() })
    }

    fn storage(&mut self, pickle: &FileBytes, name: EscapedText, tensor: &PickleTensor) -> Result<LazyBytes> {
        let storage = &tensor.storage;
        let bytes = self.archive.member(&format!("data/{}", storage.key))?;
        let announced = storage.dtype.unwrap_or(DType::U8).bytes_for(storage.elements);
        if announced == Some(bytes.len()) {
            return Ok(bytes);
        }
        let found = format_args!("{} elements", storage.elements);
        let expected = format_args!("the {} bytes of 'data/{}'", bytes.len(), EscapedText(storage.key));
        Err(pickle.bad_tensor(name, tensor.at, "storage", found, expected))
    }
}

/// Returns the range from the first to the last element, or `None` on overflow.
fn span(offset: usize, axes: &[StridedAxis]) -> Option<Range<usize>> {
    if axes.iter().any(|axis| axis.size == 0) {
        return Some(offset..offset);
    }
    let last = axes
        .iter()
        .try_fold(offset, |last, axis| last.checked_add((axis.size - 1).checked_mul(axis.stride)?));
    Some(offset..last?.checked_add(1)?)
}

/// Returns true if the tensor is stored in row-major order. The stride of an axis with at most one entry does not
/// matter.
fn is_row_major(axes: &[StridedAxis]) -> bool {
    let mut inside = 1;
    let mut fits = |axis: &StridedAxis| {
        let fits = axis.size == 1 || axis.stride == inside;
        inside *= axis.size;
        fits
    };
    axes.iter().any(|axis| axis.size == 0) || axes.iter().rev().all(&mut fits)
}

/// Copies the elements of a strided view, with the last axis fastest. `len` is the length of the result.
fn gather(view: &[u8], element: usize, axes: &[StridedAxis], len: usize) -> Bytes {
    let mut gathered = Vec::with_capacity(len);
    let mut index = vec![0; axes.len()];
    while gathered.len() < len {
        let place: usize = axes.iter().zip(&index).map(|(axis, index)| axis.stride * index).sum();
        gathered.extend_from_slice(&view[place * element..][..element]);
        advance(&mut index, axes);
    }
    gathered.into()
}

/// Advances to the next index in row-major order.
fn advance(index: &mut [usize], axes: &[StridedAxis]) {
    for (digit, axis) in index.iter_mut().zip(axes).rev() {
        *digit += 1;
        if *digit < axis.size {
            return;
        }
        *digit = 0;
    }
}
