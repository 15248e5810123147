//! Activations saved without a name. The hidden states or the logits of a model are recognised by their shapes.

use crate::format::{Arrays, EscapedText};
use crate::map::MapContext;
use crate::weight::StoredTensor;

/// Returns the arrays under the names of transformers, with a note. `None` if their shapes are not those of hidden
/// states or logits of the model.
pub(super) fn named(arrays: &Arrays, known: &MapContext) -> Option<(Arrays, String)> {
    let entries: Vec<(&str, &StoredTensor)> = arrays.tensors.iter().collect();
    let (name, renamed) = match entries[..] {
        [(name, stored)] => (name, vec![(alone(stored, known)?.to_owned(), stored.clone())]),
        _ => (entries.first()?.0, listed(&entries, known)?),
    };
    let tap = if renamed[0].0 == LOGITS { LOGITS } else { HIDDEN_STATES };
    let note = format!("array '{}' has no known name; its shape is that of {tap}", EscapedText(name));
    let arrays = Arrays::of(arrays.tensors.path(), renamed, arrays.others.clone()).ok()?;
    Some((arrays, note))
}

const HIDDEN_STATES: &str = "hidden_states";
const LOGITS: &str = "logits";

/// Returns the name of a single array: a stack of hidden states, or logits.
fn alone(stored: &StoredTensor, known: &MapContext) -> Option<&'static str> {
    let first = stored.shape.iter().position(|&length| length != 1)?;
    let (layers, hidden) = (known.layers?, known.hidden_size?);
    match stored.shape[first..] {
        [entries, .., width]
            if entries == layers + 1 && width == hidden && stored.shape.len() > first + 2 =>
        {
            Some(HIDDEN_STATES)
        }
        [.., width] if Some(width) == known.vocab_size && width != hidden => Some(LOGITS),
        _ => None,
    }
}

/// Returns the names for a list with one more hidden state than the model has layers.
fn listed(entries: &[(&str, &StoredTensor)], known: &MapContext) -> Option<Vec<(String, StoredTensor)>> {
    let is_next = |(index, (name, stored)): (usize, &(&str, &StoredTensor))| {
        *name == index.to_string()
            && stored.shape.len() > 1
            && stored.shape.last() == known.hidden_size.as_ref()
    };
    let is_list = entries.len() == known.layers? + 1 && entries.iter().enumerate().all(is_next);
    let named =
        |(name, stored): &(&str, &StoredTensor)| (format!("{HIDDEN_STATES}.{name}"), (*stored).clone());
    is_list.then(|| entries.iter().map(named).collect())
}
