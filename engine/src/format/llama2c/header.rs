//! Header of a llama2.c file: seven sizes, and in later versions magic, version and group size.

use crate::error::{Error, FormatError, Result};
use crate::format::FileBytes;
use crate::format::cursor::Cursor;

/// The magic "ak42" as a number.
const MAGIC: u32 = 0x616b_3432;
/// Offset of the weights in files with a magic.
const LATER_BYTES: usize = 256;
const VERSION_0_BYTES: usize = 28;
/// Maximum size of a dimension, far above real models; products of three fit in 128 bits.
const MAX_SIZE: u32 = 1 << 24;

/// Maximum number of layers, far above real models; even a tiny layer takes a thousand bytes.
const MAX_LAYERS: u32 = 1 << 12;

/// Sizes of a model, and the layout of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Llama2cHeader {
    /// Format version: 0, 1 or 2.
    pub version: u32,
    /// Width of the residual stream, d.
    pub dim: usize,
    /// Width of the feed-forward block, F.
    pub hidden_dim: usize,
    /// Number of transformer blocks.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Number of positions that the model was trained for.
    pub seq_len: usize,
    /// True if the vocabulary projection is the embedding table.
    pub shared_classifier: bool,
    /// Number of elements that share a scale, in version 2.
    pub group_size: Option<usize>,
}

/// Invalid field: offset, name, value and allowed values.
struct InvalidField {
    offset: usize,
    what: &'static str,
    found: i64,
    expected: String,
}

impl Llama2cHeader {
    pub(super) fn read(source: &FileBytes) -> Result<Self> {
        let mut cursor = Cursor::new(source);
        if !has_magic(source.data.first(size_of::<u32>())) {
            let fields = cursor.array("the header")?;
            return Self::of_fields(&fields, 0, 0).map_err(|wrong| wrong.error(source));
        }
        cursor.u32("the magic")?;
        let version = cursor.u32("the version")?;
        if !(1..=2).contains(&version) {
            let hint = "expected 0, 1 or 2; a newer xcheck may support it";
            return Err(FormatError::UnsupportedVersion { file: source.path.clone(), version, hint }.into());
        }
        let at = cursor.at;
        let fields = cursor.array("the sizes")?;
        let header = Self::of_fields(&fields, version, at).map_err(|wrong| wrong.error(source))?;
        let header = header.with_classifier(&mut cursor)?;
        if version == 1 { Ok(header) } else { header.with_groups(&mut cursor) }
    }

    /// Returns the offset of the weights.
    pub(super) fn bytes(&self) -> usize {
        if self.version == 0 { VERSION_0_BYTES } else { LATER_BYTES }
    }

    /// Returns the number of values in one head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.n_heads
    }

    /// Reads the seven sizes, which start at offset `at`.
    fn of_fields(bytes: &[u8; VERSION_0_BYTES], version: u32, at: usize) -> Result<Self, InvalidField> {
        const NAMES: [&str; 7] =
            ["dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"];
        let mut sizes = [0; 7];
        let fields = bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes));
        for (index, field) in fields.enumerate() {
            let negative_is_meant = version == 0 && NAMES[index] == "vocab_size";
            let size =
                if negative_is_meant { field.unsigned_abs() } else { u32::try_from(field).unwrap_or(0) };
            let most = if NAMES[index] == "n_layers" { MAX_LAYERS } else { MAX_SIZE };
            if !(1..=most).contains(&size) {
                let expected = format!("1 to {most}");
                return Err(InvalidField {
                    offset: at + 4 * index,
                    what: NAMES[index],
                    found: field.into(),
                    expected,
                });
            }
            sizes[index] = size as usize;
        }
        let [dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len] = sizes;
        let shared_classifier = bytes[4 * 5 + 3] < 0x80; // the sign of the vocabulary's size
        let group_size = None;
        let header = Self {
            version,
            dim,
            hidden_dim,
            n_layers,
            n_heads,
            n_kv_heads,
            vocab_size,
            seq_len,
            shared_classifier,
            group_size,
        };
        header.checked(at)
    }

    /// Checks the relations between the sizes.
    fn checked(self, at: usize) -> Result<Self, InvalidField> {
        let wrong = |index: usize, what, found: usize, expected| {
            Err(InvalidField { offset: at + 4 * index, what, found: found as i64, expected })
        };
        if !self.dim.is_multiple_of(2 * self.n_heads) {
            let expected =
                format!("a divisor of dim, {}, that gives heads of even size: RoPE rotates pairs", self.dim);
            return wrong(3, "n_heads", self.n_heads, expected);
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return wrong(
                4,
                "n_kv_heads",
                self.n_kv_heads,
                format!("a divisor of n_heads, {}", self.n_heads),
            );
        }
        Ok(self)
    }

    fn with_classifier(self, cursor: &mut Cursor) -> Result<Self> {
        let at = cursor.at;
        let [flag] = cursor.array("shared_classifier")?;
        match flag {
            0 | 1 => Ok(Self { shared_classifier: flag == 1, ..self }),
            _ => Err(cursor.source.bad(at, "shared_classifier", flag, "0 or 1")),
        }
    }

    /// Reads the group size. A group must not cross rows, since `runq.c` would skip the end of every row.
    fn with_groups(self, cursor: &mut Cursor) -> Result<Self> {
        let at = cursor.at;
        let size = cursor.u32("group_size")?;
        let divides = |row: usize| size > 0 && row.is_multiple_of(size as usize);
        if divides(self.dim) && divides(self.hidden_dim) {
            return Ok(Self { group_size: Some(size as usize), ..self });
        }
        let (dim, hidden) = (self.dim, self.hidden_dim);
        let expected = format!(
            "a number that divides dim ({dim}) and hidden_dim ({hidden}), because runq.c would ignore the rest of each \
             row; export the model again with such a group size"
        );
        Err(cursor.source.bad(at, "group_size", size as i32, expected))
    }
}

impl InvalidField {
    fn error(self, source: &FileBytes) -> Error {
        source.bad(self.offset, self.what, self.found, self.expected)
    }
}

/// Returns true if a file starts with the magic of version 1 or later.
pub(super) fn has_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// Returns true if a file starts with seven plausible sizes of a model. Version 0 has no other distinguishing mark.
pub(super) fn is_version_0(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|fields| Llama2cHeader::of_fields(fields, 0, 0).is_ok())
}
