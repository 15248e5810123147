//! Shipped models with dumps of real engines. One model is inside the program, so that the main command works
//! without other files.

mod embedded_files;
mod files;

pub use files::{places, places_by};

pub(crate) use files::ShippedFiles;

use std::path::{Path, PathBuf};

use crate::dump::Dump;
use crate::error::{Error, ModelError, Result};
use crate::format::FileBytes;
use crate::model::ModelFiles;
use crate::tokenizer::{HuggingFaceFiles, SettingsFiles, TokenizerFiles};

/// A shipped model in all its formats, with dumps of real engines.
pub struct ShippedModel {
    /// Name of the model.
    pub name: &'static str,
    /// Description in one line.
    pub(crate) description: &'static str,
}

/// All shipped models.
pub const MODELS: &[ShippedModel] = &[
    ShippedModel {
        name: "tiny-llama2",
        description: "Llama-2 architecture, 0.8 M parameters, trained on small stories",
    },
    ShippedModel {
        name: "tiny-llama2c",
        description: "llama2.c files, versions 0 and 2: grouped queries, tied head; trained on small stories",
    },
    ShippedModel {
        name: "tiny-llama3",
        description: "Llama 3 architecture: grouped queries, scaled RoPE, sharded; random weights",
    },
    ShippedModel {
        name: "tiny-qwen3",
        description: "Qwen 3 architecture: q and k norms, explicit head size, tied head; random weights",
    },
    ShippedModel {
        name: "tiny-gemma3",
        description: "Gemma 3 architecture: sliding windows, two RoPE bases, four norms; random weights",
    },
    ShippedModel {
        name: "tiny-gemma3-vision",
        description: "Gemma 3, the text part of a multimodal model, with scaled RoPE in its global layers; random weights",
    },
    ShippedModel {
        name: "tiny-gpt2",
        description: "GPT-2 architecture: learned positions, LayerNorm, biases; also as pytorch_model.bin; random weights",
    },
    ShippedModel {
        name: "tiny-bitnet-b158",
        description: "BitNet b1.58 as released (2B-4T): I2_S, squared ReLU, norms inside both halves; random weights",
    },
    ShippedModel {
        name: "tiny-bitnet",
        description: "BitNet b1.58 as in the older models: I2_S, SiLU, norms inside both halves; random weights",
    },
];

/// Returns the shipped model with this name, if it exists.
pub fn model(name: &str) -> Option<&'static ShippedModel> {
    MODELS.iter().find(|model| model.name == name)
}

/// A shipped dump: its model, its name and its file.
pub(crate) type ShippedDump = (&'static str, String, FileBytes);

/// Returns the shipped models on this machine.
///
/// # Errors
/// If a search folder cannot be read.
pub(crate) fn models_here() -> Result<Vec<&'static ShippedModel>> {
    let found = MODELS.iter().map(|model| match model.files() {
        Ok(_) => Ok(Some(model)),
        Err(Error::Model(ModelError::NoModel { .. })) => Ok(None),
        Err(other) => Err(other),
    });
    found.filter_map(Result::transpose).collect()
}

/// Returns a note on shipped models that are missing, or partly missing, on this machine; empty, or starts with "; ".
///
/// # Errors
/// If a search folder cannot be read.
pub(crate) fn absent() -> Result<String> {
    let mut absent = Vec::new();
    for model in MODELS {
        match model.files() {
            Ok(files) if files.folder().is_some() => {}
            Ok(_) => {
                let formats: Vec<_> = model.variants()?.into_iter().map(|(name, _)| name).collect();
                absent.push(format!("{} except {}", model.name, formats.join(" and ")));
            }
            Err(Error::Model(ModelError::NoModel { .. })) => absent.push(model.name.to_owned()),
            Err(other) => return Err(other),
        }
    }
    Ok(match absent.is_empty() {
        true => String::new(),
        false => format!("; not on this machine: {}; {}", absent.join(", "), files::HOW_TO_GET),
    })
}

/// Returns the shipped model with this name, or with a format of this name on this machine.
///
/// # Errors
/// If an existing file cannot be opened.
pub(crate) fn home(name: &str) -> Result<Option<&'static ShippedModel>> {
    if let Some(model) = model(name) {
        return Ok(Some(model));
    }
    for model in models_here()?.into_iter().filter(|model| name.starts_with(model.name)) {
        if model.variants()?.iter().any(|(variant, _)| variant == name) {
            return Ok(Some(model));
        }
    }
    Ok(None)
}

/// Returns the dumps with this name, with or without the model's name before it, such as
/// `tiny-llama3/transformers-f32`.
///
/// # Errors
/// If an existing file cannot be opened.
pub(crate) fn dumps_named(name: &str) -> Result<Vec<ShippedDump>> {
    let mut found = Vec::new();
    for model in models_here()? {
        let alone = name.strip_prefix(model.name).and_then(|rest| rest.strip_prefix('/')).unwrap_or(name);
        let dumps = model.dumps()?.into_iter().filter(|(known, _)| known == alone);
        found.extend(dumps.map(|(known, source)| (model.name, known, source)));
    }
    Ok(found)
}

/// Opens a weight file or dump by its name in tables. If several models have a dump of this name, the first
/// one is used, unless the model is named.
///
/// # Errors
/// If an existing file cannot be opened.
pub(crate) fn source(name: &str) -> Result<Option<FileBytes>> {
    if let Some(model) = home(name)? {
        let variant = model.variants()?.into_iter().find(|(known, _)| known == name);
        return Ok(variant.map(|(_, files)| files.weights()[0].clone()));
    }
    Ok(dumps_named(name)?.into_iter().next().map(|(_, _, source)| source))
}

/// Returns the folders with the model, format or dump of this name. Files inside the program are not
/// included.
///
/// # Errors
/// If an existing file cannot be opened.
pub(crate) fn folders_of(name: &str) -> Result<Vec<PathBuf>> {
    let models = match home(name)? {
        Some(model) => vec![model.name],
        None => dumps_named(name)?.into_iter().map(|(model, _, _)| model).collect(),
    };
    let files = models.into_iter().map(ShippedFiles::of).collect::<Result<Vec<_>>>()?;
    Ok(files.iter().filter_map(|files| files.folder().map(Path::to_owned)).collect())
}

impl ShippedModel {
    /// Returns all files of the model on this machine.
    ///
    /// # Errors
    /// If there are no files; the message names the search folders.
    pub(crate) fn files(&self) -> Result<ShippedFiles> {
        ShippedFiles::of(self.name)
    }

    /// Returns the model in each of its formats with unique names, the original first.
    ///
    /// # Errors
    /// If the model is not on this machine, or cannot be opened.
    pub fn variants(&self) -> Result<Vec<(String, ModelFiles)>> {
        let files = self.files()?;
        let mut variants = Vec::new();
        for (folder, extension) in [("hf", "safetensors"), ("pt", "bin")] {
            variants.extend(self.folder(&files, folder, extension)?);
        }
        for (stem, source) in files.with_extension("", "gguf")? {
            variants.push((stem, ModelFiles::gguf(source, files.open("kernel_config.ini")?)));
        }
        let tokenizer = files.open("tokenizer.bin")?;
        for (stem, model) in files.with_extension("", "bin")? {
            if stem != "tokenizer" {
                variants.push((stem, ModelFiles::Llama2c { model, tokenizer: tokenizer.clone() }));
            }
        }
        match variants.is_empty() {
            true => Err(files.refused("contains no model file")),
            false => Ok(variants),
        }
    }

    /// Returns the files of one format with their names, for programs that read files.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub(crate) fn files_of(&self, variant: &str) -> Result<Vec<(String, FileBytes)>> {
        let files = self.files()?;
        let folder = variant.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('-'));
        let folder = folder.map(|folder| format!("{folder}/"));
        let in_folder = |name: &str| Some(name.strip_prefix(folder.as_deref()?)?.to_owned());
        let alone = |name: &str| (name.rsplit_once('.')?.0 == variant).then(|| name.to_owned());
        let wanted = files.names().filter_map(|name| Some((name, in_folder(name).or_else(|| alone(name))?)));
        let opened = wanted.map(|(name, short)| Ok(files.open(name)?.map(|source| (short, source))));
        opened.filter_map(Result::transpose).collect()
    }

    /// Returns the model as a hub folder, if it ships as one, with weight files of this extension.
    fn folder(
        &self,
        files: &ShippedFiles,
        folder: &str,
        extension: &str,
    ) -> Result<Option<(String, ModelFiles)>> {
        let Some(config) = files.open(&format!("{folder}/config.json"))? else { return Ok(None) };
        let index = files.open(&format!("{folder}/model.{extension}.index.json"))?;
        let weights: Vec<_> =
            files.with_extension(folder, extension)?.into_iter().map(|(_, source)| source).collect();
        if weights.is_empty() {
            return Err(files
                .refused(&format!("has {folder}/config.json, but no .{extension} file in the same folder")));
        }
        let tokenizer = tokenizer(files)?;
        let generation = files.open(&format!("{folder}/generation_config.json"))?;
        let (chat, quantisation, adapter, aside) = (None, None, None, None);
        let files = ModelFiles::HuggingFace {
            config,
            index,
            weights,
            tokenizer,
            chat,
            generation,
            quantisation,
            adapter,
            aside,
        };
        Ok(Some((format!("{}-{folder}", self.name), files)))
    }

    /// Returns the files of the reference dumps, with their names.
    ///
    /// # Errors
    /// If the model is not on this machine, or a file cannot be opened.
    pub fn dumps(&self) -> Result<Vec<(String, FileBytes)>> {
        self.files()?.with_extension("dumps", "safetensors")
    }

    /// Returns the reference dumps, with their names.
    ///
    /// # Errors
    /// If the model is not on this machine, or a dump is damaged.
    pub fn references(&self) -> Result<Vec<(String, Dump)>> {
        let dumps = self.dumps()?.into_iter();
        dumps.map(|(name, source)| Ok((name, Dump::from_source(source)?))).collect()
    }
}

fn tokenizer(files: &ShippedFiles) -> Result<Option<TokenizerFiles>> {
    let Some(tokenizer) = files.open("hf/tokenizer.json")? else { return Ok(None) };
    let settings = SettingsFiles::of_config(files.open("hf/tokenizer_config.json")?);
    Ok(Some(TokenizerFiles::HuggingFace(HuggingFaceFiles { tokenizer, settings })))
}
