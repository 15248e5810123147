//! The document `report.json`, for writing and reading. The meaning of a field never changes within a version. New
//! fields can be added without a new version.

mod enum_name;
mod error_map;
mod figures;
mod finding;
mod form;
mod layout;
mod rows;
mod shard;
mod upgrade;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Serializer, Value};

pub use enum_name::EnumName;
pub use figures::{ElementRow, ErrorFigures};
pub use finding::FindingRow;
pub use form::{JsonForm, JsonNumber};
pub use rows::{ExactRow, ReportRow, SiteRow, StartRow, position};
pub use shard::ShardRow;

use crate::check::{Gate, Mode, Role};
use crate::checkpoint::{Checkpoint, Point};
use crate::dump::Producer;
use crate::report::{ModelRecord, PromptTokens, ServerReport};
use crate::verdict::{Coverage, Verdict};

/// Name of the document in its field `schema`.
pub const SCHEMA: &str = "xcheck-report";
/// Version that is written.
pub const VERSION: u32 = 4;

/// The whole document.
#[derive(Serialize, Deserialize)]
pub struct ReportFile {
    pub schema: String,
    pub version: u32,
    pub xcheck: Program,
    pub command: Vec<String>,
    pub verdict: String,
    /// Reason why the verdict is not a pass, if it concerns no single dump.
    pub reason: Option<String>,
    /// Error message of a run without a verdict.
    pub error: Option<String>,
    pub model: ModelRow,
    /// Results of a server's own checks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerReport>,
    pub references: Vec<Reference>,
    /// Results per architecture, in a report of several models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<ArchitectureRow>,
}

impl ReportFile {
    /// Returns the document as text with a trailing newline.
    pub fn text(&self) -> String {
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
    pub fn parse(text: &str, accepts: impl Fn(&Program) -> Result<(), String>) -> Result<Self, String> {
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
pub struct Program {
    pub version: String,
    pub commit: Option<String>,
}

impl Program {
    pub fn this() -> Self {
        let commit = option_env!("XCHECK_COMMIT").map(str::to_owned);
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), commit }
    }
}

/// The model of a report. A field is null if it is unknown, or differs between the references.
#[derive(Default, PartialEq, Serialize, Deserialize)]
pub struct ModelRow {
    pub name: Option<String>,
    pub architecture: Option<String>,
    pub format: Option<String>,
    pub quantisation: Option<String>,
    pub sha256: Option<String>,
}

impl JsonForm for ModelRow {
    type Value = ModelRecord;

    fn of(ModelRecord { name, architecture, format, quantisation, sha256 }: ModelRecord) -> Self {
        let [name, architecture, format, quantisation] = [name, architecture, format, quantisation].map(Some);
        Self { name, architecture, format, quantisation, sha256 }
    }

    fn value(self) -> ModelRecord {
        let Self { name, architecture, format, quantisation, sha256 } = self;
        let [name, architecture, format, quantisation] =
            [name, architecture, format, quantisation].map(Option::unwrap_or_default);
        ModelRecord { name, architecture, format, quantisation, sha256 }
    }
}

/// The results of one dump.
#[derive(Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    pub producer: ProducerRow,
    pub model: ModelRow,
    /// Numerics of our engine; for two dumps, the producer of the candidate.
    pub numerics: String,
    /// Role of the named dump.
    pub role: EnumName<Role>,
    pub mode: EnumName<Mode>,
    /// Criterion of the verdict.
    pub gate: EnumName<Gate>,
    pub verdict: EnumName<Verdict>,
    pub reason: Option<String>,
    /// The failure in a sentence; null after a pass.
    #[serde(default)]
    pub sentence: Option<String>,
    pub notes: Vec<String>,
    pub coverage: Coverage,
    pub first_divergence: Option<Divergence>,
    pub findings: Vec<FindingRow>,
    /// Next commands, quoted for a shell.
    #[serde(default)]
    pub next: Vec<String>,
    /// Remedy for an undetermined comparison.
    #[serde(default)]
    pub remedy: Option<String>,
    #[serde(default)]
    pub tokens: TokensRow,
    pub checkpoints: Vec<CheckpointRow>,
    pub results: Vec<ReportRow>,
    /// Data to merge the report of a shard with others.
    pub shard: Option<ShardRow>,
}

#[derive(Serialize, Deserialize)]
pub struct ProducerRow {
    name: String,
    version: String,
    settings: Map<String, Value>,
}

impl JsonForm for ProducerRow {
    type Value = Producer;

    fn of(Producer { name, version, settings, rounding: _ }: Producer) -> Self {
        Self { name, version, settings }
    }

    fn value(self) -> Producer {
        Producer { name: self.name, version: self.version, settings: self.settings, rounding: None }
    }
}

/// Input tokens and their texts.
#[derive(Default, Serialize, Deserialize)]
pub struct TokensRow {
    prompt: Vec<u32>,
    texts: Vec<TextRow>,
}

#[derive(Serialize, Deserialize)]
struct TextRow {
    token: u32,
    text: String,
}

impl JsonForm for TokensRow {
    type Value = PromptTokens;

    fn of(PromptTokens { prompt, texts }: PromptTokens) -> Self {
        Self { prompt, texts: texts.into_iter().map(|(token, text)| TextRow { token, text }).collect() }
    }

    fn value(self) -> PromptTokens {
        let texts = self.texts.into_iter().map(|row| (row.token, row.text));
        PromptTokens { prompt: self.prompt, texts: texts.collect() }
    }
}

/// First failing row, with the figures that fail.
#[derive(Serialize, Deserialize)]
pub struct Divergence {
    pub tap: EnumName<Point>,
    pub checkpoint: EnumName<Checkpoint>,
    pub layer: Option<usize>,
    pub pass: Option<usize>,
    pub position: Option<usize>,
    pub tokens: usize,
    /// `local` or `accumulated`.
    pub judged: String,
    pub since: Vec<StartRow>,
    pub reason: Option<String>,
    pub max_abs: Option<JsonNumber>,
    pub bound_ratio: Option<JsonNumber>,
    pub exact: Option<ExactRow>,
    pub tolerance: JsonNumber,
    #[serde(flatten)]
    pub element: ElementRow,
}

/// Results of all dumps of one architecture.
#[derive(Serialize, Deserialize)]
pub struct ArchitectureRow {
    pub(super) architecture: String,
    pub(super) models: Vec<String>,
    pub(super) dumps: usize,
    pub(super) verdict: EnumName<Verdict>,
    pub(super) checkpoints: Vec<CheckpointRow>,
}

/// Results of one checkpoint.
#[derive(Serialize, Deserialize)]
pub struct CheckpointRow {
    pub checkpoint: EnumName<Checkpoint>,
    pub number: usize,
    pub verdict: EnumName<Verdict>,
    pub local: Option<ErrorFigures>,
    pub accumulated: Option<ErrorFigures>,
    pub bound_ratio: Option<JsonNumber>,
    pub over: Option<usize>,
    pub tolerance: Option<JsonNumber>,
    pub worst: Option<SiteRow>,
}
