//! Numbers as they lie in memory.

use std::io::{self, Write};

/// The values of an array, row-major, in their type.
#[derive(Clone, Copy, Debug)]
pub enum Values<'v> {
    /// 32-bit floats.
    F32(&'v [f32]),
    /// 64-bit floats.
    F64(&'v [f64]),
    /// The bits of IEEE half floats.
    F16(&'v [u16]),
    /// The bits of bfloat16.
    BF16(&'v [u16]),
    /// Token ids.
    U32(&'v [u32]),
    /// Token ids.
    I32(&'v [i32]),
}

impl Values<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::F16(values) | Self::BF16(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::I32(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the type: the contract's, safetensors', NumPy's, which has no bf16.
    pub(crate) fn names(&self) -> [&'static str; 3] {
        match self {
            Self::F32(_) => ["f32", "F32", "<f4"],
            Self::F64(_) => ["f64", "F64", "<f8"],
            Self::F16(_) => ["f16", "F16", "<f2"],
            Self::BF16(_) => ["bf16", "BF16", "<u2"],
            Self::U32(_) => ["u32", "U32", "<u4"],
            Self::I32(_) => ["i32", "I32", "<i4"],
        }
    }

    pub(crate) fn are_integers(&self) -> bool {
        matches!(self, Self::U32(_) | Self::I32(_))
    }

    /// Bytes of an element.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::F64(_) => 8,
            Self::F32(_) | Self::U32(_) | Self::I32(_) => 4,
            Self::F16(_) | Self::BF16(_) => 2,
        }
    }

    /// Little-endian, whatever the machine is.
    pub(crate) fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::F32(values) => write_all(out, values, |value| value.to_le_bytes()),
            Self::F64(values) => write_all(out, values, |value| value.to_le_bytes()),
            Self::F16(values) | Self::BF16(values) => write_all(out, values, |value| value.to_le_bytes()),
            Self::U32(values) => write_all(out, values, |value| value.to_le_bytes()),
            Self::I32(values) => write_all(out, values, |value| value.to_le_bytes()),
        }
    }
}

/// In blocks, so that a copy of the array is never held.
fn write_all<T: Copy, const N: usize>(
    out: &mut impl Write,
    values: &[T],
    bytes: impl Fn(T) -> [u8; N],
) -> io::Result<()> {
    let mut block = Vec::with_capacity(N * values.len().min(4096));
    for some in values.chunks(4096) {
        block.clear();
        block.extend(some.iter().flat_map(|&value| bytes(value)));
        out.write_all(&block)?;
    }
    Ok(())
}

macro_rules! from_slices {
    ($($type:ty => $variant:ident),*) => {
        $(impl<'v> From<&'v [$type]> for Values<'v> {
            fn from(values: &'v [$type]) -> Self {
                Self::$variant(values)
            }
        })*
    };
}

from_slices!(f32 => F32, f64 => F64, u32 => U32, i32 => I32);

#[cfg(feature = "half")]
mod halves {
    use half::slice::HalfFloatSliceExt;

    use super::Values;

    impl<'v> From<&'v [half::f16]> for Values<'v> {
        fn from(values: &'v [half::f16]) -> Self {
            Self::F16(values.reinterpret_cast())
        }
    }

    impl<'v> From<&'v [half::bf16]> for Values<'v> {
        fn from(values: &'v [half::bf16]) -> Self {
            Self::BF16(values.reinterpret_cast())
        }
    }
}
