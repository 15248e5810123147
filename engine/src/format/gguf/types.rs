//! ggml's numeric type ids, as listed in `enum ggml_type` of ggml.h.

use crate::weight::DType;

/// Tensor type that an id in a GGUF file means.
pub(super) enum TensorType {
    /// A supported type.
    Known(DType),
    /// A type that is not supported, with its name and advice.
    Refused(&'static str, &'static str),
    /// An id that ggml had not assigned when this was written.
    Unknown,
}

const REMOVED: &str = "ggml removed it; quantize the original model again";
const REPACKED: &str = "ggml removed it from files; quantize the original model to the plain type again";
const ACTIVATIONS: &str = "bitnet.cpp uses it for activations, not for weights; quantize the model again";
const AMBIGUOUS: &str = "bitnet.cpp uses the type id of MXFP4 for TL2, and general.file_type does not say which of the \
                         two this is (39 for TL2, 38 for MXFP4); quantize the model again";

/// Dialect of a file. bitnet.cpp's fork gave some type ids meanings of its own.
#[derive(Clone, Copy)]
pub(super) struct FileDialect {
    /// True if, for this architecture, only the fork's files contain the ambiguous types.
    pub(crate) bitnet: bool,
    /// `general.file_type`: the type of most tensors. The fork also uses numbers of its own for it.
    pub(crate) file_type: Option<u32>,
}

/// Returns the meaning of a type id.
///
/// For other architectures (bitnet.cpp runs ternary Llama and Falcon models), the fork's types are recognised by
/// the file type, because upstream combines that file type with other tensor ids. TL2 and NVFP4 files have the same
/// file type, and either may contain the id 39.
pub(super) fn tensor_type(id: u32, origin: FileDialect) -> TensorType {
    match (id, origin.bitnet, origin.file_type) {
        (36, true, _) | (36, _, Some(40)) => TensorType::Known(DType::I2_S),
        (37, true, _) => TensorType::Refused("I8_S (37)", ACTIVATIONS),
        (38, true, _) | (38, _, Some(38)) => TensorType::Known(DType::TL1),
        (39, true, Some(39)) => TensorType::Known(DType::TL2),
        (39, true, Some(38)) => TensorType::Known(DType::MXFP4),
        (39, true, _) | (39, false, Some(39)) => TensorType::Refused("TL2 or MXFP4 (39)", AMBIGUOUS),
        _ => known(id).map_or_else(|| refused(id), TensorType::Known),
    }
}

fn known(id: u32) -> Option<DType> {
    Some(match id {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        9 => DType::Q8_1,
        10 => DType::Q2_K,
        11 => DType::Q3_K,
        12 => DType::Q4_K,
        13 => DType::Q5_K,
        14 => DType::Q6_K,
        15 => DType::Q8_K,
        16 => DType::IQ2_XXS,
        17 => DType::IQ2_XS,
        18 => DType::IQ3_XXS,
        19 => DType::IQ1_S,
        20 => DType::IQ4_NL,
        21 => DType::IQ3_S,
        22 => DType::IQ2_S,
        23 => DType::IQ4_XS,
        24 => DType::I8,
        25 => DType::I16,
        26 => DType::I32,
        27 => DType::I64,
        28 => DType::F64,
        29 => DType::IQ1_M,
        30 => DType::BF16,
        34 => DType::TQ1_0,
        35 => DType::TQ2_0,
        39 => DType::MXFP4,
        40 => DType::NVFP4,
        41 => DType::Q1_0,
        42 => DType::Q2_0,
        _ => return None,
    })
}

fn refused(id: u32) -> TensorType {
    let (name, hint) = match id {
        4 => ("Q4_2 (4)", REMOVED),
        5 => ("Q4_3 (5)", REMOVED),
        31 => ("Q4_0_4_4 (31)", REPACKED),
        32 => ("Q4_0_4_8 (32)", REPACKED),
        33 => ("Q4_0_8_8 (33)", REPACKED),
        36 => ("IQ4_NL_4_4 (36)", REPACKED),
        37 => ("IQ4_NL_4_8 (37)", REPACKED),
        38 => ("IQ4_NL_8_8 (38)", REPACKED),
        _ => return TensorType::Unknown,
    };
    TensorType::Refused(name, hint)
}
