//! A scale that is not a number is found, wherever it stands.

use xcheck_engine::quant;
use xcheck_engine::weight::DType;

/// Where the `f16` scales of each type stand in a block.
const SCALES: &[(DType, &[usize])] = &[
    (DType::Q4_0, &[0]),
    (DType::Q4_1, &[0, 2]),
    (DType::Q5_0, &[0]),
    (DType::Q5_1, &[0, 2]),
    (DType::Q8_0, &[0]),
    (DType::Q2_K, &[80, 82]),
    (DType::Q3_K, &[108]),
    (DType::Q4_K, &[0, 2]),
    (DType::Q5_K, &[0, 2]),
    (DType::Q6_K, &[208]),
    (DType::IQ4_NL, &[0]),
    (DType::IQ4_XS, &[0]),
    (DType::TQ1_0, &[52]),
    (DType::TQ2_0, &[64]),
    (DType::Q1_0, &[0]),
    (DType::Q2_0, &[0]),
    (DType::IQ1_S, &[0]),
    (DType::IQ2_XXS, &[0]),
    (DType::IQ2_XS, &[0]),
    (DType::IQ2_S, &[0]),
    (DType::IQ3_XXS, &[0]),
    (DType::IQ3_S, &[0]),
];

const INFINITE: [u8; 2] = 0x7C00u16.to_le_bytes();
const NEGATIVE_INFINITE: [u8; 2] = 0xFC00u16.to_le_bytes();
const NAN: [u8; 2] = 0x7E01u16.to_le_bytes();
const LARGEST: [u8; 2] = 0x7BFFu16.to_le_bytes();

#[test]
fn the_first_block_with_a_scale_that_is_no_number_is_found() {
    for &(dtype, scales) in SCALES {
        for (&at, bad) in scales.iter().flat_map(|at| [INFINITE, NEGATIVE_INFINITE, NAN].map(|bad| (at, bad)))
        {
            let mut blocks = vec![0; 5 * dtype.block_bytes()];
            for block in [2, 4] {
                blocks[block * dtype.block_bytes() + at..][..2].copy_from_slice(&bad);
            }
            assert_eq!(quant::first_unsound_block(dtype, &blocks), Some(2), "{dtype}: byte {at} is {bad:?}");
        }
    }
}

#[test]
fn codes_may_be_anything_and_scales_the_largest_number() {
    for &(dtype, scales) in SCALES {
        let mut block = vec![0xFF; dtype.block_bytes()];
        scales.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&LARGEST));
        assert_eq!(quant::first_unsound_block(dtype, &block), None, "{dtype}");
    }
}

#[test]
fn the_exponent_of_mxfp4_that_means_nan_is_found() {
    let mut blocks = [0xFE; 3 * 17];
    assert_eq!(quant::first_unsound_block(DType::MXFP4, &blocks), None);
    blocks[17] = 0xFF;
    assert_eq!(quant::first_unsound_block(DType::MXFP4, &blocks), Some(1));
}

/// The scale's bits are the upper four of each word of scales.
#[test]
fn an_iq1_m_scale_that_is_no_number_is_found() {
    let mut blocks = [0; 3 * 56];
    let mut scale = |bits: u16| {
        (0..4).for_each(|word| blocks[56 + 49 + 2 * word] = ((bits >> (4 * word)) as u8) << 4 | 0x0F);
        quant::first_unsound_block(DType::IQ1_M, &blocks)
    };
    assert_eq!([0x7BFF, 0xFBFF, 0x0001].map(&mut scale), [None; 3]);
    assert_eq!([0x7C00, 0xFC00, 0x7E01].map(&mut scale), [Some(1); 3]);
}

#[test]
fn the_scale_bytes_of_nvfp4_that_mean_nan_are_found() {
    for (scale, nan) in (0..4).flat_map(|scale| [0x7F, 0xFF].map(|nan| (scale, nan))) {
        let mut blocks = [0x7E; 3 * 36];
        assert_eq!(quant::first_unsound_block(DType::NVFP4, &blocks), None);
        blocks[36 + scale] = nan;
        assert_eq!(quant::first_unsound_block(DType::NVFP4, &blocks), Some(1), "{scale}: {nan}");
    }
}
