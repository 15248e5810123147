//! Streams of safetensors messages, as read from a pipe: one safetensors file after the other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::{FileBytes, safetensors};
use crate::error::{Error, Result};

/// Header length that marks the end of the stream.
const END: u64 = 0;
/// Maximum header length of the format, in bytes.
const LONGEST_HEADER: u64 = 100_000_000;
/// Number of bytes that are read from the pipe at once. A Linux pipe buffers 64 KB by default.
const CHUNK: usize = 1 << 16;

/// Reads messages from a pipe. Nothing is read between two messages, so the writer waits until a message was
/// processed.
pub struct Messages {
    input: Box<dyn Read>,
    path: PathBuf,
    most: u64,
    taken: usize,
}

impl Messages {
    /// Creates a reader for an open pipe. Error messages call it `path`. A message may have at most `most` bytes.
    pub fn new(input: Box<dyn Read>, path: &Path, most: u64) -> Self {
        Self { input, path: path.to_owned(), most, taken: 0 }
    }

    /// Returns the number of messages that have begun.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Reads the next message into an unnamed temporary file; `None` at the producer's end mark.
    ///
    /// # Errors
    /// If the pipe ends without an end mark or inside a message, a message is too large, or its header is invalid.
    pub fn take(&mut self) -> Result<Option<FileBytes>> {
        self.taken += 1;
        let Some(len) = self.header_len()? else { return Ok(None) };
        let header = self.header(len)?;
        let data = safetensors::announced(&header)
            .map_err(|problem| self.bad(format!("invalid safetensors header: {problem}")))?;
        let size = data.saturating_add(8 + len);
        if size > self.most {
            let most = self.most;
            return Err(self.bad(format!(
                "it has {size} bytes, expected at most {most}; send fewer layers in a message, or raise --largest-message"
            )));
        }
        let mut spool = tempfile::tempfile().map_err(Error::io("create a file in", &std::env::temp_dir()))?;
        let begun = spool.write_all(&len.to_le_bytes()).and_then(|()| spool.write_all(&header));
        begun.map_err(Error::io("write to", &std::env::temp_dir()))?;
        self.spool(data, &mut spool)?;
        FileBytes::mapped(&self.path, &spool).map(Some)
    }

    /// Reads the length of the next header.
    fn header_len(&mut self) -> Result<Option<u64>> {
        let mut bytes = Vec::new();
        self.read_up_to(8, &mut bytes)?;
        let Ok(len) = <[u8; 8]>::try_from(bytes.as_slice()).map(u64::from_le_bytes) else {
            return Err(match bytes.len() {
                0 => self.bad(
                    "the pipe was closed without the end marker (8 zero bytes): the producer stopped too early"
                        .to_owned(),
                ),
                few => self.cut("the length of its header", few as u64, 8),
            });
        };
        match len {
            END => Ok(None),
            2..=LONGEST_HEADER => Ok(Some(len)),
            _ => Err(self.bad(format!(
                "it begins with {:?}, expected the length of a safetensors header; does something else write to the \
                 pipe, such as a print to standard output?",
                bytes.escape_ascii().to_string()
            ))),
        }
    }

    /// Reads the header's text; memory is allocated as the bytes arrive.
    fn header(&mut self, len: u64) -> Result<Vec<u8>> {
        let mut header = Vec::new();
        self.read_up_to(1, &mut header)?;
        if header.first().is_some_and(|&first| first != b'{') {
            return Err(self.bad("not a safetensors file: the header does not begin with '{'".to_owned()));
        }
        self.read_up_to(len - header.len() as u64, &mut header)?;
        if (header.len() as u64) < len {
            return Err(self.cut("its header", header.len() as u64, len));
        }
        Ok(header)
    }

    fn read_up_to(&mut self, most: u64, into: &mut Vec<u8>) -> Result<()> {
        Read::take(&mut self.input, most).read_to_end(into).map_err(Error::io("read", &self.path))?;
        Ok(())
    }

    /// Writes the next `len` bytes to a file as they arrive.
    fn spool(&mut self, len: u64, file: &mut File) -> Result<()> {
        let mut chunk = [0; CHUNK];
        let mut left = len;
        while left > 0 {
            let room = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
            let read = match self.input.read(&mut chunk[..room]) {
                Ok(0) => return Err(self.cut("its data", len - left, len)),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io("read", &self.path)(error)),
            };
            file.write_all(&chunk[..read]).map_err(Error::io("write to", &std::env::temp_dir()))?;
            left -= read as u64;
        }
        Ok(())
    }

    fn cut(&self, what: &str, came: u64, expected: u64) -> Error {
        self.bad(format!("{what} ends after {came} of {expected} bytes: the producer stopped in the middle"))
    }

    fn bad(&self, problem: String) -> Error {
        Error::dump(&self.path, problem)
    }
}
