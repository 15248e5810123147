//! What the model read: told, in the map, or an array of the file.

use crate::error::{Error, Result};
use crate::format::Arrays;
use crate::map::{Map, WrittenTokens};
use crate::view::View;
use crate::weight::StoredTensor;

/// Names by which everybody saves them.
const USUAL: &[&str] = &["input_ids", "tokens", "inp_tokens", "token_ids", "ids"];

/// The tokens, and the name of the array that holds them.
pub(super) struct Tokens {
    pub ids: Vec<u32>,
    pub array: Option<String>,
}

impl Tokens {
    /// Those told, else those that the map says, else those in an array of the file.
    pub(super) fn of(map: &Map, arrays: &Arrays, told: Option<&[u32]>) -> Result<Self> {
        let array = array_of(map, arrays);
        let name = array.as_ref().map(|(name, _)| name.clone());
        let refuse = |problem: String| Error::dump(arrays.tensors.path(), problem);
        let ids = match (told, &map.written.tokens, array) {
            (Some(told), ..) => told.to_vec(),
            (None, Some(WrittenTokens::Ids(ids)), _) => ids.clone(),
            (None, _, Some((name, stored))) => {
                ids_in(&stored).map_err(|problem| refuse(format!("array '{name}' {problem}")))?
            }
            (None, ..) => {
                let problem = "which tokens the model read is not known: give --tokens 1,2,3, or tokens = [1, 2, 3] in the map, \
                               or save them beside the arrays as input_ids";
                return Err(refuse(problem.into()));
            }
        };
        if ids.is_empty() {
            return Err(refuse("there are no tokens: a model reads one at least".into()));
        }
        Ok(Self { ids, array: name })
    }
}

fn array_of(map: &Map, arrays: &Arrays) -> Option<(String, StoredTensor)> {
    let is_it = |name: &str| match &map.tokens {
        Some(pattern) => pattern.of(name).is_some(),
        None => USUAL.contains(&name.rsplit(['.', '/']).next().unwrap_or(name)),
    };
    let found = arrays.tensors.iter().find(|(name, _)| is_it(name));
    found.map(|(name, stored)| (name.to_owned(), stored.clone()))
}

/// Token ids of one sequence.
fn ids_in(stored: &StoredTensor) -> Result<Vec<u32>, String> {
    let shape = &stored.shape;
    let is_one = shape.split_last().is_some_and(|(_, outer)| outer.iter().all(|&length| length == 1));
    if !is_one {
        return Err(format!("has shape {shape:?}, expected the tokens of one sequence: [T] or [1, T]"));
    }
    let view = View::stored(shape, stored.dtype, stored.data.clone());
    let view = view.ok_or_else(|| format!("is of {}, expected whole numbers", stored.dtype))?;
    let id = |value: f64| match value as u32 {
        id if f64::from(id) == value => Ok(id),
        _ => Err(format!("holds {value}, which is no token id")),
    };
    view.to_vec().into_iter().map(id).collect()
}

/// The tokens that a file holds under one of the names by which everybody saves them.
///
/// # Errors
/// If that array is not the tokens of one sequence.
pub fn tokens_in(arrays: &Arrays) -> Result<Option<Vec<u32>>> {
    let is_usual = |name: &str| USUAL.contains(&name.rsplit(['.', '/']).next().unwrap_or(name));
    let Some((name, stored)) = arrays.tensors.iter().find(|(name, _)| is_usual(name)) else {
        return Ok(None);
    };
    let refuse = |problem| Error::dump(arrays.tensors.path(), format!("array '{name}' {problem}"));
    ids_in(stored).map(Some).map_err(refuse)
}
