//! What models, dumps and commands are called in reports and in the names of folders.

use std::path::{Path, PathBuf};

use crate::remote::{self, redacted};

/// The command line as it was given, without the program's name and what a URL must not tell.
pub fn command() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| redacted(&word.to_string_lossy())).collect()
}

/// A name that can be a folder's.
pub fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// What a run's folder is called: by its command and what it is about, and by the one dump or case that it was asked
/// for, if it was only one.
pub fn folder_name(command: &str, about: &str, named: &[&str]) -> String {
    match named {
        ["-"] => format!("{command}-{about}-stdin"),
        [only] => format!("{command}-{about}-{}", dump_name(only.as_ref())),
        _ => format!("{command}-{about}"),
    }
}

/// What a model is called in the name of a run's folder: by the last part of its path, without what tells its format; a
/// name of the hub, org/repo, whole. The argument alone tells it: a file that is gone must not make another folder of it,
/// while an old report stays where everybody looks.
pub fn model_name(typed: &str) -> &str {
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

/// The last part of a dump's path, without what tells its container.
pub fn dump_name(path: &Path) -> String {
    let path = PathBuf::from(remote::redacted(&path.to_string_lossy()));
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".safetensors").or_else(|| name.strip_suffix(".npz")).unwrap_or(&name);
    name.to_owned()
}

/// How the names of model files end that go by their own name.
const FORMATS: [&str; 2] = [".gguf", ".bin"];

fn last_part(path: &str) -> &str {
    let last = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path);
    FORMATS.iter().find_map(|format| last.strip_suffix(format)).unwrap_or(last)
}
