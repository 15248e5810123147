//! Rows of a column, assembled from the pages of all row groups.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use half::f16;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;

use super::pages::{BoundedPages, PageValueCount, bad, problem, unsupported};
use super::schema::{ColumnContent, ParquetColumn, ParquetFile};
use crate::error::{Error, Result};
use crate::format::EscapedText;
use crate::library_panic;

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
    /// Repetition level of each value, if lists are nested: 0 starts the row, 1 starts an outer list, and so on.
    levels: Vec<i16>,
    depth: i16,
    has_empty_list: bool,
}

/// The rows of a column, read one after the other.
pub struct ParquetRows<V> {
    file: ParquetFile,
    column: ParquetColumn,
    /// Index of the next row group.
    group: usize,
    reader: Option<ColumnReader>,
    /// Number of remaining rows in the current row group.
    left: u64,
    levels: RowLevels,
    read_values: PageValueCount,
    values: PhantomData<V>,
}

/// Definition and repetition levels of the entries of a row: values, nulls and empty lists.
#[derive(Default)]
pub struct RowLevels {
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    most: usize,
}

/// A value of a column: a number or a text.
pub trait ParquetValue: Sized {
    /// True for texts.
    const IS_TEXT: bool;

    /// Reads the values of the next row; `None` after the last one.
    #[doc(hidden)]
    fn read(reader: &mut ColumnReader, is_unsigned: bool, levels: &mut RowLevels) -> ReadRow<Self>;
}

type ReadRow<V> = std::result::Result<Option<Vec<V>>, ParquetError>;

impl ParquetValue for f64 {
    const IS_TEXT: bool = false;

    fn read(reader: &mut ColumnReader, is_unsigned: bool, levels: &mut RowLevels) -> ReadRow<Self> {
        use ColumnReader as Column;
        match reader {
            Column::BoolColumnReader(reader) => levels.read(reader, |&flag| f64::from(u8::from(flag))),
            Column::Int32ColumnReader(reader) if is_unsigned => {
                levels.read(reader, |&int| f64::from(int as u32))
            }
            Column::Int32ColumnReader(reader) => levels.read(reader, |&int| int.into()),
            Column::Int64ColumnReader(reader) if is_unsigned => levels.read(reader, |&int| int as u64 as f64),
            Column::Int64ColumnReader(reader) => levels.read(reader, |&int| int as f64),
            Column::FloatColumnReader(reader) => levels.read(reader, |&number| number.into()),
            Column::DoubleColumnReader(reader) => levels.read(reader, |&number| number),
            Column::FixedLenByteArrayColumnReader(reader) => levels.read(reader, |bytes| {
                bytes.data().try_into().map_or(f64::NAN, |bytes| f16::from_le_bytes(bytes).into())
            }),
            Column::Int96ColumnReader(_) | Column::ByteArrayColumnReader(_) => Err(bad("no numbers")),
        }
    }
}

impl ParquetValue for Bytes {
    const IS_TEXT: bool = true;

    fn read(reader: &mut ColumnReader, _: bool, levels: &mut RowLevels) -> ReadRow<Self> {
        match reader {
            ColumnReader::ByteArrayColumnReader(reader) => {
                levels.read(reader, |text| Self::copy_from_slice(text.data()))
            }
            _ => Err(bad("no texts")),
        }
    }
}

impl RowLevels {
    fn read<T: DataType, V>(
        &mut self,
        reader: &mut ColumnReaderImpl<T>,
        value: impl Fn(&T::T) -> V,
    ) -> ReadRow<V> {
        let Self { definitions, repetitions, most } = self;
        definitions.clear();
        repetitions.clear();
        let mut values = Vec::new();
        let (rows, _, _) = reader.read_records(1, Some(definitions), Some(repetitions), &mut values)?;
        if definitions.len().max(values.len()) > *most {
            return Err(bad(format!("a row of more than {most} values")));
        }
        if rows == 0 && !(definitions.is_empty() && values.is_empty()) {
            return Err(bad("a row that does not end"));
        }
        Ok((rows > 0).then(|| values.iter().map(value).collect()))
    }
}

impl<V> Default for ParquetRow<V> {
    fn default() -> Self {
        Self { is_null: false, values: Vec::new(), levels: Vec::new(), depth: 0, has_empty_list: false }
    }
}

impl<V> ParquetRow<V> {
    /// Returns the lengths of three nested lists; `None` if lists on one level have different lengths.
    pub fn lengths(&self) -> Option<[usize; 3]> {
        let count = |level: i16| self.levels.iter().filter(|&&found| found <= level).count();
        let (outer, middle, all) = (count(1), count(2), self.values.len());
        if self.depth != 3 || self.has_empty_list || outer == 0 {
            return None;
        }
        let (inner, width) = (all / middle, all / outer);
        let is_right = |(index, &level): (usize, &i16)| {
            let begins = if index % width == 0 { 1 } else { 2 + i16::from(index % inner != 0) };
            level.max(1) == begins
        };
        let is_regular = all == inner * middle && all == width * outer;
        (is_regular && self.levels.iter().enumerate().all(is_right)).then_some([outer, middle / outer, inner])
    }

    /// Sets the row to values with their levels; `None` if the levels are damaged.
    fn set(&mut self, column: &ParquetColumn, levels: &RowLevels, values: Vec<V>) -> Option<()> {
        let RowLevels { definitions, repetitions, .. } = levels;
        self.values.clear();
        self.levels.clear();
        (self.is_null, self.has_empty_list, self.depth) = (false, false, column.depth);
        if column.present == 0 {
            self.values.extend(values.into_iter().map(Some));
            return Some(());
        }
        self.is_null = column.is_optional && definitions.first() == Some(&0);
        let mut values = values.into_iter();
        let begins = |index| if index == 0 || column.depth == 0 { 0 } else { 1 };
        for (index, &definition) in definitions.iter().enumerate() {
            let repetition = repetitions.get(index).copied().unwrap_or(0);
            if definition > column.present
                || !(begins(index)..=column.depth * begins(index)).contains(&repetition)
            {
                return None;
            }
            if definition < column.entry {
                // An empty list is a row of its own, or one of several nested lists.
                self.has_empty_list = true;
                continue;
            }
            self.values.push(if definition == column.present { Some(values.next()?) } else { None });
            if column.depth > 1 {
                self.levels.push(repetition);
            }
        }
        Some(())
    }
}

impl ParquetFile {
    /// Returns the rows of a column that has at most `depth` nested lists.
    ///
    /// # Errors
    /// If the column is missing, or has other values or more nested lists.
    pub fn rows<V: ParquetValue>(&self, name: &str, depth: u8) -> Result<ParquetRows<V>> {
        let bad = |found: &str| {
            let contents = if V::IS_TEXT { "texts" } else { "numbers" };
            let lists = match depth {
                0 => String::new(),
                1 => "lists of ".to_owned(),
                depth => format!("lists with up to {depth} levels of "),
            };
            let name = EscapedText(name);
            Error::dump(&self.source.path, format!("column '{name}': {found}, expected {lists}{contents}"))
        };
        let mut found = self.columns.iter().filter(|column| column.name == name);
        let column = found.next().ok_or_else(|| bad("missing"))?;
        let is_text = *column.kind.as_ref().map_err(|problem| bad(problem))? == ColumnContent::Text;
        if found.next().is_some() || column.depth > depth.into() || is_text != V::IS_TEXT {
            let contents = if is_text { "texts" } else { "numbers" };
            return Err(bad(&format!("{}{contents}", "lists of ".repeat(column.depth as usize))));
        }
        Ok(ParquetRows::new(self.clone(), column.clone()))
    }
}

impl<V: ParquetValue> ParquetRows<V> {
    pub(super) fn new(file: ParquetFile, column: ParquetColumn) -> Self {
        let most = if column.depth > 1 { LONGEST_NEST } else { LONGEST_LIST };
        let levels = RowLevels { most, ..RowLevels::default() };
        let (read_values, values) = (PageValueCount::default(), PhantomData);
        Self { file, column, group: 0, reader: None, left: 0, levels, read_values, values }
    }

    /// Reads the next row into `row`; false after the last one.
    ///
    /// # Errors
    /// If a page is damaged, a row has more than 8 million values (16 million in nested lists), or the number of rows
    /// in a group is not the stated one.
    pub fn read(&mut self, row: &mut ParquetRow<V>) -> Result<bool> {
        loop {
            let Some(reader) = &mut self.reader else {
                if !self.begin_group()? {
                    return Ok(false);
                }
                continue;
            };
            self.read_values.store(0, Ordering::Relaxed);
            let (levels, is_unsigned) = (&mut self.levels, self.column.kind == Ok(ColumnContent::Unsigned));
            let read = library_panic::caught(|| V::read(reader, is_unsigned, levels));
            let read = read.unwrap_or_else(|| Err(bad("the library for Parquet panicked")));
            match (read.map_err(|error| self.bad(&problem(error)))?, self.left) {
                (None, 0) => self.end_group(),
                (None, _) => return Err(self.bad("fewer rows than its row group")),
                (Some(_), 0) => return Err(self.bad("more rows than its row group")),
                (Some(values), _) => {
                    self.left -= 1;
                    let set = row.set(&self.column, &self.levels, values);
                    return set.map(|()| true).ok_or_else(|| self.bad("damaged levels"));
                }
            }
        }
    }

    /// Begins the next row group; false after the last one.
    fn begin_group(&mut self) -> Result<bool> {
        let metadata = self.file.metadata.clone();
        let Some(group) = metadata.row_groups().get(self.group) else { return Ok(false) };
        self.group += 1;
        let chunk = group.columns().get(self.column.index).ok_or_else(|| self.bad("missing"))?;
        self.left = group.num_rows().try_into().map_err(|_| self.bad("a negative number of rows"))?;
        if chunk.file_path().is_some() {
            let expected = "one file; write it again as one";
            return Err(self.file.source.bad(0, "a column", "in another file", expected));
        }
        if let Some(name) = unsupported(chunk.compression()) {
            let expected = "snappy, gzip, zstd, lz4 or no compression; write the file again";
            let found = format!("compressed with {name}");
            return Err(self.file.source.bad(0, self.column.described(), found, expected));
        }
        let file = self.file.source.data.whole();
        let open = || BoundedPages::open(file, chunk, self.read_values.clone());
        let pages = library_panic::caught(open).ok_or_else(|| self.bad("outside of the file"))?;
        let pages = pages.map_err(|error| self.bad(&problem(error)))?;
        self.reader = Some(get_column_reader(chunk.column_descr_ptr(), Box::new(pages)));
        Ok(true)
    }

    /// Ends a row group, and releases the memory of its bytes.
    fn end_group(&mut self) {
        self.reader = None;
        let chunk = self.file.metadata.row_group(self.group - 1).column(self.column.index);
        let (start, len) = chunk.byte_range();
        let end = (start + len).min(self.file.source.data.len() as u64);
        self.file.source.data.slice(start.min(end) as usize..end as usize).release();
    }

    fn bad(&self, found: &str) -> Error {
        let group = self.group.saturating_sub(1);
        let chunk = self
            .file
            .metadata
            .row_groups()
            .get(group)
            .and_then(|group| group.columns().get(self.column.index));
        let start = chunk.and_then(|chunk| chunk.data_page_offset().try_into().ok()).unwrap_or(0);
        let what = format_args!("{} of row group {group}", self.column.described());
        let expected = "a valid column; get or write the file again";
        self.file.source.bad(start, what, format!("unreadable: {found}"), expected)
    }
}
