//! Request for a dump.

use std::path::Path;

use super::engine::ReferenceEngine;
use super::environment::PythonEnvironment;
use super::process::{ProcessObserver, ProcessTask, begin_log};
use super::reference_folder::ReferenceFolder;
use crate::error::Result;

/// Input of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceInput {
    /// A text, which the engine's tokenizer encodes.
    Prompt(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// A requested reference dump.
#[derive(Clone, Debug)]
pub(crate) struct DumpRequest<'o> {
    /// Engine that makes the dump.
    pub(crate) engine: ReferenceEngine,
    /// The directory or file that the engine reads.
    pub(crate) model: &'o Path,
    /// Name of the model.
    pub(crate) name: &'o str,
    /// Prompt or token ids.
    pub(crate) input: &'o ReferenceInput,
    /// Number of greedy decode passes after the prompt.
    pub(crate) decode: usize,
    /// Data type to compute in, if the engine lets the user choose.
    pub(crate) dtype: Option<&'o str>,
    /// KV cache type for llama.cpp.
    pub(crate) kv_cache: Option<&'o str>,
}

impl DumpRequest<'_> {
    /// Runs the engine, which writes the dump to `out`.
    ///
    /// # Errors
    /// If the engine fails; the message has its output.
    pub(crate) fn carry_out(
        &self,
        environment: &PythonEnvironment,
        workplace: &ReferenceFolder,
        out: &Path,
        watch: &mut dyn ProcessObserver,
    ) -> Result<()> {
        let log = workplace.log(&format!("dump-{}-{}", self.engine.name(), self.name));
        begin_log(&log)?;
        let mut command = environment.command(&workplace.scripts(self.engine)?);
        command.args(self.arguments()).arg("--out").arg(out).env("PYTHONUNBUFFERED", "1");
        let what = format!("{} on {}", self.engine.name(), self.model.display());
        ProcessTask { what: &what, advice: "nothing was written", log: &log }.run(&mut command, watch)
    }

    fn arguments(&self) -> Vec<String> {
        let model = self.model.display().to_string();
        let input = match self.input {
            ReferenceInput::Prompt(text) if self.engine == ReferenceEngine::LlamaCpp => {
                vec!["--prompt".to_owned(), text.clone()]
            }
            ReferenceInput::Prompt(text) => vec![format!("--prompt={text}")], // it may start with "-"
            ReferenceInput::Tokens(ids) => {
                vec!["--tokens".to_owned(), ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")]
            }
        };
        let chosen =
            |option: &str, value: Option<&str>| value.map(|value| [option.to_owned(), value.to_owned()]);
        // llama.cpp's program takes the name from the file; tinygrad's script supports only one type.
        let named = (self.engine != ReferenceEngine::LlamaCpp).then_some(self.name);
        let dtype = self.dtype.filter(|_| self.engine.dtypes().len() > 1);
        let options = [("--name", named), ("--dtype", dtype), ("--kv", self.kv_cache)];
        let options = options.into_iter().filter_map(|(option, value)| chosen(option, value)).flatten();
        let always = ["--model".to_owned(), model, "--decode".to_owned(), self.decode.to_string()];
        always.into_iter().chain(input).chain(options).collect()
    }
}
