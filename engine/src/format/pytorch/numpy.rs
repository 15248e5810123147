//! NumPy arrays in a pickle.

use bytes::Bytes;

use super::super::stored_bytes;
use super::machine::Machine;
use super::value::PickleValue;
use crate::error::Result;
use crate::lazy_bytes::LazyBytes;
use crate::weight::{DType, StoredTensor};

/// Type codes of NumPy.
const TYPES: &[(&str, DType)] = &[
    ("f8", DType::F64),
    ("f4", DType::F32),
    ("f2", DType::F16),
    ("i8", DType::I64),
    ("i4", DType::I32),
    ("i2", DType::I16),
    ("i1", DType::I8),
    ("u8", DType::U64),
    ("u4", DType::U32),
    ("u2", DType::U16),
    ("u1", DType::U8),
    ("b1", DType::BOOL),
];
const EXPECTED_ARRAY: &str = "a plain array of numbers in C order; save numpy.ascontiguousarray(array)";

impl<'p> Machine<'p> {
    pub(super) fn push_bytes(&mut self, bytes: LazyBytes) -> Result<()> {
        self.keep(1)?;
        self.numpy.blobs.push(bytes);
        self.push(PickleValue::Bytes(self.numpy.blobs.len() - 1))
    }

    /// Encodes a text in which each character stands for a byte. A pickle may encode the same text often, so the total
    /// size is limited.
    pub(super) fn push_encoded(&mut self, text: &str) -> Result<()> {
        let bytes: Option<Vec<u8>> = text.chars().map(|character| u8::try_from(character).ok()).collect();
        let bytes = bytes.ok_or_else(|| self.reader.bad("a text of other characters", "latin1"))?;
        self.numpy.encoded = self.numpy.encoded.saturating_add(bytes.len());
        if self.numpy.encoded > self.reader.source().data.len() {
            return Err(self.reader.bad("texts encoded more than once", "each array once"));
        }
        self.push_bytes(Bytes::from(bytes).into())
    }

    pub(super) fn push_numpy_type(&mut self, code: &str) -> Result<()> {
        let dtype = TYPES.iter().find(|(known, _)| *known == code).map(|&(_, dtype)| dtype);
        let refuse =
            || self.reader.bad("a NumPy type that is not a number", "numbers; save array.astype('float32')");
        let dtype = dtype.ok_or_else(refuse)?;
        self.keep(1)?;
        self.numpy.types.push(dtype);
        self.push(PickleValue::NumpyType(self.numpy.types.len() - 1))
    }

    /// Checks the byte order of a type: (version, order, ...).
    pub(super) fn set_numpy_order(&mut self, dtype: usize, state: PickleValue) -> Result<()> {
        let is_single = self.numpy.types[dtype].block_bytes() == 1;
        match self.items(state) {
            Some([_, PickleValue::Text("<"), ..]) => Ok(()),
            Some([_, PickleValue::Text("|"), ..]) if is_single => Ok(()),
            _ => {
                Err(self.reader.bad("another byte order", "little-endian numbers; save array.astype('<f4')"))
            }
        }
    }

    pub(super) fn push_numpy_array(&mut self) -> Result<()> {
        self.keep(1)?;
        self.numpy.arrays.push(None);
        self.push(PickleValue::NumpyArray(self.numpy.arrays.len() - 1))
    }

    /// Sets the values of the array on top of the stack: (version, shape, type, is in Fortran order, bytes).
    pub(super) fn set_numpy_array(&mut self, state: PickleValue<'p>) -> Result<()> {
        match self.items(state) {
            Some(
                &[
                    _,
                    shape,
                    PickleValue::NumpyType(dtype),
                    PickleValue::Bool(is_fortran),
                    PickleValue::Bytes(data),
                ],
            ) => self.fill_numpy_array(dtype, shape, is_fortran, data),
            _ => Err(self.reader.bad("the state of another object", EXPECTED_ARRAY)),
        }
    }

    pub(super) fn fill_numpy_array(
        &mut self,
        dtype: usize,
        shape: PickleValue<'p>,
        is_fortran: bool,
        data: usize,
    ) -> Result<()> {
        let PickleValue::NumpyArray(array) = self.top()? else {
            return Err(self.reader.bad("applied to values of wrong types", "an array"));
        };
        let (dtype, data) = (self.numpy.types[dtype], self.numpy.blobs[data].clone());
        let shape = self.numbers(shape).filter(|shape| !is_fortran || shape.len() < 2);
        let shape = shape.filter(|shape| stored_bytes(dtype, shape) == Some(data.len()));
        let shape = shape.ok_or_else(|| self.reader.bad("an array that is not plain", EXPECTED_ARRAY))?;
        self.numpy.arrays[array] = Some(StoredTensor { dtype, shape, data });
        Ok(())
    }
}
