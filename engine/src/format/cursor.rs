//! Read position in untrusted bytes, which never exceeds the end.

use std::fmt::Display;

use super::source::FileBytes;
use crate::error::Result;

/// Reads little-endian fields one after the other. `what` names the field in messages.
pub(crate) struct Cursor<'a> {
    pub(crate) source: &'a FileBytes,
    /// Offset of the next byte; never past the end.
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(source: &'a FileBytes) -> Self {
        Self { source, at: 0 }
    }

    /// Returns the number of bytes left.
    pub(crate) fn left(&self) -> usize {
        self.source.data.len() - self.at
    }

    /// Returns the remaining bytes, but at most `most`.
    pub(crate) fn next(&self, most: usize) -> &'a [u8] {
        self.source.data.at(self.at..self.at + most.min(self.left()))
    }

    /// Reads `len` bytes.
    pub(crate) fn take(&mut self, len: u64, what: impl Display) -> Result<&'a [u8]> {
        let fits = usize::try_from(len).ok().filter(|&len| len <= self.left());
        let taken = fits.map(|len| self.next(len));
        let bytes = taken.ok_or_else(|| self.source.truncated(what, self.at, len))?;
        self.at += bytes.len();
        Ok(bytes)
    }

    /// Reads `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self, what: impl Display) -> Result<[u8; N]> {
        let taken = self.next(N).first_chunk::<N>();
        let bytes = taken.ok_or_else(|| self.source.truncated(what, self.at, N as u64))?;
        self.at += N;
        Ok(*bytes)
    }

    pub(crate) fn u32(&mut self, what: impl Display) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: impl Display) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads the number of items that follow. Returns an error if that many items of `least` bytes cannot fit in the
    /// remaining bytes, so that memory can be allocated safely.
    pub(crate) fn count(&mut self, least: usize, what: impl Display) -> Result<usize> {
        let count = self.u64(format_args!("count of {what}"))?;
        let needed = count.saturating_mul(least as u64);
        if needed > self.left() as u64 {
            return Err(self.source.truncated(format_args!("the list of {count} {what}"), self.at, needed));
        }
        Ok(count as usize) // lossless: no more than the bytes that are left
    }

    /// Reads a string: its length, then its UTF-8 bytes.
    pub(crate) fn text(&mut self, what: impl Display) -> Result<&'a str> {
        let len = self.u64(format_args!("length of {what}"))?;
        let at = self.at;
        let bytes = self.take(len, &what)?;
        str::from_utf8(bytes).map_err(|error| {
            let offset = at + error.valid_up_to();
            self.source.bad(offset, what, "not UTF-8", "UTF-8 text; the file is damaged, get it again")
        })
    }
}
