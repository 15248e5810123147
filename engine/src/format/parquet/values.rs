//! Values of a data page, in each encoding.

use std::sync::Arc;

use bytes::Bytes;
use half::f16;

use super::runs::{HybridRuns, bits};

/// Stored type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParquetType {
    Bool,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Text,
}

impl ParquetType {
    /// Number of bytes of a number; 0 for truth values, which have a bit each, and texts.
    fn width(self) -> usize {
        match self {
            Self::Bool | Self::Text => 0,
            Self::F16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns a number by its bits, which are extended with zeros.
    fn number(self, bits: u64) -> f64 {
        match self {
            Self::I32 => f64::from(bits as u32 as i32),
            Self::U32 => f64::from(bits as u32),
            Self::I64 => bits as i64 as f64,
            Self::F16 => f16::from_bits(bits as u16).into(),
            Self::F32 => f32::from_bits(bits as u32).into(),
            Self::F64 => f64::from_bits(bits),
            Self::U64 | Self::Bool | Self::Text => bits as f64,
        }
    }
}

/// A value of a column: a number, or a text.
pub trait ParquetValue: Clone {
    /// True for texts.
    const IS_TEXT: bool;

    /// Returns a number by its bits; `None` for texts.
    #[doc(hidden)]
    fn of_number(number: f64) -> Option<Self>;

    /// Returns a text; `None` for numbers.
    #[doc(hidden)]
    fn of_text(text: Bytes) -> Option<Self>;
}

impl ParquetValue for f64 {
    const IS_TEXT: bool = false;

    fn of_number(number: f64) -> Option<Self> {
        Some(number)
    }

    fn of_text(_: Bytes) -> Option<Self> {
        None
    }
}

impl ParquetValue for Bytes {
    const IS_TEXT: bool = true;

    fn of_number(_: f64) -> Option<Self> {
        None
    }

    fn of_text(text: Bytes) -> Option<Self> {
        Some(text)
    }
}

/// Values of a page, in order.
#[derive(Debug)]
pub(super) enum PageValues<V> {
    Plain(PlainValues),
    /// Indices of the dictionary.
    Dictionary(HybridRuns, Arc<[V]>),
    Delta(Box<DeltaValues>, ParquetType),
    /// All first bytes, then all second bytes, and so on; the index of the next value.
    Split(Bytes, ParquetType, usize),
    /// Truth values as run lengths.
    Runs(HybridRuns),
}

impl<V: ParquetValue> PageValues<V> {
    /// Returns the next value; `None` if the bytes are damaged or end.
    pub(super) fn next(&mut self) -> Option<V> {
        match self {
            Self::Plain(values) => values.next(),
            Self::Dictionary(indices, entries) => entries.get(indices.next()? as usize).cloned(),
            Self::Delta(values, kind) => V::of_number(kind.number(values.next()?)),
            Self::Split(bytes, kind, index) => {
                let count = bytes.len() / kind.width().max(1);
                let gathered = (0..kind.width()).rev().try_fold(0u64, |sum, byte| {
                    bytes.get(byte * count + *index).map(|&byte| sum << 8 | u64::from(byte))
                })?;
                *index += 1;
                if *index > count {
                    return None;
                }
                V::of_number(kind.number(gathered))
            }
            Self::Runs(runs) => V::of_number(runs.next()?.into()),
        }
    }
}

/// Values one after the other: numbers, bits, or texts with their lengths.
#[derive(Debug)]
pub(super) struct PlainValues {
    bytes: Bytes,
    kind: ParquetType,
    /// Index of the next byte, or bit for truth values.
    at: usize,
}

impl PlainValues {
    pub(super) fn new(bytes: Bytes, kind: ParquetType) -> Self {
        Self { bytes, kind, at: 0 }
    }

    pub(super) fn next<V: ParquetValue>(&mut self) -> Option<V> {
        match self.kind {
            ParquetType::Bool => {
                let bit = bits(&self.bytes, self.at, 1)?;
                self.at += 1;
                V::of_number(bit as f64)
            }
            ParquetType::Text => {
                let len = u32::from_le_bytes(*self.bytes.get(self.at..)?.first_chunk()?);
                let start = self.at + size_of::<u32>();
                let end = start.checked_add(len.try_into().ok()?).filter(|&end| end <= self.bytes.len())?;
                self.at = end;
                V::of_text(self.bytes.slice(start..end))
            }
            kind => {
                let taken = self.bytes.get(self.at..self.at + kind.width())?;
                self.at += taken.len();
                let mut wide = [0; 8];
                wide[..taken.len()].copy_from_slice(taken);
                V::of_number(kind.number(u64::from_le_bytes(wide)))
            }
        }
    }
}

/// Integers as differences in blocks of packed bits (`DELTA_BINARY_PACKED`).
#[derive(Debug)]
pub(super) struct DeltaValues {
    bytes: Bytes,
    at: usize,
    /// Number of values in a miniblock, and of miniblocks in a block.
    miniblock: usize,
    miniblocks: usize,
    /// Number of values that follow.
    left: usize,
    value: i64,
    is_first: bool,
    least: i64,
    /// Widths of the block's miniblocks, the index of the current one, and of the next value in it.
    widths: Bytes,
    block: (usize, usize),
}

impl DeltaValues {
    /// Reads the header; `None` if it is damaged.
    pub(super) fn new(bytes: Bytes) -> Option<Self> {
        let mut at = 0;
        let mut size = || super::varint(&bytes, &mut at).and_then(|size| usize::try_from(size).ok());
        let (block, miniblocks, left) = (size()?, size()?, size()?);
        let value = super::zigzag(super::varint(&bytes, &mut at)?);
        let miniblock = block.checked_div(miniblocks)?;
        let is_right = miniblock > 0 && miniblock.is_multiple_of(32) && block == miniblock * miniblocks;
        (is_right && block <= 1 << 24).then(|| Self {
            bytes,
            at,
            miniblock,
            miniblocks,
            left,
            value,
            is_first: true,
            least: 0,
            widths: Bytes::new(),
            block: (0, 0),
        })
    }

    /// Returns the bits of the next value.
    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        if self.is_first {
            self.is_first = false;
            return Some(self.value as u64);
        }
        if self.block.0 == self.widths.len() {
            self.begin()?;
        }
        let (miniblock, index) = self.block;
        let width = u32::from(self.widths[miniblock]);
        let delta = bits(self.bytes.get(self.at..)?, index * width as usize, width)?;
        self.value = self.value.wrapping_add(self.least).wrapping_add(delta as i64);
        self.block = (miniblock, index + 1);
        if index + 1 == self.miniblock {
            self.at += self.miniblock / 8 * width as usize;
            self.block = (miniblock + 1, 0);
        }
        Some(self.value as u64)
    }

    fn begin(&mut self) -> Option<()> {
        self.least = super::zigzag(super::varint(&self.bytes, &mut self.at)?);
        let end = self.at.checked_add(self.miniblocks).filter(|&end| end <= self.bytes.len())?;
        self.widths = self.bytes.slice(self.at..end);
        self.at = end;
        self.block = (0, 0);
        self.widths.iter().all(|&width| width <= 64).then_some(())
    }
}
