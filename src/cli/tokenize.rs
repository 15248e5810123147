//! `xcheck tokenize`: shows the ids of a text, or the first difference between two tokenizers.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use comfy_table::{Cell, CellAlignment};
use serde_json::json;

use crate::cli::requested_model::RequestedModel;
use crate::cli::terminal::{plain_table, say};
use crate::cli::{prompt, terminal};
use crate::error::{Error, Result};
use crate::model::ModelFiles;
use crate::shipped_models;
use crate::tokenizer::{SpecialTokens, TextStream, Tokenizer, TokenizerFiles};
use crate::verdict::Verdict;

/// Number of displayed tokens before and after the first difference.
const AROUND: usize = 3;

/// Arguments of `xcheck tokenize`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Without --parse-special, <s> in TEXT is three characters, as in the sentencepiece library. Use this to test a tokenizer. \
--prompt of the other commands reads <s> as the token, as transformers and the tools of llama.cpp do.")]
pub(crate) struct TokenizeArgs {
    /// Model, or a file or folder with a tokenizer
    ///
    /// A model as for the other commands, a GGUF file that holds only a vocabulary, a folder with a
    /// tokenizer, or a tokenizer.json, tokenizer.model, vocab.json beside merges.txt, or tokenizer.bin of
    /// llama2.c.
    #[arg(long, short, value_name = "MODEL")]
    model: String,
    /// Download model files missing from the Hugging Face cache
    #[arg(long)]
    download: bool,
    /// Add no BOS or EOS token to the text
    #[arg(long)]
    no_bos: bool,
    /// Read names of special tokens in the text as these tokens
    #[arg(long)]
    parse_special: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = TokenizeFormat::Table)]
    format: TokenizeFormat,
    /// Second model; show where its tokenizer first differs
    ///
    /// The exit code is 1 if the tokenizers differ.
    #[arg(long, value_name = "OTHER")]
    compare: Option<String>,
    /// Text to tokenize, or - for standard input
    ///
    /// Standard input is read to its end and not trimmed. It must be UTF-8: real tokenizers disagree on other
    /// bytes.
    #[arg(value_name = "TEXT|-")]
    text: String,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TokenizeFormat {
    /// A table of ids, pieces and the text they stand for
    Table,
    /// The list of ids; with --compare, an object
    Json,
}

/// A text with its token ids by one tokenizer.
struct TokenizedText {
    name: String,
    tokenizer: Arc<dyn Tokenizer>,
    ids: Vec<u32>,
}

/// Prints the ids of the text, or the first difference between two tokenizers.
pub(crate) fn run(args: &TokenizeArgs) -> Result<Verdict> {
    let text = read(&args.text)?;
    let this = TokenizedText::of(&args.model, args, &text)?;
    match (&args.compare, args.format) {
        (None, TokenizeFormat::Json) => terminal::document(&json!(this.ids).to_string()),
        (None, TokenizeFormat::Table) => this.show()?,
        (Some(other), format) => {
            return show_difference(&this, &TokenizedText::of(other, args, &text)?, format);
        }
    }
    Ok(Verdict::Pass)
}

/// Returns the text, read from standard input if it is "-".
pub(super) fn read(text: &str) -> Result<String> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(Error::io("read", Path::new("standard input")))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[at];
        Error::Usage(format!(
            "standard input: byte {at} (0x{byte:02X}) is not valid UTF-8, which tokenizers require; convert \
             the text, e.g. with iconv"
        ))
    })
}

impl TokenizedText {
    fn of(name: &str, args: &TokenizeArgs, text: &str) -> Result<Self> {
        let tokenizer = find(name, args.download)?;
        let special = SpecialTokens { add: !args.no_bos, parse: args.parse_special };
        Ok(Self { name: name.to_owned(), ids: tokenizer.encode_with(text, special)?, tokenizer })
    }

    /// Prints a row per id: position, id, piece as in the vocabulary, and decoded text.
    fn show(&self) -> Result<()> {
        let mut stream = TextStream::new(&*self.tokenizer);
        let mut table = plain_table(&["position", "id", "piece", "text"]);
        for (position, &id) in self.ids.iter().enumerate() {
            let text = stream.push(id)?;
            let text = if text.is_empty() { text } else { format!("{text:?}") };
            table.add_row([right(position), right(id), Cell::new(self.piece(position)), Cell::new(text)]);
        }
        say!("{}", table.trim_fmt());
        say!("\n{} tokens by {}: {}", self.ids.len(), self.name, list(&self.ids));
        Ok(())
    }

    /// Returns the piece at a position, with control characters escaped.
    fn piece(&self, position: usize) -> String {
        let piece = self.ids.get(position).and_then(|&id| self.tokenizer.piece(id)).unwrap_or_default();
        let shown = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
        piece.chars().map(shown).collect()
    }

    /// Returns the id at a position as text; empty after the end.
    fn id(&self, position: usize) -> String {
        self.ids.get(position).map_or_else(|| "end".to_owned(), u32::to_string)
    }
}

fn right(number: impl ToString) -> Cell {
    Cell::new(number.to_string()).set_alignment(CellAlignment::Right)
}

/// Formats ids for --tokens.
fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Finds the tokenizer at a path or of a named model. Weights are not read.
fn find(name: &str, may_download: bool) -> Result<Arc<dyn Tokenizer>> {
    let path = Path::new(name);
    if !path.exists() || shipped_models::model(name).is_some() || shipped_models::source(name)?.is_some() {
        return prompt::tokenizer(&RequestedModel::find(name, may_download)?);
    }
    let found = match TokenizerFiles::at(path)? {
        Some(files) => files.read()?,
        None => ModelFiles::open(path)?.tokenizer()?.ok_or_else(|| prompt::no_tokenizer(name))?,
    };
    Ok(found.into())
}

fn show_difference(this: &TokenizedText, other: &TokenizedText, format: TokenizeFormat) -> Result<Verdict> {
    let same = this.ids.iter().zip(&other.ids).take_while(|(one, two)| one == two).count();
    let parts = this.ids != other.ids;
    match format {
        TokenizeFormat::Json => {
            let position = parts.then_some(same);
            let both = json!({"this": this.ids, "other": other.ids, "first_difference": position});
            say!("{both}");
        }
        TokenizeFormat::Table if parts => show_parting(this, other, same)?,
        TokenizeFormat::Table => {
            say!("the same {} tokens by {} and {}", this.ids.len(), this.name, other.name);
        }
    }
    Ok(if parts { Verdict::Fail } else { Verdict::Pass })
}

/// Shows the tokens around the first difference, in two columns.
fn show_parting(this: &TokenizedText, other: &TokenizedText, position: usize) -> Result<()> {
    let before = this.tokenizer.decode_lossy(&this.ids[..position])?;
    let longest = this.ids.len().max(other.ids.len());
    let mut table = plain_table(&["", "position", "this", "piece", "other", "piece"]);
    for at in position.saturating_sub(AROUND)..longest.min(position + AROUND + 1) {
        let mark = if at == position { ">" } else { "" };
        let mut row = vec![Cell::new(mark), right(at)];
        for side in [this, other] {
            row.extend([right(side.id(at)), Cell::new(side.piece(at))]);
        }
        table.add_row(row);
    }
    say!("{}\n", table.trim_fmt());
    let counts = format!("{} tokens by {}, {} by {}", this.ids.len(), this.name, other.ids.len(), other.name);
    say!("FAIL  the token ids differ from position {position} on, after {:?}; {counts}", end_of(&before));
    // Vocabularies may number the same pieces differently, so pieces are compared before ids.
    match (0..longest).find(|&at| this.piece(at) != other.piece(at)) {
        Some(first) if first == position => {}
        Some(first) => say!("      the pieces differ from position {first} on"),
        None => say!("      the pieces are the same; only the ids differ"),
    }
    Ok(())
}

/// Returns the last characters of a text, to locate a position.
fn end_of(text: &str) -> &str {
    const SHOWN: usize = 40;
    let start = text.char_indices().rev().nth(SHOWN - 1).map_or(0, |(start, _)| start);
    &text[start..]
}
