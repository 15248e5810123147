//! Input tokens of a file with a map: given by the caller, stated in the map, or read from an array.

use crate::error::{DumpError, Error, Result};
use crate::format::{Arrays, EscapedText};
use crate::map::{NameMap, TokensDefinition};
use crate::view::View;
use crate::weight::StoredTensor;

/// Array names that engines commonly use for the input tokens.
const USUAL: &[&str] = &["input_ids", "tokens", "inp_tokens", "token_ids", "ids", SEQUENCES];
/// Array name of the prompt and its continuation in a result of transformers' `generate`.
const SEQUENCES: &str = "sequences";

/// The input tokens, and the name of the array that contains them.
pub(super) struct MapTokens {
    pub(crate) ids: Vec<u32>,
    pub(crate) array: Option<String>,
}

impl MapTokens {
    /// Returns true if the tokens end with a generated one, which no pass may have read.
    pub(super) fn is_continued(&self) -> bool {
        self.array.as_deref().is_some_and(is_sequences)
    }

    /// Returns the given tokens, or otherwise those of the map, or otherwise those of an array in the file. An array
    /// must agree with the given tokens. If the run has several passes (`goes_on`), the array may contain only the
    /// prompt.
    pub(super) fn of(map: &NameMap, arrays: &Arrays, told: Option<&[u32]>, goes_on: bool) -> Result<Self> {
        let said = match &map.written.tokens {
            Some(TokensDefinition::Ids(ids)) => Some(ids.as_slice()),
            _ => None,
        };
        let held = TokenArray::of(map, arrays);
        let name = held.as_ref().map(|held| held.name.to_owned());
        let refuse = |problem: &str| Err(Error::dump(arrays.tensors.path(), problem));
        let (ids, array) = match (told.or(said), held) {
            (Some(told), Some(held)) => {
                // An array that is not a list of ids is something else, whatever its name.
                match held.continued(told) {
                    Some(ids) => (ids, name),
                    None => {
                        let is_held = held.check(told, goes_on)?;
                        (told.to_vec(), name.filter(|_| is_held))
                    }
                }
            }
            (Some(told), None) => (told.to_vec(), None),
            (None, Some(held)) => (held.ids()?, name),
            (None, None) => {
                return refuse(
                    "the tokens that the model read are unknown; give --tokens 1,2,3, or tokens = [1, 2, 3] \
                     in the map, or save them with the arrays as input_ids",
                );
            }
        };
        if ids.is_empty() {
            return refuse("no tokens, expected at least one");
        }
        Ok(Self { ids, array })
    }
}

/// An array that should contain the tokens, by its name.
struct TokenArray<'a> {
    arrays: &'a Arrays,
    name: &'a str,
    stored: &'a StoredTensor,
}

impl<'a> TokenArray<'a> {
    fn of(map: &NameMap, arrays: &'a Arrays) -> Option<Self> {
        match &map.tokens {
            Some(pattern) => Self::named(arrays, |name| pattern.of(name).is_some()),
            None => Self::named(arrays, |name| is_usual(&map.renamed(name).name)),
        }
    }

    fn usual(arrays: &'a Arrays) -> Option<Self> {
        Self::named(arrays, is_usual)
    }

    fn named(arrays: &'a Arrays, is_it: impl Fn(&str) -> bool) -> Option<Self> {
        let (name, stored) = arrays.tensors.iter().find(|(name, _)| is_it(name))?;
        Some(Self { arrays, name, stored })
    }

    fn ids(&self) -> Result<Vec<u32>> {
        let refuse = |problem| {
            Error::dump(self.arrays.tensors.path(), format!("array '{}': {problem}", EscapedText(self.name)))
        };
        ids_in(self.stored).map_err(refuse)
    }

    /// Returns the prompt and its continuation, if the array contains both and starts with the given tokens.
    fn continued(&self, told: &[u32]) -> Option<Vec<u32>> {
        let ids = is_sequences(self.name).then(|| ids_in(self.stored).ok()).flatten()?;
        ids.starts_with(told).then_some(ids)
    }

    /// Returns true if the array contains token ids. They must equal the given tokens, or be a prefix of them if the
    /// run has several passes.
    fn check(&self, told: &[u32], goes_on: bool) -> Result<bool> {
        let Ok(ids) = ids_in(self.stored) else { return Ok(false) };
        if told == ids || goes_on && told.starts_with(&ids) {
            return Ok(true);
        }
        let position = told.iter().zip(&ids).take_while(|(one, other)| one == other).count();
        Err(Error::Dump(DumpError::TokensDiffer {
            one_name: "the tokens given".to_owned(),
            one: told.to_vec(),
            other_name: format!(
                "array '{}' of {}",
                EscapedText(self.name),
                self.arrays.tensors.path().display()
            ),
            other: ids,
            position,
        }))
    }
}

fn is_usual(name: &str) -> bool {
    USUAL.contains(&name.rsplit(['.', '/']).next().unwrap_or(name))
}

fn is_sequences(name: &str) -> bool {
    name.rsplit(['.', '/']).next() == Some(SEQUENCES)
}

/// Returns the token ids of one sequence.
fn ids_in(stored: &StoredTensor) -> Result<Vec<u32>, String> {
    let shape = &stored.shape;
    let is_one = shape.split_last().is_some_and(|(_, outer)| outer.iter().all(|&length| length == 1));
    if !is_one {
        return Err(format!("shape {shape:?}, expected the tokens of one sequence: [T] or [1, T]"));
    }
    let view = View::stored(shape, stored.dtype, stored.data.clone());
    let view = view.ok_or_else(|| format!("dtype {}, expected integers", stored.dtype))?;
    let id = |value: f64| match value as u32 {
        id if f64::from(id) == value => Ok(id),
        _ => Err(format!("invalid token id {value}")),
    };
    view.to_vec().into_iter().map(id).collect()
}

/// Returns the input tokens: the given ones, otherwise those of an array with a common name. `None` if
/// unknown.
///
/// # Errors
/// If the array contradicts the given tokens, or if it is needed and is not one sequence of tokens.
pub fn tokens_of(arrays: &Arrays, told: Option<Vec<u32>>) -> Result<Option<Vec<u32>>> {
    match (told, TokenArray::usual(arrays)) {
        (Some(told), Some(held)) => held.check(&told, true).map(|_| Some(told)),
        (told, None) => Ok(told),
        (None, Some(held)) => held.ids().map(Some),
    }
}
