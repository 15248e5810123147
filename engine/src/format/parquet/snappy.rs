//! Snappy's block format: literals, and copies of earlier bytes.

/// Decompresses a block to exactly `len` bytes; `None` if it is damaged.
pub(super) fn decompressed(bytes: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut at = 0;
    if super::varint(bytes, &mut at)? != len as u64 {
        return None;
    }
    let mut found = Vec::with_capacity(len);
    while at < bytes.len() {
        let tag = bytes[at];
        at += 1;
        let high = usize::from(tag >> 2);
        match tag & 3 {
            0 => {
                let extra = high.saturating_sub(59);
                let length = if extra == 0 { high } else { little_endian(bytes, &mut at, extra)? };
                let end = at.checked_add(length.checked_add(1)?)?;
                append(&mut found, bytes.get(at..end)?, len)?;
                at = end;
            }
            1 => {
                let low = little_endian(bytes, &mut at, 1)?;
                copy_back(&mut found, (high >> 3) << 8 | low, (high & 7) + 4, len)?;
            }
            kind => {
                let distance = little_endian(bytes, &mut at, if kind == 2 { 2 } else { 4 })?;
                copy_back(&mut found, distance, high + 1, len)?;
            }
        }
    }
    (found.len() == len).then_some(found)
}

fn little_endian(bytes: &[u8], at: &mut usize, count: usize) -> Option<usize> {
    let taken = bytes.get(*at..*at + count)?;
    *at += count;
    Some(taken.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
}

/// Appends bytes, unless the output gets longer than `most`.
pub(super) fn append(output: &mut Vec<u8>, bytes: &[u8], most: usize) -> Option<()> {
    (bytes.len() <= most - output.len()).then(|| output.extend_from_slice(bytes))
}

/// Appends `length` bytes that begin `distance` bytes before the end of the output. They may overlap their copy.
pub(super) fn copy_back(output: &mut Vec<u8>, distance: usize, length: usize, most: usize) -> Option<()> {
    let start = output.len().checked_sub(distance)?;
    if distance == 0 || length > most - output.len() {
        return None;
    }
    let mut left = length;
    while left > 0 {
        let chunk = left.min(output.len() - start);
        output.extend_from_within(start..start + chunk);
        left -= chunk;
    }
    Some(())
}
