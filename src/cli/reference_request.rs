//! Model files, input and output path for another engine.

use std::path::{Path, PathBuf};

use crate::cli::prompt::no_tokenizer;
use crate::cli::requested_model::{ModelVariant, RequestedModel};
use crate::error::{Error, Result, TokenizerError};
use crate::model::{LoadedModel, ModelFiles};
use crate::reference::{EngineInput, ReferenceEngine, ReferenceFolder, ReferenceInput};
use crate::weight::DType;

/// Default prompt for a reference.
const PROMPT: &str = "Once upon a time, there was";
/// Default number of input tokens for a model without a tokenizer.
const TOKENS: u32 = 12;

/// The reference requested on the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReferenceRequest {
    pub(crate) engine: Option<ReferenceEngine>,
    /// Prompt text or token ids, if given.
    pub(crate) input: Option<ReferenceInput>,
    /// Number of greedy decode passes after the prompt.
    pub(crate) decode: usize,
    /// Requested type for the engine to compute in.
    pub(crate) dtype: Option<&'static str>,
    /// Path of the dump, if not the default of `run`.
    pub(crate) out: Option<PathBuf>,
}

/// A reference request, checked and with defaults applied.
pub(crate) struct ReferencePlan<'t> {
    pub(crate) engine: ReferenceEngine,
    /// The model in the format that the engine reads.
    pub(crate) variant: &'t ModelVariant,
    /// Input tokens.
    pub(crate) input: ReferenceInput,
    /// Number of greedy decode passes after the prompt.
    pub(crate) decode: usize,
    /// Type for the engine to compute in.
    pub(crate) dtype: Option<&'static str>,
    /// KV cache type for llama.cpp.
    pub(crate) kv_cache: Option<&'static str>,
    /// Path of the dump.
    pub(crate) out: PathBuf,
}

impl<'t> ReferencePlan<'t> {
    /// Applies defaults and checks the request before anything slow starts.
    ///
    /// # Errors
    /// If the engine does not support the model or an option, or the model is damaged or not on this machine.
    pub(crate) fn of(target: &'t RequestedModel, wish: &ReferenceRequest) -> Result<Self> {
        target.refuse_adapter("a reference of another engine")?;
        if target.is_elsewhere() {
            let name = &target.typed;
            return Err(Error::Usage(format!(
                "{name}: other engines need local files; download the model and use its path"
            )));
        }
        let engine = wish.engine.map_or_else(|| usual(target), Ok)?;
        let variant = variant(target, engine)?;
        let dtype = dtype(engine, wish.dtype)?;
        let loaded = variant.files.load()?;
        check_family(engine, &loaded)?;
        let input = input(variant, wish, &loaded)?;
        let is_f32 = loaded.precision == DType::F32;
        // An f32 cache for f32 weights, so that nothing is rounded to f16; otherwise llama.cpp's default.
        let kv_cache = (engine == ReferenceEngine::LlamaCpp && is_f32).then_some("f32");
        let out = match &wish.out {
            Some(out) => checked_out(engine, out)?,
            None => target.dumps_folder().join(file_name(
                target,
                engine,
                dtype.unwrap_or(loaded.precision.name()),
            )),
        };
        Ok(Self { engine, variant, input, decode: wish.decode, dtype, kv_cache, out })
    }

    /// Returns the folder or file for the engine to read. A shipped model is first written to its own
    /// folder.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub(crate) fn files(&self, target: &RequestedModel, workplace: &ReferenceFolder) -> Result<PathBuf> {
        let weights = &self.variant.files.weights()[0].path;
        let folder = match target.shipped_model() {
            Some(model) => {
                let files = model.files_of(&self.variant.name)?;
                let files: Vec<_> =
                    files.iter().map(|(name, file)| (name.as_str(), file.data.first(usize::MAX))).collect();
                workplace.write_out("models", &self.variant.name, &files)?
            }
            None => weights.parent().unwrap_or(Path::new("")).to_owned(),
        };
        Ok(match self.engine.takes() {
            EngineInput::Gguf => folder.join(weights.file_name().unwrap_or_default()),
            EngineInput::Directory if folder.as_os_str().is_empty() => PathBuf::from("."),
            EngineInput::Directory => folder,
        })
    }
}

/// Returns the format of these files that an engine must read.
pub(crate) fn takes(files: &ModelFiles) -> Option<EngineInput> {
    match files {
        ModelFiles::Gguf(_) | ModelFiles::GgufParts(_) | ModelFiles::GgufWithKernels { .. } => {
            Some(EngineInput::Gguf)
        }
        ModelFiles::HuggingFace { .. } => Some(EngineInput::Directory),
        ModelFiles::Llama2c { .. } | ModelFiles::Meta { .. } => None,
    }
}

fn usual(target: &RequestedModel) -> Result<ReferenceEngine> {
    let usual = takes(&target.variants[0].files).map(ReferenceEngine::usual_for);
    usual.ok_or_else(|| {
        let remedy = match target.variants[0].files {
            ModelFiles::Meta { .. } => "Meta's files; convert them to a Hugging Face directory",
            _ => "llama2.c files; make dumps with reference-scripts/dump/dump_llama2c.py",
        };
        Error::Usage(format!("{}: none of the engines of --with can read {remedy}", target.name))
    })
}

fn variant(target: &RequestedModel, engine: ReferenceEngine) -> Result<&ModelVariant> {
    let wanted = Some(engine.takes());
    target.variants.iter().find(|variant| takes(&variant.files) == wanted).ok_or_else(|| {
        let (reads, other) = match engine.takes() {
            EngineInput::Gguf => ("GGUF files", "transformers"),
            EngineInput::Directory => ("Hugging Face directories", "llama.cpp"),
        };
        let (engine, model) = (engine.name(), &target.name);
        Error::Usage(format!(
            "--with {engine}: expected {reads}, but {model} has another format; use another model, or --with \
                {other}"
        ))
    })
}

fn dtype(engine: ReferenceEngine, asked: Option<&'static str>) -> Result<Option<&'static str>> {
    match (engine.dtypes(), asked) {
        ([], None) => Ok(None),
        ([], Some(_)) => Err(Error::Usage(format!(
            "--dtype: {} computes in the type of the model file; omit --dtype, or use a file of another type",
            engine.name()
        ))),
        ([first, ..], None) => Ok(Some(first)),
        (known, Some(asked)) if known.contains(&asked) => Ok(Some(asked)),
        (known, Some(asked)) => Err(Error::Usage(format!(
            "invalid --dtype {asked} for {}, expected {}",
            engine.name(),
            known.join(", ")
        ))),
    }
}

fn check_family(engine: ReferenceEngine, loaded: &LoadedModel) -> Result<()> {
    let family = loaded.model.architecture();
    if engine.families().contains(&family) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "--with {}: the dump script does not support {family}, expected one of {}; see \
            reference-scripts/README.md for other engines",
        engine.name(),
        engine.families().join(", ")
    )))
}

fn input(variant: &ModelVariant, wish: &ReferenceRequest, loaded: &LoadedModel) -> Result<ReferenceInput> {
    let sizes = loaded.model.dimensions();
    // The engine may support a tokenizer that xcheck does not.
    let tokenizer = variant.files.tokenizer();
    let chosen = match (&wish.input, &tokenizer) {
        (Some(ReferenceInput::Prompt(_)), Ok(None)) => return Err(no_tokenizer(&variant.name)),
        (Some(input), _) => input.clone(),
        (None, Ok(Some(_))) => ReferenceInput::Prompt(PROMPT.to_owned()),
        (None, _) => ReferenceInput::Tokens(spread(sizes.vocab_size as u32)),
    };
    let ids = match (&chosen, &tokenizer) {
        (ReferenceInput::Tokens(ids), _) => ids.clone(),
        (ReferenceInput::Prompt(text), Ok(Some(tokenizer))) => {
            tokenizer.encode(text, true).unwrap_or_default()
        }
        (ReferenceInput::Prompt(_), _) => Vec::new(),
    };
    if let Some(position) = ids.iter().position(|&id| id as usize >= sizes.vocab_size) {
        return Err(
            TokenizerError::BadToken { id: ids[position], position, vocab_size: sizes.vocab_size }.into()
        );
    }
    if ids.len() + wish.decode > sizes.context_length {
        return Err(Error::Usage(format!(
            "{} input tokens and {} decoded tokens exceed the model's context length of {}; shorten the \
                input or --decode",
            ids.len(),
            wish.decode,
            sizes.context_length
        )));
    }
    Ok(chosen)
}

/// Returns token ids that are spread evenly over the vocabulary and are the same in every run.
fn spread(vocab_size: u32) -> Vec<u32> {
    (0..TOKENS).map(|index| (1 + index * 7919) % vocab_size.max(1)).collect()
}

fn checked_out(engine: ReferenceEngine, out: &Path) -> Result<PathBuf> {
    let extension = out.extension().and_then(|extension| extension.to_str());
    if out.file_name().is_none() || (engine == ReferenceEngine::LlamaCpp && extension == Some("npz")) {
        let out = out.display();
        return Err(Error::Usage(format!(
            "--out {out}: expected a new directory, or a file ending in .safetensors"
        )));
    }
    Ok(out.to_owned())
}

/// Returns the unique file name of the dump.
fn file_name(target: &RequestedModel, engine: ReferenceEngine, dtype: &str) -> String {
    let engine = engine.name();
    match target.shipped_model() {
        // Shipped dumps are named by engine and type.
        Some(_) => format!("own-{engine}-{dtype}.safetensors"),
        None if target.is_one_of_several() => format!("{}-{engine}.safetensors", target.name),
        None => format!("{engine}-{dtype}.safetensors"),
    }
}
