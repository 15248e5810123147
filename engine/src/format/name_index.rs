//! Entries with unique names, in file order, with lookup by name.

use super::escape::EscapedText;
use super::source::FileBytes;
use crate::error::{Error, FormatError, Result};

/// Values under unique names, in file order.
#[derive(Clone, Debug)]
pub struct NameIndex<T> {
    entries: Vec<(String, T)>,
    /// Positions in `entries`, sorted by name. Lookups are binary searches, and names are stored once.
    by_name: Vec<usize>,
}

impl<T> NameIndex<T> {
    /// Creates an index of a file's entries. `offsets` are their offsets, for the error about a duplicate name; `kind`
    /// names the kind of entry.
    pub(super) fn new(
        source: &FileBytes,
        kind: &'static str,
        entries: Vec<(String, T)>,
        offsets: &[usize],
    ) -> Result<Self> {
        let name = |position: &usize| entries[*position].0.as_str();
        let mut by_name: Vec<usize> = (0..entries.len()).collect();
        by_name.sort_by(|left, right| name(left).cmp(name(right)));
        // The sort is stable, so of two equal names the later one comes second.
        let twins = by_name.windows(2).find(|pair| name(&pair[0]) == name(&pair[1]));
        match twins.map(|pair| pair[1]) {
            None => Ok(Self { entries, by_name }),
            Some(second) => Err(Error::Format(FormatError::Duplicate {
                file: source.path.clone(),
                offset: offsets[second] as u64,
                kind,
                name: EscapedText(&entries[second].0).to_string(),
            })),
        }
    }

    /// Replaces every value by the result of `change`; stops at the first error.
    pub(super) fn try_update(&mut self, change: &mut impl FnMut(&str, &T) -> Result<T>) -> Result<()> {
        for (name, value) in &mut self.entries {
            *value = change(name, value)?;
        }
        Ok(())
    }

    /// Returns the value with that name.
    pub fn get(&self, name: &str) -> Option<&T> {
        let found = self.by_name.binary_search_by(|&position| self.entries[position].0.as_str().cmp(name));
        found.ok().map(|index| &self.entries[self.by_name[index]].1)
    }

    /// Returns all names and values, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &T)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
