//! The metadata at the end of a Parquet file: its columns, and where their pages are.

use std::ops::Range;

use super::codec::PageCodec;
use super::thrift::ThriftStruct;
use super::values::ParquetType;
use crate::error::Result;
use crate::format::{EscapedText, FileBytes};

/// Magic at both ends of a file.
const MAGIC: &[u8] = b"PAR1";
/// Magic of a file whose metadata is encrypted.
const ENCRYPTED: &[u8] = b"PARE";

/// A column of numbers or texts, or of lists of them.
#[derive(Clone, Debug)]
pub struct ParquetColumn {
    /// Name of the column; a structure's columns have the same name.
    pub(super) name: String,
    /// The type, or the reason why the column cannot be read.
    pub(super) kind: std::result::Result<ParquetType, String>,
    /// Number of nested lists.
    pub(super) depth: u8,
    /// Definition level of a value.
    pub(super) present: u8,
    /// Definition level of an entry of the innermost list, null or not.
    pub(super) entry: u8,
    /// True if a row may be null.
    pub(super) is_optional: bool,
    /// Pages of each row group.
    pub(super) chunks: Vec<ColumnChunk>,
}

/// The pages of a column in one row group.
#[derive(Clone, Debug)]
pub(super) struct ColumnChunk {
    pub(super) bytes: Range<usize>,
    /// Compression, or the name of one that is not supported.
    pub(super) codec: std::result::Result<PageCodec, &'static str>,
    /// Number of values, nulls and empty lists.
    pub(super) entries: u64,
    /// Number of rows of the group.
    pub(super) rows: u64,
}

/// Reads the columns of a file.
pub(super) fn columns(source: &FileBytes) -> Result<Vec<ParquetColumn>> {
    let bytes = footer(source)?;
    let at = bytes.start;
    let damaged = || source.bad(at, "the footer", "damaged", "Parquet metadata; get or write the file again");
    let (footer, _) = ThriftStruct::read(source.data.at(bytes)).ok_or_else(damaged)?;
    if footer.structure(8).is_some() {
        return Err(encrypted(source, at));
    }
    let elements = footer.structures(2).ok_or_else(damaged)?;
    let mut columns = SchemaReader { elements: &elements, at: 0 }.columns().ok_or_else(damaged)?;
    for group in footer.structures(4).ok_or_else(damaged)? {
        let rows = group.size(3).ok_or_else(damaged)? as u64;
        let chunks = group.structures(1).ok_or_else(damaged)?;
        if chunks.len() != columns.len() {
            return Err(damaged());
        }
        for (column, chunk) in columns.iter_mut().zip(chunks) {
            column.chunks.push(chunk_of(source, at, chunk, rows).ok_or_else(damaged)??);
        }
    }
    Ok(columns)
}

/// Returns the bytes of the footer.
fn footer(source: &FileBytes) -> Result<Range<usize>> {
    const LAST: usize = 8;
    let size = source.data.len();
    let damaged = |at, found: &str| {
        source.bad(
            at,
            "the end",
            found,
            "the length of the footer and PAR1; the file is truncated, get it again",
        )
    };
    let Some(at) = size.checked_sub(LAST).filter(|&at| at >= MAGIC.len()) else {
        return Err(damaged(0, "missing"));
    };
    let last = source.data.at(at..size);
    if last.ends_with(ENCRYPTED) {
        return Err(encrypted(source, at));
    }
    let len = u32::from_le_bytes([last[0], last[1], last[2], last[3]]) as usize;
    match at.checked_sub(len) {
        Some(start) if last.ends_with(MAGIC) && start >= MAGIC.len() => Ok(start..at),
        _ => Err(damaged(at, "something else")),
    }
}

fn encrypted(source: &FileBytes, at: usize) -> crate::error::Error {
    source.bad(at, "the file", "encrypted", "plain Parquet; write it again without encryption")
}

/// Returns the pages of a column; `None` if their description is damaged.
fn chunk_of(source: &FileBytes, at: usize, chunk: &ThriftStruct, rows: u64) -> Option<Result<ColumnChunk>> {
    if chunk.structure(8).is_some() {
        return Some(Err(encrypted(source, at)));
    }
    let metadata = chunk.structure(3)?;
    if chunk.text(1).is_some() {
        let problem = "in another file";
        return Some(Err(source.bad(at, "a column", problem, "one file; write it again as one")));
    }
    let first = metadata.size(9)?;
    let start = metadata.size(11).filter(|&dictionary| dictionary > 0).map_or(first, |one| one.min(first));
    let end = start.checked_add(metadata.size(7)?)?;
    let codec = PageCodec::of(metadata.int(4)?);
    let entries = metadata.size(5)? as u64;
    (end <= source.data.len()).then_some(Ok(ColumnChunk { bytes: start..end, codec, entries, rows }))
}

/// Reads the schema: a tree in depth-first order.
struct SchemaReader<'s, 'a> {
    elements: &'s [&'s ThriftStruct<'a>],
    at: usize,
}

/// Levels and problem on the path to a column.
#[derive(Clone, Default)]
struct SchemaPath {
    name: String,
    depth: u8,
    present: u8,
    entry: u8,
    is_optional: bool,
    problem: Option<String>,
}

/// Maximum number of levels of the schema.
const DEEPEST: u8 = 32;

impl SchemaReader<'_, '_> {
    fn columns(mut self) -> Option<Vec<ParquetColumn>> {
        let children = self.elements.first()?.size(5)?;
        self.at = 1;
        let mut columns = Vec::new();
        for _ in 0..children {
            self.element(&SchemaPath::default(), 0, &mut columns)?;
        }
        (self.at == self.elements.len()).then_some(columns)
    }

    fn element(&mut self, parent: &SchemaPath, level: u8, columns: &mut Vec<ParquetColumn>) -> Option<()> {
        let element = *self.elements.get(self.at)?;
        self.at += 1;
        let mut path = parent.clone();
        if level == 0 {
            path.name = element.text(4)?.to_owned();
        }
        let repetition = element.int(3).unwrap_or(0);
        path.is_optional |= level == 0 && repetition == 1;
        path.present += u8::from(repetition != 0);
        if repetition == 2 {
            path.depth += 1;
            path.entry = path.present;
        }
        let children = element.size(5).unwrap_or(0);
        if children == 0 {
            let kind = kind_of(element);
            let kind = path.problem.map_or(kind, Err);
            let SchemaPath { name, depth, present, entry, is_optional, .. } = path;
            let chunks = Vec::new();
            columns.push(ParquetColumn { name, kind, depth, present, entry, is_optional, chunks });
            return Some(());
        }
        if !(repetition == 2 || is_list(element)) || children > 1 {
            path.problem = Some("a structure or a map".to_owned());
        }
        for _ in 0..children {
            (level < DEEPEST).then(|| self.element(&path, level + 1, columns))??;
        }
        Some(())
    }
}

fn is_list(element: &ThriftStruct) -> bool {
    element.int(6) == Some(3) || element.structure(10).is_some_and(|kind| kind.variant() == Some(3))
}

/// Returns the type of a column, or its description if it holds no numbers or texts.
fn kind_of(element: &ThriftStruct) -> std::result::Result<ParquetType, String> {
    let logical = element.structure(10).and_then(ThriftStruct::variant);
    let is_signed = element.structure(10).and_then(|kind| kind.structure(10)).and_then(|kind| kind.flag(2));
    let is_unsigned = is_signed == Some(false) || matches!(element.int(6), Some(11..=14));
    let is_integer =
        matches!(element.int(6), None | Some(11..=18)) && matches!(logical, None | Some(10 | 11));
    let is_text = matches!(element.int(6), None | Some(0 | 4)) && matches!(logical, None | Some(1 | 4 | 11));
    Ok(match element.int(1) {
        Some(0) => ParquetType::Bool,
        Some(1) if is_integer && is_unsigned => ParquetType::U32,
        Some(1) if is_integer => ParquetType::I32,
        Some(2) if is_integer && is_unsigned => ParquetType::U64,
        Some(2) if is_integer => ParquetType::I64,
        Some(4) => ParquetType::F32,
        Some(5) => ParquetType::F64,
        Some(6) if is_text => ParquetType::Text,
        Some(7) if logical == Some(15) && element.int(2) == Some(2) => ParquetType::F16,
        Some(1..=3) => return Err("dates, times or decimals".to_owned()),
        Some(6 | 7) => return Err("bytes".to_owned()),
        found => return Err(format!("of the unknown type {}", found.unwrap_or(-1))),
    })
}

impl ParquetColumn {
    pub(super) fn holds_texts(&self) -> bool {
        self.kind == Ok(ParquetType::Text)
    }

    /// Describes the column in messages.
    pub(super) fn described(&self) -> String {
        format!("column '{}'", EscapedText(&self.name))
    }
}
