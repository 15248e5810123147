//! From files to a model: which files make one, and what they hold.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::format::{Format, Gguf, Safetensors, Source, TensorFile};
use crate::model::Model;
use crate::model::decoder::{Block, Decoder};
use crate::model::json::Config;
use crate::model::llama::LlamaBlock;
use crate::model::qwen3::Qwen3Block;
use crate::model::shards::{self, INDEX};
use crate::weight::DType;

/// The files that make one model.
#[derive(Clone, Debug)]
pub enum ModelFiles {
    /// One GGUF file, which holds everything.
    Gguf(Source),
    /// `config.json` and `model.safetensors`, whole or in shards.
    HuggingFace {
        /// The configuration.
        config: Source,
        /// What says which shard holds which tensor, if there are several.
        index: Option<Source>,
        /// The weights, in file-name order.
        weights: Vec<Source>,
    },
}

/// A model with what is known of its files.
pub struct LoadedModel {
    /// The model.
    pub model: Box<dyn Model>,
    /// "gguf" or "safetensors".
    pub format: &'static str,
    /// The type most of its matrices are stored in.
    pub precision: DType,
}

impl ModelFiles {
    /// Finds the files behind a path: a GGUF file, a Hugging Face directory, or a `.safetensors` file in one.
    ///
    /// # Errors
    /// If the path does not exist or is neither.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::open_directory(path);
        }
        let source = Source::open(path)?;
        match Format::detect(&source)? {
            Format::Gguf => Ok(ModelFiles::Gguf(source)),
            Format::Safetensors => {
                let config = Source::open(&path.with_file_name("config.json"))?;
                Ok(ModelFiles::HuggingFace { config, index: None, weights: vec![source] })
            }
            Format::Npy | Format::Npz => {
                let problem = "it holds arrays, not a model; xcheck compare takes dumps".to_owned();
                Err(Error::NoModel { name: path.display().to_string(), problem })
            }
        }
    }

    fn open_directory(path: &Path) -> Result<Self> {
        let [config, whole, index] = ["config.json", "model.safetensors", INDEX].map(|name| path.join(name));
        if !config.is_file() || !(whole.is_file() || index.is_file()) {
            let name = path.display().to_string();
            let problem = "a model directory holds config.json and model.safetensors (or shards and their index); \
                           for GGUF name the file itself";
            return Err(Error::NoModel { name, problem: problem.into() });
        }
        let config = Source::open(&config)?;
        if whole.is_file() {
            return Ok(ModelFiles::HuggingFace { config, index: None, weights: vec![Source::open(&whole)?] });
        }
        let index = Source::open(&index)?;
        let weights = shards::open(&index)?;
        Ok(ModelFiles::HuggingFace { config, index: Some(index), weights })
    }

    /// The files that hold the weights, in file-name order.
    pub fn weights(&self) -> &[Source] {
        match self {
            ModelFiles::Gguf(source) => std::slice::from_ref(source),
            ModelFiles::HuggingFace { weights, .. } => weights,
        }
    }

    /// SHA-256 of the weight files, concatenated in file-name order, in hexadecimal.
    pub fn sha256(&self) -> String {
        let mut digest = Sha256::new();
        self.weights().iter().for_each(|file| digest.update(&file.data));
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads the model.
    ///
    /// # Errors
    /// If a file is damaged, is of an unsupported architecture, or does not hold what its configuration asks for.
    pub fn load(&self) -> Result<LoadedModel> {
        match self {
            ModelFiles::Gguf(source) => load_gguf(&Gguf::read(source)?),
            ModelFiles::HuggingFace { config, index: Some(index), weights } => {
                load_hugging_face(config, &shards::read(index, weights)?)
            }
            ModelFiles::HuggingFace { config, index: None, weights } => {
                load_hugging_face(config, &Safetensors::read(&weights[0])?.tensors)
            }
        }
    }
}

/// What an architecture can be read from.
struct Reader {
    name: &'static str,
    gguf: fn(&Gguf) -> Result<Box<dyn Model>>,
    hugging_face: fn(&Source, &Value, &TensorFile) -> Result<Box<dyn Model>>,
}

/// Every architecture that can be run.
const READERS: &[Reader] = &[reader::<LlamaBlock>(), reader::<Qwen3Block>()];

const fn reader<B: Block>() -> Reader {
    Reader {
        name: B::ARCHITECTURE,
        gguf: |file| Ok(Box::new(Decoder::<B>::from_gguf(file)?)),
        hugging_face: |config, json, tensors| {
            Ok(Box::new(Decoder::<B>::from_hugging_face(config, json, tensors)?))
        },
    }
}

/// The names of the architectures that can be run.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    READERS.iter().map(|reader| reader.name)
}

/// The reader of the architecture that a file names under `key`.
fn reader_of(file: &Path, key: &str, name: &str) -> Result<&'static Reader> {
    READERS.iter().find(|reader| reader.name == name).ok_or_else(|| {
        let known: Vec<_> = architectures().collect();
        Error::bad_key(file, key, name, format!("one of {}", known.join(", ")))
    })
}

fn load_gguf(file: &Gguf) -> Result<LoadedModel> {
    const KEY: &str = "general.architecture";
    let reader = reader_of(file.tensors.path(), KEY, file.require(KEY)?)?;
    Ok(LoadedModel { model: (reader.gguf)(file)?, format: "gguf", precision: main_type(&file.tensors) })
}

fn load_hugging_face(config: &Source, weights: &TensorFile) -> Result<LoadedModel> {
    const KEY: &str = "model_type";
    let json: Value = serde_json::from_slice(&config.data).map_err(|error| Error::BadContainer {
        file: config.path.clone(),
        format: "JSON",
        problem: error.to_string(),
    })?;
    let reader = reader_of(&config.path, KEY, Config::new(config, &json).require_str(KEY)?)?;
    let model = (reader.hugging_face)(config, &json, weights)?;
    Ok(LoadedModel { model, format: "safetensors", precision: main_type(weights) })
}

/// The type that most weights are stored in, by number of elements.
fn main_type(file: &TensorFile) -> DType {
    let mut elements = BTreeMap::<DType, usize>::new();
    for (_, tensor) in file.iter().filter(|(_, tensor)| tensor.shape.len() > 1) {
        *elements.entry(tensor.dtype).or_default() += tensor.elements();
    }
    elements.into_iter().max_by_key(|(_, elements)| *elements).map_or(DType::F32, |(dtype, _)| dtype)
}
