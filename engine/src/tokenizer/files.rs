//! Files of a tokenizer, and their names.

use std::path::Path;

use crate::error::Result;
use crate::format::{Disk, FileBytes, FileStore};
use crate::tokenizer::{
    HuggingFaceFiles, Llama2cTokenizer, SettingsFiles, Tokenizer, gpt2, hugging_face, model_proto,
};

/// Files of a tokenizer, if they are separate from the model's file.
#[derive(Clone, Debug)]
pub enum TokenizerFiles {
    /// `tokenizer.json`.
    HuggingFace(HuggingFaceFiles),
    /// `tokenizer.model`, a SentencePiece model.
    SentencePiece {
        /// SentencePiece model.
        model: FileBytes,
        /// Settings files in the same folder.
        settings: SettingsFiles,
    },
    /// Pieces and merges of byte-level BPE, in the format of GPT-2's release, which Qwen 2 uses too.
    Gpt2 {
        /// `vocab.json` or `encoder.json`.
        pieces: FileBytes,
        /// `merges.txt` or `vocab.bpe`.
        merges: FileBytes,
        /// Settings files in the same folder.
        settings: SettingsFiles,
    },
    /// llama2.c's `tokenizer.bin`.
    Llama2c(FileBytes),
}

/// File names of GPT-2's pieces and merges: transformers' names, and OpenAI's names.
const GPT2: [(&str, &str); 2] = [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")];

impl TokenizerFiles {
    /// Finds the tokenizer in a folder. If there are several, takes the first in the order of [`TokenizerFiles`], as
    /// transformers does.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub(crate) fn in_folder(place: &dyn FileStore, folder: &Path) -> Result<Option<Self>> {
        let open = |name: &str| place.find(&folder.join(name));
        let settings = SettingsFiles::in_folder(place, folder)?;
        if let Some(tokenizer) = open("tokenizer.json")? {
            return Ok(Some(Self::HuggingFace(HuggingFaceFiles { tokenizer, settings })));
        }
        if let Some(model) = open("tokenizer.model")? {
            return Ok(Some(Self::SentencePiece { model, settings }));
        }
        for (pieces, merges) in GPT2 {
            if let (Some(pieces), Some(merges)) = (open(pieces)?, open(merges)?) {
                return Ok(Some(Self::Gpt2 { pieces, merges, settings }));
            }
        }
        Ok(open("tokenizer.bin")?.map(Self::Llama2c))
    }

    /// Returns false for a `tokenizer.model` of Llama 3, which contains the ranks of tiktoken as text.
    pub(crate) fn is_known(&self) -> bool {
        match self {
            Self::SentencePiece { model, .. } => model.data.first(1) == [0x0A],
            _ => true,
        }
    }

    /// Finds the tokenizer at a path. The path is a folder, or a tokenizer file, recognised by the end of its name. `None`
    /// if the path is neither.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub fn at(path: &Path) -> Result<Option<Self>> {
        if path.is_dir() {
            return Self::in_folder(&Disk, path);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if GPT2.iter().any(|&(pieces, merges)| name == pieces || name == merges) {
            return Self::in_folder(&Disk, path.parent().unwrap_or(Path::new(".")));
        }
        let beside = || SettingsFiles::in_folder(&Disk, path.parent().unwrap_or(Path::new("")));
        match name.rsplit('.').next() {
            Some("model") => {
                Ok(Some(Self::SentencePiece { model: FileBytes::open(path)?, settings: beside()? }))
            }
            Some("json") => {
                let tokenizer = FileBytes::open(path)?;
                Ok(Some(Self::HuggingFace(HuggingFaceFiles { tokenizer, settings: beside()? })))
            }
            Some("bin") if name.starts_with("tok") => Ok(Some(Self::Llama2c(FileBytes::open(path)?))),
            _ => Ok(None),
        }
    }

    /// Returns `tokenizer_config.json`, if the folder has one.
    pub(crate) fn config(&self) -> Option<&FileBytes> {
        match self {
            Self::HuggingFace(HuggingFaceFiles { settings, .. })
            | Self::SentencePiece { settings, .. }
            | Self::Gpt2 { settings, .. } => settings.config.as_ref(),
            Self::Llama2c(_) => None,
        }
    }

    /// Reads the tokenizer.
    ///
    /// # Errors
    /// If a file is damaged, contradicts itself or another file, or has an unknown kind.
    pub fn read(&self) -> Result<Box<dyn Tokenizer>> {
        let (file, read): (_, Result<Box<dyn Tokenizer>>) = match self {
            Self::HuggingFace(files) => (&files.tokenizer, hugging_face::from_hugging_face(files)),
            Self::SentencePiece { model, settings } => (model, model_proto::read(model, settings)),
            Self::Gpt2 { pieces, merges, settings } => (pieces, gpt2::read(pieces, merges, settings)),
            Self::Llama2c(source) => {
                (source, Llama2cTokenizer::read(source, None).map(|read| Box::new(read) as _))
            }
        };
        read.map_err(|error| error.of_tokenizer(&file.path))
    }
}
