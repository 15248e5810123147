//! A matrix whose elements are decoded on demand.

use half::{bf16, f16};

use crate::parallel;
use crate::weight::{DType, StoredTensor};

/// Number of rows that are decoded together, because in some formats the codes of several rows share words.
const ROWS: usize = 32;

/// Decodes the element at a row and a column.
pub(crate) type ElementDecoder<'f> = Box<dyn Fn(usize, usize) -> f32 + Send + Sync + 'f>;

/// A quantised weight, `[rows, cols]`, whose values are decoded on demand.
pub(crate) struct WeightMatrix<'f> {
    /// Type that represents every value exactly: F32, F16 or BF16.
    pub(crate) dtype: DType,
    /// Number of rows: the outputs of a module, or in a stack of experts, the number of experts times their inputs.
    pub(crate) rows: usize,
    /// Columns: inputs of a module; in a stack of experts, outputs.
    pub(crate) cols: usize,
    /// Number of experts whose matrices are stacked in one parameter; `None` for a module's matrix.
    pub(crate) experts: Option<usize>,
    /// Decodes the element at a row and a column.
    pub(crate) value: ElementDecoder<'f>,
    /// Decoders of the values that an element has in kernels that multiply with the codes themselves, or with scales of
    /// another type. Each has the type that represents its values exactly. Empty if all kernels use the decoded value.
    pub(crate) of_kernels: Vec<(DType, ElementDecoder<'f>)>,
}

impl<'f> WeightMatrix<'f> {
    /// Creates the matrix of a module whose values are the same in all kernels.
    pub(crate) fn new(
        dtype: DType,
        [rows, cols]: [usize; 2],
        value: impl Fn(usize, usize) -> f32 + Send + Sync + 'f,
    ) -> Self {
        Self { dtype, rows, cols, experts: None, value: Box::new(value), of_kernels: Vec::new() }
    }

    /// Adds the F32 values of kernels, if they differ from the decoded values.
    pub(crate) fn with_kernels(mut self, value: Option<ElementDecoder<'f>>) -> Self {
        self.of_kernels.extend(value.map(|value| (DType::F32, value)));
        self
    }
}

impl WeightMatrix<'_> {
    /// Returns the name of the decoded tensor of a module.
    pub(crate) fn name(&self, module: &str) -> String {
        if self.experts.is_some() { module.to_owned() } else { format!("{module}.weight") }
    }

    /// Returns the shape of the decoded tensor.
    pub(crate) fn shape(&self) -> Vec<usize> {
        self.experts.map_or(vec![self.rows, self.cols], |count| vec![count, self.rows / count, self.cols])
    }

    /// Returns the size of the decoded matrix.
    pub(crate) fn bytes(&self) -> usize {
        let of_kernels: usize = self.of_kernels.iter().map(|(dtype, _)| dtype.block_bytes()).sum();
        self.rows * self.cols * (self.dtype.block_bytes() + of_kernels)
    }

    /// Decodes all elements.
    pub(crate) fn decoded(&self) -> StoredTensor {
        self.decoded_by(&self.value, self.dtype)
    }

    /// Decodes all elements as kernels do that use other values.
    pub(crate) fn decoded_by_kernels(&self) -> impl Iterator<Item = StoredTensor> {
        self.of_kernels.iter().map(|(dtype, value)| self.decoded_by(value, *dtype))
    }

    fn decoded_by(&self, value: &ElementDecoder, dtype: DType) -> StoredTensor {
        let row_bytes = self.cols * dtype.block_bytes();
        let mut data = vec![0; self.rows * row_bytes];
        parallel::chunks(&mut data, (ROWS * row_bytes).max(1), ROWS * self.cols * 4, |chunk, out| {
            self.decode_rows(value, dtype, chunk * ROWS, out);
        });
        StoredTensor { dtype, shape: self.shape(), data: data.into() }
    }

    /// Decodes whole rows, starting at row `first`, column by column.
    fn decode_rows(&self, value: &ElementDecoder, dtype: DType, first: usize, out: &mut [u8]) {
        let width = dtype.block_bytes();
        let rows = out.len() / (self.cols * width);
        for col in 0..self.cols {
            for row in 0..rows {
                let value = value(first + row, col);
                let out = &mut out[(row * self.cols + col) * width..][..width];
                match dtype {
                    DType::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                    DType::BF16 => out.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                    _ => out.copy_from_slice(&value.to_le_bytes()),
                }
            }
        }
    }
}

/// Rounds a value to F32, F16 or BF16.
pub(super) fn round_to(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}
