//! Parquet's hybrid of run lengths and packed bits, for levels and dictionary indices.

use bytes::Bytes;

/// Reads numbers of a fixed width in bits.
#[derive(Debug)]
pub(super) struct HybridRuns {
    bytes: Bytes,
    at: usize,
    width: u32,
    left: u64,
    run: Run,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    Same(u32),
    /// Index of the next bit.
    Packed(usize),
}

impl HybridRuns {
    /// Creates a reader; `None` if the width exceeds 32 bits.
    pub(super) fn new(bytes: Bytes, width: u32) -> Option<Self> {
        (width <= 32).then_some(Self { bytes, at: 0, width, left: 0, run: Run::Same(0) })
    }

    /// Creates a reader of levels up to `most`.
    pub(super) fn of_levels(bytes: Bytes, most: u8) -> Self {
        Self { bytes, at: 0, width: u8::BITS - most.leading_zeros(), left: 0, run: Run::Same(0) }
    }

    /// Reads the next number; `None` if the bytes are damaged or end.
    pub(super) fn next(&mut self) -> Option<u32> {
        // Columns without nulls and dictionaries with one entry need no bits.
        if self.width == 0 {
            return Some(0);
        }
        while self.left == 0 {
            self.begin()?;
        }
        self.left -= 1;
        match &mut self.run {
            Run::Same(number) => Some(*number),
            Run::Packed(bit) => {
                let number = bits(&self.bytes, *bit, self.width)?;
                *bit += self.width as usize;
                Some(number as u32)
            }
        }
    }

    fn begin(&mut self) -> Option<()> {
        let head = super::varint(&self.bytes, &mut self.at)?;
        if head & 1 == 1 {
            self.left = (head >> 1).checked_mul(8)?;
            self.run = Run::Packed(self.at.checked_mul(8)?);
            let len = usize::try_from(head >> 1).ok()?.checked_mul(self.width as usize)?;
            // Some writers leave out unused bytes of the last group; reading them is an error.
            self.at = self.at.saturating_add(len).min(self.bytes.len());
        } else {
            self.left = head >> 1;
            let width = self.width.div_ceil(8) as usize;
            let taken = self.bytes.get(self.at..self.at + width)?;
            self.run = Run::Same(taken.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte)));
            self.at += width;
        }
        Some(())
    }
}

/// Returns `width` bits from the bit `at` on, at most 64; `None` beyond the end.
pub(super) fn bits(bytes: &[u8], at: usize, width: u32) -> Option<u64> {
    let (first, shift) = (at / 8, (at % 8) as u32);
    let end = (at + width as usize).div_ceil(8);
    let taken = bytes.get(first..end)?;
    let mut wide = [0; 16];
    wide[..taken.len()].copy_from_slice(taken);
    let mask = u128::MAX.checked_shr(u128::BITS - width).unwrap_or(0);
    Some((u128::from_le_bytes(wide) >> shift & mask) as u64)
}
