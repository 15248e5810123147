//! Baseline files: the sites that must be compared and the waived failures. The text is made for review in a
//! pull request.

use std::fmt::Write;
use std::path::Path;

use serde::Deserialize;
use toml::value::Datetime;

use crate::atomic_write::write_whole;
use crate::error::{Error, Result};
use crate::input;
use crate::ratchet::blocks::{FileBlock, SiteBlock};
use crate::report::{FailureSize, RecordedDump, RecordedRow};
use crate::verdict::Waiver;

/// Results that later runs are checked against.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    pub(super) dumps: Vec<DumpEntry>,
    pub(super) known: Vec<WaiverGroup>,
}

/// The recorded results of one dump.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DumpEntry {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) sha256: Option<String>,
    /// Criterion and mode; missing in version 1 of the file.
    pub(crate) judged: Option<String>,
    /// Sites that must be compared.
    pub(crate) compared: Vec<ComparedSites>,
    /// Sites that must be bit-identical.
    #[serde(default)]
    pub(crate) identical: Vec<SiteBlock>,
}

/// A block of sites with the number of values at each site, if known.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "FileBlock")]
pub(super) struct ComparedSites {
    pub(crate) block: SiteBlock,
    pub(crate) values: Option<ValueCount>,
}

/// Number of values of a block of sites.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueCount {
    /// Number of values at each site.
    Each(u64),
    /// Number of values at all sites together, as in version 1 of the file.
    Sum(u64),
}

impl ComparedSites {
    /// Returns all compared sites of a dump.
    pub(crate) fn of(dump: &RecordedDump) -> Vec<Self> {
        let mut counts: Vec<Option<u64>> = Vec::new();
        for count in dump.rows.iter().map(RecordedRow::counted) {
            if !counts.contains(&count) {
                counts.push(count);
            }
        }
        let of_count = |count: Option<u64>| {
            let rows = dump.rows.iter().filter(move |row| row.counted() == count);
            let values = count.map(ValueCount::Each);
            SiteBlock::of(rows.map(|row| row.site)).into_iter().map(move |block| Self { block, values })
        };
        counts.into_iter().flat_map(of_count).collect()
    }
}

impl TryFrom<FileBlock> for ComparedSites {
    type Error = String;

    fn try_from(read: FileBlock) -> Result<Self, String> {
        let values = read.each.map(ValueCount::Each).or(read.values.map(ValueCount::Sum));
        Ok(Self { block: read.try_into()?, values })
    }
}

/// Waived failures with the same reason.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "FileGroup")]
pub(super) struct WaiverGroup {
    pub(crate) said: Waiver,
    pub(crate) rows: Vec<WaivedFailure>,
}

/// A waived failure: one tap in some layers and passes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "FileEntry")]
pub(super) struct WaivedFailure {
    pub(crate) dump: String,
    pub(crate) block: SiteBlock,
    pub(crate) cause: Option<String>,
    /// Largest figures of the failure at these sites.
    pub(crate) size: FailureSize,
}

/// Placeholder for a reason that a person has to write.
pub(super) const TODO: &str = "TODO";

const HEAD: &str = "\
# Compared sites and waived failures: `xcheck run --baseline` (docs/how-to/gates.md).
# --update-baseline rewrites this file. It keeps each reason, link and date, but no other comment.
";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BaselineFile {
    version: u32,
    dump: Vec<DumpEntry>,
    #[serde(default)]
    known: Vec<WaiverGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGroup {
    reason: String,
    link: String,
    expires: Datetime,
    rows: Vec<WaivedFailure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    dump: String,
    taps: String,
    layers: Option<String>,
    passes: Option<String>,
    cause: Option<String>,
    #[serde(alias = "headroom")]
    bound_ratio: Option<f64>,
    rel_l2: Option<f64>,
    max_scaled: Option<f64>,
    #[serde(alias = "beyond")]
    over: Option<usize>,
    sigmas: Option<f64>,
}

const VERSION: u32 = 2;

impl Baseline {
    /// Reads a baseline from a file.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid; the error names the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = input::text(path)?;
        Self::parse(&text).map_err(|problem| Error::BadContainer {
            file: path.to_owned(),
            format: "xcheck baseline",
            problem,
        })
    }

    /// Parses a baseline.
    ///
    /// # Errors
    /// The errors of [`Baseline::read`], as text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("the file is empty; write a baseline with --update-baseline".to_owned());
        }
        let BaselineFile { version, dump: mut dumps, known } =
            toml::from_str(text).map_err(|error| located(text, &error))?;
        if !(1..=VERSION).contains(&version) {
            return Err(format!("unsupported version {version}, expected 1 or {VERSION}"));
        }
        dumps.iter_mut().for_each(DumpEntry::upgrade);
        if let Some(DumpEntry { name, .. }) = dumps.iter().find(|dump| dump.compared.is_empty()) {
            return Err(format!(
                "dump '{name}': `compared` is empty, so the gate would always pass; list at least one tap"
            ));
        }
        let twice = dumps
            .iter()
            .enumerate()
            .find(|(at, dump)| dumps[..*at].iter().any(|other| other.name == dump.name));
        if let Some((_, DumpEntry { name, .. })) = twice {
            return Err(format!("duplicate [[dump]] name '{name}'"));
        }
        let is_there = |entry: &&WaivedFailure| dumps.iter().any(|dump| dump.name == entry.dump);
        match known.iter().flat_map(|group| &group.rows).find(|entry| !is_there(entry)) {
            Some(WaivedFailure { dump, block, .. }) => {
                Err(format!("{block}: unknown dump '{dump}'; add a [[dump]] with this name"))
            }
            None => Ok(Self { dumps, known }),
        }
    }

    /// Returns the text of the baseline file.
    pub fn text(&self) -> String {
        let mut text = format!("{HEAD}version = {VERSION}\n");
        for dump in &self.dumps {
            let DumpEntry { name, model, sha256, judged, compared, identical } = dump;
            text += &format!("\n[[dump]]\nname = {}\nmodel = {}\n", quoted(name), quoted(model));
            sha256.iter().for_each(|sha256| text += &format!("sha256 = {}\n", quoted(sha256)));
            judged.iter().for_each(|judged| text += &format!("judged = {}\n", quoted(judged)));
            let lines: String = compared.iter().map(ComparedSites::line).collect();
            text += &format!("compared = [\n{lines}]\n");
            if !identical.is_empty() {
                let lines: String =
                    identical.iter().map(|block| format!("  {{{}}},\n", words(block))).collect();
                text += &format!("identical = [\n{lines}]\n");
            }
        }
        for WaiverGroup { said: Waiver { reason, link, expires }, rows } in &self.known {
            let lines: String = rows.iter().map(WaivedFailure::line).collect();
            let (reason, link) = (quoted(reason), quoted(link));
            text += &format!(
                "\n[[known]]\nreason = {reason}\nlink = {link}\nexpires = {expires}\nrows = [\n{lines}]\n"
            );
        }
        text
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// If the file cannot be written; an existing file then stays unchanged.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_whole(path, self.text().as_bytes()).map_err(Error::io("write", path))
    }
}

impl DumpEntry {
    /// Replaces the names of modes in version 1 of the file.
    fn upgrade(&mut self) {
        let judged = self.judged.take();
        self.judged = judged
            .map(|judged| judged.replace(", total", ", accumulated").replace(", introduced", ", local"));
    }
}

impl TryFrom<FileGroup> for WaiverGroup {
    type Error = String;

    fn try_from(FileGroup { reason, link, expires, rows }: FileGroup) -> Result<Self, String> {
        let expires = match expires {
            Datetime { date: Some(date), time: None, offset: None } => date.to_string(),
            other => {
                return Err(format!(
                    "'{reason}': invalid `expires` {other}, expected a date such as 2026-12-31"
                ));
            }
        };
        Ok(Self { said: Waiver { reason, link, expires }, rows })
    }
}

impl WaiverGroup {
    /// Returns the reason why this group is not in force on the day `today`, such as an expired date; `None` if it is
    /// in force.
    pub(crate) fn is_not_in_force(&self, today: &str) -> Option<String> {
        let Waiver { reason, link, expires } = &self.said;
        let is_said = |text: &str| !text.trim().is_empty() && text.trim() != TODO;
        match () {
            () if !is_said(reason) => {
                Some("the reason is missing: fill in `reason`, `link` and `expires`".to_owned())
            }
            () if !is_said(link) => Some("`link` is empty".to_owned()),
            () if expires.as_str() < today => Some(format!("expired on {expires}: {reason} ({link})")),
            () => None,
        }
    }
}

impl TryFrom<FileEntry> for WaivedFailure {
    type Error = String;

    fn try_from(read: FileEntry) -> Result<Self, String> {
        let FileEntry { dump, taps, layers, passes, cause, bound_ratio, rel_l2, max_scaled, over, sigmas } =
            read;
        let block = SiteBlock::parse(&taps, layers.as_deref(), passes.as_deref())?;
        if [bound_ratio, rel_l2, max_scaled, sigmas].into_iter().flatten().any(f64::is_nan) {
            return Err(format!("{block}: invalid figure NaN, expected a number"));
        }
        Ok(Self { dump, block, cause, size: FailureSize { bound_ratio, rel_l2, max_scaled, over, sigmas } })
    }
}

impl WaivedFailure {
    fn line(&self) -> String {
        let Self { dump, block, cause, size } = self;
        let FailureSize { bound_ratio, rel_l2, max_scaled, over, sigmas } = size;
        let mut line = format!("  {{dump = {}, {}", quoted(dump), words(block));
        let figure = |figure: f64| if figure.is_finite() { format!("{figure:e}") } else { "inf".to_owned() };
        let told = [
            ("cause", cause.as_deref().map(quoted)),
            ("bound_ratio", bound_ratio.map(figure)),
            ("rel_l2", rel_l2.map(figure)),
            ("max_scaled", max_scaled.map(figure)),
            ("over", over.map(|count| count.to_string())),
            ("sigmas", sigmas.map(figure)),
        ];
        for (what, value) in told {
            value.iter().for_each(|value| _ = write!(line, ", {what} = {value}"));
        }
        line + "},\n"
    }
}

impl ComparedSites {
    fn line(&self) -> String {
        let values = match self.values {
            None => String::new(),
            Some(ValueCount::Each(values)) => format!(", each = {values}"),
            Some(ValueCount::Sum(values)) => format!(", values = {values}"),
        };
        format!("  {{{}{values}}},\n", words(&self.block))
    }
}

fn words(block: &SiteBlock) -> String {
    let mut words = format!("taps = {}", quoted(&block.tap_names()));
    for (what, ranges) in [("layers", &block.layers), ("passes", &block.passes)] {
        ranges.iter().for_each(|ranges| _ = write!(words, ", {what} = {}", quoted(&ranges.in_short())));
    }
    words
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Describes a parse error and its line in one line of text.
fn located(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().and_then(|span| Some(text.get(..span.start)?.matches('\n').count() + 1));
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    line.map_or(message.clone(), |line| format!("line {line}: {message}"))
}
