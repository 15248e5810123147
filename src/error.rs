//! Everything that can go wrong, in one enum: what, where, what was expected, what to do.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::parts::Refused;
use crate::weight::DType;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal. Each prints as one message; bad input is never a panic.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes of a file elsewhere cannot be had.
    #[error("{0}")]
    Elsewhere(Refused),
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: "open", "read", "write" …
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },

    /// What was asked for takes more memory than there is.
    #[error("{what} needs {}, and {} are left on this machine, or are allowed (ulimit -v, a container); ask for less, or use a machine with more", gigabytes(*needed), gigabytes(*left))]
    NoMemory {
        /// What needs it.
        what: String,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that there are.
        left: u64,
    },

    // ---- weight files -------------------------------------------------------------------------
    /// The file does not start as its format does.
    #[error("{}: {found} at byte 0, expected {expected}{hint}", file.display())]
    WrongMagic {
        /// The file.
        file: PathBuf,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
        /// What to do about it; empty or starts with "; ".
        hint: &'static str,
    },
    /// The format is right, the version is not one that is read here.
    #[error("{}: version {version} at byte 4 is not supported; {hint}", file.display())]
    UnsupportedVersion {
        /// The file.
        file: PathBuf,
        /// The version it declares.
        version: u32,
        /// Which versions are, and what to do.
        hint: &'static str,
    },
    /// The file ends before what it announces.
    #[error("{}: truncated: {what} at byte {offset} needs {needed} bytes, the file has {available} left", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// What was being read.
        what: String,
        /// Where it starts.
        offset: u64,
        /// How much it needs.
        needed: u64,
        /// How much is there.
        available: u64,
    },
    /// Some bytes say something that cannot be.
    #[error("{}: byte {offset}: {what} is {found}, expected {expected}", file.display())]
    BadBytes {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// Which field.
        what: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// Two tensors claim the same bytes.
    #[error("{}: tensor '{tensor}' overlaps tensor '{other}' at byte {offset}; the file is damaged, get it again", file.display())]
    OverlappingTensors {
        /// The file.
        file: PathBuf,
        /// The tensor that starts inside the other.
        tensor: String,
        /// The tensor it starts in.
        other: String,
        /// Where the overlap starts.
        offset: u64,
    },
    /// A GGUF file written for machines of the other byte order.
    #[error("{}: big-endian GGUF (the version at byte 4 is byte-swapped), expected little-endian; run: gguf-convert-endian {} little", file.display(), file.display())]
    BigEndian {
        /// The file.
        file: PathBuf,
    },
    /// A name that must be unique stands there twice.
    #[error("{}: byte {offset}: second {kind} '{name}', expected each {kind} once; the file is damaged, get or convert it again", file.display())]
    Duplicate {
        /// The file.
        file: PathBuf,
        /// Where the second one stands.
        offset: u64,
        /// "key", "tensor".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A tensor's description says something that cannot be.
    #[error("{}: byte {offset}: tensor '{tensor}': {what} is {found}, expected {expected}", file.display())]
    BadTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where.
        offset: u64,
        /// Which field.
        what: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A tensor of a type that is known by name, but has no place here.
    #[error("{}: tensor '{tensor}' (byte {offset}) is of type {name}, which is not read; {hint}", file.display())]
    RefusedTensorType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where it is described, or where its data starts.
        offset: u64,
        /// The type.
        name: String,
        /// What to do.
        hint: &'static str,
    },
    /// A tensor of a type id that is not known.
    #[error("{}: tensor '{tensor}' (byte {offset}) has unknown type id {id}; it may need a newer xcheck", file.display())]
    UnknownTensorType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where its description stands.
        offset: u64,
        /// The id.
        id: u32,
    },
    /// A pickle names something that is no part of a tensor: Python would import it, and mostly call it.
    #[error("{}: byte {offset}: the pickle asks for '{name}', which is no part of a state dict of plain tensors, and is never run here; save model.state_dict() alone, or, if you trust the file, convert it to safetensors", file.display())]
    ForeignPickle {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// Module and name.
        name: String,
    },
    /// A container library refused the file.
    #[error("{}: not a valid {format} file: {problem}", file.display())]
    BadContainer {
        /// The file.
        file: PathBuf,
        /// "safetensors", "npz", …
        format: &'static str,
        /// What the library said.
        problem: String,
    },

    // ---- models -------------------------------------------------------------------------------
    /// A metadata or configuration key is absent.
    #[error("{}: '{key}' is missing; {hint}", file.display())]
    MissingKey {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What it is for.
        hint: String,
    },
    /// A metadata or configuration key has a value that cannot be used.
    #[error("{}: '{key}' is {found}, expected {expected}", file.display())]
    BadKey {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A tensor the architecture needs is absent.
    #[error("{}: tensor '{tensor}' is missing; the {architecture} architecture needs it", file.display())]
    MissingTensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// For which architecture.
        architecture: &'static str,
    },
    /// Tensors that the forward pass would not use: running without them would judge another model.
    #[error("{}: {} the {architecture} forward pass does not use: {}", file.display(), plural(tensors.len(), "tensor"), shorten(tensors))]
    UnusedTensors {
        /// The file.
        file: PathBuf,
        /// The tensors.
        tensors: Vec<String>,
        /// For which architecture.
        architecture: &'static str,
    },
    /// A matrix that the configuration ties to the embedding table, and that the file holds with other values.
    #[error("{}: tensor '{tensor}' is not the embedding table, which tie_word_embeddings says it is; correct config.json or remove the tensor", file.display())]
    NotTied {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor's shape does not follow from the configuration.
    #[error("{}: tensor '{tensor}' has shape {found:?}, the configuration asks for {expected:?}", file.display())]
    WrongShape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape, outermost axis first.
        found: Vec<usize>,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
    },
    /// A tensor's type is known but cannot be computed with.
    #[error("{}: tensor '{tensor}' is of type {dtype}, which cannot be run yet; supported: {supported}", file.display())]
    UnsupportedTensorType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// The types that can be run.
        supported: String,
    },
    /// A block whose scale is infinite or not a number: none of its values would be one.
    #[error("{}: tensor '{tensor}' ({dtype}): block {block}, at byte {offset} of its data, has a scale that is not finite, expected a number; the file is damaged or badly quantised, get or make it again", file.display())]
    BadScale {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// The first such block, counted from the start of the tensor.
        block: usize,
        /// Where it starts, counted likewise.
        offset: usize,
    },
    /// A code that stands for no weight.
    #[error("{}: tensor '{tensor}' ({dtype}): byte {offset} of its data holds a code that stands for no weight, expected -1, 0 or 1; the file is damaged or of another layout (--i2s-layout)", file.display())]
    BadCode {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// The first such byte, counted from the start of the tensor.
        offset: usize,
    },
    /// A ternary matrix in an order that cannot be told.
    #[error("{}: tensor '{tensor}' ({dtype}) cannot be unpacked: {problem}", file.display())]
    Unpackable {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// What is in the way, and what to do.
        problem: String,
    },
    /// The model cannot be found or is of no known kind.
    #[error("no model '{name}': {problem}")]
    NoModel {
        /// What was asked for.
        name: String,
        /// Why not, and what there is.
        problem: String,
    },
    /// A vocabulary contradicts itself.
    #[error("{}the tokenizer cannot be used: {problem}", file.as_ref().map_or(String::new(), |file| format!("{}: ", file.display())))]
    BadTokenizer {
        /// The file, where it is known.
        file: Option<PathBuf>,
        /// What, where, what was expected.
        problem: String,
    },

    // ---- the hub ------------------------------------------------------------------------------
    /// A model of the hub is not, or not whole, on this machine.
    #[error("{model}: no such file or directory, and not in the Hugging Face cache {}: {missing}; get it with: {command}", cache.display())]
    NotCached {
        /// What was asked for.
        model: String,
        /// The cache.
        cache: PathBuf,
        /// Which files are missing.
        missing: String,
        /// What downloads it.
        command: String,
    },
    /// A file of the cache is not what it was when it was downloaded.
    #[error("{}: the content's hash is {found}, expected {expected}; the file is damaged, get it again with: {command}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The hash of what it holds.
        found: String,
        /// The hash that names it.
        expected: String,
        /// What downloads it.
        command: String,
    },
    /// The hub, or the way to it, refused.
    #[error("cannot download {what}: {problem}")]
    Download {
        /// What was to be downloaded.
        what: String,
        /// Why not, and what to do.
        problem: String,
    },

    // ---- servers --------------------------------------------------------------------------------
    /// A server that is asked gives no answer, or none that can be read.
    #[error("{url}: {problem}")]
    Server {
        /// What was asked, without keys.
        url: String,
        /// What is wrong, and what to do.
        problem: String,
    },

    // ---- references that are made here -----------------------------------------------------------
    /// Another program, which makes a reference or its environment, failed.
    #[error("{what} failed: {said}; {advice}; all that was said is in {}", log.display())]
    Making {
        /// What was made.
        what: String,
        /// The program's own words.
        said: String,
        /// What to do.
        advice: String,
        /// The file with everything that it said.
        log: PathBuf,
    },

    // ---- dumps --------------------------------------------------------------------------------
    /// The manifest contradicts the contract, itself or its arrays.
    #[error("{}: {problem}", dump.display())]
    BadDump {
        /// The dump.
        dump: PathBuf,
        /// What, where, what was expected.
        problem: String,
    },
    /// Two runs that should have read the same tokens did not.
    #[error(
        "the input tokens differ: nothing else can be compared\n  {one_name}: {one:?}\n  {other_name}: {other:?}\n  first difference at position {position}"
    )]
    TokensDiffer {
        /// Who read `one`.
        one_name: String,
        /// Its tokens.
        one: Vec<u32>,
        /// Who read `other`.
        other_name: String,
        /// Its tokens.
        other: Vec<u32>,
        /// The first position where they part.
        position: usize,
    },

    // ---- running ------------------------------------------------------------------------------
    /// The KV cache cannot take the tokens.
    #[error(
        "{tokens} tokens at position {position} do not fit a KV cache of {capacity}; shorten the input or the generation"
    )]
    CacheFull {
        /// How many tokens were to be added.
        tokens: usize,
        /// Where.
        position: usize,
        /// The cache's capacity, in tokens.
        capacity: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} at position {position} is outside the vocabulary of {vocab_size}")]
    BadToken {
        /// The id.
        id: u32,
        /// Its position in the input.
        position: usize,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// Logits that leave no token to choose.
    #[error(
        "no token can be chosen: {problem}, expected numbers; look where it begins with: xcheck dump, then xcheck inspect"
    )]
    BadLogits {
        /// Which logits are what.
        problem: String,
    },
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// Wraps a system error; use as `.map_err(Error::io("open", path))`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }

    /// A refusal of a metadata or configuration value.
    pub fn bad_key(file: &Path, key: &str, found: impl Display, expected: impl Display) -> Self {
        let (found, expected) = (found.to_string(), expected.to_string());
        Error::BadKey { file: file.to_owned(), key: key.to_owned(), found, expected }
    }

    /// The same, with the file that a tokenizer is of, where it is about a tokenizer that does not say so.
    pub fn of_tokenizer(self, path: &Path) -> Self {
        match self {
            Error::BadTokenizer { file: None, problem } => {
                Error::BadTokenizer { file: Some(path.to_owned()), problem }
            }
            other => other,
        }
    }

    /// A refusal of a dump.
    pub fn dump(dump: &Path, problem: impl Into<String>) -> Self {
        Error::BadDump { dump: dump.to_owned(), problem: problem.into() }
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB of memory", bytes as f64 / 1e9)
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The first few names, so that a message stays a message.
fn shorten(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}
