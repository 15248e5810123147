//! Names of models, dumps and commands in reports and folders.

use std::path::{Path, PathBuf};

use crate::remote::{self, redacted};

/// Returns the command line without the program name and without secrets in URLs.
pub(crate) fn command() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| redacted(&word.to_string_lossy())).collect()
}

/// Returns a name with only the characters that are safe in folder names.
pub(crate) fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// Returns the name of a run's folder: the command, its subject, and the dump or case if only one was named.
pub(crate) fn folder_name(command: &str, about: &str, named: &[&str]) -> String {
    match named {
        ["-"] => format!("{command}-{about}-stdin"),
        [only] => format!("{command}-{about}-{}", dump_name(only.as_ref())),
        _ => format!("{command}-{about}"),
    }
}

/// Returns the name of a model in folder names: the last part of its path without the format, or org/repo for a hub
/// model. It depends only on the argument, so a deleted file does not change the folder.
pub(crate) fn model_name(typed: &str) -> &str {
    if let Some((_, url)) = typed.split_once("://") {
        return last_part(url.split(['?', '#']).next().unwrap_or(url).trim_end_matches('/'));
    }
    let repository = typed.split_once(':').map_or(typed, |(repository, _)| repository);
    let is_relative = !repository.starts_with(['/', '.', '~']) && !repository.ends_with('/');
    let is_file = FORMATS.iter().any(|format| repository.ends_with(format));
    if is_relative && !is_file && repository.matches('/').count() == 1 {
        return typed;
    }
    last_part(typed)
}

/// Returns the last part of a dump's path without its extension.
pub(crate) fn dump_name(path: &Path) -> String {
    let path = PathBuf::from(remote::redacted(&path.to_string_lossy()));
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".safetensors").or_else(|| name.strip_suffix(".npz")).unwrap_or(&name);
    name.to_owned()
}

/// File extensions of models that consist of a single file.
const FORMATS: [&str; 2] = [".gguf", ".bin"];

fn last_part(path: &str) -> &str {
    let last = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path);
    FORMATS.iter().find_map(|format| last.strip_suffix(format)).unwrap_or(last)
}
