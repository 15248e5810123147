//! Known cases of `xcheck run`: a prompt and its expected text.

use std::path::PathBuf;

use clap::Args;

use crate::cases::{Case, Cases};
use crate::cli::prompt::PromptOptions;
use crate::cli::requested_model::RequestedModel;
use crate::diagnose::OwnTokens;
use crate::error::Result;
use crate::model::Model;

/// Known end-to-end cases to run.
#[derive(Debug, Args)]
pub(crate) struct CaseOptions {
    /// Known end-to-end case to run [default: those of the model]
    ///
    /// A named case runs regardless of the model's name. The default cases are found by the model's name or
    /// sizes. Repeat the option for several cases.
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["introduced", "from_reference"],
        help_heading = "What to compare"
    )]
    case: Vec<String>,
    /// TOML file of more known cases
    ///
    /// The format is that of checkpoints/cases.toml.
    #[arg(long, value_name = "FILE", help_heading = "What to compare")]
    cases: Option<PathBuf>,
}

impl CaseOptions {
    /// Returns true if cases were named.
    pub(crate) fn are_named(&self) -> bool {
        !self.case.is_empty()
    }

    /// Returns the names of the requested cases.
    pub(crate) fn named(&self) -> &[String] {
        &self.case
    }

    /// Returns the requested cases. If no case was requested and `model` is given, returns the known cases of the
    /// model.
    ///
    /// # Errors
    /// If a case does not exist, or the file of cases cannot be read.
    pub(crate) fn of(&self, name: &str, model: Option<&dyn Model>) -> Result<Vec<Case>> {
        let cases = match &self.cases {
            None => Cases::shipped(),
            Some(file) => Cases::shipped().and(file)?,
        };
        match (self.case.as_slice(), model) {
            ([], Some(model)) => Ok(cases.of_model(name, model.architecture(), model.dimensions())),
            (names, _) => names.iter().map(|name| cases.named(name).cloned()).collect(),
        }
    }

    /// Returns the command-line arguments that run one case again.
    pub(crate) fn words(&self, case: &Case) -> Vec<String> {
        let file = self.cases.iter().flat_map(|file| ["--cases".to_owned(), file.display().to_string()]);
        ["--case".to_owned(), case.name.clone()].into_iter().chain(file).collect()
    }
}

/// Tokenizes the prompt with the model's own tokenizer.
pub(crate) fn own_tokens(target: &RequestedModel, case: &Case) -> OwnTokens {
    let prompt = PromptOptions { prompt: Some(case.prompt.clone()), tokens: None };
    match prompt.tokens(target) {
        Ok(tokens) => tokens.ok_or_else(|| "the case has no prompt".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
