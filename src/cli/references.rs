//! Reference dumps of a model: the requested ones, or those found for it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::dump_hash::DumpFiles;
use crate::cli::mapped_files::MappedFileContext;
use crate::cli::named_dump::{NamedDump, told_apart};
use crate::cli::names::dump_name;
use crate::cli::remote_files::dump_behind;
use crate::cli::requested_model::RequestedModel;
use crate::cli::sequence::{asked_for, parts_of};
use crate::dump::Dump;
use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::remote::Url;
use crate::shipped_models;

/// Note on files of llama-perplexity: their content, and the arithmetic that xcheck assumes.
const OF_CHUNKS: &str = "a file of llama-perplexity: 16-bit log-probabilities of at most the 1024 top \
                         tokens, for the second half of each chunk; the file does not state its arithmetic, \
                         so that of llama.cpp with an f16 cache is used; set another with --numerics and \
                         --kv-cache";

impl RequestedModel {
    /// Returns the requested references, or all references found for this model, and notes on dumps of other files.
    ///
    /// # Errors
    /// If a reference cannot be read.
    pub(crate) fn references(
        &self,
        asked: &[String],
        foreign: &MappedFileContext,
    ) -> Result<(Vec<NamedDump>, Option<String>)> {
        if !asked.is_empty() {
            let dumps =
                asked.iter().map(|typed| only_asked_for(typed, self.reference(parts_of(typed).0, foreign)?));
            let dumps: Vec<_> = dumps.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
            foreign.check_used(&dumps)?;
            return Ok((told_apart(dumps), None));
        }
        let (mut own, mut others) = (Vec::new(), Vec::new());
        let found = self.found()?.into_iter().map(DumpLocation::open).collect::<Result<Vec<_>>>()?;
        for dump in found.into_iter().flatten() {
            let is_silent = dump.dump.manifest.model.sha256.is_none();
            let is_own = is_silent || self.made_from(&dump)?.is_some();
            let side = if is_own { &mut own } else { &mut others };
            side.push(dump);
        }
        Ok((told_apart(own), self.left_out(&others)))
    }

    /// Returns a note on dumps that are not compared. Dumps of the shipped model's other formats are not mentioned.
    fn left_out(&self, others: &[NamedDump]) -> Option<String> {
        let names: Vec<_> = others.iter().map(|other| other.name.as_str()).collect();
        let is_worth_it = !names.is_empty() && self.shipped_model().is_none();
        is_worth_it.then(|| {
            format!(
                "note: not compared, because their weights differ from {} (by SHA-256): {}; use --reference \
                 NAME to compare one anyway",
                self.name,
                names.join(", ")
            )
        })
    }

    /// Opens a reference by its name in tables, or by its path.
    fn reference(&self, typed: &str, foreign: &MappedFileContext) -> Result<Vec<NamedDump>> {
        let found = self.found()?;
        let names: Vec<String> = found.iter().map(DumpLocation::name).collect();
        // Commands without a model take full names such as `tiny-llama2/transformers-f32`.
        let own = typed.strip_prefix(&format!("{}/", self.name)).filter(|_| self.shipped_model().is_some());
        let named = |place: &DumpLocation| place.name() == own.unwrap_or(typed);
        if let Some(named) = found.into_iter().find(named) {
            return named.open();
        }
        if Path::new(typed).exists() {
            return opened(typed, foreign);
        }
        if let Some(url) = Url::of(typed)? {
            return DumpLocation::Elsewhere(url).open();
        }
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Error::Usage(format!(
            "no reference '{typed}': no such file; the references of {} are: {known}",
            self.name
        )))
    }

    /// Returns the locations of all dumps that ship with the model or are in its dump folder.
    fn found(&self) -> Result<Vec<DumpLocation>> {
        let mut found = Vec::new();
        if let Some(model) = self.shipped_model() {
            let dumps = model.dumps()?.into_iter();
            found.extend(dumps.map(|(name, source)| DumpLocation::Shipped(model.name, name, source)));
        }
        found.extend(self.beside()?);
        Ok(found)
    }

    fn beside(&self) -> Result<Vec<DumpLocation>> {
        let folder = self.dumps_folder();
        if !folder.is_dir() {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(&folder).map_err(Error::io("list", &folder))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(Error::io("list", &folder)));
        let mut paths = paths.collect::<Result<Vec<_>>>()?;
        paths.retain(|path| may_be_a_dump(path));
        paths.sort();
        Ok(paths.into_iter().map(DumpLocation::Path).collect())
    }
}

/// Location of a dump.
enum DumpLocation {
    /// A shipped dump of a model, by its unique name.
    Shipped(&'static str, String, FileBytes),
    Path(PathBuf),
    Elsewhere(Url),
}

impl DumpLocation {
    /// Returns the name in tables.
    fn name(&self) -> String {
        match self {
            DumpLocation::Shipped(_, name, _) => name.clone(),
            DumpLocation::Path(path) => dump_name(path),
            DumpLocation::Elsewhere(url) => dump_name(url.shown().as_ref()),
        }
    }

    /// Opens the dump; returns one dump per sequence.
    fn open(self) -> Result<Vec<NamedDump>> {
        let name = self.name();
        match self {
            DumpLocation::Shipped(model, typed, source) => {
                let alone = format!("{model}/{typed}");
                let files = DumpFiles::Bytes(source.clone());
                let dumps = Dump::all_from_source(source)?;
                Ok(named_dumps(dumps, [&name, &typed, &alone], &[], &files))
            }
            DumpLocation::Path(path) => {
                let (typed, dumps) = (path.display().to_string(), Dump::open_all(&path)?);
                Ok(named_dumps(dumps, [&name, &typed, &typed], &[], &DumpFiles::at(&path)?))
            }
            DumpLocation::Elsewhere(url) => {
                let source = dump_behind(&url)?;
                let typed = url.shown().to_owned();
                let pin = source.data.pin().unwrap_or_default().to_owned();
                let files = DumpFiles::Elsewhere { pin: pin.clone(), bytes: source.data.len() };
                let dumps = Dump::all_from_source(source)?;
                let rows = || dumps.iter().flat_map(|dump| &dump.manifest.tensors);
                let hashes = match rows().filter(|row| row.sha256.is_some()).count() {
                    0 => String::new(),
                    hashed => {
                        format!("; {hashed} of {} arrays are checked by SHA-256", rows().count())
                    }
                };
                let note = format!("the dump was read in parts from {typed} ({pin}{hashes})");
                Ok(named_dumps(dumps, [&name, &typed, &typed], &[note], &files))
            }
        }
    }
}

/// Returns names for the dumps of a file: in tables, as an argument, and without a model. If there are several
/// sequences, the name or number of each follows after a `#`.
fn named_dumps(dumps: Vec<Dump>, names: [&str; 3], notes: &[String], files: &DumpFiles) -> Vec<NamedDump> {
    let is_one = dumps.len() == 1;
    let one = |dump: Dump| {
        let sequence = dump.manifest.sequence.as_ref().filter(|_| !is_one);
        let of = |name: &str| sequence.map_or(name.to_owned(), |sequence| format!("{name}#{sequence}"));
        let [name, typed, alone] = names.map(of);
        let (notes, files) = (notes.to_vec(), files.clone());
        NamedDump { alone, notes, files, ..NamedDump::new(name, typed, dump) }
    };
    dumps.into_iter().map(one).collect()
}

/// Returns the requested sequence, or all sequences if none is requested.
fn only_asked_for(typed: &str, mut dumps: Vec<NamedDump>) -> Result<Vec<NamedDump>> {
    let asked = asked_for(typed, dumps.iter().map(|named| &named.dump))?;
    Ok(match asked {
        Some(number) => vec![dumps.swap_remove(number)],
        None => dumps,
    })
}

/// Returns true if a file may be a dump; notes and hidden files in a folder of dumps are ignored.
fn may_be_a_dump(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    path.join("manifest.json").is_file() || matches!(extension, Some("safetensors" | "npz"))
}

/// Opens dumps by path, or by the name of a shipped dump: `tiny-llama2/transformers-f32`, or its last part if that
/// is unique. Returns one dump per sequence, unless a sequence is named after `#`.
///
/// # Errors
/// If the dump does not exist or cannot be read.
pub(crate) fn dumps_named(typed: &str, foreign: &MappedFileContext) -> Result<Vec<NamedDump>> {
    only_asked_for(typed, all_named(parts_of(typed).0, foreign)?)
}

/// Opens a local dump, or a file that a map reads as one.
fn opened(typed: &str, foreign: &MappedFileContext) -> Result<Vec<NamedDump>> {
    let path = Path::new(typed);
    if let Some(chunks) = foreign.chunks(path)? {
        let names = [&dump_name(path), typed, typed];
        return Ok(named_dumps(chunks, names, &[OF_CHUNKS.to_owned()], &DumpFiles::at(path)?));
    }
    match foreign.open(path)? {
        Some(read) => Ok(vec![read]),
        None => DumpLocation::Path(typed.into()).open(),
    }
}

fn all_named(typed: &str, foreign: &MappedFileContext) -> Result<Vec<NamedDump>> {
    if let Some(url) = Url::of(typed)? {
        return DumpLocation::Elsewhere(url).open();
    }
    if Path::new(typed).exists() {
        return opened(typed, foreign);
    }
    let mut found = shipped_models::dumps_named(typed)?;
    let names: Vec<_> = found.iter().map(|(model, name, _)| format!("{model}/{name}")).collect();
    match (found.pop(), names.as_slice()) {
        (Some((_, name, source)), [alone]) => {
            let files = DumpFiles::Bytes(source.clone());
            Ok(named_dumps(Dump::all_from_source(source)?, [&name, typed, alone], &[], &files))
        }
        (None, _) => Err(Error::Usage(format!(
            "no dump '{typed}': no such file and no shipped dump; shipped dumps have names like \
             tiny-llama2/transformers-f32 (xcheck models lists them){}",
            shipped_models::absent()?
        ))),
        _ => Err(Error::Usage(format!(
            "'{typed}' is ambiguous: several models have this dump: {}",
            names.join(", ")
        ))),
    }
}
