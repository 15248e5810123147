//! Inputs of a command, derived from its arguments.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::sequence::parts_of;
use crate::error::{Error, Result};
use crate::matrix::{CellInputs, MakeCommand};
use crate::shipped_models;

/// Folder next to a model in which `xcheck run` looks for dumps.
const DUMPS: &str = "dumps";

/// Collects the inputs of a comparison: the words, all named files and folders, and the files read with them.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn of_command(words: &[String], inputs: &mut CellInputs) -> Result<()> {
    words.iter().for_each(|word| inputs.say("word", word));
    named(&words[1..], inputs)?;
    for model in values(words, "--model", "-m") {
        match Path::new(model) {
            path if path.is_file() => beside(path).iter().try_for_each(|file| inputs.content(file))?,
            path if path.exists() || shipped_models::home(model)?.is_some() => {}
            _ => inputs.unknown(format!("the model {model} is not a local file")),
        }
        let folder = dumps_folder(model)?.filter(|folder| words[0] == "run" && folder.is_dir());
        if let Some(folder) = folder.filter(|_| may_be_found(&values(words, "--reference", "-r"))) {
            inputs.content(&folder)?;
        }
    }
    Ok(())
}

/// Collects the inputs of a `make` command.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn of_make(make: &MakeCommand, inputs: &mut CellInputs) -> Result<()> {
    make.words.iter().for_each(|word| inputs.say("word", word));
    named(&make.named, inputs)
}

/// Adds every argument that names a file or a folder. The name may be the whole argument, follow an option's name,
/// or be followed by the name of a sequence.
fn named(words: &[String], inputs: &mut CellInputs) -> Result<()> {
    for word in words {
        let value = match word.strip_prefix('-') {
            Some(option) if option.starts_with('-') => word.split_once('=').map(|(_, value)| value),
            Some(option) => option.get(1..).map(|value| value.trim_start_matches('=')),
            None => Some(word.as_str()),
        };
        let value = parts_of(value.unwrap_or_default()).0;
        match Path::new(value) {
            _ if value.contains("://") => inputs.unknown(format!("{value} is remote")),
            path if !value.is_empty() && path.exists() => inputs.content(path)?,
            // Content embedded in the program is covered by the program's hash.
            _ => shipped_models::folders_of(value)?.iter().try_for_each(|folder| inputs.content(folder))?,
        }
    }
    Ok(())
}

/// Returns all values of an option.
fn values<'w>(words: &'w [String], long: &str, short: &str) -> Vec<&'w str> {
    let glued = |word: &'w str| match word.strip_prefix(long) {
        Some(rest) => rest.strip_prefix('='),
        None => {
            word.strip_prefix(short).filter(|rest| !rest.is_empty()).map(|rest| rest.trim_start_matches('='))
        }
    };
    let value = |(at, word): (usize, &'w String)| match word == long || word == short {
        true => words.get(at + 1).map(String::as_str),
        false => glued(word),
    };
    words.iter().enumerate().filter_map(value).collect()
}

/// Returns the files read with a model file: configuration, tokenizer, and further parts of the model.
fn beside(model: &Path) -> Vec<PathBuf> {
    let name = model.file_name().unwrap_or_default().to_string_lossy();
    let is_of_several = name.ends_with(".json") || name.contains("-of-");
    let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_read = |path: &PathBuf| {
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        let is_weights = ["safetensors", "bin", "gguf"].contains(&extension);
        let is_small =
            ["json", "model", "txt", "ini"].contains(&extension) || path.ends_with("tokenizer.bin");
        path.is_file() && (is_small || (is_weights && is_of_several))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_read).collect();
    files.sort();
    files
}

fn dumps_folder(model: &str) -> Result<Option<PathBuf>> {
    Ok(match Path::new(model) {
        path if path.is_dir() => Some(path.join(DUMPS)),
        path if path.exists() => Some(path.with_file_name(DUMPS)),
        _ => shipped_models::home(model)?.map(|shipped| Path::new(DUMPS).join(shipped.name)),
    })
}

/// Returns true if the command may find a reference by itself, by name or by default.
fn may_be_found(references: &[&str]) -> bool {
    let is_path = |name: &str| {
        let path = Path::new(name);
        path.exists() && (name.contains('/') || path.extension().is_some())
    };
    references.is_empty() || !references.iter().all(|name| is_path(parts_of(name).0))
}

/// Checks that a command is allowed in a cell.
///
/// # Errors
/// If the command is not allowed; the message says why.
pub(crate) fn check(words: &[String]) -> Result<(), String> {
    const COMPARING: [&str; 5] = ["run", "check", "audit", "compare", "merge"];
    const TAKEN: [&str; 3] = ["--report", "--no-report", "--format"];
    let first = words.first().map(String::as_str).unwrap_or_default();
    if !COMPARING.contains(&first) {
        return Err(format!("the command begins with '{first}', expected one of {}", COMPARING.join(", ")));
    }
    let name = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    if let Some(taken) = words.iter().find(|word| TAKEN.contains(&name(word).as_str())) {
        return Err(format!("the command has {}, which xcheck matrix sets itself; remove it", name(taken)));
    }
    if words.iter().any(|word| word == "-") {
        return Err(
            "the command reads standard input (-), which a cell does not have; name a file".to_owned()
        );
    }
    let parsed = <crate::cli::Cli as clap::Parser>::try_parse_from(
        std::iter::once("xcheck").chain(words.iter().map(String::as_str)),
    );
    parsed.map(drop).map_err(|error| {
        let said = error.to_string();
        let lines = said.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
        lines.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned()
    })
}

/// Ignores a failure to read a named file, since the command will report it.
pub(crate) fn or_unknown(read: Result<()>, inputs: &mut CellInputs) {
    if let Err(error) = read {
        inputs.unknown(Error::to_string(&error));
    }
}
