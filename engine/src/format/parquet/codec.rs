//! Compression of pages.

use std::io::Read;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::FrameDecoder;

use super::{lz4, snappy};

/// A compression that Parquet names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageCodec {
    Plain,
    Snappy,
    Gzip,
    Zstd,
    Lz4Raw,
}

impl PageCodec {
    /// Returns the codec with a number of Parquet's metadata.
    ///
    /// # Errors
    /// The name of a codec that is not supported.
    pub(super) fn of(number: i64) -> Result<Self, &'static str> {
        Ok(match number {
            0 => Self::Plain,
            1 => Self::Snappy,
            2 => Self::Gzip,
            6 => Self::Zstd,
            7 => Self::Lz4Raw,
            3 => return Err("LZO"),
            4 => return Err("Brotli"),
            5 => return Err("LZ4 in Hadoop's framing"),
            _ => return Err("unknown"),
        })
    }

    /// Decompresses bytes to exactly `len` bytes; `None` if they are damaged.
    pub(super) fn decompressed(self, bytes: Bytes, len: usize) -> Option<Bytes> {
        let found: Vec<u8> = match self {
            Self::Plain => return (bytes.len() == len).then_some(bytes),
            Self::Snappy => snappy::decompressed(&bytes, len)?,
            Self::Lz4Raw => lz4::decompressed(&bytes, len)?,
            Self::Gzip => {
                let mut found = Vec::new();
                MultiGzDecoder::new(&bytes[..]).take(len as u64 + 1).read_to_end(&mut found).ok()?;
                found
            }
            Self::Zstd => {
                let mut found = vec![0; len];
                let written = FrameDecoder::new().decode_all(&bytes, &mut found).ok()?;
                found.truncate(written);
                found
            }
        };
        (found.len() == len).then(|| found.into())
    }
}
