//! One tensor of ONNX, as `onnx.save_tensor` and the test data of models store it: the protocol buffer TensorProto. Field
//! numbers and types are those of onnx's `onnx.proto`.

use prost::Message;

use super::super::{EscapedText, FileBytes, stored_bytes};
use crate::error::{Error, Result};
use crate::weight::{DType, StoredTensor};

#[derive(Message)]
struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    data_type: Option<i32>,
    #[prost(float, repeated, tag = "4")]
    float_data: Vec<f32>,
    #[prost(int64, repeated, tag = "7")]
    int64_data: Vec<i64>,
    #[prost(string, optional, tag = "8")]
    name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "9")]
    raw_data: Option<Vec<u8>>,
    #[prost(double, repeated, tag = "10")]
    double_data: Vec<f64>,
    #[prost(int32, optional, tag = "14")]
    data_location: Option<i32>,
}

/// Value of `data_location` for a tensor in another file.
const EXTERNAL: i32 = 1;
const TYPES: &[(i32, DType)] = &[
    (1, DType::F32),
    (2, DType::U8),
    (3, DType::I8),
    (4, DType::U16),
    (5, DType::I16),
    (6, DType::I32),
    (7, DType::I64),
    (9, DType::BOOL),
    (10, DType::F16),
    (11, DType::F64),
    (12, DType::U32),
    (13, DType::U64),
    (16, DType::BF16),
];

/// Reads a tensor with its name. The name is left empty unless the file is called `input_0` or the like, since
/// another file name says more.
pub(super) fn read(source: &FileBytes) -> Result<(String, StoredTensor)> {
    let refuse = |problem: String| Error::BadContainer {
        file: source.path.clone(),
        format: "ONNX TensorProto",
        problem,
    };
    let proto = TensorProto::decode(&source.data[..]).map_err(|error| refuse(error.to_string()))?;
    if proto.data_location == Some(EXTERNAL) {
        return Err(refuse("its values are in another file; save it with raw data".to_owned()));
    }
    let number = proto.data_type.unwrap_or(0);
    let known = TYPES.iter().find(|(known, _)| *known == number).map(|&(_, dtype)| dtype);
    let dtype =
        known.ok_or_else(|| refuse(format!("data type {number}, expected numbers; save it as float32")))?;
    let shape =
        proto.dims.iter().map(|&length| usize::try_from(length)).collect::<std::result::Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| refuse(format!("dims {:?}, expected no negative length", proto.dims)))?;
    let bytes = proto.bytes(dtype);
    if bytes.is_empty() || stored_bytes(dtype, &shape) != Some(bytes.len()) {
        let problem =
            format!("{} bytes of data, expected dims {shape:?} of {dtype} as raw data", bytes.len());
        return Err(refuse(problem));
    }
    let data = bytes::Bytes::from(bytes).into();
    Ok((proto.name_besides(source), StoredTensor { dtype, shape, data }))
}

impl TensorProto {
    /// Returns the values as bytes: the raw data, or the field for the tensor's type if there is no raw data.
    fn bytes(&self, dtype: DType) -> Vec<u8> {
        match (&self.raw_data, dtype) {
            (Some(raw), _) => raw.clone(),
            (None, DType::F32) => self.float_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
            (None, DType::F64) => self.double_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
            (None, DType::I64) => self.int64_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
            _ => Vec::new(),
        }
    }

    fn name_besides(&self, source: &FileBytes) -> String {
        let stem = source.path.file_stem().unwrap_or_default().to_string_lossy();
        let is_numbered = ["input_", "output_"].iter().any(|begin| stem.starts_with(begin));
        let name = self.name.clone().filter(|_| is_numbered).unwrap_or_default();
        EscapedText(&name).to_string()
    }
}
