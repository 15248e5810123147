//! LZ4's block format: literals, and copies of earlier bytes.

use super::snappy::{append, copy_back};

/// Length of the shortest copy.
const SHORTEST: usize = 4;

/// Decompresses a block to exactly `len` bytes; `None` if it is damaged.
pub(super) fn decompressed(bytes: &[u8], len: usize) -> Option<Vec<u8>> {
    let (mut found, mut at) = (Vec::with_capacity(len), 0);
    loop {
        let token = *bytes.get(at)?;
        at += 1;
        let literals = length(bytes, &mut at, token >> 4)?;
        let end = at.checked_add(literals)?;
        append(&mut found, bytes.get(at..end)?, len)?;
        at = end;
        if at == bytes.len() {
            return (found.len() == len).then_some(found);
        }
        let distance = u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
        at += 2;
        let copied = length(bytes, &mut at, token & 15)?.checked_add(SHORTEST)?;
        copy_back(&mut found, distance.into(), copied, len)?;
    }
}

/// Returns a length: four bits, continued by bytes up to the first that is not 255.
fn length(bytes: &[u8], at: &mut usize, start: u8) -> Option<usize> {
    let mut sum = usize::from(start);
    let mut last = if start == 15 { 255 } else { 0 };
    while last == 255 {
        last = *bytes.get(*at)?;
        *at += 1;
        sum = sum.checked_add(last.into())?;
    }
    Some(sum)
}
