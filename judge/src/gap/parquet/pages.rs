//! Pages of a column in one row group, decompressed one at a time.
//!
//! The crate would allocate the size that a page states, and decompress gzip without a limit. Therefore the crate
//! reads the pages as if they were not compressed, and [`BoundedPages`] decompresses them.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use lz4_flex::block::DecompressError;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

/// Page size in bytes up to which the compression ratio is not limited.
const SMALL_PAGE: usize = 16 << 20;
/// Maximum number of bytes of a page.
const LARGEST_PAGE: usize = 1 << 28;
/// Largest compression ratio of a page above [`SMALL_PAGE`].
const LARGEST_RATIO: usize = 1024;
/// Maximum number of values in all pages of one row, since the crate allocates memory for all of them at once. A
/// page may have many more values than bytes: a mask of 8192 sequences with 8192 equal tokens is stored as one run.
const MOST_VALUES: usize = 1 << 26;
/// Maximum number of values of a dictionary.
const MOST_ENTRIES: usize = 1 << 24;

/// Returns the name of a compression that is not supported.
pub(super) fn unsupported(compression: Compression) -> Option<&'static str> {
    match compression {
        Compression::LZO => Some("LZO"),
        Compression::BROTLI(_) => Some("Brotli"),
        Compression::LZ4 => Some("LZ4 in Hadoop's framing"),
        _ => None,
    }
}

/// Decompresses the bytes of a page.
fn decompressed(bytes: Bytes, compression: Compression) -> Result<Bytes> {
    let most = LARGEST_RATIO.saturating_mul(bytes.len()).saturating_add(SMALL_PAGE).min(LARGEST_PAGE);
    let too_large = || bad(format!("a page of more than {most} bytes, {} compressed", bytes.len()));
    let stream = |reader: &mut dyn Read| {
        let mut found = Vec::new();
        reader.take(most as u64 + 1).read_to_end(&mut found)?;
        if found.len() > most { Err(too_large()) } else { Ok(found) }
    };
    // A page of nulls alone has no bytes to decompress.
    if bytes.is_empty() {
        return Ok(bytes);
    }
    let found = match compression {
        Compression::UNCOMPRESSED => return Ok(bytes),
        Compression::SNAPPY if snap::raw::decompress_len(&bytes).is_ok_and(|len| len > most) => {
            return Err(too_large());
        }
        Compression::SNAPPY => snap::raw::Decoder::new().decompress_vec(&bytes).map_err(damaged)?,
        Compression::GZIP(_) => stream(&mut MultiGzDecoder::new(&bytes[..]))?,
        Compression::ZSTD(_) => stream(&mut zstd::Decoder::new(&bytes[..])?)?,
        Compression::LZ4_RAW => {
            // The format does not state the size.
            let mut room = bytes.len().saturating_mul(4).min(most);
            loop {
                let mut found = vec![0; room];
                match lz4_flex::block::decompress_into(&bytes, &mut found) {
                    Ok(len) => {
                        found.truncate(len);
                        break found;
                    }
                    Err(DecompressError::OutputTooSmall { .. }) if room == most => {
                        return Err(too_large());
                    }
                    Err(DecompressError::OutputTooSmall { .. }) => room = room.saturating_mul(8).min(most),
                    Err(error) => return Err(damaged(error)),
                }
            }
        }
        other => return Err(bad(format!("compressed with {other}"))),
    };
    Ok(found.into())
}

fn damaged(error: impl std::error::Error + Send + Sync + 'static) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// Creates an error about a page.
pub(super) fn bad(problem: impl Into<String>) -> ParquetError {
    ParquetError::General(problem.into())
}

/// Returns the text of an error, without its kind.
pub(super) fn problem(error: ParquetError) -> String {
    match error {
        ParquetError::General(text) | ParquetError::EOF(text) | ParquetError::NYI(text) => text,
        ParquetError::External(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Reads the pages of a column in one row group.
pub(super) struct BoundedPages {
    stored: SerializedPageReader<Bytes>,
    compression: Compression,
    /// The next page, still compressed.
    next: Option<Page>,
    has_dictionary: bool,
    read_values: PageValueCount,
}

/// Number of values in the pages that have been read since the last row.
pub(super) type PageValueCount = Arc<AtomicUsize>;

impl BoundedPages {
    /// Opens the pages of a column.
    pub(super) fn open(
        file: Bytes,
        chunk: &ColumnChunkMetaData,
        read_values: PageValueCount,
    ) -> Result<Self> {
        let compression = chunk.compression();
        // Some writers state the offset 0 for a missing dictionary.
        let dictionary = chunk.dictionary_page_offset().filter(|&offset| offset > 0);
        let chunk = chunk.clone().into_builder().set_dictionary_page_offset(dictionary);
        let chunk = chunk.set_compression(Compression::UNCOMPRESSED).build()?;
        let stored = SerializedPageReader::new(Arc::new(file), &chunk, 0, None)?;
        Ok(Self { stored, compression, next: None, has_dictionary: false, read_values })
    }

    /// Reads the next page that has values, unless it was already read.
    fn look_ahead(&mut self) -> Result<()> {
        while self.next.is_none() {
            match self.stored.get_next_page()? {
                Some(page) if page.is_data_page() && page.num_values() == 0 => {}
                Some(page) => self.next = Some(page),
                None => break,
            }
        }
        Ok(())
    }

    /// Decompresses a page and checks its counts.
    fn opened(&mut self, mut page: Page) -> Result<Page> {
        let count = page.num_values() as usize;
        match page.encoding() {
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY
                if self.has_dictionary || !page.is_data_page() => {}
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => {
                return Err(bad("a page without its dictionary"));
            }
            Encoding::PLAIN | Encoding::RLE | Encoding::DELTA_BINARY_PACKED | Encoding::BYTE_STREAM_SPLIT => {
            }
            // For texts stored as differences, the crate would allocate memory by the count that the page states.
            other => return Err(bad(format!("a page in the encoding {other}"))),
        }
        if count.saturating_add(self.read_values.fetch_add(count, Ordering::Relaxed)) > MOST_VALUES {
            return Err(bad(format!("a row in pages of more than {MOST_VALUES} values")));
        }
        match &mut page {
            Page::DataPage { buf, .. } => *buf = decompressed(std::mem::take(buf), self.compression)?,
            Page::DictionaryPage { buf, .. } => {
                *buf = decompressed(std::mem::take(buf), self.compression)?;
                self.has_dictionary = true;
                // Each value has at least 16 bits.
                if count > MOST_ENTRIES.min(buf.len() / 2) {
                    return Err(bad(format!("a dictionary of {count} values in {} bytes", buf.len())));
                }
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, is_compressed, .. } => {
                let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                if levels > buf.len() {
                    return Err(bad(format!(
                        "a page that states {levels} bytes of levels but has only {}",
                        buf.len()
                    )));
                }
                if *is_compressed {
                    let values = decompressed(buf.slice(levels..), self.compression)?;
                    *buf = [&buf[..levels], &values].concat().into();
                }
            }
        }
        Ok(page)
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.look_ahead()?;
        self.next.take().map(|page| self.opened(page)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.look_ahead()?;
        Ok(self.next.as_ref().map(|page| PageMetadata {
            num_rows: match page {
                Page::DataPageV2 { num_rows, .. } => Some(*num_rows as usize),
                _ => None,
            },
            num_levels: Some(page.num_values() as usize),
            is_dict: page.is_dictionary_page(),
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.get_next_page().map(drop)
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
