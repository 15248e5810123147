//! Numbers where they lie, in the type in which they lie, seen in another order: axes, parts and pairs are matters of the
//! index, and nothing is copied.

mod float8;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use multiversion::multiversion;
use zerocopy::IntoBytes;

use crate::parts::Parts;
use crate::tensor::Tensor;
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
    parts: Vec<Part<'a>>,
    /// Of the same shape, and without scales of its own.
    scales: Option<Box<View<'a>>>,
}

/// One stored array.
#[derive(Clone, Debug)]
struct Part<'a> {
    /// Where it begins along the axis of the parts.
    first: usize,
    dtype: DType,
    bytes: Raw<'a>,
    /// The element at index 0 of every axis.
    start: usize,
    /// From one entry of each axis to the next, in elements.
    strides: Vec<usize>,
    /// Where the entries of the last axis are, if not one behind the other.
    order: Option<Arc<[usize]>>,
    /// How many entries of the last axis there are: what follows is zero.
    columns: usize,
    /// Whether it lies as it is seen.
    is_plain: bool,
}

#[derive(Clone)]
enum Raw<'a> {
    Shared(Parts),
    Borrowed(&'a [u8]),
}

impl fmt::Debug for Raw<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Raw::Shared(parts) => parts.fmt(f),
            Raw::Borrowed(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

impl Raw<'_> {
    fn at(&self, range: Range<usize>) -> &[u8] {
        match self {
            Raw::Shared(parts) => parts.at(range),
            Raw::Borrowed(bytes) => &bytes[range],
        }
    }
}

/// Every order of so many axes, their own first.
pub fn orders(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..n {
        let longer = |order: Vec<usize>| {
            let next = (0..n).filter(|axis| !order.contains(axis)).collect::<Vec<_>>();
            next.into_iter().map(move |axis| [order.as_slice(), &[axis]].concat())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

impl<'a> From<&'a Tensor> for View<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::new(tensor.shape(), DType::F32, Raw::Borrowed(tensor.data().as_bytes()))
    }
}

impl From<&View<'_>> for Tensor {
    /// Numbers of more digits than `f32` are rounded.
    fn from(view: &View<'_>) -> Self {
        Tensor::new(view.shape(), view.to_vec().into_iter().map(|value| value as f32).collect())
    }
}

impl View<'static> {
    /// An array as a file holds it, little-endian; `None` if `bytes` are not that many elements, or these are no plain
    /// numbers that `f64` represents exactly, whatever they are.
    pub fn stored(shape: &[usize], dtype: DType, bytes: impl Into<Parts>) -> Option<Self> {
        let bytes = bytes.into();
        is_exact(dtype, &bytes).then_some(())?;
        let elements = shape.iter().try_fold(1usize, |size, &length| size.checked_mul(length))?;
        (elements.checked_mul(dtype.block_bytes())? == bytes.len()).then_some(())?;
        Some(Self::new(shape, dtype, Raw::Shared(bytes)))
    }

    /// Numbers that nobody else has.
    ///
    /// # Panics
    /// As [`View::of`].
    pub fn owned(shape: &[usize], values: Vec<f64>) -> Self {
        struct Owner(Vec<f64>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                self.0.as_bytes()
            }
        }
        assert_eq!(shape.iter().product::<usize>(), values.len(), "shape {shape:?} against its values");
        Self::new(shape, DType::F64, Raw::Shared(Bytes::from_owner(Owner(values)).into()))
    }
}

/// Whether elements of a type have an exact `f64`.
fn is_exact(dtype: DType, bytes: &Parts) -> bool {
    use DType::*;
    const LARGEST: u64 = 1 << f64::MANTISSA_DIGITS;
    match dtype {
        F64 | F32 | F16 | BF16 | F8_E4M3 | F8_E5M2 | I8 | I16 | I32 | U8 | U16 | U32 | BOOL => true,
        I64 => bytes.as_chunks().0.iter().all(|&bits| i64::from_le_bytes(bits).unsigned_abs() <= LARGEST),
        U64 => bytes.as_chunks().0.iter().all(|&bits| u64::from_le_bytes(bits) <= LARGEST),
        _ => false,
    }
}

impl<'a> View<'a> {
    /// Numbers at hand.
    ///
    /// # Panics
    /// If the shape does not hold exactly so many.
    pub fn of(shape: &[usize], values: &'a [f64]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "shape {shape:?} against its values");
        Self::new(shape, DType::F64, Raw::Borrowed(values.as_bytes()))
    }

    /// A list of token ids.
    pub fn of_tokens(ids: &'a [u32]) -> Self {
        Self::new(&[ids.len()], DType::U32, Raw::Borrowed(ids.as_bytes()))
    }

    fn new(shape: &[usize], dtype: DType, bytes: Raw<'a>) -> Self {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        let columns = shape.last().copied().unwrap_or(1);
        let part = Part { first: 0, dtype, bytes, start: 0, strides, order: None, columns, is_plain: true };
        Self { shape: shape.to_vec(), axis: 0, parts: vec![part], scales: None }
    }

    /// One number everywhere.
    pub fn constant(shape: &[usize], value: f64) -> View<'static> {
        View::owned(&[], vec![value]).spread(shape).expect("one number is of any shape")
    }

    /// Repeated along the axes that it lacks, and those in which it has one entry, as NumPy broadcasts; `None` if it
    /// does not fit.
    pub fn spread(mut self, shape: &[usize]) -> Option<Self> {
        let [part] = self.parts.as_mut_slice() else { return None };
        let lacking = shape.len().checked_sub(self.shape.len())?;
        let own = self.shape.iter().zip(&part.strides).zip(&shape[lacking..]);
        let stride = |((&own, &stride), &wanted): ((&usize, &usize), &usize)| match own == wanted {
            true => Some(stride),
            false => (own == 1).then_some(0),
        };
        let strides: Option<Vec<usize>> = own.map(stride).collect();
        part.strides = [vec![0; lacking], strides?].concat();
        part.columns = shape.last().copied().unwrap_or(1);
        self.shape = shape.to_vec();
        Some(self.settled())
    }

    /// Each element times its scale.
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

    /// Seen otherwise, and its scales likewise.
    fn each(mut self, see: impl Fn(Self) -> Self) -> Self {
        let scales = self.scales.take().map(|scales| Box::new(see(*scales)));
        Self { scales, ..see(self) }
    }

    /// Length of each axis, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are none.
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

    /// Axis `i` of the result is axis `order[i]` of this one; axes that `order` leaves out have length 1.
    pub fn permuted(self, order: &[usize]) -> Self {
        self.each(|one| one.permuted_alone(order))
    }

    fn permuted_alone(mut self, order: &[usize]) -> Self {
        let [part] = self.parts.as_mut_slice() else {
            unreachable!("axes are ordered before anything is joined")
        };
        self.shape = order.iter().map(|&axis| self.shape[axis]).collect();
        part.strides = order.iter().map(|&axis| part.strides[axis]).collect();
        part.columns = self.shape.last().copied().unwrap_or(1);
        self.settled()
    }

    /// Entry `i` of each row of the result is entry `order[i]` of this one's.
    ///
    /// # Panics
    /// If there are others in `order` than a row has.
    pub fn reordered(self, order: &[usize]) -> Self {
        assert!(
            order.len() == self.width() && order.iter().all(|&at| at < self.width()),
            "an order of a row"
        );
        self.each(|mut one| {
            one.parts.iter_mut().for_each(|part| part.order = Some(order.into()));
            one.settled()
        })
    }

    /// The entries `range` along `axis`.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn slice(self, axis: usize, range: Range<usize>) -> Self {
        self.each(|one| one.sliced_alone(axis, range.clone()))
    }

    fn sliced_alone(mut self, axis: usize, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.shape[axis], "{range:?} of {:?}", self.shape);
        let (is_last, along) = (axis + 1 == self.shape.len(), self.axis);
        self.shape[axis] = range.len();
        if axis == along && self.parts.len() > 1 {
            let end =
                |index: usize, parts: &[Part]| parts.get(index + 1).map_or(usize::MAX, |next| next.first);
            let ends: Vec<usize> = (0..self.parts.len()).map(|index| end(index, &self.parts)).collect();
            let mut ends = ends.into_iter();
            self.parts
                .retain(|part| ends.next().is_some_and(|end| part.first < range.end && end > range.start));
            for part in &mut self.parts {
                let skipped = range.start.saturating_sub(part.first);
                part.start += skipped * part.strides[axis];
                part.first = (part.first + skipped) - range.start;
            }
            return self.settled();
        }
        for part in &mut self.parts {
            match &part.order {
                Some(order) if is_last => part.order = Some(order[range.clone()].into()),
                _ => part.start += range.start * part.strides[axis],
            }
            if is_last {
                part.columns = part.columns.saturating_sub(range.start).min(range.len());
            }
        }
        self.settled()
    }

    /// The entries of `axis` at these indices, in that order.
    ///
    /// # Panics
    /// If there is none at one of them, or they do not ascend.
    pub fn taken(self, axis: usize, indices: &[usize]) -> Self {
        let runs: Vec<&[usize]> = indices.chunk_by(|one, next| one + 1 == *next).collect();
        let (Some(first), Some(last)) = (indices.first(), indices.last()) else {
            return self.slice(axis, 0..0);
        };
        if runs.len() == 1 {
            return self.slice(axis, *first..last + 1);
        }
        if axis + 1 < self.shape.len() {
            let of_run = |run: &&[usize]| self.clone().slice(axis, run[0]..run[0] + run.len());
            return Self::joined(runs.iter().map(of_run).collect(), axis);
        }
        self.each(|one| one.columns_taken(indices))
    }

    fn columns_taken(mut self, indices: &[usize]) -> Self {
        for part in &mut self.parts {
            assert!(indices.iter().all(|&at| at < part.columns), "{indices:?} of {:?}", self.shape);
            let at = |&index: &usize| part.order.as_ref().map_or(index, |order| order[index]);
            part.order = Some(indices.iter().map(at).collect());
            part.columns = indices.len();
        }
        *self.shape.last_mut().expect("columns are of an axis") = indices.len();
        self.settled()
    }

    /// Axes `axis` and the next as one, in row-major order.
    ///
    /// # Panics
    /// If there are no such two, or the first has no entries.
    pub fn merged(self, axis: usize) -> Self {
        if axis + 2 < self.shape.len() {
            let of_entry = |at: usize| self.clone().slice(axis, at..at + 1).without(axis);
            return Self::joined((0..self.shape[axis]).map(of_entry).collect(), axis);
        }
        self.each(|one| one.columns_merged(axis))
    }

    fn columns_merged(mut self, axis: usize) -> Self {
        let (outer, inner) = (self.shape[axis], self.shape[axis + 1]);
        for part in &mut self.parts {
            let stride = part.strides[axis + 1];
            let at = |column: usize| part.order.as_ref().map_or(column, |order| order[column]) * stride;
            let offset = |flat: usize| flat / inner * part.strides[axis] + at(flat % inner);
            let is_plain = part.order.is_none() && stride == 1 && part.strides[axis] == inner;
            part.order = (!is_plain).then(|| (0..outer * inner).map(offset).collect());
            part.strides[axis + 1] = 1;
            part.strides.remove(axis);
            part.columns = outer * inner;
        }
        self.shape[axis + 1] = outer * inner;
        self.shape.remove(axis);
        self.settled()
    }

    /// Without an axis of length 1.
    fn without(self, axis: usize) -> Self {
        self.each(|mut one| {
            one.shape.remove(axis);
            for part in &mut one.parts {
                part.strides.remove(axis);
            }
            one.axis -= usize::from(one.axis > axis);
            one
        })
    }

    /// Rows cut or filled up with zeros to so many entries.
    pub fn with_width(self, width: usize) -> Self {
        self.each(|mut one| {
            let Some(last) = one.shape.last_mut() else { return one };
            *last = width;
            one.parts.iter_mut().for_each(|part| part.columns = part.columns.min(width));
            one.settled()
        })
    }

    /// Views of the same other axes behind each other along `axis`. Where that is the last axis they are copied.
    ///
    /// # Panics
    /// If there are none, or they do not fit.
    pub fn joined(mut views: Vec<Self>, axis: usize) -> Self {
        let is_scaled = views.iter().any(|view| view.scales.is_some());
        let scale = |view: &mut Self| {
            let scales = view.scales.take().map(|scales| *scales);
            scales.unwrap_or_else(|| View::constant(&view.shape, 1.0))
        };
        let scales = is_scaled.then(|| views.iter_mut().map(scale).collect());
        let join = if axis + 1 == views[0].shape.len() { Self::columns_joined } else { Self::joined_alone };
        Self { scales: scales.map(|scales| Box::new(join(scales, axis))), ..join(views, axis) }
    }

    fn columns_joined(views: Vec<Self>, axis: usize) -> Self {
        let rows = views[0].rows();
        assert!(views.iter().all(|view| view.rows() == rows), "views of other axes");
        let widths = views.iter().map(Self::width);
        let shape = [&views[0].shape[..axis], &[widths.sum()]].concat();
        let mut values = vec![0.0; shape.iter().product()];
        let mut rest = values.as_mut_slice();
        for (row, view) in (0..rows).flat_map(|row| views.iter().map(move |view| (row, view))) {
            let (here, after) = rest.split_at_mut(view.width());
            view.read(row, 0..view.width(), here);
            rest = after;
        }
        View::owned(&shape, values)
    }

    fn joined_alone(views: Vec<Self>, axis: usize) -> Self {
        // Parts lie along one axis: what lies along another is put together.
        let as_one = |view: Self| match view.parts.len() == 1 || view.axis == axis {
            true => view,
            false => View::owned(&view.shape, view.to_vec()),
        };
        let mut views = views.into_iter().map(as_one);
        let mut all = views.next().expect("at least one view");
        all.axis = axis;
        for view in views {
            let fits = |at: usize| at == axis || all.shape[at] == view.shape[at];
            assert!(axis + 1 < all.shape.len() && (0..all.shape.len()).all(fits), "views of other axes");
            let before = all.shape[axis];
            all.shape[axis] += view.shape[axis];
            all.parts.extend(view.parts.into_iter().map(|part| Part { first: before + part.first, ..part }));
        }
        all.settled()
    }

    /// Finds which parts lie as they are seen.
    fn settled(mut self) -> Self {
        let is_alone = self.parts.len() == 1;
        for part in &mut self.parts {
            let mut expected = 1;
            let row_major = self.shape.iter().zip(&part.strides).rev().all(|(&length, &stride)| {
                let is_next = length == 1 || stride == expected;
                expected *= length;
                is_next
            });
            let is_whole = part.columns == self.shape.last().copied().unwrap_or(1);
            part.is_plain = is_alone && row_major && is_whole && part.order.is_none();
        }
        self
    }

    /// The part that holds a row, and the element with which it begins there.
    fn row(&self, row: usize) -> (&Part<'a>, usize) {
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

    /// One element by its flat index, row-major as it is seen.
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

    /// All elements, widened.
    pub fn to_vec(&self) -> Vec<f64> {
        let mut values = vec![0.0; self.len()];
        self.read_rows(0..self.rows(), &mut values);
        values
    }

    /// Gives back the memory of what was read, if it is of a mapped file.
    pub fn release(&self) {
        for part in &self.parts {
            if let Raw::Shared(parts) = &part.bytes {
                parts.release();
            }
        }
        self.scales.iter().for_each(|scales| scales.release());
    }
}

impl Part<'_> {
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

/// Widens elements of a type that [`View::stored`] takes.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn decode(dtype: DType, bytes: &[u8], out: &mut [f64]) {
    match dtype {
        DType::F64 => widen(bytes, out, f64::from_le_bytes),
        DType::F32 => widen(bytes, out, |bits| f32::from_le_bytes(bits).into()),
        DType::F16 => widen(bytes, out, half),
        DType::BF16 => {
            widen(bytes, out, |bits| f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16).into())
        }
        DType::F8_E4M3 => widen(bytes, out, |[bits]| float8::E4M3[usize::from(bits)]),
        DType::F8_E5M2 => widen(bytes, out, |[bits]| float8::E5M2[usize::from(bits)]),
        DType::I8 => widen(bytes, out, |bits| i8::from_le_bytes(bits).into()),
        DType::I16 => widen(bytes, out, |bits| i16::from_le_bytes(bits).into()),
        DType::I32 => widen(bytes, out, |bits| i32::from_le_bytes(bits).into()),
        DType::U8 | DType::BOOL => widen(bytes, out, |bits| u8::from_le_bytes(bits).into()),
        DType::U16 => widen(bytes, out, |bits| u16::from_le_bytes(bits).into()),
        DType::U32 => widen(bytes, out, |bits| u32::from_le_bytes(bits).into()),
        DType::I64 => widen(bytes, out, |bits| i64::from_le_bytes(bits) as f64),
        DType::U64 => widen(bytes, out, |bits| u64::from_le_bytes(bits) as f64),
        _ => unreachable!("a view is of plain numbers"),
    }
}

#[inline(always)]
fn widen<const N: usize>(bytes: &[u8], out: &mut [f64], element: impl Fn([u8; N]) -> f64) {
    out.iter_mut().zip(bytes.as_chunks::<N>().0).for_each(|(out, &bits)| *out = element(bits));
}

/// A half, in operations that the machine has for many at a time.
#[inline(always)]
fn half(bits: [u8; 2]) -> f64 {
    const EXPONENT: u32 = 0x7c00;
    let bits = u32::from(u16::from_le_bytes(bits));
    // The exponent counts from 15, and that of f32 from 127.
    let size = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 127 - 15) << 23);
    let finite = size.to_bits();
    let size = if bits & EXPONENT == EXPONENT { finite | 0xff << 23 } else { finite };
    f32::from_bits(size | (bits & 0x8000) << 16).into()
}
