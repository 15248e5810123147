//! Tensors anywhere in dicts, lists and tuples: what people save who hook modules.

use super::Source;
use super::machine::{self, Machine};
use super::value::{Tensor, Value};
use crate::error::Result;

/// Maximum nesting depth; a dict may contain itself.
const MOST_DEEP: usize = 16;
/// Maximum number of entries. Lists can be shared, so that few bytes hold many entries.
const MOST_ENTRIES: usize = 1 << 18;
/// Bytes of all their names: keys may be shared, too.
const MOST_NAMED: usize = 1 << 26;

/// Tensors and other entries of a pickle.
#[derive(Default)]
pub(in super::super) struct Found<'p> {
    /// Tensors by the path of keys and numbers to them, joined by dots.
    pub(in super::super) tensors: Vec<(String, Tensor<'p>)>,
    /// Lists of whole numbers, likewise: token ids.
    pub(in super::super) ids: Vec<(String, Vec<i64>)>,
    /// Entries that are something else, likewise.
    pub(in super::super) others: Vec<String>,
}

/// The tensors anywhere in the dicts, lists and tuples that a pickle makes, in their order.
pub(super) fn run(pickle: &Source) -> Result<Found<'_>> {
    let (machine, result) = machine::result(pickle)?;
    found(&machine, result)
}

/// Everything below a value.
fn found<'p>(machine: &Machine<'p>, result: Value<'p>) -> Result<Found<'p>> {
    let mut found = Found::default();
    // What is left to look at, the next one last: no recursion, whatever the pickle nests.
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
        let below: Vec<(String, Value<'p>)> = match value {
            Value::Dict(dict) => machine.dicts[dict].iter().map(|&(key, value)| (name(key), value)).collect(),
            Value::List(list) => numbered(&machine.lists[list]),
            Value::Tuple { .. } => numbered(machine.items(value).unwrap_or_default()),
            _ => Vec::new(),
        };
        match (value, ids(&below)) {
            (Value::Tensor(tensor), _) => found.tensors.push((path, machine.tensors[tensor].clone())),
            (Value::List(_), Some(ids)) => {
                seen += ids.len();
                found.ids.push((path, ids));
            }
            (Value::Tuple { .. }, Some(_)) => found.others.push(path), // mostly a shape
            (Value::Dict(_) | Value::List(_) | Value::Tuple { .. }, _) => {
                let joined = |key: String| if path.is_empty() { key } else { format!("{path}.{key}") };
                let below = below.into_iter().rev();
                left.extend(below.map(|(key, value)| (joined(key), depth + 1, value)));
            }
            (Value::None, _) => {}
            _ => found.others.push(path),
        }
        if left.len() > MOST_ENTRIES {
            return Err(machine.reader.bad("nested too far", format!("at most {MOST_ENTRIES} entries")));
        }
    }
    Ok(found)
}

/// Items under their numbers.
fn numbered<'p>(items: &[Value<'p>]) -> Vec<(String, Value<'p>)> {
    items.iter().enumerate().map(|(index, &item)| (index.to_string(), item)).collect()
}

/// The items, if they are whole numbers alone.
fn ids(items: &[(String, Value)]) -> Option<Vec<i64>> {
    let id = |(_, item): &(String, Value)| if let Value::Int(id) = item { Some(*id) } else { None };
    items.iter().map(id).collect::<Option<Vec<i64>>>().filter(|ids| !ids.is_empty())
}

/// A key of a dict: a text or a number. Tuples of these, (layer, name), are joined.
fn name(key: Value) -> String {
    match key {
        Value::Text(name) => name.to_owned(),
        Value::Int(number) => number.to_string(),
        other => other.kind().to_owned(),
    }
}
