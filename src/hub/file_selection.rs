//! Selection of the files of a repository that make up a model. Other files are not downloaded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::name::{RepoFiles, is_plain};
use crate::error::{Error, Result};
use crate::format::gguf::PartName;
use crate::input;

/// Selected files of a repository, by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FileSelection {
    /// Required files that exist.
    pub(crate) files: Vec<String>,
    /// Required files that are missing.
    pub(crate) missing: Vec<String>,
}

/// Names of weight files, the preferred form first. An index lists shards.
const WEIGHTS: [&str; 5] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "qmodel.pt",
];

/// File that every model folder needs.
const CONFIG: &str = "config.json";

/// Files that are downloaded too if the repository has them.
const EXTRAS: [&str; 11] = [
    "hf_quant_config.json",
    "quanto_qmap.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// Chooses files from the list `there`. `read` returns the content of a file.
///
/// # Errors
/// If an index cannot be read, or a quantisation does not match exactly one file.
pub(crate) fn choose(
    part: &RepoFiles,
    there: &[String],
    read: impl FnOnce(&str) -> Result<Vec<u8>>,
) -> Result<FileSelection> {
    let wanted = match part {
        RepoFiles::Folder => folder(there, read)?,
        RepoFiles::File(file) => with_parts(file),
        RepoFiles::Quantised(tag) => with_parts(&quantised(there, tag)?),
    };
    let (files, missing) = wanted.into_iter().partition(|file| there.contains(file));
    Ok(FileSelection { files, missing })
}

fn folder(there: &[String], read: impl FnOnce(&str) -> Result<Vec<u8>>) -> Result<Vec<String>> {
    let is_there = |name: &str| there.iter().any(|file| file == name);
    let weights = WEIGHTS.into_iter().find(|name| is_there(name)).unwrap_or(WEIGHTS[0]);
    let extras = EXTRAS.into_iter().filter(|name| is_there(name));
    let mut wanted: Vec<String> =
        [CONFIG].into_iter().chain(extras).chain([weights]).map(str::to_owned).collect();
    if weights.ends_with(".index.json") {
        wanted.extend(shards(weights, &read(weights)?)?);
    }
    Ok(wanted)
}

/// Maximum size of an index in bytes. The largest models have an index of one or two megabytes.
const LONGEST_INDEX: u64 = 64 << 20;

/// Reads an index file.
///
/// # Errors
/// If the file cannot be read, or is too large for an index.
pub(crate) fn read_index(path: &Path) -> Result<Vec<u8>> {
    let length = input::regular(path)?.len();
    if length > LONGEST_INDEX {
        return Err(Error::BadContainer {
            file: path.to_owned(),
            format: "checkpoint index",
            problem: format!("the index has {length} bytes, expected at most {LONGEST_INDEX}"),
        });
    }
    input::bytes(path)
}

/// The index file of sharded safetensors.
#[derive(Deserialize)]
struct RepoShardIndex {
    weight_map: BTreeMap<String, String>,
}

/// Returns the shards listed in an index.
fn shards(name: &str, index: &[u8]) -> Result<BTreeSet<String>> {
    let index: RepoShardIndex = serde_json::from_slice(index).map_err(|error| Error::BadContainer {
        file: name.into(),
        format: "checkpoint index",
        problem: error.to_string(),
    })?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|shard| !is_plain(shard)) {
        Some(shard) => Err(Error::bad_key(
            Path::new(name),
            "weight_map",
            shard,
            "a file name in the folder of the index",
        )),
        None => Ok(shards),
    }
}

/// Returns the file, or all parts of the model of which the file is a part.
fn with_parts(file: &str) -> Vec<String> {
    PartName::parse(file).map_or_else(|| vec![file.to_owned()], |name| name.all().collect())
}

/// Returns the GGUF file whose name ends with the quantisation, ignoring case. For a split model, returns the first
/// part.
fn quantised(there: &[String], tag: &str) -> Result<String> {
    let is_it = |file: &&String| {
        let part = PartName::parse(file);
        if part.as_ref().is_some_and(|part| part.of_part(0) != **file) {
            return false;
        }
        let stem = part.map_or_else(|| file.to_lowercase(), |part| part.stem.to_lowercase() + ".gguf");
        stem.strip_suffix(&format!("{}.gguf", tag.to_lowercase()))
            .is_some_and(|rest| rest.ends_with(['-', '.', '_']))
    };
    match there.iter().filter(is_it).collect::<Vec<_>>().as_slice() {
        [file] => Ok((*file).clone()),
        _ => {
            let gguf: Vec<_> =
                there.iter().filter(|file| file.ends_with(".gguf")).map(String::as_str).collect();
            let known = if gguf.is_empty() { "none".to_owned() } else { gguf.join(", ") };
            Err(Error::Usage(format!(
                "':{tag}' must match exactly one GGUF file of the repository; it has: {known}"
            )))
        }
    }
}
