//! Columns of a Parquet file.

use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as StoredType};
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::{ColumnDescriptor, Type as SchemaNode};

use super::footer;
use crate::error::Result;
use crate::format::{EscapedText, FileBytes};

/// A Parquet file.
#[derive(Clone)]
pub struct ParquetFile {
    pub(super) source: FileBytes,
    pub(super) metadata: Arc<ParquetMetaData>,
    pub(super) columns: Vec<ParquetColumn>,
}

/// A column of numbers or texts, or of lists of them.
#[derive(Clone)]
pub(super) struct ParquetColumn {
    /// Name of the column. All columns of a structure have the structure's name.
    pub(super) name: String,
    /// Index among the columns that contain numbers or texts.
    pub(super) index: usize,
    /// The kind of values, or the reason why they cannot be read.
    pub(super) kind: Result<ColumnContent, String>,
    /// Number of nested lists.
    pub(super) depth: i16,
    /// Definition level of an entry that has a value.
    pub(super) present: i16,
    /// Definition level of an entry of the innermost list, whether or not it is null.
    pub(super) entry: i16,
    /// True if a row may be null.
    pub(super) is_optional: bool,
}

/// Kind of the values of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnContent {
    Number,
    Unsigned,
    Text,
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
        let metadata = Arc::new(footer::metadata(&source)?);
        let schema = metadata.file_metadata().schema_descr();
        let column = |(index, leaf): (usize, &Arc<ColumnDescriptor>)| {
            ParquetColumn::of(index, leaf, schema.get_column_root(index))
        };
        let columns = schema.columns().iter().enumerate().map(column).collect();
        Ok(Self { source, metadata, columns })
    }

    /// Returns the names of the columns, in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// Returns true if a column holds texts.
    pub(super) fn has_texts(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name && column.kind == Ok(ColumnContent::Text))
    }
}

impl ParquetColumn {
    /// Describes a column: the path in the schema from `node` to `leaf`.
    fn of(index: usize, leaf: &ColumnDescriptor, mut node: &SchemaNode) -> Self {
        let name = node.name().to_owned();
        let is_optional = node.get_basic_info().repetition() == Repetition::OPTIONAL;
        let (mut level, mut entry, mut kind) = (0, 0, kind_of(leaf));
        loop {
            let info = node.get_basic_info();
            level += i16::from(info.repetition() != Repetition::REQUIRED);
            let is_repeated = info.repetition() == Repetition::REPEATED;
            if is_repeated {
                entry = level;
            }
            if node.is_primitive() {
                break;
            }
            let is_list = info.converted_type() == ConvertedType::LIST
                || info.logical_type_ref() == Some(&LogicalType::List);
            match node.get_fields() {
                [only] if is_list || is_repeated => node = only,
                _ => {
                    kind = Err("a structure or a map".to_owned());
                    break;
                }
            }
        }
        let (depth, present) = (leaf.max_rep_level(), leaf.max_def_level());
        Self { name, index, kind, depth, present, entry, is_optional }
    }

    /// Describes the column in messages.
    pub(super) fn described(&self) -> String {
        format!("column '{}'", EscapedText(&self.name))
    }
}

/// Returns the kind of a column's values, or their description if they are not numbers or texts.
fn kind_of(leaf: &ColumnDescriptor) -> Result<ColumnContent, String> {
    use ConvertedType as Converted;
    let (converted, logical) = (leaf.converted_type(), leaf.logical_type_ref());
    let is_unsigned =
        matches!(converted, Converted::UINT_8 | Converted::UINT_16 | Converted::UINT_32 | Converted::UINT_64)
            || matches!(logical, Some(LogicalType::Integer(integer)) if !integer.is_signed);
    let is_integer = matches!(logical, None | Some(LogicalType::Integer(_) | LogicalType::Unknown))
        && (is_unsigned
            || matches!(
                converted,
                Converted::NONE
                    | Converted::INT_8
                    | Converted::INT_16
                    | Converted::INT_32
                    | Converted::INT_64
            ));
    let is_text = matches!(converted, Converted::NONE | Converted::UTF8 | Converted::ENUM)
        && matches!(logical, None | Some(LogicalType::String | LogicalType::Enum | LogicalType::Unknown));
    match leaf.physical_type() {
        StoredType::INT32 | StoredType::INT64 if is_integer && is_unsigned => Ok(ColumnContent::Unsigned),
        StoredType::INT32 | StoredType::INT64 if is_integer => Ok(ColumnContent::Number),
        StoredType::BOOLEAN | StoredType::FLOAT | StoredType::DOUBLE => Ok(ColumnContent::Number),
        StoredType::FIXED_LEN_BYTE_ARRAY if logical == Some(&LogicalType::Float16) => {
            Ok(ColumnContent::Number)
        }
        StoredType::BYTE_ARRAY if is_text => Ok(ColumnContent::Text),
        StoredType::INT32 | StoredType::INT64 | StoredType::INT96 => {
            Err("dates, times or decimals".to_owned())
        }
        StoredType::BYTE_ARRAY | StoredType::FIXED_LEN_BYTE_ARRAY => Err("bytes".to_owned()),
    }
}
