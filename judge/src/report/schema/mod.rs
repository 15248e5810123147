//! The document `report.json`, for writing and reading. The meaning of a field never changes within a version. New
//! fields can be added without a new version.

mod error_map;
mod figures;
mod layout;
mod rows;
mod shard;
mod upgrade;

use serde::{Deserialize, Serialize};
use serde_json::{Serializer, Value};

pub(crate) use figures::ElementRow;
pub(crate) use rows::{ExactRow, ReportRow, StartRow, position};
pub(crate) use shard::ShardRow;

use crate::check::{Gate, Mode, Role};
use crate::checkpoint::{Checkpoint, Point};
use crate::dump::Producer;
use crate::json_number;
use crate::report::{ArchitectureSummary, ModelRecord, PromptTokens, ServerReport};
use crate::verdict::{CheckpointSummary, Coverage, Finding, Verdict};

/// Name of the document in its field `schema`.
pub(crate) const SCHEMA: &str = "xcheck-report";
/// Version that is written.
pub(crate) const VERSION: u32 = 4;

/// The whole document.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReportFile {
    pub(crate) schema: String,
    pub(crate) version: u32,
    pub(crate) xcheck: Program,
    pub(crate) command: Vec<String>,
    pub(crate) verdict: String,
    /// Reason why the verdict is not a pass, if it concerns no single dump.
    pub(crate) reason: Option<String>,
    /// Error message of a run without a verdict.
    pub(crate) error: Option<String>,
    pub(crate) model: ModelRow,
    /// Results of a server's own checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<ServerReport>,
    pub(crate) references: Vec<Reference>,
    /// Results per architecture, in a report of several models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) architectures: Vec<ArchitectureSummary>,
}

impl ReportFile {
    /// Returns the document as text with a trailing newline.
    pub(crate) fn text(&self) -> String {
        let mut text = Vec::new();
        let mut serializer = Serializer::with_formatter(&mut text, layout::RowFormatter::default());
        self.serialize(&mut serializer).expect("every key is a string, every float a Number");
        String::from_utf8(text).expect("JSON is UTF-8") + "\n"
    }

    pub fn json(&self) -> Value {
        serde_json::to_value(self).expect("every key is a string, every float a Number")
    }

    /// Parses a document of this version or of version 3.
    ///
    /// # Errors
    /// If the document is invalid, has another version, or `accepts` refuses the program that wrote it.
    pub(crate) fn parse(
        text: &str,
        accepts: impl Fn(&Program) -> Result<(), String>,
    ) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct ReportHeader {
            schema: String,
            version: u32,
            xcheck: Program,
        }
        let told = |error: serde_json::Error| error.to_string();
        // Read first, because other versions may have other fields.
        let ReportHeader { schema, version, xcheck } = serde_json::from_str(text).map_err(told)?;
        if schema != SCHEMA || !(3..=VERSION).contains(&version) {
            return Err(format!(
                "unsupported schema {schema} version {version}, expected {SCHEMA} 3 or {VERSION}"
            ));
        }
        accepts(&xcheck)?;
        match version {
            VERSION => serde_json::from_str(text).map_err(told),
            _ => {
                let former = serde_json::from_str(text).map_err(told)?;
                serde_json::from_value(upgrade::from_version_3(former)).map_err(told)
            }
        }
    }
}

/// The program that wrote a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) version: String,
    pub(crate) commit: Option<String>,
}

impl Program {
    pub(crate) fn this() -> Self {
        let commit = option_env!("XCHECK_COMMIT").map(str::to_owned);
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), commit }
    }
}

/// The model of a report. A field is null if it is unknown, or differs between the references.
#[derive(Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelRow {
    pub(crate) name: Option<String>,
    pub(crate) architecture: Option<String>,
    pub(crate) format: Option<String>,
    pub(crate) quantisation: Option<String>,
    pub(crate) sha256: Option<String>,
}

impl From<ModelRecord> for ModelRow {
    fn from(ModelRecord { name, architecture, format, quantisation, sha256 }: ModelRecord) -> Self {
        let [name, architecture, format, quantisation] = [name, architecture, format, quantisation].map(Some);
        Self { name, architecture, format, quantisation, sha256 }
    }
}

impl From<ModelRow> for ModelRecord {
    fn from(ModelRow { name, architecture, format, quantisation, sha256 }: ModelRow) -> Self {
        let [name, architecture, format, quantisation] =
            [name, architecture, format, quantisation].map(Option::unwrap_or_default);
        Self { name, architecture, format, quantisation, sha256 }
    }
}

/// The results of one dump.
#[derive(Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) producer: Producer,
    pub(crate) model: ModelRow,
    /// Numerics of our engine; for two dumps, the producer of the candidate.
    pub(crate) numerics: String,
    /// Role of the named dump.
    pub(crate) role: Role,
    pub(crate) mode: Mode,
    /// Criterion of the verdict.
    pub(crate) gate: Gate,
    pub(crate) verdict: Verdict,
    pub(crate) reason: Option<String>,
    /// The failure in a sentence; null after a pass.
    #[serde(default)]
    pub(crate) sentence: Option<String>,
    pub(crate) notes: Vec<String>,
    pub(crate) coverage: Coverage,
    pub(crate) first_divergence: Option<Divergence>,
    pub(crate) findings: Vec<Finding>,
    /// Next commands, quoted for a shell.
    #[serde(default)]
    pub(crate) next: Vec<String>,
    /// Remedy for an undetermined comparison.
    #[serde(default)]
    pub(crate) remedy: Option<String>,
    #[serde(default)]
    pub(crate) tokens: TokensRow,
    pub(crate) checkpoints: Vec<CheckpointSummary>,
    pub(crate) results: Vec<ReportRow>,
    /// Data to merge the report of a shard with others.
    pub(crate) shard: Option<ShardRow>,
}

/// Input tokens and their texts.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct TokensRow {
    prompt: Vec<u32>,
    texts: Vec<TextRow>,
}

#[derive(Serialize, Deserialize)]
struct TextRow {
    token: u32,
    text: String,
}

impl From<PromptTokens> for TokensRow {
    fn from(PromptTokens { prompt, texts }: PromptTokens) -> Self {
        Self { prompt, texts: texts.into_iter().map(|(token, text)| TextRow { token, text }).collect() }
    }
}

impl From<TokensRow> for PromptTokens {
    fn from(row: TokensRow) -> Self {
        let texts = row.texts.into_iter().map(|row| (row.token, row.text));
        Self { prompt: row.prompt, texts: texts.collect() }
    }
}

/// First failing row, with the figures that fail.
#[derive(Serialize, Deserialize)]
pub(crate) struct Divergence {
    pub(crate) tap: Point,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) layer: Option<usize>,
    pub(crate) pass: Option<usize>,
    pub(crate) position: Option<usize>,
    pub(crate) tokens: usize,
    /// `local` or `accumulated`.
    pub(crate) judged: String,
    pub(crate) since: Vec<StartRow>,
    pub(crate) reason: Option<String>,
    #[serde(default, with = "json_number::optional")]
    pub(crate) max_abs: Option<f64>,
    #[serde(default, with = "json_number::optional")]
    pub(crate) bound_ratio: Option<f64>,
    pub(crate) exact: Option<ExactRow>,
    #[serde(with = "json_number")]
    pub(crate) tolerance: f64,
    #[serde(flatten)]
    pub(crate) element: ElementRow,
}
