//! Tensors of sound GGUF files: where they are, what they are.

use std::path::Path;

use xcheck::format::{FileBytes, Gguf, Safetensors};
use xcheck::weight::DType;

use super::builder::{F32, GgufBuilder, Q8_0};
use super::read_gguf;

const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/checkpoints/tiny-llama2/");

fn open(file: &str) -> FileBytes {
    FileBytes::open(Path::new(&(CHECKPOINT.to_owned() + file))).unwrap()
}

#[test]
fn shapes_are_outermost_first_and_data_is_a_view_of_the_file() {
    let file = read_gguf(GgufBuilder::sample().build()).unwrap();
    let linear = file.tensors.get("linear").unwrap();
    assert_eq!(linear.dtype, DType::Q8_0);
    assert_eq!(linear.shape, [3, 64]);
    assert_eq!(linear.data.len(), 6 * 34);
    assert_eq!(linear.data[..3], [0, 1, 2]);
    assert!(file.tensors.get("absent").is_none());
}

#[test]
fn tensors_keep_the_order_of_the_file() {
    let file = read_gguf(GgufBuilder::sample().build()).unwrap();
    let names: Vec<&str> = file.tensors.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["norm", "linear"]);
    assert_eq!(file.tensors.path(), Path::new(super::FILE));
}

#[test]
fn a_version_2_file_reads_like_a_version_3_file() {
    let file = read_gguf(GgufBuilder::sample().version(2).build()).unwrap();
    assert_eq!(file.version, 2);
    assert_eq!(file.require::<u32>("llama.block_count").unwrap(), 2);
    assert_eq!(file.tensors.len(), 2);
}

#[test]
fn data_starts_at_the_alignment_that_the_file_names() {
    for alignment in [1, 8, 64, 4096] {
        let builder =
            GgufBuilder::new().aligned(alignment).tensor("a", &[1], F32, 4).tensor("b", &[1], F32, 4);
        let file = read_gguf(builder.build()).unwrap();
        assert_eq!(file.alignment, alignment);
        assert_eq!(file.tensors.get("b").unwrap().data[..], [0, 1, 2, 3]);
    }
}

#[test]
fn a_file_without_tensors_is_a_vocabulary() {
    let file = read_gguf(GgufBuilder::new().build()).unwrap();
    assert!(file.tensors.is_empty());
}

#[test]
fn tensors_may_lie_in_another_order_than_they_are_listed() {
    let listed = |builder: GgufBuilder, name, offset| {
        builder.described(super::builder::describe(name, &[8], F32, offset))
    };
    let builder = listed(GgufBuilder::new(), "second", 32);
    let mut bytes = listed(builder, "first", 0).build();
    bytes.extend([1; 32]);
    bytes.extend([2; 32]);
    let file = read_gguf(bytes).unwrap();
    assert_eq!(file.tensors.get("first").unwrap().data[..], [1; 32]);
    assert_eq!(file.tensors.get("second").unwrap().data[..], [2; 32]);
}

/// `GGML_QUANT_SIZES` of the gguf package, version 0.19: id, elements and bytes of a block, name.
const GGML_TYPES: &[(u32, u64, usize, &str)] = &[
    (0, 1, 4, "f32"),
    (1, 1, 2, "f16"),
    (2, 32, 18, "q4_0"),
    (3, 32, 20, "q4_1"),
    (6, 32, 22, "q5_0"),
    (7, 32, 24, "q5_1"),
    (8, 32, 34, "q8_0"),
    // The package says 40 bytes, from when the two halves were f32; ggml-common.h has had f16 since 2024.
    (9, 32, 36, "q8_1"),
    (10, 256, 84, "q2_k"),
    (11, 256, 110, "q3_k"),
    (12, 256, 144, "q4_k"),
    (13, 256, 176, "q5_k"),
    (14, 256, 210, "q6_k"),
    (15, 256, 292, "q8_k"),
    (16, 256, 66, "iq2_xxs"),
    (17, 256, 74, "iq2_xs"),
    (18, 256, 98, "iq3_xxs"),
    (19, 256, 50, "iq1_s"),
    (20, 32, 18, "iq4_nl"),
    (21, 256, 110, "iq3_s"),
    (22, 256, 82, "iq2_s"),
    (23, 256, 136, "iq4_xs"),
    (24, 1, 1, "i8"),
    (25, 1, 2, "i16"),
    (26, 1, 4, "i32"),
    (27, 1, 8, "i64"),
    (28, 1, 8, "f64"),
    (29, 256, 56, "iq1_m"),
    (30, 1, 2, "bf16"),
    (34, 256, 54, "tq1_0"),
    (35, 256, 66, "tq2_0"),
    (39, 32, 17, "mxfp4"),
    (40, 64, 36, "nvfp4"),
    (41, 128, 18, "q1_0"),
    // Of ggml.h; the package lacks it.
    (42, 64, 18, "q2_0"),
];

#[test]
fn every_type_of_ggml_is_known_by_its_id_and_size() {
    for &(id, elements, bytes, name) in GGML_TYPES {
        let file = read_gguf(GgufBuilder::new().tensor("w", &[elements], id, bytes).build()).unwrap();
        let tensor = file.tensors.get("w").unwrap();
        assert_eq!(tensor.dtype.name(), name);
        assert_eq!(tensor.data.len(), bytes, "{name}");
    }
}

#[test]
fn the_real_gguf_files_hold_one_model_in_three_types() {
    for (file, dtype) in [("f32", DType::F32), ("f16", DType::F16), ("q8_0", DType::Q8_0)] {
        let gguf = Gguf::read(&open(&format!("tiny-llama2-{file}.gguf"))).unwrap();
        assert_eq!(gguf.require::<&str>("general.architecture").unwrap(), "llama");
        assert_eq!(gguf.tensors.get("blk.0.ffn_down.weight").unwrap().dtype, dtype);
    }
}

#[test]
fn the_real_gguf_and_safetensors_files_agree_bit_for_bit() {
    let gguf = Gguf::read(&open("tiny-llama2-f32.gguf")).unwrap();
    let hf = Safetensors::read(&open("hf/model.safetensors")).unwrap();
    for (ours, theirs) in [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ] {
        let (ours, theirs) = (gguf.tensors.get(ours).unwrap(), hf.tensors.get(theirs).unwrap());
        assert_eq!((ours.dtype, &ours.shape, &ours.data), (theirs.dtype, &theirs.shape, &theirs.data));
    }
}

#[test]
fn a_tensor_may_have_four_dimensions() {
    let file = read_gguf(GgufBuilder::new().tensor("w", &[32, 1, 2, 2], Q8_0, 4 * 34).build()).unwrap();
    assert_eq!(file.tensors.get("w").unwrap().shape, [2, 2, 1, 32]);
}
