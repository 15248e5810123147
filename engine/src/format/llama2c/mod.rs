//! llama2.c's model files, little-endian. Tensors have no names; their order follows from the header.
//!
//! The layout, as written by `export.py` and read by `run.c` and `runq.c`; L layers, S positions, D the head size:
//!
//! ```text
//! version 0  7 × i32, no magic; a negative vocabulary size means a separate classifier matrix
//!            embedding, L attention norms, L × q, k, v, output, L feed-forward norms, L × w1, w2, w3, last norm,
//!            cosines and sines of RoPE (S × D/2 each, unused), classifier; all f32
//! version 1  "ak42" as a number, 1, 7 × i32, u8: 1 if the classifier is the embedding, zeros up to byte 256
//!            both norms of the layers, last norm, embedding, the matrices as above, classifier; all f32
//! version 2  as version 1; after the u8, the group length as i32
//!            norms in f32; each matrix in int8, then an f32 scale for each of its groups
//! ```
//!
//! Tensors get their names in GGUF files, which have the same layout of q and k rows: RoPE rotates neighbouring
//! values.

mod header;
mod layout;

pub(crate) use header::Llama2cHeader;

use super::{FileBytes, NameIndex, TensorFile};
use crate::error::Result;
use crate::weight::StoredTensor;

/// A checked llama2.c model file.
#[derive(Clone, Debug)]
pub struct Llama2cFile {
    /// Header with the sizes.
    pub header: Llama2cHeader,
    /// Weights by their GGUF names. The scales of `blk.0.attn_q.weight` are `blk.0.attn_q.scales`.
    pub tensors: TensorFile,
}

impl Llama2cFile {
    /// Reads the header and splits the file into tensors.
    ///
    /// # Errors
    /// If the version is unknown, a size is implausible, or the file's length contradicts the sizes.
    pub fn read(source: &FileBytes) -> Result<Self> {
        let header = Llama2cHeader::read(source)?;
        layout::check_length(source, &header)?;
        let mut at = header.bytes();
        let mut offsets = Vec::new();
        let mut entries = Vec::new();
        for part in layout::parts(&header) {
            let end = at + part.bytes(); // no overflow: the sum has been checked against the file's length
            offsets.push(at);
            let data = source.data.slice(at..end);
            entries.push((part.name, StoredTensor { dtype: part.dtype, shape: part.shape, data }));
            at = end;
        }
        let tensors = NameIndex::new(source, "tensor", entries, &offsets)?;
        Ok(Self { header, tensors: TensorFile { path: source.path.clone(), tensors } })
    }
}

/// Returns true if a file starts like version 1 or later, or with plausible sizes of a model.
pub(super) fn is_start(bytes: &[u8]) -> bool {
    header::has_magic(bytes) || header::is_version_0(bytes)
}
