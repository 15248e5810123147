//! Numbers in GGUF metadata: ten types, as single values or in arrays.

use std::fmt;

use crate::lazy_bytes::LazyBytes;

macro_rules! numbers {
    ($($id:literal $Type:ident $type:ident;)*) => {
        /// Type of a metadata number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // the names are the documentation
        pub enum NumberType { $($Type,)* }

        impl NumberType {
            /// Returns the type for a file's type id.
            pub(super) fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$Type),)*
                    _ => None,
                }
            }

            /// Returns the size of one number in bytes.
            pub fn width(self) -> usize {
                match self { $(Self::$Type => size_of::<$type>(),)* }
            }

            /// Returns Rust's name of the type.
            pub fn name(self) -> &'static str {
                match self { $(Self::$Type => stringify!($type),)* }
            }

            /// Decodes exactly [`NumberType::width`] bytes.
            pub(super) fn decode(self, bytes: &[u8]) -> GgufNumber {
                const WIDTH: &str = "the caller cut the bytes to this type's width";
                match self {
                    $(Self::$Type => GgufNumber::$Type($type::from_le_bytes(bytes.try_into().expect(WIDTH))),)*
                }
            }
        }

        /// A metadata number in its stored type.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum GgufNumber { $($Type($type),)* }

        impl GgufNumber {
            /// Returns the type of the number.
            pub fn number_type(self) -> NumberType {
                match self { $(Self::$Type(_) => NumberType::$Type,)* }
            }
        }

        impl fmt::Display for GgufNumber {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$Type(value) => value.fmt(f),)* }
            }
        }
    };
}

numbers! {
    0 U8 u8;
    1 I8 i8;
    2 U16 u16;
    3 I16 i16;
    4 U32 u32;
    5 I32 i32;
    6 F32 f32;
    10 U64 u64;
    11 I64 i64;
    12 F64 f64;
}

impl GgufNumber {
    /// Returns the value of an integer of any width.
    pub(crate) fn integer(self) -> Option<i128> {
        match self {
            GgufNumber::U8(value) => Some(value.into()),
            GgufNumber::I8(value) => Some(value.into()),
            GgufNumber::U16(value) => Some(value.into()),
            GgufNumber::I16(value) => Some(value.into()),
            GgufNumber::U32(value) => Some(value.into()),
            GgufNumber::I32(value) => Some(value.into()),
            GgufNumber::U64(value) => Some(value.into()),
            GgufNumber::I64(value) => Some(value.into()),
            GgufNumber::F32(_) | GgufNumber::F64(_) => None,
        }
    }

    /// Returns a floating-point number as `f32`, if `f32` represents it exactly.
    pub(crate) fn f32(self) -> Option<f32> {
        match self {
            GgufNumber::F32(value) => Some(value),
            GgufNumber::F64(value) => Some(value as f32).filter(|&narrow| f64::from(narrow) == value),
            _ => None,
        }
    }
}

/// An array of numbers of one type. It is a view of the file, whose numbers are decoded on access.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberArray {
    number_type: NumberType,
    data: LazyBytes,
}

impl NumberArray {
    /// Wraps bytes, whose length must be a multiple of the number's width.
    pub(super) fn new(number_type: NumberType, data: LazyBytes) -> Self {
        Self { number_type, data }
    }

    pub(crate) fn number_type(&self) -> NumberType {
        self.number_type
    }

    /// Returns all numbers, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = GgufNumber> {
        self.data.chunks_exact(self.number_type.width()).map(|bytes| self.number_type.decode(bytes))
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.data.len() / self.number_type.width()
    }
}
