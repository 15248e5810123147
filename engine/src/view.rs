//! Numbers where they lie, in the type in which they lie, seen in another order: axes, parts and pairs are matters of the
//! index, and nothing is copied.

mod decoding;
mod float8;
mod order;

#[cfg(target_arch = "x86_64")]
pub(crate) use decoding::halves;
pub(crate) use decoding::{brain, half};
pub use order::orders;

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

/// An array of plain numbers, row-major as it is seen; a row runs along the last axis.
///
/// It is one stored array, or several behind each other along an axis. Its elements may have scales, which are seen as they
/// are: an element is what is stored times its scale.
#[derive(Clone, Debug)]
pub struct View<'a> {
    shape: Vec<usize>,
    /// Along which axis the parts lie behind each other: never the last, unless there is one part.
    axis: usize,
    parts: Vec<StoredArray<'a>>,
    /// Scales of the same shape, which have no scales themselves.
    scales: Option<Box<View<'a>>>,
}

/// A stored array that a view covers.
#[derive(Clone, Debug)]
struct StoredArray<'a> {
    /// Start along the axis of the parts.
    first: usize,
    dtype: DType,
    bytes: ArrayBytes<'a>,
    /// The element at index 0 of every axis.
    start: usize,
    /// Strides of the axes, in elements.
    strides: Vec<usize>,
    /// Indices of the last axis's entries, if not consecutive.
    order: Option<Arc<[usize]>>,
    /// Number of entries of the last axis that exist: the others are zero.
    columns: usize,
    /// True if the view has the order of the memory.
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
    /// Numbers of more digits than `f32` are rounded.
    fn from(view: &View<'_>) -> Self {
        let width = view.width();
        Tensor::from_rows(view.rows(), width, |row, out| view.read_rounded(row, 0..width, out))
            .reshaped(view.shape())
    }
}

impl View<'static> {
    /// An array as a file holds it, little-endian; `None` if `bytes` are not that many elements, or these are no plain
    /// numbers that `f64` represents exactly, whatever they are.
    pub fn stored(shape: &[usize], dtype: DType, bytes: impl Into<LazyBytes>) -> Option<Self> {
        let bytes = bytes.into();
        is_exact(dtype, &bytes).then_some(())?;
        let elements = shape.iter().try_fold(1usize, |size, &length| size.checked_mul(length))?;
        (elements.checked_mul(dtype.block_bytes())? == bytes.len()).then_some(())?;
        Some(Self::new(shape, dtype, ArrayBytes::Shared(bytes)))
    }

    /// Numbers that nobody else has.
    ///
    /// # Panics
    /// As [`View::of`].
    pub fn owned(shape: &[usize], values: Vec<f64>) -> Self {
        struct VecOwner(Vec<f64>);
        impl AsRef<[u8]> for VecOwner {
            fn as_ref(&self) -> &[u8] {
                self.0.as_bytes()
            }
        }
        assert_eq!(shape.iter().product::<usize>(), values.len(), "shape {shape:?} against its values");
        Self::new(shape, DType::F64, ArrayBytes::Shared(Bytes::from_owner(VecOwner(values)).into()))
    }
}

impl<'a> View<'a> {
    /// Numbers at hand.
    ///
    /// # Panics
    /// If the shape does not hold exactly so many.
    pub fn of(shape: &[usize], values: &'a [f64]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "shape {shape:?} against its values");
        Self::new(shape, DType::F64, ArrayBytes::Borrowed(values.as_bytes()))
    }

    /// A list of token ids.
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
        View::owned(&[], vec![value]).spread(shape).expect("one number is of any shape")
    }

    /// Multiplies each element by its scale.
    ///
    /// # Panics
    /// If there are not as many scales, seen alike, or elements have scales already.
    pub fn scaled(self, scales: Self) -> Self {
        assert!(
            self.shape == scales.shape && self.scales.is_none(),
            "one scale for each of {:?}",
            self.shape
        );
        Self { scales: Some(Box::new(scales)), ..self }
    }

    /// The scale of each element, if any has one other than 1.
    pub fn scales(&self) -> Option<&Self> {
        self.scales.as_deref()
    }

    /// Length of each axis, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.len().checked_div(self.width()).unwrap_or(0)
    }

    /// The part that holds a row, and the element with which it begins there.
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
    /// If there is no such row, or there are no such entries.
    pub fn read(&self, row: usize, columns: Range<usize>, out: &mut [f64]) {
        self.read_stored(row, columns.clone(), out);
        if let Some(scales) = &self.scales {
            let mut of_each = vec![0.0; columns.len()];
            scales.read_stored(row, columns, &mut of_each);
            out.iter_mut().zip(of_each).for_each(|(out, scale)| *out *= scale);
        }
    }

    /// Entries of a row as `f32`: numbers of more digits are rounded.
    ///
    /// # Panics
    /// As [`View::read`].
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

    /// Entries of a row as they are stored, with their type, where they lie one behind the other and have no scales.
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

    /// Entries of a row where they lie one behind the other as `f32`.
    pub fn stored_f32(&self, row: usize, columns: Range<usize>) -> Option<&[[u8; 4]]> {
        let (dtype, bytes) = self.raw(row, columns)?;
        (dtype == DType::F32).then_some(bytes.as_chunks().0)
    }

    /// Returns the elements as `f32`; those of a shorter type are widened into `room`.
    pub fn as_f32<'r>(
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

    /// Entries of a row that is stored in `f64`, where they lie, or widened into `room`.
    ///
    /// # Panics
    /// As [`View::read`].
    pub fn as_f64<'r>(&'r self, row: usize, columns: Range<usize>, room: &'r mut [f64]) -> &'r [[u8; 8]] {
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

    /// The elements of rows, one row behind the other.
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

    /// Runs of `len` elements in another order: run `order[i]` of these comes to place i. They are copied.
    ///
    /// # Panics
    /// If there is no such run, or rows are not whole in runs.
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

    /// Gives back the memory of what was read, if it is of a mapped file.
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
    /// Elements that lie one behind the other.
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
