//! Rows of a column, assembled from the pages of all row groups.

use super::footer::ParquetColumn;
use super::pages::{DataPage, PageReader};
use super::values::{ParquetType, ParquetValue};
use crate::error::{Error, Result};
use crate::format::FileBytes;

/// Maximum number of values in a row that is a list.
const LONGEST_LIST: usize = 1 << 23;
/// Maximum number of values in a row of nested lists.
const LONGEST_NEST: usize = 1 << 24;

/// A row of a column.
#[derive(Clone, Debug)]
pub struct ParquetRow<V> {
    /// True if the row is null.
    pub is_null: bool,
    /// Values of all lists, one after the other; `None` is null.
    pub values: Vec<Option<V>>,
    /// Repetition level of each value, if lists are nested: 0 begins the row, 1 an outer list, and so on.
    levels: Vec<u8>,
    depth: u8,
    has_empty_list: bool,
}

/// The rows of a column, read one after the other.
#[derive(Debug)]
pub struct ParquetRows<V> {
    source: FileBytes,
    column: ParquetColumn,
    kind: ParquetType,
    /// Index of the next row group.
    group: usize,
    pages: Option<PageReader<V>>,
    page: Option<DataPage<V>>,
    /// Number of rows that the group still has.
    rows: u64,
    /// Levels of the next entry: repetition, definition.
    next: Option<(u8, u8)>,
}

impl<V> Default for ParquetRow<V> {
    fn default() -> Self {
        Self { is_null: false, values: Vec::new(), levels: Vec::new(), depth: 0, has_empty_list: false }
    }
}

impl<V> ParquetRow<V> {
    /// Returns the lengths of three nested lists; `None` if lists on one level have different lengths.
    pub fn lengths(&self) -> Option<[usize; 3]> {
        let count = |level: u8| self.levels.iter().filter(|&&found| found <= level).count();
        let (outer, middle, all) = (count(1), count(2), self.values.len());
        if self.depth != 3 || self.has_empty_list || outer == 0 {
            return None;
        }
        let (inner, width) = (all / middle, all / outer);
        let is_right = |(index, &level): (usize, &u8)| {
            let begins = if index % width == 0 { 1 } else { 2 + u8::from(index % inner != 0) };
            level.max(1) == begins
        };
        let is_regular = all == inner * middle && all == width * outer;
        (is_regular && self.levels.iter().enumerate().all(is_right)).then_some([outer, middle / outer, inner])
    }
}

impl<V: ParquetValue> ParquetRows<V> {
    pub(super) fn new(source: FileBytes, column: ParquetColumn, kind: ParquetType) -> Self {
        Self { source, column, kind, group: 0, pages: None, page: None, rows: 0, next: None }
    }

    /// Reads the next row into `row`; false after the last one.
    ///
    /// # Errors
    /// If a page is damaged, a row has more than 8 million values (16 million in nested lists), or a group has other rows than it states.
    pub fn read(&mut self, row: &mut ParquetRow<V>) -> Result<bool> {
        row.values.clear();
        row.levels.clear();
        (row.depth, row.has_empty_list) = (self.column.depth, false);
        while self.next.is_none() {
            if !self.begin_group()? {
                return Ok(false);
            }
        }
        self.rows = self.rows.checked_sub(1).ok_or_else(|| self.bad("more rows than its row group"))?;
        row.is_null = self.next == Some((0, 0)) && self.column.is_optional;
        while let Some((repetition, definition)) = self.next {
            self.add(row, repetition, definition)?;
            self.advance()?;
            if self.next.is_some_and(|(repetition, _)| repetition == 0) {
                break;
            }
        }
        if self.next.is_none() && self.rows > 0 {
            return Err(self.bad("fewer rows than its row group"));
        }
        Ok(true)
    }

    /// Adds an entry to a row: a value, null, or an empty list.
    fn add(&mut self, row: &mut ParquetRow<V>, repetition: u8, definition: u8) -> Result<()> {
        if definition < self.column.entry {
            // An empty list is a row of its own, or one of several nested lists.
            row.has_empty_list = true;
            return Ok(());
        }
        let most = if self.column.depth > 1 { LONGEST_NEST } else { LONGEST_LIST };
        if row.values.len() == most {
            return Err(self.bad(&format!("a row of more than {most} values")));
        }
        let value = match &mut self.page {
            Some(page) if definition == self.column.present => page.values.next().map(Some),
            _ => Some(None),
        };
        row.values.push(value.ok_or_else(|| self.bad("fewer values than its page"))?);
        if self.column.depth > 1 {
            row.levels.push(repetition);
        }
        Ok(())
    }

    /// Reads the levels of the next entry, from the next page if need be.
    fn advance(&mut self) -> Result<()> {
        while self.page.as_ref().is_none_or(|page| page.left == 0) {
            let Some(pages) = &mut self.pages else {
                self.next = None;
                return Ok(());
            };
            self.page = pages.page(&self.source, &self.column)?;
            if self.page.is_none() {
                self.pages = None;
            }
        }
        if let Some(page) = &mut self.page {
            page.left -= 1;
            let levels = page.repetitions.next().zip(page.definitions.next());
            let is_valid = |levels: &(u32, u32)| {
                levels.0 <= self.column.depth.into() && levels.1 <= self.column.present.into()
            };
            let levels =
                levels.filter(is_valid).map(|(repetition, definition)| (repetition as u8, definition as u8));
            self.next = Some(levels.ok_or_else(|| self.bad("damaged levels"))?);
        }
        Ok(())
    }

    /// Begins the next row group; false after the last one.
    fn begin_group(&mut self) -> Result<bool> {
        if let Some(before) = self.group.checked_sub(1).and_then(|before| self.column.chunks.get(before)) {
            self.source.data.slice(before.bytes.clone()).release();
        }
        let Some(chunk) = self.column.chunks.get(self.group) else { return Ok(false) };
        self.group += 1;
        self.rows = chunk.rows;
        let pages = PageReader::new(chunk, self.kind, |at, problem| {
            let expected = "snappy, gzip, zstd, lz4 or no compression; write the file again";
            self.source.bad(at, self.column.described(), problem, expected)
        })?;
        self.pages = Some(pages);
        self.advance()?;
        match self.next {
            Some((0, _)) => Ok(true),
            Some(_) => Err(self.bad("a row that does not begin")),
            None if self.rows > 0 => Err(self.bad("fewer rows than its row group")),
            None => Ok(true),
        }
    }

    fn bad(&self, found: &str) -> Error {
        let group = self.group.saturating_sub(1);
        let at = self.column.chunks.get(group).map_or(0, |chunk| chunk.bytes.start);
        let what = format_args!("{} of row group {group}", self.column.described());
        self.source.bad(at, what, found, "a valid column; get or write the file again")
    }
}
