//! Integers of a few bits, packed into 32-bit words.

/// Words of codes, arranged in lines. Code `i` of a line starts at bit `i · bits`, counted from the lowest bit of
/// the line's first word. A code may continue in the next word.
#[derive(Clone, Copy)]
pub(super) struct PackedCodes<'f> {
    bytes: &'f [u8],
    /// Number of words in a row.
    width: usize,
    bits: usize,
    /// True if a line of words is a column: the next word is in the next row.
    is_vertical: bool,
}

impl<'f> PackedCodes<'f> {
    /// Creates codes whose lines of words are rows of `width` words.
    pub(crate) fn along_rows(bytes: &'f [u8], width: usize, bits: usize) -> Self {
        Self { bytes, width, bits, is_vertical: false }
    }

    /// Creates codes whose lines of words are the columns of an array with rows of `width` words.
    pub(crate) fn along_columns(bytes: &'f [u8], width: usize, bits: usize) -> Self {
        Self { bytes, width, bits, is_vertical: true }
    }

    /// Returns the code at an index of a line.
    pub(crate) fn get(&self, line: usize, index: usize) -> u32 {
        let first = index * self.bits;
        let (word, shift) = (first / 32, first % 32);
        let low = u64::from(self.word(line, word)) >> shift;
        let code = match shift + self.bits > 32 {
            true => low | u64::from(self.word(line, word + 1)) << (32 - shift),
            false => low,
        };
        (code & ((1 << self.bits) - 1)) as u32
    }

    pub(crate) fn word(&self, line: usize, word: usize) -> u32 {
        let at = if self.is_vertical { word * self.width + line } else { line * self.width + word };
        word_at(self.bytes, at)
    }
}

/// Returns the 32-bit word at an index.
pub(super) fn word_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at * 4..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

/// Returns the number of words that hold `codes` codes of `bits` bits; `None` on overflow.
pub(super) fn words_for(codes: usize, bits: usize) -> Option<usize> {
    Some(codes.checked_mul(bits)?.div_ceil(32))
}
