//! Weights rounded as ggml quantises a file. The values are those of a real libggml
//! (`reference-scripts/vectors/make_weight_rounding.py`).

use safetensors::SafeTensors;
use xcheck_engine::quant::WeightRounding;
use xcheck_engine::weight::DType;

const FILE: &[u8] = include_bytes!("../../../tests/data/quant/weight_rounding.safetensors");
const TYPES: [DType; 5] = [DType::Q4_0, DType::Q5_0, DType::Q8_0, DType::Q4_K, DType::Q6_K];
const COLUMNS: usize = 512;

fn floats(name: &str) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(FILE).expect("it is sound");
    let bytes = tensors.tensor(name).expect("it is there").data();
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn weights_are_rounded_as_ggml_quantises_a_file() {
    for dtype in TYPES {
        let (mut ours, theirs) = (floats("weights"), floats(dtype.name()));
        ours.chunks_exact_mut(COLUMNS).for_each(|row| WeightRounding::Blocks(dtype).round(row, 0.0));
        let differ = ours.iter().zip(&theirs).filter(|(one, other)| one != other).count();
        assert_eq!(differ, 0, "{dtype}: of {} values", ours.len());
    }
}

#[test]
fn types_round_otherwise() {
    for (dtype, other) in TYPES.iter().zip(TYPES.iter().cycle().skip(1)) {
        let (mut ours, theirs) = (floats("weights"), floats(other.name()));
        ours.chunks_exact_mut(COLUMNS).for_each(|row| WeightRounding::Blocks(*dtype).round(row, 0.0));
        assert_ne!(ours, theirs, "{dtype} and {other}");
    }
}
