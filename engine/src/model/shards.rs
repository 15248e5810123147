//! Sharded checkpoints: `model.safetensors.index.json` or `pytorch_model.bin.index.json`, and their shards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use rayon::prelude::*;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::format::{FileBytes, FileStore, TensorFile};

/// Index of shards.
#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
    /// SHA-256 of stored tensors, by name; downloaded parts of remote files are checked against them.
    #[serde(default)]
    tensor_sha256: BTreeMap<String, String>,
}

/// Opens every shard of an index, in file-name order.
pub(super) fn open(place: &dyn FileStore, index: &FileBytes) -> Result<Vec<FileBytes>> {
    let folder = index.path.parent().unwrap_or(Path::new(""));
    let names: BTreeSet<String> = parse(index)?.weight_map.into_values().collect();
    if names.is_empty() {
        return Err(Error::bad_key(&index.path, "weight_map", "empty", "a map from tensors to their shards"));
    }
    let shard = |name: String| {
        let is_plain = Path::new(&name).components().eq([Component::Normal(name.as_ref())]);
        let shard = if is_plain { place.find(&folder.join(&name))? } else { None };
        shard.ok_or_else(|| {
            Error::bad_key(
                &index.path,
                "weight_map",
                name,
                "a file in the same folder; get the missing shard",
            )
        })
    };
    // For remote files, each shard is one request.
    names.into_par_iter().map(shard).collect()
}

/// Reads the tensors of all shards, and checks that they match the index.
pub(super) fn read(index: &FileBytes, shards: &[FileBytes]) -> Result<TensorFile> {
    let ShardIndex { weight_map: place, tensor_sha256: hashes } = parse(index)?;
    let mut entries = Vec::new();
    for shard in shards {
        let name = shard.path.file_name().unwrap_or_default().to_string_lossy();
        let tensors = TensorFile::read(shard)?;
        for (tensor, stored) in tensors.iter() {
            if place.get(tensor).map(String::as_str) != Some(&*name) {
                let expected = format!(
                    "{name}, which contains the tensor; index and shards are from different checkpoints"
                );
                let found = place.get(tensor).map_or("nowhere", String::as_str);
                return Err(Error::bad_key(&index.path, &format!("weight_map.{tensor}"), found, expected));
            }
            let mut stored = stored.clone();
            if let Some(sha256) = hashes.get(tensor) {
                let what = format!("{}: tensor '{tensor}'", shard.path.display());
                stored.data = stored.data.hashed(sha256, what);
            }
            entries.push((tensor.to_owned(), stored));
        }
    }
    let held: BTreeSet<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    match place.iter().find(|(tensor, _)| !held.contains(tensor.as_str())) {
        Some((tensor, shard)) => {
            let expected = "a shard with this tensor; the shard is damaged or from another checkpoint";
            Err(Error::bad_key(&index.path, &format!("weight_map.{tensor}"), shard, expected))
        }
        None => TensorFile::joined(index, entries),
    }
}

/// Returns the number of tensors with a hash.
pub(super) fn hashes(index: &FileBytes) -> Result<usize> {
    Ok(parse(index)?.tensor_sha256.len())
}

fn parse(index: &FileBytes) -> Result<ShardIndex> {
    serde_json::from_slice(&index.data).map_err(|error| Error::BadContainer {
        file: index.path.clone(),
        format: "checkpoint index",
        problem: error.to_string(),
    })
}
