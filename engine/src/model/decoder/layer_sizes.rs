//! Intervals of layers, and settings that a GGUF file states once or for each layer.

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::format::gguf::MetadataType;
use crate::model::decoder::Family;
use crate::model::size;

/// Returns flags that are false for every n-th layer. All flags are true if `every` is 0.
pub(super) fn all_but(every: usize, n_layers: usize) -> Vec<bool> {
    (1..=n_layers).map(|layer| !layer.is_multiple_of(every)).collect()
}

/// Number and settings of the layers in a GGUF file.
pub(super) struct GgufLayers<'g> {
    pub(super) file: &'g Gguf,
    /// Name of the architecture, which is the prefix of every key.
    pub(super) architecture: &'static str,
    /// Number of computed layers.
    pub(super) count: usize,
    /// Number of extra layers in the file that predict further tokens. They are not computed.
    pub(super) predicting: usize,
}

/// Rule for the sizes that layers may have.
#[derive(Clone, Copy)]
pub(super) enum SizeRule {
    /// All layers have the same size.
    Same,
    /// Layers of the kind with this name have the size 0. All other layers have the same size.
    SameOrZero(&'static str),
    /// The sizes of layers may differ.
    Free,
}

impl<'g> GgufLayers<'g> {
    /// Reads the number of layers.
    pub(super) fn new(file: &'g Gguf, architecture: &'static str, family: &Family) -> Result<Self> {
        let mut layers = Self { file, architecture, count: 0, predicting: 0 };
        if let Some([_, name]) = family.predicting {
            layers.predicting = file.optional(&layers.key(name))?.unwrap_or(0);
        }
        layers.count = file.require::<usize>(&layers.key("block_count"))?.saturating_sub(layers.predicting);
        size::check(file.tensors.path(), &[(size::LAYERS, layers.count)])?;
        Ok(layers)
    }

    /// Returns a key of the architecture.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Reads an array with an entry for each layer; `None` if the key has no array.
    pub(super) fn listed<T>(&self, name: &str) -> Result<Option<Vec<T>>>
    where
        Vec<T>: MetadataType<'g>,
    {
        let key = self.key(name);
        if !self.file.is_array(&key) {
            return Ok(None);
        }
        let (mut all, stored) = (self.file.require::<Vec<T>>(&key)?, self.count + self.predicting);
        if all.len() != stored {
            let (found, expected) =
                (format!("{} entries", all.len()), format!("one for each of {stored} layers"));
            return Err(Error::bad_key(self.file.tensors.path(), &key, found, expected));
        }
        all.truncate(self.count);
        Ok(Some(all))
    }

    /// Reads an interval of layers.
    pub(super) fn optional_interval(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.file.optional(&key)? {
            Some(0) => Err(Error::bad_key(self.file.tensors.path(), &key, 0, "1 or more layers")),
            every => Ok(every),
        }
    }

    /// Reads a size of each layer.
    pub(super) fn sizes(&self, name: &str) -> Result<Vec<usize>> {
        match self.optional_sizes(name)? {
            Some(sizes) => Ok(sizes),
            None => Ok(vec![self.file.require(&self.key(name))?; self.count]),
        }
    }

    fn optional_sizes(&self, name: &str) -> Result<Option<Vec<usize>>> {
        match self.listed(name)? {
            Some(sizes) => Ok(Some(sizes)),
            None => Ok(self.file.optional(&self.key(name))?.map(|size| vec![size; self.count])),
        }
    }

    /// Reads the size that all layers have by the rule. If layers may differ, returns the size of the first layer.
    pub(super) fn optional_size(&self, name: &str, rule: SizeRule) -> Result<Option<usize>> {
        let Some(sizes) = self.optional_sizes(name)? else { return Ok(None) };
        let may_be_zero = matches!(rule, SizeRule::SameOrZero(_));
        let size = sizes.iter().copied().find(|size| *size > 0 || !may_be_zero).unwrap_or(0);
        let expected = match rule {
            SizeRule::Free => return Ok(Some(size)),
            SizeRule::Same => {
                format!("{size} in every layer (layers of different sizes are not supported)")
            }
            SizeRule::SameOrZero(zero) => format!("{size}, or 0 in {zero} (other sizes are not supported)"),
        };
        match sizes.iter().find(|other| **other != size && !(may_be_zero && **other == 0)) {
            None => Ok(Some(size)),
            Some(other) => Err(Error::bad_key(self.file.tensors.path(), &self.key(name), other, expected)),
        }
    }

    /// Reads a size that a file must state, see [`GgufLayers::optional_size`].
    pub(super) fn size(&self, name: &str, rule: SizeRule) -> Result<usize> {
        self.optional_size(name, rule)?.map_or_else(|| self.file.require(&self.key(name)), Ok)
    }
}
