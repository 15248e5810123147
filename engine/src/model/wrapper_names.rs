//! Prefixes that torch's wrappers add to tensor names: data parallelism and compilation.

use crate::error::Result;
use crate::format::{FileBytes, TensorFile};

/// Prefixes of all tensor names: DistributedDataParallel and DataParallel, torch.compile.
const PREFIXES: [&str; 2] = ["module.", "_orig_mod."];
/// Name component that torch.compile adds before a compiled part.
const COMPILED: &str = "_orig_mod.";

/// Returns the tensors under their names without wrapper prefixes.
///
/// # Errors
/// If two tensors then have the same name.
pub(super) fn without_wrappers(tensors: TensorFile) -> Result<TensorFile> {
    let mut entries = tensors.entries();
    let wrapper = |entries: &[(String, _)]| {
        let is_of_all = |prefix: &&str| entries.iter().all(|(name, _)| name.starts_with(prefix));
        PREFIXES.into_iter().find(is_of_all).filter(|_| !entries.is_empty())
    };
    let mut is_changed = false;
    while let Some(prefix) = wrapper(&entries) {
        entries.iter_mut().for_each(|(name, _)| _ = name.drain(..prefix.len()));
        is_changed = true;
    }
    for (name, _) in entries.iter_mut().filter(|(name, _)| name.contains(COMPILED)) {
        *name = name.replace(COMPILED, "");
        is_changed = true;
    }
    match is_changed {
        true => TensorFile::joined(&FileBytes::embedded(tensors.path(), &[]), entries),
        false => Ok(tensors),
    }
}
