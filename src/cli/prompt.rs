//! What a model is to read: a prompt or tokens.

use clap::Args;

use crate::cli::target::{Reference, Target};
use crate::error::{Error, Result};
use crate::format::gguf::Strings;
use crate::format::{Gguf, Source};
use crate::model::ModelFiles;
use crate::tokenizer::{SentencePiece, Settings, Tokenizer as _, Vocabulary};

/// What a model is to read.
#[derive(Debug, Args)]
pub struct PromptOptions {
    /// The text to read
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    pub prompt: Option<String>,
    /// The token ids to read, e.g. 1,15043
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
}

impl PromptOptions {
    /// The tokens that were asked for, if any were.
    ///
    /// # Errors
    /// If there is a prompt and no tokenizer for it.
    pub fn tokens(&self, target: &Target) -> Result<Option<Vec<u32>>> {
        match (&self.tokens, &self.prompt) {
            (Some(tokens), _) => Ok(Some(tokens.clone())),
            (None, Some(text)) => encode(target, text).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Makes sure that every reference has read what was asked for, if anything was.
    ///
    /// # Errors
    /// [`Error::TokensDiffer`] for the first that has read something else.
    pub fn check_all(&self, target: &Target, references: &[Reference]) -> Result<()> {
        let Some(asked) = self.tokens(target)? else { return Ok(()) };
        for reference in references {
            let theirs = &reference.dump.manifest.input.tokens;
            if *theirs != asked {
                let same = asked.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
                return Err(Error::TokensDiffer {
                    ours_name: if self.tokens.is_some() { "--tokens" } else { "--prompt" }.to_owned(),
                    ours: asked,
                    theirs_name: reference.name.clone(),
                    theirs: theirs.clone(),
                    position: same,
                });
            }
        }
        Ok(())
    }
}

/// The ids of `text` by the tokenizer inside one of the model's files.
fn encode(target: &Target, text: &str) -> Result<Vec<u32>> {
    let sources = target.variants.iter().filter_map(|variant| match &variant.files {
        ModelFiles::Gguf(source) => Some(source),
        ModelFiles::HuggingFace { .. } => None,
    });
    let source = sources.map(Source::clone).next().ok_or_else(|| {
        Error::Usage(format!(
            "{}: only tokenizers inside GGUF files are read; give --tokens instead",
            target.name
        ))
    })?;
    tokenizer(&Gguf::read(&source)?)?.encode(text, true)
}

/// The tokenizer that a GGUF file holds.
fn tokenizer(file: &Gguf) -> Result<SentencePiece> {
    let kind = file.require::<&str>("tokenizer.ggml.model")?;
    if kind != "llama" {
        let expected = "llama (SentencePiece BPE); give --tokens instead of --prompt";
        return Err(Error::bad_key(file.tensors.path(), "tokenizer.ggml.model", kind, expected));
    }
    let pieces = file.require::<&Strings>("tokenizer.ggml.tokens")?;
    let vocabulary = Vocabulary {
        pieces: pieces.iter().map(str::to_owned).collect(),
        scores: file.require("tokenizer.ggml.scores")?,
        types: file.require("tokenizer.ggml.token_type")?,
    };
    let default = Settings::default();
    let settings = Settings {
        bos: file.optional("tokenizer.ggml.bos_token_id")?.or(default.bos),
        eos: file.optional("tokenizer.ggml.eos_token_id")?.or(default.eos),
        unk: file.optional("tokenizer.ggml.unknown_token_id")?.or(default.unk),
        add_bos: file.optional("tokenizer.ggml.add_bos_token")?.unwrap_or(default.add_bos),
        add_eos: file.optional("tokenizer.ggml.add_eos_token")?.unwrap_or(default.add_eos),
        add_space_prefix: file
            .optional("tokenizer.ggml.add_space_prefix")?
            .unwrap_or(default.add_space_prefix),
    };
    SentencePiece::new(vocabulary, settings)
}
