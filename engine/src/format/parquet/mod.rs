//! Parquet files: columns of numbers, of texts, and of lists of them. One page of each column is in memory at a time.
//!
//! The reader is our own: xcheck reads few columns, and the crate `parquet` needs eleven others and a C compiler.

mod codec;
mod footer;
mod lz4;
mod pages;
mod rows;
mod runs;
mod snappy;
mod thrift;
mod values;

pub use footer::ParquetColumn;
pub use rows::{ParquetRow, ParquetRows};
pub use values::ParquetValue;

use super::{EscapedText, FileBytes};
use crate::error::{Error, Result};

/// A Parquet file.
#[derive(Debug)]
pub struct ParquetFile {
    source: FileBytes,
    columns: Vec<ParquetColumn>,
}

impl ParquetFile {
    /// Returns true for the first bytes of a Parquet file.
    pub fn is_start(bytes: &[u8]) -> bool {
        bytes.starts_with(b"PAR1") || bytes.starts_with(b"PARE")
    }

    /// Reads the footer of a file.
    ///
    /// # Errors
    /// If it is damaged or encrypted.
    pub fn read(source: FileBytes) -> Result<Self> {
        let columns = footer::columns(&source)?;
        Ok(Self { source, columns })
    }

    /// Returns the names of the columns, in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Returns true if a column holds texts.
    pub fn has_texts(&self, name: &str) -> bool {
        let is_text = |column: &&ParquetColumn| column.name == name && column.holds_texts();
        self.columns.iter().any(|column| is_text(&column))
    }

    /// Returns the rows of a column that has at most `depth` nested lists.
    ///
    /// # Errors
    /// If the column is missing, or has other values or more nested lists.
    pub fn rows<V: ParquetValue>(&self, name: &str, depth: u8) -> Result<ParquetRows<V>> {
        let mut found = self.columns.iter().filter(|column| column.name == name);
        let column = found.next();
        let column = column.ok_or_else(|| self.bad(name, "missing".to_owned(), depth, V::IS_TEXT))?;
        let kind = column.kind.clone();
        let kind = kind.map_err(|problem| self.bad(name, problem, depth, V::IS_TEXT))?;
        if found.next().is_some() || column.depth > depth || column.holds_texts() != V::IS_TEXT {
            let contents = if column.holds_texts() { "texts" } else { "numbers" };
            let lists = match column.depth {
                0 => contents.to_owned(),
                depth => format!("{}{contents}", "lists of ".repeat(depth.into())),
            };
            return Err(self.bad(name, lists, depth, V::IS_TEXT));
        }
        Ok(ParquetRows::new(self.source.clone(), column.clone(), kind))
    }

    fn bad(&self, name: &str, found: String, depth: u8, is_text: bool) -> Error {
        let contents = if is_text { "texts" } else { "numbers" };
        let lists = match depth {
            0 => String::new(),
            1 => "lists of ".to_owned(),
            depth => format!("lists with up to {depth} levels of "),
        };
        let name = EscapedText(name);
        Error::dump(&self.source.path, format!("column '{name}': {found}, expected {lists}{contents}"))
    }
}

/// Reads an unsigned number of seven bits in each byte.
fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut sum = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        sum |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(sum);
        }
    }
    None
}

/// Returns the signed number of an unsigned one: 0, -1, 1, -2, ...
fn zigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}
