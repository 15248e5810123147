//! Tensors in nested dicts, lists and tuples, as users save the outputs of hooks, and as hqq saves modules.

use super::machine::{self, Machine, PicklePurpose};
use super::value::{PickleTensor, PickleValue};
use super::{FileBytes, integers};
use crate::error::Result;
use crate::weight::{DType, StoredTensor};

/// Maximum nesting depth. It is needed because a dict may contain itself.
const MOST_DEEP: usize = 16;
/// Maximum number of entries. Lists can be shared, so a few bytes can contain many entries.
const MOST_ENTRIES: usize = 1 << 18;
/// Maximum total size of all names in bytes. It is needed because keys can be shared too.
const MOST_NAMED: usize = 1 << 26;

/// Tensors and other entries of a pickle.
#[derive(Default)]
pub(in super::super) struct PickleContents<'p> {
    /// Tensors by their path of keys and indices, joined by dots.
    pub(in super::super) tensors: Vec<(String, PickleTensor<'p>)>,
    /// NumPy arrays, by their path.
    pub(in super::super) numpy: Vec<(String, StoredTensor)>,
    /// Lists of integers, such as token ids, by their path.
    pub(in super::super) ids: Vec<(String, Vec<i64>)>,
    /// Numbers, texts and shapes that hqq's modules contain, by their path.
    pub(in super::super) facts: Vec<(String, StoredTensor)>,
    /// Names of other entries, by their path.
    pub(in super::super) others: Vec<String>,
}

/// Returns the tensors anywhere in the dicts, lists and tuples that a pickle creates, in order.
pub(super) fn run(pickle: &FileBytes, purpose: PicklePurpose) -> Result<PickleContents<'_>> {
    let (machine, result) = machine::result(pickle, purpose)?;
    found(&machine, result)
}

/// Collects all entries below a value.
fn found<'p>(machine: &Machine<'p>, result: PickleValue<'p>) -> Result<PickleContents<'p>> {
    let mut found = PickleContents::default();
    // Stack of values to visit, the next one last. It replaces recursion, since a pickle may nest deeply.
    let mut left = vec![(String::new(), 0, result)];
    let (mut seen, mut named) = (0, 0);
    while let Some((path, depth, value)) = left.pop() {
        seen += 1;
        named += path.len();
        if seen > MOST_ENTRIES || named > MOST_NAMED || depth > MOST_DEEP {
            let expected =
                format!("at most {MOST_ENTRIES} entries, {MOST_DEEP} deep; save one dict of tensors by name");
            return Err(machine.reader.bad("nested too far", expected));
        }
        let below: Vec<(String, PickleValue<'p>)> = match value {
            PickleValue::Dict(dict) | PickleValue::Object(dict) => {
                machine.dicts[dict].iter().map(|&(key, value)| (name(key), value)).collect()
            }
            PickleValue::List(list) => numbered(&machine.lists[list]),
            PickleValue::Tuple { .. } => numbered(machine.items(value).unwrap_or_default()),
            _ => Vec::new(),
        };
        let ids = ids(&below);
        if let PicklePurpose::Modules = machine.purpose {
            found.facts.extend(fact(value, ids.as_deref()).map(|fact| (path.clone(), fact)));
        }
        match (value, ids) {
            (PickleValue::Tensor(tensor), _) => found.tensors.push((path, machine.tensors[tensor].clone())),
            (PickleValue::List(_), Some(ids)) => {
                seen += ids.len();
                found.ids.push((path, ids));
            }
            (PickleValue::Tuple { .. }, Some(_)) => found.others.push(path), // mostly a shape
            (
                PickleValue::Dict(_)
                | PickleValue::Object(_)
                | PickleValue::List(_)
                | PickleValue::Tuple { .. },
                _,
            ) => {
                let joined = |key: String| if path.is_empty() { key } else { format!("{path}.{key}") };
                let below = below.into_iter().rev();
                left.extend(below.map(|(key, value)| (joined(key), depth + 1, value)));
            }
            (PickleValue::NumpyArray(array), _) => match &machine.numpy.arrays[array] {
                Some(stored) => found.numpy.push((path, stored.clone())),
                None => found.others.push(path),
            },
            // Facts about the run, not activations.
            (
                PickleValue::None
                | PickleValue::Bool(_)
                | PickleValue::Int(_)
                | PickleValue::Text(_)
                | PickleValue::Global(_),
                _,
            ) => {}
            _ => found.others.push(path),
        }
        if left.len() > MOST_ENTRIES {
            return Err(machine.reader.bad("nested too far", format!("at most {MOST_ENTRIES} entries")));
        }
    }
    Ok(found)
}

/// Returns a setting as hqq encodes it in safetensors files: an integer, a flag, a text as bytes, or a shape.
fn fact(value: PickleValue, ids: Option<&[i64]>) -> Option<StoredTensor> {
    let of_bytes =
        |shape: Vec<usize>, data: Vec<u8>| StoredTensor { dtype: DType::U8, shape, data: data.into() };
    match value {
        PickleValue::Int(number) => Some(integers(Vec::new(), &[number])),
        PickleValue::Bool(flag) => Some(of_bytes(Vec::new(), vec![flag.into()])),
        PickleValue::Text(text) => Some(of_bytes(vec![text.len()], text.as_bytes().to_vec())),
        PickleValue::Tuple { .. } => ids.map(|sizes| integers(vec![sizes.len()], sizes)),
        _ => None,
    }
}

/// Returns the items of a list, each named by its index.
fn numbered<'p>(items: &[PickleValue<'p>]) -> Vec<(String, PickleValue<'p>)> {
    items.iter().enumerate().map(|(index, &item)| (index.to_string(), item)).collect()
}

/// Returns the items, if all are integers.
fn ids(items: &[(String, PickleValue)]) -> Option<Vec<i64>> {
    let id =
        |(_, item): &(String, PickleValue)| if let PickleValue::Int(id) = item { Some(*id) } else { None };
    items.iter().map(id).collect::<Option<Vec<i64>>>().filter(|ids| !ids.is_empty())
}

/// Formats a dict's key: a string or a number. Tuples such as (layer, name) are joined.
fn name(key: PickleValue) -> String {
    match key {
        PickleValue::Text(name) => name.to_owned(),
        PickleValue::Int(number) => number.to_string(),
        other => other.kind().to_owned(),
    }
}
