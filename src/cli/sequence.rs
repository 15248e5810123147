//! Arguments of the form `DUMP#1`: one sequence of a dump, by its name or number.

use std::path::Path;

use crate::dump::Dump;
use crate::error::{Error, Result};

/// Splits an argument into the dump and the requested sequence, if any.
pub(crate) fn parts_of(typed: &str) -> (&str, Option<&str>) {
    match typed.rsplit_once('#') {
        Some((dump, sequence)) if !Path::new(typed).exists() => (dump, Some(sequence)),
        _ => (typed, None),
    }
}

/// Returns the index of the requested sequence; `None` for all. The part after # of a URL is ignored if there
/// is only one sequence.
///
/// # Errors
/// If the sequence does not exist.
pub(crate) fn asked_for<'d>(typed: &str, dumps: impl IntoIterator<Item = &'d Dump>) -> Result<Option<usize>> {
    let dumps: Vec<&Dump> = dumps.into_iter().collect();
    let is_of_an_address = typed.contains("://") && dumps.len() == 1;
    let Some(wanted) = parts_of(typed).1.filter(|_| !is_of_an_address) else { return Ok(None) };
    let known: Vec<&str> =
        dumps.iter().map(|dump| dump.manifest.sequence.as_deref().unwrap_or("0")).collect();
    let number = || wanted.parse().ok().filter(|&number: &usize| number < known.len());
    match known.iter().position(|name| *name == wanted).or_else(number) {
        Some(found) => Ok(Some(found)),
        None => {
            let path = dumps[0].path.display();
            Err(Error::Usage(format!("{path} has no sequence '{wanted}'; it has {}", known.join(", "))))
        }
    }
}
