//! Views of stored numbers, in their stored type but in another order. Permuting axes, joining parts and splitting
//! pairs changes only the index; nothing is copied.

mod decoding;
mod float8;
mod order;

#[cfg(target_arch = "x86_64")]
pub(crate) use decoding::halves;
pub(crate) use decoding::{brain, half};
pub use order::orders;

/// Returns the number of each bit pattern of an 8-bit floating type.
pub(crate) fn float8_values(dtype: DType) -> &'static [f64; 256] {
    if dtype == DType::F8_E5M2 { &float8::E5M2 } else { &float8::E4M3 }
}

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use zerocopy::IntoBytes;

use crate::lazy_bytes::LazyBytes;
use crate::tensor::Tensor;
use crate::view::decoding::{decode, decode_short, is_exact, is_short};
use crate::weight::DType;

#[cfg(target_endian = "big")]
compile_error!("files hold little-endian numbers, and are read where they lie");

/// An array of plain numbers, row-major in the order of the view; a row runs along the last axis.
///
/// A view has one stored array, or several that are concatenated along an axis. Elements may have scales: an element's
/// value is the stored number times its scale.
#[derive(Clone, Debug)]
pub struct View<'a> {
    shape: Vec<usize>,
    /// Axis along which the parts are concatenated: never the last, unless there is one part.
    axis: usize,
    parts: Vec<StoredArray<'a>>,
    /// Scales of the same shape, which have no scales themselves.
    scales: Option<Box<View<'a>>>,
}

/// A stored array that a view covers.
#[derive(Clone, Debug)]
struct StoredArray<'a> {
    /// Index of the part's first element along the axis on which the parts are concatenated.
    first: usize,
    dtype: DType,
    bytes: ArrayBytes<'a>,
    /// Index in storage of the element whose indices are all 0.
    start: usize,
    /// Strides of the axes, in elements.
    strides: Vec<usize>,
    /// Indices of the last axis's entries, if not consecutive.
    order: Option<Arc<[usize]>>,
    /// Number of stored entries of the last axis. Later entries are zero.
    columns: usize,
    /// True if the view has the order of the stored array.
    is_plain: bool,
}

#[derive(Clone)]
enum ArrayBytes<'a> {
    Shared(LazyBytes),
    Borrowed(&'a [u8]),
}

impl fmt::Debug for ArrayBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArrayBytes::Shared(parts) => parts.fmt(f),
            ArrayBytes::Borrowed(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

impl ArrayBytes<'_> {
    fn at(&self, range: Range<usize>) -> &[u8] {
        match self {
            ArrayBytes::Shared(parts) => parts.at(range),
            ArrayBytes::Borrowed(bytes) => &bytes[range],
        }
    }
}

impl<'a> From<&'a Tensor> for View<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::new(tensor.shape(), DType::F32, ArrayBytes::Borrowed(tensor.data().as_bytes()))
    }
}

impl From<&View<'_>> for Tensor {
    /// Rounds numbers with more digits than `f32`.
    fn from(view: &View<'_>) -> Self {
        let width = view.width();
        Tensor::from_rows(view.rows(), width, |row, out| view.read_rounded(row, 0..width, out))
            .reshaped(view.shape())
    }
}

impl View<'static> {
    /// Creates a view of a stored array, little-endian. `None` if `bytes` has another number of elements, the elements
    /// are no plain numbers that `f64` represents exactly, or the strides of an empty array overflow.
    pub fn stored(shape: &[usize], dtype: DType, bytes: impl Into<LazyBytes>) -> Option<Self> {
        let bytes = bytes.into();
        is_exact(dtype, &bytes).then_some(())?;
        let elements = shape.iter().try_fold(1usize, |size, &length| size.checked_mul(length))?;
        (elements.checked_mul(dtype.block_bytes())? == bytes.len()).then_some(())?;
        shape.iter().try_fold(1usize, |size, &length| size.checked_mul(length.max(1)))?;
        Some(Self::new(shape, dtype, ArrayBytes::Shared(bytes)))
    }

    /// Creates a view that owns its numbers.
    ///
    /// # Panics
    /// See [`View::of`].
    pub fn owned(shape: &[usize], values: Vec<f64>) -> Self {
        struct VecOwner(Vec<f64>);
        impl AsRef<[u8]> for VecOwner {
            fn as_ref(&self) -> &[u8] {
                self.0.as_bytes()
            }
        }
        assert_eq!(
            shape.iter().product::<usize>(),
            values.len(),
            "shape {shape:?} must match the number of values"
        );
        Self::new(shape, DType::F64, ArrayBytes::Shared(Bytes::from_owner(VecOwner(values)).into()))
    }
}

impl<'a> View<'a> {
    /// Creates a view of numbers in memory.
    ///
    /// # Panics
    /// If the shape has another number of elements.
    pub fn of(shape: &[usize], values: &'a [f64]) -> Self {
        assert_eq!(
            shape.iter().product::<usize>(),
            values.len(),
            "shape {shape:?} must match the number of values"
        );
        Self::new(shape, DType::F64, ArrayBytes::Borrowed(values.as_bytes()))
    }

    /// Creates a view of a list of token ids.
    pub fn of_tokens(ids: &'a [u32]) -> Self {
        Self::new(&[ids.len()], DType::U32, ArrayBytes::Borrowed(ids.as_bytes()))
    }

    fn new(shape: &[usize], dtype: DType, bytes: ArrayBytes<'a>) -> Self {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        let columns = shape.last().copied().unwrap_or(1);
        let part =
            StoredArray { first: 0, dtype, bytes, start: 0, strides, order: None, columns, is_plain: true };
        Self { shape: shape.to_vec(), axis: 0, parts: vec![part], scales: None }
    }

    /// Creates an array of one repeated number.
    pub fn constant(shape: &[usize], value: f64) -> View<'static> {
        View::owned(&[], vec![value]).spread(shape).expect("one number broadcasts to any shape")
    }

    /// Multiplies each element by its scale.
    ///
    /// # Panics
    /// If the scales have another shape, or the elements have scales already.
    pub fn scaled(self, scales: Self) -> Self {
        assert!(
            self.shape == scales.shape && self.scales.is_none(),
            "one scale for each of {:?}",
            self.shape
        );
        Self { scales: Some(Box::new(scales)), ..self }
    }

    /// Returns the scale of each element, if any scale differs from 1.
    pub fn scales(&self) -> Option<&Self> {
        self.scales.as_deref()
    }

    /// Returns the length of each axis, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of elements in a row.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.len().checked_div(self.width()).unwrap_or(0)
    }

    /// Returns the part that contains a row, and the index of the row's first element.
    fn row(&self, row: usize) -> (&StoredArray<'a>, usize) {
        if let [part] = self.parts.as_slice()
            && part.is_plain
        {
            return (part, part.start + row * self.width());
        }
        let outer = self.shape.len().saturating_sub(1);
        let index = |axis: usize| {
            let inside: usize = self.shape[axis + 1..outer].iter().product();
            row / inside % self.shape[axis]
        };
        let along = if self.axis < outer { index(self.axis) } else { 0 };
        let part = &self.parts[self.parts.partition_point(|part| part.first <= along) - 1];
        let offset = |axis: usize| {
            let first = if axis == self.axis { part.first } else { 0 };
            (index(axis) - first) * part.strides[axis]
        };
        (part, part.start + (0..outer).map(offset).sum::<usize>())
    }

    /// Widens entries of a row to `f64`.
    ///
    /// # Panics
    /// If the row or the columns do not exist.
    pub fn read(&self, row: usize, columns: Range<usize>, out: &mut [f64]) {
        self.read_stored(row, columns.clone(), out);
        if let Some(scales) = &self.scales {
            let mut of_each = vec![0.0; columns.len()];
            scales.read_stored(row, columns, &mut of_each);
            out.iter_mut().zip(of_each).for_each(|(out, scale)| *out *= scale);
        }
    }

    /// Reads entries of a row as `f32`; numbers with more digits are rounded.
    ///
    /// # Panics
    /// See [`View::read`].
    pub fn read_rounded(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        if let Some((dtype, bytes)) = self.raw(row, columns.clone())
            && is_short(dtype)
        {
            return decode_short(dtype, bytes, out);
        }
        let mut wide = vec![0.0; columns.len()];
        self.read(row, columns, &mut wide);
        out.iter_mut().zip(wide).for_each(|(out, value)| *out = value as f32);
    }

    fn read_stored(&self, row: usize, columns: Range<usize>, out: &mut [f64]) {
        let (part, start) = self.row(row);
        let there = part.columns.clamp(columns.start, columns.end) - columns.start;
        let (found, filled) = out[..columns.len()].split_at_mut(there);
        filled.fill(0.0);
        let stride = part.strides.last().copied().unwrap_or(1);
        match &part.order {
            _ if found.is_empty() => {}
            None if stride == 1 => part.decode(start + columns.start, found),
            None if stride == 0 => found.fill(part.element(start)),
            order => {
                let at = |column: usize| order.as_ref().map_or(column, |order| order[column]);
                let values = columns.zip(found);
                values.for_each(|(column, out)| *out = part.element(start + at(column) * stride));
            }
        }
    }

    /// Returns stored entries of a row with their type, if they are contiguous and have no scales.
    pub fn raw(&self, row: usize, columns: Range<usize>) -> Option<(DType, &[u8])> {
        if self.scales.is_some() {
            return None;
        }
        let (part, start) = self.row(row);
        let lies = part.order.is_none() && part.strides.last().is_none_or(|&stride| stride == 1);
        let size = part.dtype.block_bytes();
        let bytes = |at: usize| (start + at) * size;
        (lies && columns.end <= part.columns)
            .then(|| (part.dtype, part.bytes.at(bytes(columns.start)..bytes(columns.end))))
    }

    /// Returns entries of a row, if they are contiguous and stored as `f32`.
    pub(crate) fn stored_f32(&self, row: usize, columns: Range<usize>) -> Option<&[[u8; 4]]> {
        let (dtype, bytes) = self.raw(row, columns)?;
        (dtype == DType::F32).then_some(bytes.as_chunks().0)
    }

    /// Returns the elements as `f32`; a smaller type is widened into `room`.
    pub(crate) fn as_f32<'r>(
        &'r self,
        row: usize,
        columns: Range<usize>,
        room: &'r mut [f32],
    ) -> Option<&'r [[u8; 4]]> {
        let room = &mut room[..columns.len()];
        self.stored_f32(row, columns.clone()).or_else(|| {
            let (dtype, bytes) = self.raw(row, columns).filter(|(dtype, _)| is_short(*dtype))?;
            decode_short(dtype, bytes, room);
            Some(room.as_bytes().as_chunks().0)
        })
    }

    /// Returns entries of a row as `f64`. If they are stored as contiguous `f64`, returns the stored bytes, otherwise
    /// values that are widened into `room`.
    ///
    /// # Panics
    /// See [`View::read`].
    pub(crate) fn as_f64<'r>(
        &'r self,
        row: usize,
        columns: Range<usize>,
        room: &'r mut [f64],
    ) -> &'r [[u8; 8]] {
        let count = columns.len();
        if let Some((DType::F64, bytes)) = self.raw(row, columns.clone()) {
            return bytes.as_chunks().0;
        }
        self.read(row, columns, room);
        room[..count].as_bytes().as_chunks().0
    }

    /// Returns one element by its flat index, row-major in the order of the view.
    pub fn get(&self, flat: usize) -> f64 {
        let mut value = [0.0];
        let (row, column) = (flat / self.width(), flat % self.width());
        self.read(row, column..column + 1, &mut value);
        value[0]
    }

    /// Reads the elements of several rows, concatenated.
    pub fn read_rows(&self, rows: Range<usize>, out: &mut [f64]) {
        let width = self.width();
        match self.parts.as_slice() {
            [part] if part.is_plain && self.scales.is_none() => {
                part.decode(part.start + rows.start * width, &mut out[..rows.len() * width])
            }
            _ => rows.zip(out.chunks_mut(width.max(1))).for_each(|(row, out)| self.read(row, 0..width, out)),
        }
    }

    /// Returns all elements, widened.
    pub fn to_vec(&self) -> Vec<f64> {
        let mut values = vec![0.0; self.len()];
        self.read_rows(0..self.rows(), &mut values);
        values
    }

    /// Copies the elements in another order. Runs of `len` elements stay together: run `order[i]` becomes run `i`.
    ///
    /// # Panics
    /// If a run does not exist, or a row is not a whole number of runs.
    pub fn with_runs(&self, order: &[usize], len: usize) -> View<'static> {
        let width = self.width();
        let mut values = vec![0.0; self.len()];
        for (out, &run) in values.chunks_mut(len).zip(order) {
            for (out, first) in out.chunks_mut(width).zip((run * len..(run + 1) * len).step_by(width)) {
                self.read_stored(first / width, first % width..first % width + out.len(), out);
            }
        }
        let moved = View::owned(&self.shape, values);
        match &self.scales {
            Some(scales) => moved.scaled(scales.with_runs(order, len)),
            None => moved,
        }
    }

    /// Releases the memory of mapped files.
    pub fn release(&self) {
        for part in &self.parts {
            if let ArrayBytes::Shared(parts) = &part.bytes {
                parts.release();
            }
        }
        self.scales.iter().for_each(|scales| scales.release());
    }
}

impl StoredArray<'_> {
    /// Decodes contiguous elements.
    fn decode(&self, start: usize, out: &mut [f64]) {
        let size = self.dtype.block_bytes();
        let bytes = self.bytes.at(start * size..(start + out.len()) * size);
        decode(self.dtype, bytes, out);
    }

    fn element(&self, at: usize) -> f64 {
        let mut value = [0.0];
        self.decode(at, &mut value);
        value[0]
    }
}
