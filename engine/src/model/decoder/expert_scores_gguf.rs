//! Scores and weights of experts in GGUF files.

use crate::error::{Error, Result};
use crate::format::Gguf;
use crate::model::decoder::ExpertFiles;
use crate::ops::experts::ScoreFunction;

impl ExpertFiles {
    /// Returns the score function for a GGUF file that does not state it. llama.cpp recognises early files of
    /// GLM 4.7 Flash, which use sigmoids, by their sizes.
    pub(super) fn usual_in_gguf(&self, file: &Gguf, architecture: &str, n_layers: usize) -> ScoreFunction {
        const FLASH_VOCABULARY: usize = 154_880;
        let vocabulary = file.tensors.get("token_embd.weight").and_then(|table| table.shape.first());
        let has_its_sizes = matches!(n_layers, 47 | 48) && vocabulary == Some(&FLASH_VOCABULARY);
        match architecture == "deepseek2" && has_its_sizes {
            true => ScoreFunction::Sigmoid,
            false => self.gguf_function.unwrap_or(self.function),
        }
    }

    /// Reads the score function of a GGUF file.
    pub(super) fn function_in_gguf(
        &self,
        file: &Gguf,
        key: &str,
        usual: ScoreFunction,
    ) -> Result<ScoreFunction> {
        let found = file.optional::<usize>(key)?.unwrap_or(0);
        let stated = match found {
            0 => Some(usual),
            1 => Some(ScoreFunction::Softmax),
            2 => Some(ScoreFunction::Sigmoid),
            _ => None,
        };
        let is_known = |stated: &ScoreFunction| self.gguf_function.is_some() || *stated == usual;
        stated.filter(is_known).ok_or_else(|| {
            let expected = match (self.gguf_function, usual) {
                (Some(_), _) => "1 for softmax or 2 for sigmoids (other scores of experts are not supported)",
                (None, ScoreFunction::Softmax) => "1 (llama.cpp computes softmax only)",
                (None, ScoreFunction::Sigmoid) => "2 (llama.cpp computes sigmoids only)",
            };
            Error::bad_key(file.tensors.path(), key, found, expected)
        })
    }

    /// Returns true if the weights of the chosen experts are divided by their sum.
    pub(super) fn normalised_in_gguf(&self, file: &Gguf, key: &str) -> Result<bool> {
        let stated = file.optional::<bool>(key)?;
        let Some(known) = self.gguf_normalised else { return Ok(stated.unwrap_or(false)) };
        match stated.filter(|found| *found != known) {
            None => Ok(known),
            Some(found) => {
                let expected = match known {
                    true => "true (llama.cpp divides the weights of the chosen experts by their sum)",
                    false => {
                        "false (llama.cpp does not divide the weights of the chosen experts by their sum)"
                    }
                };
                Err(Error::bad_key(file.tensors.path(), key, found, expected))
            }
        }
    }
}
