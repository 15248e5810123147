//! Stored tensors: bytes of a file with type and shape, not yet decoded.

mod input_scale;
mod kernel_values;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use self::input_scale::{InputCodes, InputScale};
use crate::lazy_bytes::LazyBytes;

macro_rules! dtypes {
    ($($variant:ident $name:literal $block:literal $bytes:literal;)*) => {
        /// Encoding of the elements of a stored tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[allow(missing_docs, non_camel_case_types)] // the names are the documentation: ggml's own, and llama2.c's version 2
        pub enum DType { $(#[serde(rename = $name)] $variant,)* }

        impl DType {
            /// All types, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// Returns the lower-case name that ggml and NumPy use.
            pub fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Returns the number of elements in one block; 1 for plain types.
            pub fn block_len(self) -> usize {
                match self { $(DType::$variant => $block,)* }
            }

            /// Returns the number of bytes in one block.
            pub fn block_bytes(self) -> usize {
                match self { $(DType::$variant => $bytes,)* }
            }
        }
    };
}

dtypes! {
    F32 "f32" 1 4;
    F16 "f16" 1 2;
    BF16 "bf16" 1 2;
    F64 "f64" 1 8;
    I8 "i8" 1 1;
    I16 "i16" 1 2;
    I32 "i32" 1 4;
    I64 "i64" 1 8;
    U32 "u32" 1 4;
    U8 "u8" 1 1;
    U16 "u16" 1 2;
    U64 "u64" 1 8;
    BOOL "bool" 1 1;
    F8_E4M3 "f8_e4m3" 1 1;
    F8_E5M2 "f8_e5m2" 1 1;
    Q4_0 "q4_0" 32 18;
    Q4_1 "q4_1" 32 20;
    Q5_0 "q5_0" 32 22;
    Q5_1 "q5_1" 32 24;
    Q8_0 "q8_0" 32 34;
    Q8_1 "q8_1" 32 36;
    Q2_K "q2_k" 256 84;
    Q3_K "q3_k" 256 110;
    Q4_K "q4_k" 256 144;
    Q5_K "q5_k" 256 176;
    Q6_K "q6_k" 256 210;
    Q8_K "q8_k" 256 292;
    IQ2_XXS "iq2_xxs" 256 66;
    IQ2_XS "iq2_xs" 256 74;
    IQ3_XXS "iq3_xxs" 256 98;
    IQ1_S "iq1_s" 256 50;
    IQ4_NL "iq4_nl" 32 18;
    IQ3_S "iq3_s" 256 110;
    IQ2_S "iq2_s" 256 82;
    IQ4_XS "iq4_xs" 256 136;
    IQ1_M "iq1_m" 256 56;
    TQ1_0 "tq1_0" 256 54;
    TQ2_0 "tq2_0" 256 66;
    MXFP4 "mxfp4" 32 17;
    NVFP4 "nvfp4" 64 36;
    Q1_0 "q1_0" 128 18;
    Q2_0 "q2_0" 64 18;
    I2_S "i2_s" 128 32;
    TL1 "tl1" 4 1;
    TL2 "tl2" 4 1;
    TL "tl" 128 32;
    INT8_GROUPS "int8_groups" 1 1;
}

impl DType {
    /// Returns the type with that name, in any case (ggml writes a capital K).
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.name().eq_ignore_ascii_case(name))
    }

    /// Returns true for an 8-bit floating type.
    pub fn is_f8(self) -> bool {
        matches!(self, DType::F8_E4M3 | DType::F8_E5M2)
    }

    /// Returns the number of bytes after all blocks. bitnet.cpp's types have one scale for the tensor there, and
    /// padding.
    pub(crate) fn tail_bytes(self) -> usize {
        match self {
            DType::I2_S | DType::TL1 | DType::TL2 | DType::TL => 32,
            _ => 0,
        }
    }

    /// Returns the number of bytes of a row; `None` if the row is not a whole number of blocks. The last block of a
    /// ternary row is padded: rows of TL1 and TL2 ([`DType::TL`]) and rows packed by transformers have any length. An
    /// I2_S file has no padded rows, since its blocks continue from one row to the next.
    pub(crate) fn row_bytes(self, columns: usize) -> Option<usize> {
        match self {
            DType::I2_S | DType::TL => columns.div_ceil(self.block_len()).checked_mul(self.block_bytes()),
            _ => self.bytes_for(columns),
        }
    }

    /// Returns the bytes of `elements` elements; `None` if they do not fill whole blocks, or on overflow.
    pub fn bytes_for(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor in a weight file.
///
/// `data` is a view of the (mapped) file. Readers first check that its length matches `dtype` and `shape`.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// Encoding of the elements.
    pub dtype: DType,
    /// Length of each axis, outermost first (a GGUF file lists the axes in reverse).
    pub shape: Vec<usize>,
    /// Encoded elements, row-major.
    pub data: LazyBytes,
}

impl StoredTensor {
    /// Creates a vector of `f32`.
    pub(crate) fn vector(numbers: &[f32]) -> Self {
        let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Self { dtype: DType::F32, shape: vec![numbers.len()], data: data.into() }
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Scale that a file stores with a matrix of codes, and how a reference applies it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// Kernels multiply each product by the scale.
    Multiplies(f32),
    /// Kernels divide each product by the scale.
    Divides(f32),
    /// Every weight is multiplied by the scale before products.
    InWeights(f32),
}

/// Weight of a linear layer or an embedding table: `rows` (outputs) × `cols` (inputs). Each row is contiguous and a
/// whole number of blocks.
///
/// Types of bitnet.cpp have one scale for the whole matrix, which is not part of the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Encoding of the elements.
    pub dtype: DType,
    /// Output features, or vocabulary entries.
    pub rows: usize,
    /// Input features, or the hidden size.
    pub cols: usize,
    data: LazyBytes,
    scale: f32,
    /// Scales (`f32`) of the groups of elements, if they are stored separately from the elements.
    scales: Option<LazyBytes>,
    input_scale: Option<InputScale>,
    cache_scales: Option<Arc<Vec<f32>>>,
    /// Activation size from which a column is not quantised (LLM.int8()).
    outliers: Option<f32>,
    /// Weight values of kernels that multiply without decoding the weight first, or decode it in another type, if they
    /// differ. Each set of values has its own element type.
    of_kernels: Vec<(DType, LazyBytes)>,
}

impl Matrix {
    /// Releases the memory of a mapped file.
    pub(crate) fn release(&self) {
        self.data.release();
        self.scales.iter().for_each(LazyBytes::release);
    }

    /// Creates a matrix from a stored tensor; `None` if the tensor is not two-dimensional, is empty, or its rows end
    /// inside a block.
    pub fn from_stored(tensor: &StoredTensor) -> Option<Self> {
        let &[rows, cols] = tensor.shape.as_slice() else { return None };
        let row_bytes = tensor.dtype.row_bytes(cols)?;
        let codes = rows.checked_mul(row_bytes)?;
        let whole = rows > 0 && tensor.data.len() == codes.checked_add(tensor.dtype.tail_bytes())?;
        let codes = codes.min(tensor.data.len());
        let tail = tensor.data.at(codes..tensor.data.len()).first_chunk();
        let scale = tail.map_or(1.0, |bytes| f32::from_le_bytes(*bytes));
        let data = tensor.data.slice(0..codes);
        let dtype = tensor.dtype;
        whole.then_some(Self {
            dtype,
            rows,
            cols,
            data,
            scale,
            scales: None,
            input_scale: None,
            cache_scales: None,
            outliers: None,
            of_kernels: Vec::new(),
        })
    }

    /// Returns the factor of all values. It is 1 except for bitnet.cpp's types and for matrices with a separate scale
    /// in GGUF files. llama.cpp multiplies products by it.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns the stored scale of activations; `None` if there is none.
    pub fn input_scale(&self) -> Option<InputScale> {
        self.input_scale
    }

    /// Returns the name under which a decoded checkpoint stores the scales of the cache for a module's results.
    pub(crate) fn tensor_of_cache(module: &str) -> String {
        format!("{module}.cache_scales")
    }

    /// Returns the scales of the FP8 cache that stores the products: one scale, or one for each head; `None` if the
    /// file states none.
    pub fn cache_scales(&self) -> Option<&[f32]> {
        self.cache_scales.as_ref().map(|scales| scales.as_slice())
    }

    /// Sets the scales of an FP8 cache that stores the products.
    pub(crate) fn with_cache_scales(self, cache_scales: Option<Vec<f32>>) -> Self {
        Self { cache_scales: cache_scales.map(Arc::new), ..self }
    }

    /// Returns the name under which a decoded checkpoint stores a module's threshold of outliers.
    pub(crate) fn tensor_of_outliers(module: &str) -> String {
        format!("{module}.input_outliers")
    }

    /// Returns the activation size from which a column is not quantised; `None` if the file states none.
    pub fn outliers(&self) -> Option<f32> {
        self.outliers
    }

    /// Sets the activation size from which a column is not quantised.
    pub fn with_outliers(self, outliers: Option<f32>) -> Self {
        Self { outliers, ..self }
    }

    /// Sets the stored scale of activations.
    pub fn with_input_scale(self, input_scale: Option<InputScale>) -> Self {
        Self { input_scale, ..self }
    }

    /// Sets the stored quantisation of activations to that of another matrix.
    pub(crate) fn with_activations_of(self, other: &Self) -> Self {
        Self { input_scale: other.input_scale, outliers: other.outliers, ..self }
    }

    /// Replaces the scale.
    pub fn with_scale(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// Sets a scale for each group of a row's elements (`[rows, groups]`, F32); returns `None` if the scales do not
    /// fit.
    pub fn with_scales(self, scales: &StoredTensor) -> Option<Self> {
        let &[rows, groups] = scales.shape.as_slice() else { return None };
        let fits = rows == self.rows && groups > 0 && self.cols.is_multiple_of(groups);
        let whole = Some(scales.data.len()) == scales.dtype.bytes_for(rows.checked_mul(groups)?);
        let scales = (fits && whole && scales.dtype == DType::F32).then(|| scales.data.clone())?;
        Some(Self { scales: Some(scales), ..self })
    }

    /// Copies a two-dimensional stored tensor transposed; `None` if it is not two-dimensional, is empty, or has a block
    /// type.
    pub fn transposed(tensor: &StoredTensor) -> Option<Self> {
        let &[rows, cols] = tensor.shape.as_slice() else { return None };
        Self::of_elements(tensor, [cols, rows], |row, col| col * cols + row)
    }

    /// Copies elements of a stored tensor to a matrix of `rows` and `cols`. `from` returns the index of an element in
    /// the tensor. `None` if the tensor has a block type, or the matrix is empty or larger than the tensor.
    ///
    /// # Panics
    /// If an element does not exist.
    pub(crate) fn of_elements(
        tensor: &StoredTensor,
        [rows, cols]: [usize; 2],
        from: impl Fn(usize, usize) -> usize,
    ) -> Option<Self> {
        let width = tensor.dtype.block_bytes();
        let fits = rows.checked_mul(cols).is_some_and(|elements| elements <= tensor.elements());
        if tensor.dtype.block_len() != 1 || rows == 0 || cols == 0 || !fits {
            return None;
        }
        let stored = &tensor.data[..];
        let mut data = Vec::with_capacity(rows * cols * width);
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            data.extend_from_slice(&stored[from(row, col) * width..][..width]);
        }
        Self::from_stored(&StoredTensor { dtype: tensor.dtype, shape: vec![rows, cols], data: data.into() })
    }

    /// Returns `rows` rows, starting at row `first`, as a matrix that shares the bytes.
    ///
    /// # Panics
    /// If the rows do not exist.
    pub fn rows_from(&self, first: usize, rows: usize) -> Self {
        let part = |all: &LazyBytes| {
            let row_bytes = all.len() / self.rows;
            all.slice(first * row_bytes..(first + rows) * row_bytes)
        };
        let scales = self.scales.as_ref().map(part);
        let of_kernels = self.of_kernels.iter().map(|(dtype, all)| (*dtype, part(all))).collect();
        Self { rows, data: part(&self.data), scales, of_kernels, cache_scales: None, ..*self }
    }

    /// Copies rows by their indices.
    ///
    /// # Panics
    /// If a row does not exist.
    pub(crate) fn gathered(&self, rows: &[usize]) -> Self {
        let of = |bytes: &LazyBytes| {
            let width = bytes.len() / self.rows;
            let row = |&row: &usize| bytes.at(row * width..(row + 1) * width).to_vec();
            LazyBytes::from(rows.iter().flat_map(row).collect::<Vec<u8>>())
        };
        let scales = self.scales.as_ref().map(of);
        let of_kernels = self.of_kernels.iter().map(|(dtype, all)| (*dtype, of(all))).collect();
        Self { rows: rows.len(), data: of(&self.data), scales, of_kernels, cache_scales: None, ..*self }
    }

    /// Replaces the encoded elements; returns `None` if the length differs. Kernels then use the same values.
    pub fn with_elements(&self, data: impl Into<Bytes>) -> Option<Self> {
        let data = LazyBytes::from(data);
        (data.len() == self.data.len()).then(|| Self { data, of_kernels: Vec::new(), ..self.clone() })
    }

    /// Returns the encoded elements of one row.
    pub fn row(&self, index: usize) -> &[u8] {
        self.row_range(index..index + 1)
    }

    /// Returns the encoded elements of several rows, concatenated.
    pub fn row_range(&self, rows: Range<usize>) -> &[u8] {
        let row_bytes = self.data.len() / self.rows;
        self.data.at(rows.start * row_bytes..rows.end * row_bytes)
    }

    /// Returns the scales of several rows, concatenated, as little-endian `f32`; empty if scales are stored in the
    /// elements.
    pub fn scale_range(&self, rows: Range<usize>) -> &[u8] {
        let Some(scales) = &self.scales else { return &[] };
        let row_bytes = scales.len() / self.rows;
        scales.at(rows.start * row_bytes..rows.end * row_bytes)
    }

    /// Returns the bytes of the matrix in its file.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &LazyBytes> {
        [&self.data].into_iter().chain(&self.scales)
    }

    /// Returns the bytes of one row in its file.
    ///
    /// # Panics
    /// If the row does not exist.
    pub(crate) fn parts_of_row(&self, row: usize) -> impl Iterator<Item = LazyBytes> {
        let of_row = |parts: &LazyBytes| {
            let row_bytes = parts.len() / self.rows;
            parts.slice(row * row_bytes..(row + 1) * row_bytes)
        };
        self.parts().map(of_row).collect::<Vec<_>>().into_iter()
    }

    /// Returns true if the matrix is in a remote file, so that its elements may not be downloaded yet.
    pub fn is_elsewhere(&self) -> bool {
        self.data.pin().is_some()
    }

    /// Returns the number of elements that share a separately stored scale; `None` without separate scales.
    pub(crate) fn group_len(&self) -> Option<usize> {
        self.scales.as_ref().map(|scales| self.rows * self.cols / (scales.len() / 4))
    }
}
