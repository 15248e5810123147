//! The names of element types in various programs.

use crate::weight::DType;

/// Names of types in torch, NumPy and C, in addition to the names of ggml and of the dump format.
const SPELLINGS: &[(DType, &[&str])] = &[
    (DType::F32, &["float32", "fp32", "float", "single"]),
    (DType::F64, &["float64", "fp64", "double"]),
    (DType::F16, &["float16", "fp16", "half"]),
    (DType::BF16, &["bfloat16"]),
    (DType::F8_E4M3, &["float8_e4m3fn", "e4m3fn", "fp8_e4m3"]),
    (DType::F8_E5M2, &["float8_e5m2", "e5m2", "fp8_e5m2"]),
    (DType::I8, &["int8", "int8_t"]),
    (DType::I16, &["int16", "short"]),
    (DType::I32, &["int32", "int"]),
    (DType::I64, &["int64", "long"]),
    (DType::U8, &["uint8", "uint8_t"]),
    (DType::U16, &["uint16"]),
    (DType::U32, &["uint32"]),
    (DType::U64, &["uint64"]),
];

/// Returns the type with this name. Ignores case and a library prefix such as `torch.` in `torch.bfloat16`.
pub(super) fn dtype_named(name: &str) -> Option<DType> {
    let name = name.trim();
    let name = name.rsplit_once('.').map_or(name, |(_, name)| name);
    let spelled =
        || SPELLINGS.iter().find(|(_, names)| names.iter().any(|spelled| spelled.eq_ignore_ascii_case(name)));
    DType::named(name).or_else(|| spelled().map(|(dtype, _)| *dtype))
}
