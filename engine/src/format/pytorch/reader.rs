//! Reads a pickle's opcodes and their arguments.

use std::fmt::Display;
use std::ops::Range;

use super::super::cursor::Cursor;
use super::FileBytes;
use super::opcode::Opcode;
use crate::error::{Error, Result};

/// Read position in a pickle.
pub(super) struct Reader<'p> {
    cursor: Cursor<'p>,
    /// Offset and value of the current opcode.
    at: usize,
    opcode: Opcode,
}

impl<'p> Reader<'p> {
    pub(crate) fn new(pickle: &'p FileBytes) -> Self {
        Self { cursor: Cursor::new(pickle), at: 0, opcode: Opcode::Proto }
    }

    pub(crate) fn source(&self) -> &'p FileBytes {
        self.cursor.source
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Creates an error about the current opcode: "byte 7: TUPLE is …, expected …".
    pub(crate) fn bad(&self, found: impl Display, expected: impl Display) -> Error {
        self.source().bad(self.at, self.opcode.name(), found, expected)
    }

    pub(crate) fn opcode(&mut self) -> Result<Opcode> {
        self.at = self.cursor.at;
        let [byte] = self.cursor.array("an opcode")?;
        self.opcode = Opcode::of(byte).ok_or_else(|| {
            let expected =
                "an opcode that torch.save writes for a state dict; the file is damaged or has other content";
            self.source().bad(self.at, "the opcode", format_args!("{byte:#04x}"), expected)
        })?;
        Ok(self.opcode)
    }

    pub(crate) fn protocol(&mut self) -> Result<()> {
        match self.cursor.array("the protocol")? {
            [2..=5] => Ok(()),
            [other] => Err(self.bad(other, "protocol 2 to 5")),
        }
    }

    /// Skips the length of a frame, which is needed only for reading a pickle from a pipe.
    pub(crate) fn frame(&mut self) -> Result<()> {
        self.cursor.u64("the length of a frame").map(drop)
    }

    pub(crate) fn int(&mut self) -> Result<i64> {
        const WHAT: &str = "a whole number";
        match self.opcode {
            Opcode::Int1 => self.cursor.array(WHAT).map(u8::from_le_bytes).map(i64::from),
            Opcode::Int2 => self.cursor.array(WHAT).map(u16::from_le_bytes).map(i64::from),
            Opcode::Int4 => self.cursor.array(WHAT).map(i32::from_le_bytes).map(i64::from),
            _ => self.long(),
        }
    }

    /// Reads an integer in two's complement, preceded by its length in bytes.
    fn long(&mut self) -> Result<i64> {
        let [len] = self.cursor.array("the length of a whole number")?;
        let digits = self.cursor.take(len.into(), "a whole number")?;
        let is_negative = digits.last().is_some_and(|last| last & 0x80 != 0);
        let mut bytes = if is_negative { [0xff; 8] } else { [0; 8] };
        match bytes.get_mut(..digits.len()) {
            Some(low) => low.copy_from_slice(digits),
            None => return Err(self.bad(format_args!("a number of {len} bytes"), "at most 8")),
        }
        Ok(i64::from_le_bytes(bytes))
    }

    /// Skips a float. Tensors contain none.
    pub(crate) fn skip_float(&mut self) -> Result<()> {
        self.cursor.take(8, "a float").map(drop)
    }

    pub(crate) fn text(&mut self) -> Result<&'p str> {
        const WHAT: &str = "the length of a string";
        let len = match self.opcode {
            Opcode::Text1 => self.cursor.array(WHAT).map(|[len]| u64::from(len))?,
            Opcode::Text4 => self.cursor.u32(WHAT)?.into(),
            _ => self.cursor.u64(WHAT)?,
        };
        let bytes = self.cursor.take(len, "a text")?;
        self.utf8(bytes)
    }

    /// Reads raw bytes, as a range of the pickle.
    pub(crate) fn bytes(&mut self) -> Result<Range<usize>> {
        const WHAT: &str = "the length of bytes";
        let len = match self.opcode {
            Opcode::Bytes1 => self.cursor.array(WHAT).map(|[len]| u64::from(len))?,
            Opcode::Bytes4 => self.cursor.u32(WHAT)?.into(),
            _ => self.cursor.u64(WHAT)?,
        };
        let start = self.cursor.at;
        self.cursor.take(len, "bytes")?;
        Ok(start..self.cursor.at)
    }

    /// Reads an index into the memo.
    pub(crate) fn index(&mut self) -> Result<u32> {
        const WHAT: &str = "a memo index";
        match self.opcode {
            Opcode::Put1 | Opcode::Get1 => self.cursor.array(WHAT).map(|[index]| index.into()),
            _ => self.cursor.u32(WHAT),
        }
    }

    /// Reads text up to a line feed.
    pub(crate) fn line(&mut self) -> Result<&'p str> {
        let rest = self.cursor.next(self.cursor.left());
        let len = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let line = self.cursor.take(len as u64, "a name")?;
        self.cursor.take(1, "the end of a name")?;
        self.utf8(line)
    }

    fn utf8(&self, bytes: &'p [u8]) -> Result<&'p str> {
        str::from_utf8(bytes).map_err(|_| self.bad("not UTF-8", "UTF-8 text"))
    }
}
