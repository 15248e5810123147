//! Names and calls that a pickle may use: classes and functions of tensors, their storages and dicts.

use super::super::escape::EscapedText;
use super::machine::{Machine, PicklePurpose};
use super::value::{Global, PickleTensor, PickleValue, Storage, StridedAxis};
use crate::error::{Error, FormatError, Result};

/// Maximum number of axes of a tensor. No weight has more.
const MOST_AXES: usize = 8;

impl<'p> Machine<'p> {
    pub(super) fn read_global(&mut self) -> Result<()> {
        let (module, name) = (self.reader.line()?, self.reader.line()?);
        self.push_global(module, name)
    }

    pub(super) fn pop_global(&mut self) -> Result<()> {
        match (self.pop()?, self.pop()?) {
            (PickleValue::Text(name), PickleValue::Text(module)) => self.push_global(module, name),
            _ => Err(self.reader.bad("applied to values of wrong types", "two strings: a module and a name")),
        }
    }

    fn push_global(&mut self, module: &str, name: &str) -> Result<()> {
        let known = match self.purpose {
            PicklePurpose::StateDict => Global::of(module, name),
            PicklePurpose::Modules => Global::of_modules(module, name),
            PicklePurpose::Activations => Global::of_activations(module, name),
        };
        match known {
            Some(global) => self.push(PickleValue::Global(global)),
            None => Err(Error::Format(FormatError::ForeignPickle {
                file: self.reader.source().path.clone(),
                offset: self.reader.at() as u64,
                name: EscapedText(&format!("{module}.{name}")).to_string(),
                expected: self.purpose.expected(),
            })),
        }
    }

    /// Reads the reference to a storage outside of the pickle: ('storage', class, key, device, elements).
    pub(super) fn name_storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let storage = match self.items(id) {
            Some(
                &[
                    PickleValue::Text("storage"),
                    PickleValue::Global(Global::Storage(dtype)),
                    PickleValue::Text(key),
                    _,
                    PickleValue::Int(elements),
                ],
            ) => usize::try_from(elements).ok().map(|elements| Storage { dtype, key, elements }),
            _ => None,
        };
        let expected = "('storage', class, key, device, elements)";
        let storage = storage.ok_or_else(|| self.reader.bad("applied to values of wrong types", expected))?;
        self.keep(1)?;
        self.storages.push(storage);
        self.push(PickleValue::Storage(self.storages.len() - 1))
    }

    pub(super) fn call(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let PickleValue::Global(function) = function else {
            return Err(self.reader.bad(format_args!("a call of {}", function.kind()), "of a function"));
        };
        match (function, self.items(arguments)) {
            (Global::OrderedDict, Some([])) | (Global::Output, Some(_)) => self.make_dict(),
            (Global::Description, Some(_)) => self.push(PickleValue::None),
            (Global::NumpyType, Some(&[PickleValue::Text(code), ..])) => self.push_numpy_type(code),
            (Global::NumpyReconstruct, Some(&[PickleValue::Global(Global::NumpyArray), ..])) => {
                self.push_numpy_array()
            }
            (
                Global::NumpyFromBuffer,
                Some(
                    &[PickleValue::Bytes(data), PickleValue::NumpyType(dtype), shape, PickleValue::Text("C")],
                ),
            ) => {
                self.push_numpy_array()?;
                self.fill_numpy_array(dtype, shape, false, data)
            }
            (Global::Encode, Some(&[PickleValue::Text(text), PickleValue::Text("latin1")])) => {
                self.push_encoded(text)
            }
            (
                Global::DefaultDict,
                Some([] | [PickleValue::Global(Global::Container) | PickleValue::None]),
            ) => self.make_dict(),
            (Global::Size, Some(&[sizes @ PickleValue::Tuple { .. }])) => self.push(sizes),
            (Global::RebuildParameter, Some(&[tensor @ PickleValue::Tensor(_), _, _])) => self.push(tensor),
            (Global::RebuildTensorV2 | Global::RebuildTensorV3, Some(arguments)) => {
                let tensor = self.describe(function, arguments);
                let tensor = tensor.ok_or_else(|| self.bad_call(function))?;
                self.keep(1 + tensor.axes.len())?;
                self.tensors.push(tensor);
                self.push(PickleValue::Tensor(self.tensors.len() - 1))
            }
            _ => Err(self.bad_call(function)),
        }
    }

    fn bad_call(&self, function: Global) -> Error {
        let found = format_args!("a call of {function:?} with arguments that a plain tensor does not have");
        self.reader.bad(found, "a dense tensor of at most 8 axes; save tensor.resolve_conj().resolve_neg()")
    }

    /// Reads a tensor's arguments: (storage, offset, sizes, strides, requires_grad, hooks), then V3's type, then
    /// metadata. The metadata marks a lazily conjugated or negated tensor, whose storage does not contain its values.
    fn describe(&self, function: Global, arguments: &[PickleValue<'p>]) -> Option<PickleTensor<'p>> {
        let &[PickleValue::Storage(storage), PickleValue::Int(offset), sizes, strides, _, _, ref rest @ ..] =
            arguments
        else {
            return None;
        };
        let storage = self.storages[storage];
        let (dtype, rest) = match (function, storage.dtype, rest) {
            (Global::RebuildTensorV2, Some(dtype), rest) => (dtype, rest),
            (Global::RebuildTensorV3, None, &[PickleValue::Global(Global::DType(dtype)), ref rest @ ..]) => {
                (dtype, rest)
            }
            _ => return None,
        };
        let is_plain = rest.iter().all(|&value| self.is_empty_dict(value));
        let offset = usize::try_from(offset).ok().filter(|_| is_plain)?;
        Some(PickleTensor { at: self.reader.at(), dtype, storage, offset, axes: self.axes(sizes, strides)? })
    }

    fn axes(&self, sizes: PickleValue, strides: PickleValue) -> Option<Vec<StridedAxis>> {
        let (sizes, strides) = (self.numbers(sizes)?, self.numbers(strides)?);
        let axes = sizes.iter().zip(&strides).map(|(&size, &stride)| StridedAxis { size, stride });
        (sizes.len() == strides.len()).then(|| axes.collect())
    }

    /// Returns the numbers of a short tuple of sizes.
    pub(super) fn numbers(&self, tuple: PickleValue) -> Option<Vec<usize>> {
        let items = self.items(tuple).filter(|items| items.len() <= MOST_AXES)?;
        let number = |&item: &PickleValue| match item {
            PickleValue::Int(number) => usize::try_from(number).ok(),
            _ => None,
        };
        items.iter().map(number).collect()
    }

    /// Creates an object without attributes.
    pub(super) fn make_object(&mut self) -> Result<()> {
        let (arguments, class) = (self.pop()?, self.pop()?);
        let is_plain = self.items(arguments).is_some_and(<[_]>::is_empty);
        let PickleValue::Global(Global::Record) = class else {
            return Err(self
                .reader
                .bad(format_args!("a new object of {}", class.kind()), "of a known class"));
        };
        if !is_plain {
            return Err(self.reader.bad("arguments of a new object", "none"));
        }
        self.make_dict()?;
        let PickleValue::Dict(attributes) = self.pop()? else { unreachable!("a dict was pushed") };
        self.push(PickleValue::Object(attributes))
    }

    /// Sets the attributes of an object. Ignores the attributes of a dict, which contain no tensors that are not also
    /// entries: `_metadata` of a state dict has none, and each field of transformers' `ModelOutput` is also an entry.
    pub(super) fn set_attributes(&mut self) -> Result<()> {
        let state = self.pop()?;
        match (self.top()?, state) {
            (PickleValue::Dict(_), _) => Ok(()),
            (PickleValue::NumpyType(dtype), state) => self.set_numpy_order(dtype, state),
            (PickleValue::NumpyArray(_), state) => self.set_numpy_array(state),
            (PickleValue::Object(object), PickleValue::Dict(state)) => {
                let entries = self.dicts[state].clone();
                self.keep(2 * entries.len())?;
                self.dicts[object].extend(entries);
                Ok(())
            }
            (other, _) => Err(self.reader.bad(format_args!("applied to {}", other.kind()), "a dict")),
        }
    }
}
