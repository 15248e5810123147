//! Weight values of kernels that multiply without decoding the weight first, or decode it in another type.

use crate::weight::{DType, Matrix, StoredTensor};

impl Matrix {
    /// Element types of the weight values of kernels.
    pub(crate) const TYPES_OF_KERNELS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

    /// Returns the name under which a decoded checkpoint has the weight values of kernels, in one of
    /// [`Matrix::TYPES_OF_KERNELS`].
    pub(crate) fn tensor_of_kernels(module: &str, dtype: DType) -> String {
        format!("{module}.weight.of_kernels.{dtype}")
    }

    /// Returns the matrix with the weight values of kernels that multiply without decoding the weight first, or decode it
    /// in another type; `None` if they use the same values. Of several sets, selects one with a type for which `is_wanted`
    /// is true, or else the first one.
    pub(crate) fn of_kernels(&self, is_wanted: impl Fn(DType) -> bool) -> Option<Self> {
        let wanted = self.of_kernels.iter().find(|(dtype, _)| is_wanted(*dtype));
        let (dtype, data) = wanted.or(self.of_kernels.first())?.clone();
        Some(Self { dtype, data, of_kernels: Vec::new(), ..self.clone() })
    }

    /// Returns true if kernels that multiply without decoding the weight first use other values.
    pub(crate) fn has_values_of_kernels(&self) -> bool {
        !self.of_kernels.is_empty()
    }

    /// Adds weight values of kernels (F32, F16 or BF16); returns `None` if the shape or type differs.
    pub fn with_values_of_kernels(mut self, values: &StoredTensor) -> Option<Self> {
        let fits = Self::TYPES_OF_KERNELS.contains(&values.dtype) && values.shape == [self.rows, self.cols];
        self.of_kernels.push((values.dtype, values.data.clone()));
        fits.then_some(self)
    }
}
