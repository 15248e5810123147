//! Pickle machine: interprets a pickle without executing code. It has a stack, a memo, tuples and dicts. `calls`
//! lists the allowed calls.

use std::collections::HashMap;
use std::fmt::Display;

use super::super::escape::EscapedText;
use super::FileBytes;
use super::opcode::Opcode;
use super::reader::Reader;
use super::value::{NumpyValues, PickleTensor, PickleValue, Storage};
use crate::error::{Error, Result};

/// Maximum number of values on the stack. Python's pickler pushes at most a thousand dict entries at once.
const MOST_STACKED: usize = 1 << 16;
/// Maximum number of values in containers and the memo. A tensor takes about thirty.
const MOST_KEPT: usize = 1 << 22;

/// Returns the tensors of the dict that the pickle creates, in order.
pub(super) fn run(pickle: &FileBytes) -> Result<Vec<(&str, PickleTensor<'_>)>> {
    let (machine, result) = result(pickle, PicklePurpose::StateDict)?;
    machine.state_dict(result)
}

/// Runs a pickle and returns its result, with the machine that contains the result's items.
pub(super) fn result(pickle: &FileBytes, purpose: PicklePurpose) -> Result<(Machine<'_>, PickleValue<'_>)> {
    let mut machine = Machine::new(pickle, purpose);
    loop {
        match machine.reader.opcode()? {
            Opcode::Stop => break,
            opcode => machine.step(opcode)?,
        }
    }
    let result = machine.pop()?;
    Ok((machine, result))
}

/// Kind of content that a pickle should have. It determines which classes the pickle may name.
#[derive(Clone, Copy, Debug)]
pub(super) enum PicklePurpose {
    /// A dict of a model's tensors.
    StateDict,
    /// A dict of modules, as hqq saves them. Each module is a dict of tensors and settings.
    Modules,
    /// Activations: tensors in containers, or the results of transformers.
    Activations,
}

impl PicklePurpose {
    /// Returns, for error messages, what to save instead of an unknown class.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            PicklePurpose::StateDict => {
                "which a state dict of tensors does not need; xcheck never runs code from a pickle; save only \
                 model.state_dict(), or, if you trust the file, convert it to safetensors"
            }
            PicklePurpose::Modules => {
                "which hqq's qmodel.pt does not need; xcheck never runs code from a pickle; save the model again with \
                 AutoHQQHFModel.save_quantized"
            }
            PicklePurpose::Activations => {
                "which a file of activations does not need; xcheck never runs code from a pickle; save a dict of \
                 tensors by name: torch.save({name: tensor.detach().cpu(), ...}, FILE)"
            }
        }
    }
}

pub(super) struct Machine<'p> {
    pub(super) purpose: PicklePurpose,
    pub(crate) reader: Reader<'p>,
    stack: Vec<PickleValue<'p>>,
    /// Stack heights at the positions of mark opcodes.
    marks: Vec<usize>,
    memo: HashMap<u32, PickleValue<'p>>,
    /// Items of all tuples, concatenated.
    items: Vec<PickleValue<'p>>,
    pub(super) dicts: Vec<Vec<(PickleValue<'p>, PickleValue<'p>)>>,
    pub(super) lists: Vec<Vec<PickleValue<'p>>>,
    pub(crate) storages: Vec<Storage<'p>>,
    pub(crate) tensors: Vec<PickleTensor<'p>>,
    /// Values of NumPy: bytes, types and arrays.
    pub(super) numpy: NumpyValues,
    kept: usize,
}

impl<'p> Machine<'p> {
    fn new(pickle: &'p FileBytes, purpose: PicklePurpose) -> Self {
        Self {
            purpose,
            reader: Reader::new(pickle),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            items: Vec::new(),
            dicts: Vec::new(),
            lists: Vec::new(),
            storages: Vec::new(),
            tensors: Vec::new(),
            numpy: NumpyValues::default(),
            kept: 0,
        }
    }

    fn step(&mut self, opcode: Opcode) -> Result<()> {
        match opcode {
            Opcode::Proto => self.reader.protocol(),
            Opcode::Frame => self.reader.frame(),
            Opcode::Stop => Ok(()),
            Opcode::Mark => self.mark(),
            Opcode::None => self.push(PickleValue::None),
            Opcode::True | Opcode::False => self.push(PickleValue::Bool(opcode == Opcode::True)),
            Opcode::Int1 | Opcode::Int2 | Opcode::Int4 | Opcode::Long1 => {
                let number = self.reader.int()?;
                self.push(PickleValue::Int(number))
            }
            Opcode::Float => self.reader.skip_float().and_then(|()| self.push(PickleValue::Float)),
            Opcode::Text1 | Opcode::Text4 | Opcode::Text8 => {
                let text = self.reader.text()?;
                self.push(PickleValue::Text(text))
            }
            Opcode::Bytes1 | Opcode::Bytes4 | Opcode::Bytes8 | Opcode::ByteArray8 => {
                let range = self.reader.bytes()?;
                let bytes = self.reader.source().data.slice(range);
                self.push_bytes(bytes)
            }
            Opcode::EmptyTuple => self.make_tuple(0),
            Opcode::Tuple1 => self.make_tuple(1),
            Opcode::Tuple2 => self.make_tuple(2),
            Opcode::Tuple3 => self.make_tuple(3),
            Opcode::Tuple => self.pop_mark().and_then(|count| self.make_tuple(count)),
            Opcode::EmptyList => self.make_list(),
            Opcode::Append => self.append(1),
            Opcode::Appends => self.pop_mark().and_then(|count| self.append(count)),
            Opcode::EmptyDict => self.make_dict(),
            Opcode::SetItem => self.set_items(2),
            Opcode::SetItems => self.pop_mark().and_then(|count| self.set_items(count)),
            Opcode::Put1 | Opcode::Put4 => self.reader.index().and_then(|index| self.remember(index)),
            Opcode::Memoize => self.remember(self.memo.len() as u32), // lossless: there are at most MOST_KEPT
            Opcode::Get1 | Opcode::Get4 => self.reader.index().and_then(|index| self.recall(index)),
            Opcode::Global => self.read_global(),
            Opcode::StackGlobal => self.pop_global(),
            Opcode::PersistentId => self.name_storage(),
            Opcode::Reduce => self.call(),
            Opcode::Build => self.set_attributes(),
            Opcode::NewObject => self.make_object(),
        }
    }

    // ---- the stack and the memo -------------------------------------------------------------------------

    pub(crate) fn push(&mut self, value: PickleValue<'p>) -> Result<()> {
        refuse_more(&self.reader, self.stack.len(), MOST_STACKED)?;
        self.stack.push(value);
        Ok(())
    }

    fn mark(&mut self) -> Result<()> {
        refuse_more(&self.reader, self.marks.len(), MOST_STACKED)?;
        self.marks.push(self.stack.len());
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Result<PickleValue<'p>> {
        let top = self.below(1)?;
        Ok(self.stack.remove(top))
    }

    pub(crate) fn top(&self) -> Result<PickleValue<'p>> {
        Ok(self.stack[self.below(1)?])
    }

    /// Returns the index of the first of the `count` topmost values. They must have been pushed after the last mark.
    fn below(&self, count: usize) -> Result<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(count).filter(|&start| start >= floor);
        start.ok_or_else(|| self.reader.bad("applied to too few values", format_args!("{count}")))
    }

    /// Returns the number of values pushed since the last mark.
    fn pop_mark(&mut self) -> Result<usize> {
        let mark = self.marks.pop().ok_or_else(|| self.reader.bad("without a mark", "one before it"))?;
        Ok(self.stack.len() - mark) // `below` keeps the stack at least as high as its marks
    }

    fn remember(&mut self, index: u32) -> Result<()> {
        self.keep(1)?;
        self.memo.insert(index, self.top()?);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<()> {
        match self.memo.get(&index) {
            Some(&value) => self.push(value),
            None => Err(self.reader.bad(format_args!("for value {index}"), "one remembered before")),
        }
    }

    /// Counts values that are kept until the end. Returns an error if there are too many.
    pub(crate) fn keep(&mut self, count: usize) -> Result<()> {
        self.kept += count;
        refuse_more(&self.reader, self.kept, MOST_KEPT)
    }

    // ---- containers -------------------------------------------------------------------------------------

    /// Creates a tuple of the `count` topmost values.
    fn make_tuple(&mut self, count: usize) -> Result<()> {
        self.keep(count)?;
        let (start, first) = (self.below(count)?, self.items.len());
        self.items.extend(self.stack.drain(start..));
        self.push(PickleValue::Tuple { first, len: count })
    }

    pub(crate) fn items(&self, value: PickleValue) -> Option<&[PickleValue<'p>]> {
        let PickleValue::Tuple { first, len } = value else { return None };
        Some(&self.items[first..first + len])
    }

    pub(crate) fn make_dict(&mut self) -> Result<()> {
        self.keep(1)?;
        self.dicts.push(Vec::new());
        self.push(PickleValue::Dict(self.dicts.len() - 1))
    }

    fn make_list(&mut self) -> Result<()> {
        self.keep(1)?;
        self.lists.push(Vec::new());
        self.push(PickleValue::List(self.lists.len() - 1))
    }

    pub(crate) fn is_empty_dict(&self, value: PickleValue) -> bool {
        matches!(value, PickleValue::Dict(dict) if self.dicts[dict].is_empty())
    }

    /// Inserts the `count` topmost values, alternating keys and values, into the dict below them.
    fn set_items(&mut self, count: usize) -> Result<()> {
        self.keep(count)?;
        let start = self.below(count)?;
        let Some(&PickleValue::Dict(dict)) = self.stack[..start].last() else {
            return Err(self.reader.bad("applied to values of wrong types", "a dict below its entries"));
        };
        let (entries, rest) = self.stack[start..].as_chunks();
        if !rest.is_empty() {
            return Err(self.reader.bad("given a key without a value", "pairs"));
        }
        self.dicts[dict].extend(entries.iter().map(|&[key, value]| (key, value)));
        self.stack.truncate(start);
        Ok(())
    }

    /// Moves the `count` topmost values into the list below them.
    fn append(&mut self, count: usize) -> Result<()> {
        self.keep(count)?;
        let start = self.below(count)?;
        let Some(&PickleValue::List(list)) = self.stack[..start].last() else {
            return Err(self.reader.bad("applied to values of wrong types", "a list below its items"));
        };
        self.lists[list].extend(self.stack.drain(start..));
        Ok(())
    }

    // ---- the result -------------------------------------------------------------------------------------

    fn state_dict(&self, result: PickleValue<'p>) -> Result<Vec<(&'p str, PickleTensor<'p>)>> {
        match result {
            PickleValue::Dict(dict) => self.dicts[dict].iter().map(|&entry| self.entry(entry)).collect(),
            other => Err(self.refuse_result("its content", other)),
        }
    }

    fn entry(&self, (key, value): (PickleValue<'p>, PickleValue<'p>)) -> Result<(&'p str, PickleTensor<'p>)> {
        match (key, value) {
            (PickleValue::Text(name), PickleValue::Tensor(tensor)) => {
                Ok((name, self.tensors[tensor].clone()))
            }
            (PickleValue::Text(name), _) => {
                Err(self.refuse_result(format_args!("'{}'", EscapedText(name)), value))
            }
            _ => Err(self.refuse_result("the name of an entry", key)),
        }
    }

    fn refuse_result(&self, what: impl Display, found: PickleValue) -> Error {
        let expected = "a dict of tensors by name; if it contains a model, save only its state_dict()";
        self.reader.source().bad(self.reader.at(), what, found.kind(), expected)
    }
}

fn refuse_more(reader: &Reader, count: usize, most: usize) -> Result<()> {
    match count < most {
        true => Ok(()),
        false => {
            Err(reader.bad("one value too many", format_args!("at most {most}; save the model in shards")))
        }
    }
}
