//! Dumps in a directory: `.npy` files, or `.safetensors` files that each contain several arrays.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dump::TensorRow;
use crate::error::{Error, Result};
use crate::format::{FileBytes, Safetensors, TensorFile, npy};
use crate::weight::{DType, StoredTensor};

/// A dump's directory, with a cache of opened `.safetensors` files.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    root: PathBuf,
    opened: Arc<Mutex<HashMap<String, TensorFile>>>,
}

impl Directory {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), opened: Arc::default() }
    }

    /// Returns true if the file of an array exists.
    pub(super) fn holds(&self, row: &TensorRow) -> bool {
        self.root.join(row.place().0).is_file()
    }

    /// Reads an array as it is stored.
    pub(super) fn read(&self, row: &TensorRow, bits: Option<DType>) -> Result<StoredTensor> {
        let (file, Some(key)) = row.place() else {
            return npy::read(&FileBytes::open(&self.root.join(&row.file))?, bits);
        };
        let opened = || self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let known = opened().get(file).cloned();
        let tensors = match known {
            Some(tensors) => tensors,
            None => {
                let tensors = Safetensors::read(&FileBytes::open(&self.root.join(file))?)?.tensors;
                opened().insert(file.to_owned(), tensors.clone());
                tensors
            }
        };
        tensors.get(key).cloned().ok_or_else(|| {
            Error::dump(&self.root.join(file), format!("missing array '{key}', which the manifest lists"))
        })
    }
}
