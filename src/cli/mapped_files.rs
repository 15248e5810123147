//! Activation files without a manifest, read with a name map.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::dump_hash::DumpFiles;
use crate::cli::named_dump::NamedDump;
use crate::cli::names::dump_name;
use crate::cli::prompt::beginning;
use crate::cli::requested_model::RequestedModel;
use crate::dump::Dump;
use crate::error::{Error, Result};
use crate::format::{Arrays, FileBytes, Format, Safetensors, array_files, is_array_file};
use crate::kld::{self, LogitsFile};
use crate::map::{self, HeadSizes, MapContext, NameMap};
use crate::memory;

/// Options for reading files without a manifest.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MapOptions {
    /// Name map: transformers, llama.cpp, mlx-lm, candle, vllm, …, or a file
    ///
    /// Assigns the arrays of a file without a manifest (.safetensors, .npz, .pt, .pkl, .pb, a folder of them) to taps.
    /// Without this option, every shipped map is tried. If it is repeated, each file is read with the map
    /// that assigns most of its arrays. See docs/how-to/foreign-files.md.
    #[arg(long = "map", value_name = "MAP", help_heading = "Files without a manifest")]
    pub(crate) maps: Vec<String>,
    /// Skip arrays whose names match; * is a wildcard
    ///
    /// Any other array that is not assigned to a tap makes the verdict inconclusive.
    #[arg(long, value_name = "PATTERN", help_heading = "Files without a manifest")]
    pub(crate) ignore: Vec<String>,
}

/// Options and known facts for reading files without a manifest.
#[derive(Default)]
pub(crate) struct MappedFileContext<'t> {
    pub(crate) maps: Vec<String>,
    /// Name patterns of arrays to ignore.
    pub(crate) ignore: Vec<String>,
    /// Input tokens.
    pub(crate) tokens: Option<Vec<u32>>,
    /// Model that computed the activations.
    pub(crate) target: Option<&'t RequestedModel>,
    /// Sizes and tokens known from another dump of the same run.
    pub(crate) beside: MapContext,
    of_model: OnceCell<MapContext>,
}

impl<'t> MappedFileContext<'t> {
    /// Collects the facts from options and a model.
    pub(crate) fn new(
        map: &MapOptions,
        tokens: Option<Vec<u32>>,
        target: Option<&'t RequestedModel>,
    ) -> Self {
        Self { maps: map.maps.clone(), ignore: map.ignore.clone(), tokens, target, ..Self::default() }
    }

    /// Reads a file or folder with a map; `None` if it is a dump.
    ///
    /// # Errors
    /// If the file has an unknown format, or no map can read it.
    pub(crate) fn open(&self, path: &Path) -> Result<Option<NamedDump>> {
        if !is_foreign(path)? {
            return Ok(None);
        }
        let (arrays, known) = (Arrays::open(path)?, self.known()?);
        let reading = match self.maps.as_slice() {
            [] => map::by_shipped(&arrays, &known)?,
            [name] => NameMap::named(name)?.read(&arrays, &known)?,
            names => {
                let maps = names.iter().map(|name| NameMap::named(name)).collect::<Result<_>>()?;
                map::by_named(maps, &arrays, &known)?
            }
        };
        Ok(Some(NamedDump {
            notes: reading.notes,
            lacking: reading.unplaced,
            words: self.words(),
            files: DumpFiles::at(path)?,
            ..NamedDump::new(name_of(path), path.display().to_string(), reading.dump)
        }))
    }

    /// Returns the chunks of a llama-perplexity file; `None` if the file has another format. The file contains only the
    /// text's tokens, so the model's tokenizer provides the token that precedes a text.
    ///
    /// # Errors
    /// If the file cannot be read, or there is no tokenizer.
    pub(crate) fn chunks(&self, path: &Path) -> Result<Option<Vec<Dump>>> {
        let Some(file) = LogitsFile::at(path)? else { return Ok(None) };
        let (name, chunks) = (file.path().display(), file.chunks().len());
        memory::check(
            format_args!("{name}: {chunks} chunks as dumps (xcheck kld reads them one by one)"),
            kld::size_of_dumps(&file),
        )?;
        let begins = self.target.map(beginning).transpose()?.flatten();
        kld::dumps(&file, begins).map(Some)
    }

    /// Rejects `--map` if every dump has a manifest.
    ///
    /// # Errors
    /// If a map is given and no dump needs it.
    pub(crate) fn check_used(&self, dumps: &[NamedDump]) -> Result<()> {
        match self.maps.first() {
            Some(map) if !dumps.is_empty() && dumps.iter().all(|dump| dump.words.is_empty()) => {
                Err(Error::Usage(format!(
                    "--map {map}: {} has a manifest, which already assigns its arrays; omit --map",
                    dumps[0].typed
                )))
            }
            _ => Ok(()),
        }
    }

    fn known(&self) -> Result<MapContext> {
        let mut known = self.of_model()?;
        known.tokens = self.tokens.clone().or(self.beside.tokens.clone());
        known.ignore = self.ignore.clone();
        Ok(known)
    }

    fn of_model(&self) -> Result<MapContext> {
        let Some(target) = self.target else { return Ok(self.beside.clone()) };
        if let Some(known) = self.of_model.get() {
            return Ok(known.clone());
        }
        let loaded = target.variants[0].files.load()?;
        let dimensions = loaded.model.dimensions();
        let sizes = HeadSizes::new(dimensions.n_heads, dimensions.kv_heads(), dimensions.head_dim);
        let architecture = Some(loaded.model.architecture().to_owned());
        let known = MapContext {
            sizes,
            layers: Some(dimensions.n_layers),
            hidden_size: Some(dimensions.hidden_size),
            vocab_size: Some(dimensions.vocab_size),
            architecture,
            model: target.name.clone(),
            ..MapContext::default()
        };
        Ok(self.of_model.get_or_init(|| known).clone())
    }

    /// Returns the arguments that read a file the same way again.
    fn words(&self) -> Vec<String> {
        let map = self.maps.iter().flat_map(|map| ["--map".to_owned(), map.clone()]);
        let ids = |tokens: &Vec<u32>| tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let tokens = self.tokens.iter().flat_map(|tokens| ["--tokens".to_owned(), ids(tokens)]);
        let ignore = self.ignore.iter().flat_map(|pattern| ["--ignore".to_owned(), pattern.clone()]);
        let words: Vec<String> = map.chain(ignore).chain(tokens).collect();
        // At least one word, since a file without a manifest is always read with more facts than its own.
        if words.is_empty() { vec![String::new()] } else { words }
    }
}

/// Returns the facts that a dump provides about other files of the same run.
pub(crate) fn told_by(dump: &Dump) -> MapContext {
    let shape = |tap: &str| {
        dump.manifest.tensors.iter().find(|row| row.tap == tap && row.axes.is_none()).map(|row| &row.shape)
    };
    let heads = |tap: &str| shape(tap).and_then(|shape| Some([*shape.iter().rev().nth(1)?, *shape.last()?]));
    let sizes = HeadSizes {
        heads: heads("q").map(|[heads, _]| heads),
        kv_heads: heads("k").map(|[heads, _]| heads),
        head_dim: heads("q").map(|[_, head_dim]| head_dim),
    };
    let manifest = &dump.manifest;
    let tokens =
        manifest.passes.first().map(|pass| pass.tokens.clone()).filter(|_| manifest.passes.len() == 1);
    MapContext {
        tokens,
        sizes,
        architecture: Some(manifest.architecture().to_owned()),
        model: manifest.model.name.clone(),
        ..MapContext::default()
    }
}

/// Returns true if the path has arrays without a manifest.
///
/// # Errors
/// If the path cannot be read.
pub(crate) fn is_foreign(path: &Path) -> Result<bool> {
    if path.is_dir() {
        return is_folder_of_arrays(path);
    }
    if LogitsFile::at(path)?.is_some() {
        return Ok(false);
    }
    let source = FileBytes::open(path)?;
    Ok(is_array_file(&source)? && !is_dump(&source)?)
}

/// Returns true if a folder has array files, and is neither a dump, a folder of dumps nor a model.
fn is_folder_of_arrays(path: &Path) -> Result<bool> {
    if ["manifest.json", "config.json"].iter().any(|name| path.join(name).is_file()) {
        return Ok(false);
    }
    let files = array_files(path)?.unwrap_or_default();
    if files.is_empty() {
        check_index(path)?;
    }
    // The files of a folder are of one kind.
    let first = files.first().map(|file| is_dump(&FileBytes::open(file)?));
    Ok(!first.transpose()?.unwrap_or(true))
}

/// Refuses a folder in which a tool wrote its index without the arrays. The error states how to get the arrays.
fn check_index(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(Error::io("list", folder))?;
    let is_index = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "dump.json" || name.ends_with("_debug_tree_FULL_TENSORS.json")
    };
    let mut indices = entries.flatten().map(|entry| entry.path()).filter(is_index);
    indices.try_for_each(|path| is_array_file(&FileBytes::open(&path)?).map(drop))
}

/// Returns true if a file has a manifest.
fn is_dump(source: &FileBytes) -> Result<bool> {
    Ok(match Format::detect(source) {
        Ok(Format::Safetensors) => Dump::is_inside(&Safetensors::read(source)?),
        Ok(Format::Npz) => Dump::is_npz(source),
        _ => false,
    })
}

fn name_of(path: &Path) -> String {
    let name = dump_name(path);
    let ends = [".pt", ".pth", ".bin", ".npy"];
    ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name).to_owned()
}
