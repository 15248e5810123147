//! The files of a model.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, ModelError, Result};
use crate::format::{Disk, FileBytes, FileStore, Format, Gguf, Llama2cFile, TensorFile, gguf, pytorch};
use crate::model::adapter::AdapterFiles;
use crate::model::dequantisation::{Dequantisation, settings_files};
use crate::model::json::{Config, json_of};
use crate::model::loaders::{LoadedModel, load_gguf, load_hugging_face, load_llama2c};
use crate::model::meta_files::MetaFiles;
use crate::model::ternary::TernaryFiles;
use crate::model::{shards, wrapper_names};
use crate::tokenizer::{self, Chat, Tokenizer, TokenizerFiles};

/// Weight files of a Hugging Face directory; the first existing one is used. An index lists shards.
const WEIGHTS: [&str; 5] = [
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    pytorch::MODULES_FILE,
];

/// Configuration file.
const CONFIG: &str = "config.json";

/// File that states the end tokens for generation. It takes precedence over `config.json`.
const GENERATION: &str = "generation_config.json";

/// File that contains the chat template if `tokenizer_config.json` does not.
const TEMPLATE: &str = "chat_template.jinja";

/// Suffix of an index of shards.
const INDEX: &str = ".index.json";

/// File that accompanies a GGUF file whose weights are made for lookup-table kernels.
const KERNELS: &str = "kernel_config.ini";

/// Files that make up one model.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a command has one or a few of them")]
pub enum ModelFiles {
    /// One GGUF file.
    Gguf(FileBytes),
    /// Model that is split into several GGUF files, in order.
    GgufParts(Vec<FileBytes>),
    /// GGUF file with weights for lookup-table kernels, and the kernels' description.
    GgufWithKernels {
        /// The GGUF file.
        file: FileBytes,
        /// `kernel_config.ini`, as written by bitnet.cpp's code generators.
        kernels: FileBytes,
    },
    /// llama2.c file.
    Llama2c {
        /// Model file, which contains everything except the vocabulary.
        model: FileBytes,
        /// `tokenizer.bin`, if it is in the model's folder.
        tokenizer: Option<FileBytes>,
    },
    /// Meta's original files of Llama.
    Meta {
        /// Configuration and weights.
        files: MetaFiles,
        /// `tokenizer.model`, if it is of SentencePiece (Llama 2).
        tokenizer: Option<TokenizerFiles>,
    },
    /// `config.json` with a weight file: `model.safetensors` or `pytorch_model.bin` (whole or in shards), or hqq's
    /// `qmodel.pt`.
    HuggingFace {
        /// `config.json`.
        config: FileBytes,
        /// Index that states the shard of each tensor, if there are several shards.
        index: Option<FileBytes>,
        /// Weight files, in file-name order.
        weights: Vec<FileBytes>,
        /// Tokenizer files, if there are any.
        tokenizer: Option<TokenizerFiles>,
        /// `chat_template.jinja`, if there is one.
        chat: Option<FileBytes>,
        /// `generation_config.json`, if there is one.
        generation: Option<FileBytes>,
        /// `hf_quant_config.json` of Model Optimizer or `quanto_qmap.json` of quanto, if there is one.
        quantisation: Option<FileBytes>,
        /// LoRA adapter that is merged into the weights, if there is one.
        adapter: Option<AdapterFiles>,
        /// Name of an unsharded file that contains the same weights. It is ignored.
        aside: Option<&'static str>,
    },
}

impl ModelFiles {
    /// Finds the model files at a path: a GGUF or llama2.c file, a Hugging Face directory, or a weight file in such a
    /// directory.
    ///
    /// # Errors
    /// If the path does not exist, or is none of these.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_in(&Disk, path)
    }

    /// Opens files that may be remote.
    ///
    /// # Errors
    /// See [`ModelFiles::open`].
    pub fn open_in(place: &dyn FileStore, path: &Path) -> Result<Self> {
        if place.is_folder(path) {
            return Self::open_directory(place, path);
        }
        let source = place.require(path)?;
        let beside = |name| path.with_file_name(name);
        if path.to_string_lossy().ends_with(INDEX) {
            return Self::hugging_face(place, place.require(&beside(CONFIG))?, source);
        }
        match Format::detect(&source)? {
            Format::Gguf => match <[_; 1]>::try_from(gguf::parts::open(place, source)?) {
                Ok([source]) => Ok(Self::gguf(source, place.find(&beside(KERNELS))?)),
                Err(parts) => Ok(ModelFiles::GgufParts(parts)),
            },
            Format::Llama2c => {
                let tokenizer = place.find(&beside("tokenizer.bin"))?;
                Ok(ModelFiles::Llama2c { model: source, tokenizer })
            }
            Format::Safetensors | Format::Pytorch => {
                let Some(config) = place.find(&beside(CONFIG))? else {
                    return Err(no_directory(place, &beside(""), CONFIG));
                };
                Self::hugging_face(place, config, source)
            }
            Format::Npy | Format::Npz => {
                let problem = "it contains arrays, not a model; compare dumps with xcheck compare".to_owned();
                Err(ModelError::NoModel { name: path.display().to_string(), problem }.into())
            }
        }
    }

    /// Creates the files of a GGUF model, with its `kernel_config.ini` if there is one.
    pub fn gguf(file: FileBytes, kernels: Option<FileBytes>) -> Self {
        match kernels {
            Some(kernels) => ModelFiles::GgufWithKernels { file, kernels },
            None => ModelFiles::Gguf(file),
        }
    }

    fn open_directory(place: &dyn FileStore, path: &Path) -> Result<Self> {
        let config = place.find(&path.join(CONFIG))?;
        let mut held = None;
        for name in WEIGHTS {
            if held.is_none() && config.is_some() {
                held = place.find(&path.join(name))?;
            }
        }
        match (config, held) {
            (Some(config), Some(held)) => Self::hugging_face(place, config, held),
            (None, _) if let Some(files) = MetaFiles::find(place, path)? => {
                let tokenizer = TokenizerFiles::in_folder(place, path)?.filter(TokenizerFiles::is_known);
                Ok(ModelFiles::Meta { files, tokenizer })
            }
            (config, _) => Err(no_directory(place, path, if config.is_none() { CONFIG } else { WEIGHTS[0] })),
        }
    }

    /// Creates the files of a Hugging Face model. `held` is the weight file, or the index of its shards.
    fn hugging_face(place: &dyn FileStore, config: FileBytes, held: FileBytes) -> Result<Self> {
        let tokenizer = open_tokenizer(place, &config)?;
        let chat = place.find(&config.path.with_file_name(TEMPLATE))?;
        let generation = place.find(&config.path.with_file_name(GENERATION))?;
        let mut quantisation = None;
        for name in settings_files::FILES {
            quantisation = match quantisation {
                None => place.find(&config.path.with_file_name(name))?,
                found => found,
            };
        }
        let adapter = AdapterFiles::find(place, config.path.parent().unwrap_or(Path::new("")))?;
        let (mut index, mut weights, mut aside) = (None, Vec::new(), None);
        if held.path.to_string_lossy().ends_with(INDEX) {
            weights = shards::open(place, &held)?;
            for whole in ["model.safetensors", "pytorch_model.bin"] {
                let path = held.path.with_file_name(whole);
                let is_shard = weights.iter().any(|shard| shard.path == path);
                if aside.is_none() && !is_shard && place.find(&path)?.is_some() {
                    aside = Some(whole);
                }
            }
            index = Some(held);
        } else {
            weights.push(held);
        }
        Ok(ModelFiles::HuggingFace {
            config,
            index,
            weights,
            tokenizer,
            chat,
            generation,
            quantisation,
            adapter,
            aside,
        })
    }

    /// Merges this adapter when the model is loaded, instead of one in the model's folder.
    ///
    /// # Errors
    /// If the model is not a Hugging Face directory.
    pub fn with_adapter(mut self, files: AdapterFiles) -> Result<Self> {
        let path = self.weights()[0].path.display().to_string();
        match &mut self {
            ModelFiles::HuggingFace { adapter, .. } => {
                *adapter = Some(files);
                Ok(self)
            }
            _ => Err(ModelError::NoModel {
                name: path,
                problem: "adapters of PEFT need a Hugging Face directory as their base".to_owned(),
            }
            .into()),
        }
    }

    /// Returns the weight files, in file-name order.
    pub fn weights(&self) -> &[FileBytes] {
        match self {
            ModelFiles::Gguf(source)
            | ModelFiles::GgufWithKernels { file: source, .. }
            | ModelFiles::Llama2c { model: source, .. } => std::slice::from_ref(source),
            ModelFiles::GgufParts(weights) | ModelFiles::HuggingFace { weights, .. } => weights,
            ModelFiles::Meta { files, .. } => &files.parts,
        }
    }

    /// Returns the tensors of all weight files, as they are stored.
    ///
    /// # Errors
    /// If a file is damaged or contradicts the index of shards.
    pub fn tensors(&self) -> Result<TensorFile> {
        match self {
            ModelFiles::HuggingFace { index: Some(index), weights, .. } => shards::read(index, weights),
            ModelFiles::GgufParts(parts) => Ok(Gguf::read_parts(parts)?.tensors),
            ModelFiles::Meta { files, .. } => files.tensors(),
            _ => TensorFile::read(&self.weights()[0]),
        }
    }

    /// Returns the quantisation that the settings files of a Hugging Face model state.
    ///
    /// # Errors
    /// If the file is not JSON, or asks for something that is not supported.
    pub fn dequantisation(&self) -> Result<Option<Dequantisation>> {
        let ModelFiles::HuggingFace { config, quantisation, weights, .. } = self else { return Ok(None) };
        let json = settings_files::config_json(config, quantisation.as_ref(), weights)?;
        Dequantisation::read(&Config::new(&config.path, &json))
    }

    /// Returns the number of tensors whose hash is stated in the index of shards.
    ///
    /// # Errors
    /// If the index is invalid.
    pub fn tensor_hashes(&self) -> Result<usize> {
        match self {
            ModelFiles::HuggingFace { index: Some(index), .. } => shards::hashes(index),
            _ => Ok(0),
        }
    }

    /// Returns the SHA-256 of the weight files, concatenated in file-name order, in hexadecimal.
    pub fn sha256(&self) -> String {
        let mut digest = Sha256::new();
        self.weights().iter().for_each(|file| digest.update(&*file.data));
        hex::encode(digest.finalize())
    }

    /// Returns the SHA-256 of the settings files (configuration, index of shards, kernels), in hexadecimal.
    pub fn sha256_of_settings(&self) -> String {
        let files: Vec<&FileBytes> = match self {
            ModelFiles::Gguf(_) | ModelFiles::GgufParts(_) | ModelFiles::Llama2c { .. } => Vec::new(),
            ModelFiles::GgufWithKernels { kernels, .. } => vec![kernels],
            ModelFiles::HuggingFace { config, index, quantisation, adapter, .. } => {
                let adapter = adapter.iter().flat_map(|adapter| [&adapter.config, &adapter.weights]);
                [config].into_iter().chain(index).chain(quantisation).chain(adapter).collect()
            }
            ModelFiles::Meta { files, .. } => vec![&files.params],
        };
        let mut digest = Sha256::new();
        for file in files {
            digest.update(Sha256::digest(file.data.whole()));
        }
        hex::encode(digest.finalize())
    }

    /// Reads the tokenizer, if the files contain one.
    ///
    /// # Errors
    /// If its kind is unknown, or it contradicts itself.
    pub fn tokenizer(&self) -> Result<Option<Box<dyn Tokenizer>>> {
        match self {
            ModelFiles::Gguf(source) | ModelFiles::GgufWithKernels { file: source, .. } => {
                tokenizer::from_gguf(&Gguf::read(source)?)
            }
            ModelFiles::GgufParts(parts) => tokenizer::from_gguf(&Gguf::read_parts(parts)?),
            ModelFiles::Llama2c { model, tokenizer } => {
                let Some(tokenizer) = tokenizer else { return Ok(None) };
                let vocab_size = Llama2cFile::read(model)?.header.vocab_size;
                Ok(Some(Box::new(tokenizer::Llama2cTokenizer::read(tokenizer, Some(vocab_size))?)))
            }
            ModelFiles::HuggingFace { tokenizer, .. } | ModelFiles::Meta { tokenizer, .. } => {
                tokenizer.as_ref().map(TokenizerFiles::read).transpose()
            }
        }
    }

    /// Returns the chat settings of the files. `tokenizer` provides the texts of tokens that a GGUF file references by
    /// id.
    ///
    /// # Errors
    /// If a file is damaged, or a key has a value that cannot be used.
    pub fn chat(&self, tokenizer: Option<&dyn Tokenizer>) -> Result<Chat> {
        match self {
            ModelFiles::Gguf(source) | ModelFiles::GgufWithKernels { file: source, .. } => {
                Chat::of_gguf(&Gguf::read(source)?, tokenizer)
            }
            ModelFiles::GgufParts(parts) => Chat::of_gguf(&Gguf::read_parts(parts)?, tokenizer),
            ModelFiles::Llama2c { .. } | ModelFiles::Meta { .. } => Ok(Chat::default()),
            ModelFiles::HuggingFace { tokenizer, chat, .. } => {
                Chat::of_files(tokenizer.as_ref().and_then(TokenizerFiles::config), chat.as_ref())
            }
        }
    }

    /// Loads the model.
    ///
    /// # Errors
    /// If a file is damaged, has an unsupported architecture, or lacks data that its configuration requires.
    pub fn load(&self) -> Result<LoadedModel> {
        self.load_told(&TernaryFiles::default())
    }

    /// Loads the model, given settings that bitnet.cpp's files omit.
    ///
    /// # Errors
    /// See [`ModelFiles::load`].
    pub fn load_told(&self, ternary: &TernaryFiles) -> Result<LoadedModel> {
        match self {
            ModelFiles::Gguf(source) => load_gguf(Gguf::read_parts(std::slice::from_ref(source))?, ternary),
            ModelFiles::GgufParts(parts) => load_gguf(Gguf::read_parts(parts)?, ternary),
            ModelFiles::GgufWithKernels { file, kernels } => {
                load_gguf(Gguf::read(file)?, &ternary.clone().with_kernels(kernels)?)
            }
            ModelFiles::Llama2c { model, .. } => load_llama2c(&Llama2cFile::read(model)?),
            ModelFiles::Meta { files, .. } => {
                let tensors = files.tensors()?;
                let config = files.config(&tensors)?;
                let json = json_of(&config)?;
                load_hugging_face(&Config::new(&config.path, &json), None, &tensors, Format::Pytorch)
            }
            ModelFiles::HuggingFace { config, weights, generation, quantisation, adapter, aside, .. } => {
                let tensors = wrapper_names::without_wrappers(self.tensors()?)?;
                let tensors = match adapter {
                    Some(adapter) => adapter.merge(tensors)?,
                    None => tensors,
                };
                let json = settings_files::config_json(config, quantisation.as_ref(), weights)?;
                let format = Format::detect(&weights[0])?;
                let config = Config::new(&config.path, &json);
                let mut loaded = load_hugging_face(&config, generation.as_ref(), &tensors, format)?;
                if let Some(adapter) = adapter {
                    let note = adapter.mark(&mut *loaded.model)?;
                    loaded.notes.push(note);
                }
                loaded.notes.extend(aside.map(|whole| {
                    format!("the folder has both {whole} and an index of shards: the shards are used; give the path of \
                             {whole} to use that file")
                }));
                Ok(loaded)
            }
        }
    }
}

/// Returns an error for a folder that lacks `missing` and its alternatives.
fn no_directory(place: &dyn FileStore, path: &Path, missing: &str) -> Error {
    let why =
        place.why_absent(&path.join(missing)).map_or(String::new(), |why| format!("; {missing}: {why}"));
    let problem = format!(
        "{missing} is missing; a model directory needs config.json and model.safetensors or pytorch_model.bin (or \
         shards and their index); for GGUF give the path of the file{why}"
    );
    ModelError::NoModel { name: path.display().to_string(), problem }.into()
}

/// Opens the tokenizer in the folder of a configuration.
fn open_tokenizer(place: &dyn FileStore, config: &FileBytes) -> Result<Option<TokenizerFiles>> {
    TokenizerFiles::in_folder(place, config.path.parent().unwrap_or(Path::new("")))
}
