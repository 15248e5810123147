//! The metadata at the end of a Parquet file. Its schema is checked before the crate `parquet` reads it, because
//! the crate allocates memory for the stated number of fields, and is recursive in the depth of the schema.

use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};

use super::pages::problem;
use crate::error::{Error, Result};
use crate::format::FileBytes;
use crate::library_panic;

/// Magic at both ends of a file.
const MAGIC: &[u8] = b"PAR1";
/// Magic of a file whose metadata is encrypted.
const ENCRYPTED: &[u8] = b"PARE";
/// Maximum nesting depth of the schema, and of Thrift's structures.
const DEEPEST: usize = 32;
/// Maximum number of values in the metadata, which limits the memory to about 1 GB. A file with 200 000 column
/// chunks has fewer.
const MOST_VALUES: usize = 1 << 24;

/// Reads the metadata of a file.
///
/// # Errors
/// If it is damaged or encrypted.
pub(super) fn metadata(source: &FileBytes) -> Result<ParquetMetaData> {
    let (at, bytes) = footer(source)?;
    let bad =
        |found: &str| source.bad(at, "the footer", found, "Parquet metadata; get or write the file again");
    let mut schema = SchemaCheck::default();
    let mut thrift = ThriftReader {
        bytes,
        path: Vec::new(),
        left: MOST_VALUES,
        visit: |path: &[i16], kind, number| schema.visit(path, kind, number),
    };
    thrift.structure().ok_or_else(|| bad("damaged"))?;
    if schema.is_encrypted {
        return Err(encrypted(source, at));
    }
    if schema.children > schema.elements {
        return Err(bad("damaged"));
    }
    let skip = ParquetStatisticsPolicy::SkipAll;
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(skip.clone())
        .with_size_stats_policy(skip.clone())
        .with_encoding_stats_policy(skip);
    let read = || ParquetMetaDataReader::decode_metadata_with_options(bytes, Some(&options));
    let read = library_panic::caught(read).ok_or_else(|| bad("damaged"))?;
    read.map_err(|error| bad(&format!("damaged ({})", problem(error))))
}

/// Returns the bytes of the footer, and their offset.
fn footer(source: &FileBytes) -> Result<(usize, &[u8])> {
    const LAST: usize = 8;
    let size = source.data.len();
    let damaged = |at, found: &str| {
        let expected = "the length of the footer and PAR1; the file is truncated, get it again";
        source.bad(at, "the end", found, expected)
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
        Some(start) if last.ends_with(MAGIC) && start >= MAGIC.len() => {
            Ok((start, source.data.at(start..at)))
        }
        _ => Err(damaged(at, "something else")),
    }
}

fn encrypted(source: &FileBytes, at: usize) -> Error {
    source.bad(at, "the file", "encrypted", "plain Parquet; write it again without encryption")
}

/// Counts the elements of the schema, which lists a tree in depth-first order.
#[derive(Default)]
struct SchemaCheck {
    elements: u64,
    /// Numbers of children: the sum over all elements, and the number of the current element.
    children: u64,
    own_children: u64,
    /// Number of remaining children on each level of the tree.
    open: Vec<u64>,
    is_encrypted: bool,
}

impl SchemaCheck {
    /// Checks and counts a field; `None` if its type differs from Parquet's definition, or the schema is too deep.
    fn visit(&mut self, path: &[i16], kind: u8, number: i64) -> Option<()> {
        let expected = match path {
            [1] | [2, 1..=3 | 5..=9] => 5,
            [3] => 6,
            [6 | 9] | [2, 4] => 8,
            [2 | 4 | 5 | 7] => 9,
            [8] | [2, 10] => 12,
            _ => kind,
        };
        match path {
            [8] | [4, 1, 8] => self.is_encrypted = true,
            [2, 5] => self.own_children = number.try_into().ok()?,
            [2] if kind == STOP => self.end_element(),
            _ => {}
        }
        ((kind == STOP || kind == expected) && self.open.len() <= DEEPEST).then_some(())
    }

    fn end_element(&mut self) {
        self.elements += 1;
        self.children = self.children.saturating_add(self.own_children);
        if let Some(left) = self.open.last_mut() {
            *left -= 1;
        }
        self.open.push(std::mem::take(&mut self.own_children));
        while self.open.last() == Some(&0) {
            self.open.pop();
        }
    }
}

/// Thrift's kind of field that ends a structure.
const STOP: u8 = 0;

/// Reader of Thrift's compact protocol: structures of numbered fields. `visit` is called with the numbers of the
/// fields that lead to a value, the value's kind, and the value itself if it is an integer. At the end of a
/// structure, it is called with [`STOP`].
struct ThriftReader<'a, V> {
    bytes: &'a [u8],
    path: Vec<i16>,
    /// Maximum number of further values.
    left: usize,
    visit: V,
}

impl<'a, V: FnMut(&[i16], u8, i64) -> Option<()>> ThriftReader<'a, V> {
    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len.try_into().ok()?)?;
        self.bytes = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut sum = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.take(1)?[0];
            sum |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(sum);
            }
        }
        None
    }

    /// Reads a signed number in zigzag encoding: 0, -1, 1, -2, ...
    fn signed(&mut self) -> Option<i64> {
        self.varint().map(|number| (number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn structure(&mut self) -> Option<()> {
        let mut id = 0i16;
        loop {
            let head = self.take(1)?[0];
            if head & 15 == STOP {
                return (self.visit)(&self.path, STOP, 0);
            }
            id = match head >> 4 {
                0 => self.signed()?.try_into().ok()?,
                step => id.checked_add(step.into())?,
            };
            self.path.push(id);
            match head & 15 {
                flag @ (1 | 2) => (self.visit)(&self.path, flag, 0)?,
                kind => self.value(kind)?,
            }
            self.path.pop();
        }
    }

    /// Reads a value. Maps and lists of booleans do not occur in Parquet's metadata.
    fn value(&mut self, kind: u8) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        let number = match kind {
            3 => self.take(1).map(|_| 0)?,
            4..=6 => self.signed()?,
            7 => self.take(8).map(|_| 0)?,
            8 => {
                let len = self.varint()?;
                self.take(len).map(|_| 0)?
            }
            9 | 12 if self.path.len() < DEEPEST => 0,
            _ => return None,
        };
        (self.visit)(&self.path, kind, number)?;
        match kind {
            9 => self.list(),
            12 => self.structure(),
            _ => Some(()),
        }
    }

    fn list(&mut self) -> Option<()> {
        let head = self.take(1)?[0];
        let len = match head >> 4 {
            15 => self.varint()?,
            few => few.into(),
        };
        (0..len).try_for_each(|_| match head & 15 {
            // A list of lists is refused, since its path is that of a simple list.
            9 => None,
            12 => {
                self.left = self.left.checked_sub(1)?;
                self.structure()
            }
            kind => self.value(kind),
        })
    }
}
