//! Pages of a column in one row group, decompressed one at a time.

use std::sync::Arc;

use bytes::Bytes;

use super::codec::PageCodec;
use super::footer::{ColumnChunk, ParquetColumn};
use super::runs::HybridRuns;
use super::thrift::ThriftStruct;
use super::values::{DeltaValues, PageValues, ParquetType, ParquetValue, PlainValues};
use crate::error::{Error, Result};
use crate::format::FileBytes;

/// Bytes that a page may have, apart from those that its compressed size explains.
const SMALL_PAGE: usize = 16 << 20;
/// Largest page.
const LARGEST_PAGE: usize = 1 << 28;
/// Largest compression ratio of a page that is not small.
const LARGEST_RATIO: usize = 1024;

/// A data page: levels and values.
#[derive(Debug)]
pub(super) struct DataPage<V> {
    /// Number of entries that follow: values, nulls and empty lists.
    pub(super) left: usize,
    pub(super) repetitions: HybridRuns,
    pub(super) definitions: HybridRuns,
    pub(super) values: PageValues<V>,
}

/// Reads the pages of a column in one row group.
#[derive(Debug)]
pub(super) struct PageReader<V> {
    at: usize,
    end: usize,
    codec: PageCodec,
    kind: ParquetType,
    dictionary: Option<Arc<[V]>>,
    /// Number of entries in the pages that follow.
    pub(super) entries: u64,
}

/// A page as stored: its header, and its bytes.
struct StoredPage<'a> {
    header: ThriftStruct<'a>,
    bytes: Bytes,
}

impl<V: ParquetValue> PageReader<V> {
    pub(super) fn new(
        chunk: &ColumnChunk,
        kind: ParquetType,
        refuse: impl FnOnce(usize, &str) -> Error,
    ) -> Result<Self> {
        let (at, end) = (chunk.bytes.start, chunk.bytes.end);
        let codec = chunk.codec.map_err(|name| refuse(at, &format!("compressed with {name}")))?;
        Ok(Self { at, end, codec, kind, dictionary: None, entries: chunk.entries })
    }

    /// Reads the next data page; `None` at the end.
    pub(super) fn page(&mut self, source: &FileBytes, column: &ParquetColumn) -> Result<Option<DataPage<V>>> {
        while self.entries > 0 {
            let start = self.at;
            let damaged = |problem: &str| {
                let what = format_args!("a page of {}", column.described());
                source.bad(start, what, problem, "a Parquet page; get or write the file again")
            };
            let page = self.stored(source).ok_or_else(|| damaged("damaged"))?;
            match page.header.int(1) {
                Some(0 | 3) => {
                    let page = self.data(&page, column).map_err(|problem| damaged(&problem))?;
                    self.entries = self
                        .entries
                        .checked_sub(page.left as u64)
                        .ok_or_else(|| damaged("longer than its column"))?;
                    return Ok(Some(page));
                }
                Some(2) => {
                    self.dictionary = Some(self.entries_of(&page).map_err(|problem| damaged(&problem))?)
                }
                Some(1) => {}
                _ => return Err(damaged("of an unknown kind")),
            }
        }
        Ok(None)
    }

    fn stored<'a>(&mut self, source: &'a FileBytes) -> Option<StoredPage<'a>> {
        let at = self.at;
        let (header, len) = ThriftStruct::read(source.data.at(at..self.end))?;
        let start = at + len;
        let end = start.checked_add(header.size(3)?).filter(|&end| end <= self.end)?;
        self.at = end;
        let bytes = source.data.slice(start..end).whole();
        Some(StoredPage { header, bytes })
    }

    /// Decompresses the bytes of a page after `skipped` bytes.
    fn decompressed(&self, page: &StoredPage, skipped: usize, codec: PageCodec) -> Result<Bytes, String> {
        let damaged = || "damaged".to_owned();
        if let Some(sum) = page.header.int(4)
            && sum as u32 != crc32fast::hash(&page.bytes)
        {
            return Err("damaged: its checksum differs".to_owned());
        }
        let len = page.header.size(2).and_then(|size| size.checked_sub(skipped)).ok_or_else(damaged)?;
        let most = SMALL_PAGE.saturating_add(LARGEST_RATIO.saturating_mul(page.bytes.len()));
        if len > most.min(LARGEST_PAGE) {
            return Err(format!("of {len} bytes, {} compressed", page.bytes.len()));
        }
        let bytes = page.bytes.get(skipped..).map(|_| page.bytes.slice(skipped..)).ok_or_else(damaged)?;
        codec.decompressed(bytes, len).ok_or_else(damaged)
    }

    /// Reads a dictionary.
    fn entries_of(&self, page: &StoredPage) -> Result<Arc<[V]>, String> {
        let count = page.header.structure(7).and_then(|header| header.size(1));
        let mut values = PlainValues::new(self.decompressed(page, 0, self.codec)?, self.kind);
        let mut entries = Vec::new();
        for _ in 0..count.ok_or("damaged")? {
            entries.push(values.next().ok_or("damaged")?);
        }
        Ok(entries.into())
    }

    fn data(&self, page: &StoredPage, column: &ParquetColumn) -> Result<DataPage<V>, String> {
        let damaged = || "damaged".to_owned();
        let levels = |bytes: Bytes, most| HybridRuns::of_levels(bytes, most);
        if let Some(header) = page.header.structure(8) {
            let [definitions, repetitions] = [5, 6].map(|id| header.size(id));
            let (definitions, repetitions) = definitions.zip(repetitions).ok_or_else(damaged)?;
            let skipped = definitions.checked_add(repetitions).filter(|&end| end <= page.bytes.len());
            let skipped = skipped.ok_or_else(damaged)?;
            let is_plain = header.flag(7) == Some(false) || skipped == page.bytes.len();
            let codec = if is_plain { PageCodec::Plain } else { self.codec };
            let bytes = self.decompressed(page, skipped, codec)?;
            return Ok(DataPage {
                left: header.size(1).ok_or_else(damaged)?,
                repetitions: levels(page.bytes.slice(..repetitions), column.depth),
                definitions: levels(page.bytes.slice(repetitions..skipped), column.present),
                values: self.values(bytes, header.int(4))?,
            });
        }
        let header = page.header.structure(5).ok_or_else(damaged)?;
        let mut bytes = self.decompressed(page, 0, self.codec)?;
        let mut stored = [(4, column.depth), (3, column.present)].into_iter().map(|(id, most)| {
            if most == 0 {
                return Ok(levels(Bytes::new(), 0));
            }
            if header.int(id) != Some(3) {
                return Err("with levels in an old encoding".to_owned());
            }
            let len = bytes.first_chunk().map(|len| u32::from_le_bytes(*len) as usize).ok_or_else(damaged)?;
            let mut rest = bytes.split_off(size_of::<u32>());
            bytes = (len <= rest.len()).then(|| rest.split_off(len)).ok_or_else(damaged)?;
            Ok(levels(rest, most))
        });
        let repetitions = stored.next().ok_or_else(damaged)??;
        let definitions = stored.next().ok_or_else(damaged)??;
        drop(stored);
        let left = header.size(1).ok_or_else(damaged)?;
        Ok(DataPage { left, repetitions, definitions, values: self.values(bytes, header.int(2))? })
    }

    fn values(&self, bytes: Bytes, encoding: Option<i64>) -> Result<PageValues<V>, String> {
        let damaged = || "damaged".to_owned();
        Ok(match (encoding, self.kind) {
            (Some(0), kind) => PageValues::Plain(PlainValues::new(bytes, kind)),
            (Some(2 | 8), _) => {
                let entries = self.dictionary.clone().ok_or("without its dictionary")?;
                let width = bytes.first().copied().unwrap_or(0);
                let indices = bytes.slice(bytes.len().min(1)..);
                PageValues::Dictionary(HybridRuns::new(indices, width.into()).ok_or_else(damaged)?, entries)
            }
            (Some(3), ParquetType::Bool) => {
                let runs = bytes.len().min(size_of::<u32>());
                PageValues::Runs(HybridRuns::of_levels(bytes.slice(runs..), 1))
            }
            (Some(5), kind) if !V::IS_TEXT => match DeltaValues::new(bytes) {
                Some(values) => PageValues::Delta(Box::new(values), kind),
                None => return Err(damaged()),
            },
            (Some(9), kind) if !V::IS_TEXT => PageValues::Split(bytes, kind, 0),
            (Some(6 | 7), _) => return Err("of texts as differences (DELTA_BYTE_ARRAY)".to_owned()),
            (encoding, _) => return Err(format!("in the encoding {}", encoding.unwrap_or(-1))),
        })
    }
}
