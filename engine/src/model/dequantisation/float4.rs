//! Numbers of 4 bits (E2M1), two in a byte, the first in the low bits; and scales that are powers of two (E8M0).

use crate::error::Result;
use crate::model::dequantisation::module_tensors::ModuleTensors;
use crate::weight::{DType, StoredTensor};

/// Value of each bit pattern.
pub(super) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Returns the number at an index of the packed bytes.
pub(super) fn e2m1(bytes: &[u8], at: usize) -> f32 {
    E2M1[usize::from(bytes[at / 2] >> (4 * (at % 2)) & 15)]
}

/// Returns the powers of two that are stored as exponents plus 127.
///
/// # Errors
/// If an exponent byte is 255, which is NaN.
pub(super) fn powers(module: &ModuleTensors, tensor: &str, stored: &StoredTensor) -> Result<Vec<f32>> {
    debug_assert_eq!(stored.dtype, DType::U8, "exponents are bytes");
    match stored.data.iter().position(|&exponent| exponent == u8::MAX) {
        None => Ok(stored.data.iter().map(|&exponent| (f32::from(exponent) - 127.0).exp2()).collect()),
        Some(at) => {
            let name = module.name(tensor);
            Err(module.bad(format!("'{name}' has the exponent 255 (NaN) at index {at}; the file is damaged")))
        }
    }
}
