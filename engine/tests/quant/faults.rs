//! The golden files can see a wrong decoder: blocks that are changed as it would misread them do not pass.

use xcheck_engine::quant::{self, DotOrder};
use xcheck_engine::weight::DType;

use super::golden::wrong_dots;
use super::vectors::{first_wrong_row, quantised, vectors};

/// A type, what a decoder might do wrong, and blocks changed to match.
type Fault = (DType, &'static str, fn(&mut [u8]));

const FAULTS: &[Fault] = &[
    (DType::Q4_0, "the scale is doubled", |block| double(block, 0)),
    (DType::Q4_0, "the sign of the scale is lost", |block| negate(block, 0)),
    (DType::Q4_0, "nibbles are swapped", |block| swap_nibbles(&mut block[2..])),
    (DType::Q4_0, "codes are one too large", |block| block[2..].iter_mut().for_each(next_nibbles)),
    (DType::Q4_1, "the minimum is missing", |block| block[2..4].fill(0)),
    (DType::Q4_1, "the minimum is subtracted", |block| negate(block, 2)),
    (DType::Q4_1, "scale and minimum are swapped", |block| block[..4].rotate_left(2)),
    (DType::Q5_0, "the high bits are missing", |block| block[2..6].fill(0)),
    (DType::Q5_0, "the high bits are one off", |block| rotate_bits(&mut block[2..6])),
    (DType::Q5_1, "the high bits are in the other order", |block| block[4..8].reverse()),
    (DType::Q5_1, "the minimum is missing", |block| block[2..4].fill(0)),
    (DType::Q8_0, "codes are unsigned", |block| block[2..].iter_mut().for_each(|code| *code &= 0x7F)),
    (DType::Q2_K, "scales and minima are swapped", |block| swap_nibbles(&mut block[..16])),
    (DType::Q2_K, "the minimum is missing", |block| block[82..84].fill(0)),
    (DType::Q2_K, "the scales are one group off", |block| block[..16].rotate_left(1)),
    (DType::Q3_K, "the high bit is inverted", |block| block[..32].iter_mut().for_each(|bits| *bits ^= 0xFF)),
    (DType::Q3_K, "the 6-bit scales lose their upper bits", |block| block[104..108].fill(0)),
    (DType::Q3_K, "the upper bits of the scales are one group off", |block| block[104..108].rotate_left(1)),
    (DType::Q3_K, "one 6-bit scale is one too large", |block| block[96] = next_low(block[96])),
    (DType::Q4_K, "nibbles are swapped", |block| swap_nibbles(&mut block[16..])),
    (DType::Q4_K, "the minimum is missing", |block| block[2..4].fill(0)),
    (DType::Q4_K, "scales and minima are swapped", |block| block[4..12].rotate_left(4)),
    (DType::Q4_K, "the 6-bit scales are one group off", |block| block[4..8].rotate_left(1)),
    (DType::Q4_K, "the scales' upper bits are lost", |block| {
        block[4..8].iter_mut().for_each(|byte| *byte &= 0x3F)
    }),
    (DType::Q4_K, "one 6-bit scale is one too large", |block| block[12] = next_low(block[12])),
    (DType::Q5_K, "the high bits are one row off", |block| block[16..48].iter_mut().for_each(rotate_byte)),
    (DType::Q5_K, "the minimum is added", |block| negate(block, 2)),
    (DType::Q5_K, "the 6-bit scales are one group off", |block| block[4..8].rotate_left(1)),
    (DType::Q6_K, "the high bits are missing", |block| block[128..192].fill(0)),
    (DType::Q6_K, "the scales are one group off", |block| block[192..208].rotate_left(1)),
    (DType::Q6_K, "the sign of the scales is lost", |block| {
        block[192..208].iter_mut().for_each(|scale| *scale &= 0x7F);
    }),
    (DType::IQ4_NL, "the table is read upside down", |block| {
        block[2..].iter_mut().for_each(|two| *two ^= 0xFF)
    }),
    (DType::IQ4_NL, "nibbles are swapped", |block| swap_nibbles(&mut block[2..])),
    (DType::IQ4_XS, "the scales' lower bits are swapped", |block| swap_nibbles(&mut block[4..8])),
    (DType::IQ4_XS, "the scales' upper bits are missing", |block| block[2..4].fill(0)),
    (DType::TQ1_0, "the last values are one column off", |block| block[48..52].rotate_left(1)),
    (DType::TQ1_0, "the sign of the scale is lost", |block| negate(block, 52)),
    (DType::TQ2_0, "the bits are in the other order", |block| swap_nibbles(&mut block[..64])),
    (DType::MXFP4, "the exponent is one too large", |block| block[0] = (block[0] + 1).min(254)),
    (DType::MXFP4, "the sign is another bit", |block| block[1..].iter_mut().for_each(rotate_byte)),
    (DType::NVFP4, "the scales are one group off", |block| block[..4].rotate_left(1)),
    (DType::NVFP4, "nibbles are swapped", |block| swap_nibbles(&mut block[4..])),
    (DType::Q1_0, "the bits are inverted", |block| block[2..].iter_mut().for_each(|bits| *bits ^= 0xFF)),
    (DType::Q1_0, "the bits are one off", |block| block[2..].iter_mut().for_each(rotate_byte)),
    (DType::Q2_0, "the bits are in the other order", |block| swap_nibbles(&mut block[2..])),
    (DType::Q2_0, "the sign of the scale is lost", |block| negate(block, 0)),
    (DType::IQ1_S, "the shift has the other sign", |block| {
        block[34..].as_chunks_mut::<2>().0.iter_mut().for_each(|word| word[1] ^= 0x80);
    }),
    (DType::IQ1_S, "the upper bits of indices are missing", |block| block[34..50].fill(0)),
    (DType::IQ1_M, "the shift has the other sign", |block| {
        block[32..48].iter_mut().for_each(|two| *two ^= 0x88)
    }),
    (DType::IQ1_M, "the sign of the scale is lost", |block| block[55] ^= 0x80),
    (DType::IQ2_XXS, "the signs are one value off", |block| block[6..10].rotate_left(1)),
    (DType::IQ2_XXS, "the indices are one off", |block| block[2..6].rotate_left(1)),
    (DType::IQ2_XS, "the scales are swapped", |block| swap_nibbles(&mut block[66..74])),
    (DType::IQ2_XS, "the signs are missing", |block| {
        block[2..66].as_chunks_mut::<2>().0.iter_mut().for_each(|word| word[1] &= 1);
    }),
    (DType::IQ2_S, "the upper bits of indices are missing", |block| block[66..74].fill(0)),
    (DType::IQ2_S, "the signs are missing", |block| block[34..66].fill(0)),
    (DType::IQ3_XXS, "the scales are one group off", |block| block[66..].rotate_left(4)),
    (DType::IQ3_XXS, "pairs of indices are swapped", |block| {
        block[2..66].as_chunks_mut::<2>().0.iter_mut().for_each(|pair| pair.reverse());
    }),
    (DType::IQ3_S, "the high bits are missing", |block| block[66..74].fill(0)),
    (DType::IQ3_S, "the signs are one value off", |block| block[74..106].iter_mut().for_each(rotate_byte)),
    (DType::IQ3_S, "the scales are swapped", |block| swap_nibbles(&mut block[106..110])),
    (DType::F16, "bytes are swapped", |element| element.reverse()),
    (DType::BF16, "bytes are swapped", |element| element.reverse()),
];

#[test]
fn every_planted_fault_is_seen_in_values_and_in_dot_products() {
    for &(dtype, fault, plant) in FAULTS {
        let mut faulty = vectors(dtype);
        faulty.weights.each_chunk(dtype.block_bytes(), plant);
        let wrong = first_wrong_row(dtype, &faulty.weights, &faulty.values);
        assert!(wrong.is_some(), "{dtype}: {fault}: not seen in the values");
        let wrong = wrong_dots(dtype, &faulty, quant::plain_dot(dtype, DotOrder::Row));
        assert!(!wrong.is_empty(), "{dtype}: {fault}: not seen in the dot products");
    }
}

#[test]
fn the_order_in_which_blocks_are_added_is_seen() {
    let mut golden = vectors(DType::Q8_0);
    golden.weights.each_row(|row| row.rotate_left(34));
    let mut activations = quantised(DType::Q8_0).row(0).to_vec();
    activations.rotate_left(34);

    let dot = quant::plain_dot(DType::Q8_0, DotOrder::Row);
    let (_, dots) = golden.dots.iter().find(|(length, _)| *length == 768).expect("whole rows");
    let mut pairs = golden.weights.iter().zip(dots.iter());
    assert!(pairs.any(|(row, dots)| dot(row, &activations) != dots[0]));
}

fn double(block: &mut [u8], at: usize) {
    block[at + 1] = block[at + 1].wrapping_add(4);
}

fn negate(block: &mut [u8], at: usize) {
    block[at + 1] ^= 0x80;
}

fn swap_nibbles(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
}

fn next_nibbles(byte: &mut u8) {
    *byte = next_low(*byte) & 0x0F | (next_low(*byte >> 4) << 4);
}

/// The low four bits one larger, the others as they are.
fn next_low(byte: u8) -> u8 {
    byte & 0xF0 | byte.wrapping_add(1) & 0x0F
}

fn rotate_byte(byte: &mut u8) {
    *byte = byte.rotate_left(1);
}

fn rotate_bits(bytes: &mut [u8]) {
    let bits = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    bytes.copy_from_slice(&bits.rotate_left(1).to_le_bytes());
}
