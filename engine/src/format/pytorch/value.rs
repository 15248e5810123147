//! Values that a pickle may contain, and names that it may reference.

use crate::lazy_bytes::LazyBytes;
use crate::weight::{DType, StoredTensor};

/// A value on the stack. A container is an index into a table of the machine. Copies are therefore cheap, and no
/// code is recursive, however deeply a pickle nests or shares values.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickleValue<'p> {
    None,
    Bool(bool),
    Int(i64),
    Float,
    Text(&'p str),
    Tuple {
        /// Index of the tuple's first item.
        first: usize,
        len: usize,
    },
    List(usize),
    Dict(usize),
    /// An object of a class that only carries tensors. Its attributes are a dict.
    Object(usize),
    /// Raw bytes, as an index into the machine's NumPy values. The next two variants are such indices too.
    Bytes(usize),
    NumpyType(usize),
    NumpyArray(usize),
    Global(Global),
    Storage(usize),
    Tensor(usize),
}

impl PickleValue<'_> {
    /// Returns its kind, for messages.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            PickleValue::None => "None",
            PickleValue::Bool(_) => "a bool",
            PickleValue::Int(_) => "a whole number",
            PickleValue::Float => "a float",
            PickleValue::Text(_) => "a text",
            PickleValue::Tuple { .. } => "a tuple",
            PickleValue::List(_) => "a list",
            PickleValue::Dict(_) => "a dict",
            PickleValue::Object(_) => "an object",
            PickleValue::Bytes(_) => "bytes",
            PickleValue::NumpyType(_) => "a NumPy type",
            PickleValue::NumpyArray(_) => "a NumPy array",
            PickleValue::Global(_) => "a class or function",
            PickleValue::Storage(_) => "a storage",
            PickleValue::Tensor(_) => "a tensor",
        }
    }
}

/// Storage: raw numbers that tensors are views of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'p> {
    /// Element type; `None` if each tensor has its own type and the storage counts bytes.
    pub(crate) dtype: Option<DType>,
    /// Name below `data/`.
    pub(crate) key: &'p str,
    pub(crate) elements: usize,
}

/// An axis of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct StridedAxis {
    /// Number of entries.
    pub(crate) size: usize,
    /// Number of storage elements between neighbouring entries.
    pub(crate) stride: usize,
}

/// A tensor as described by the pickle, unchecked.
#[derive(Clone, Debug)]
pub(super) struct PickleTensor<'p> {
    /// Offset of the description in the pickle.
    pub(crate) at: usize,
    pub(crate) dtype: DType,
    pub(crate) storage: Storage<'p>,
    /// Offset in the storage, in elements.
    pub(crate) offset: usize,
    /// Axes, outermost first.
    pub(crate) axes: Vec<StridedAxis>,
}

/// Bytes, types and arrays, as the pickle describes them.
#[derive(Default)]
pub(super) struct NumpyValues {
    pub(crate) blobs: Vec<LazyBytes>,
    pub(crate) types: Vec<DType>,
    /// Arrays. An entry is `None` until the pickle sets the array's values.
    pub(crate) arrays: Vec<Option<StoredTensor>>,
    /// Total number of bytes to which texts were encoded.
    pub(crate) encoded: usize,
}

/// Names that a pickle may reference. No function is called; the machine imitates what it would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    DefaultDict,
    /// Default factory of a `defaultdict`; never called.
    Container,
    Size,
    RebuildParameter,
    RebuildTensorV2,
    RebuildTensorV3,
    Storage(Option<DType>),
    DType(DType),
    /// A class of model outputs that is a dict of tensors.
    Output,
    /// A class whose attributes contain tensors.
    Record,
    /// A device or a type, stored in addition to tensors.
    Description,
    NumpyArray,
    NumpyType,
    NumpyReconstruct,
    NumpyFromBuffer,
    /// Text that stands for bytes, in pickles of protocol 2.
    Encode,
}

impl Global {
    pub(crate) fn of(module: &str, name: &str) -> Option<Self> {
        GLOBALS.iter().find(|(known, ..)| *known == (module, name)).map(|&(_, global)| global)
    }

    /// Returns the meaning of a name in hqq's `qmodel.pt`, which also names types of torch, such as `torch.uint8`.
    pub(crate) fn of_modules(module: &str, name: &str) -> Option<Self> {
        match module {
            "torch" if name == "uint8" || DESCRIBED_TYPES.contains(&name) => Some(Global::Description),
            _ => Self::of(module, name),
        }
    }

    /// Returns the meaning of a name in a file of activations. Besides tensors, such a file may contain outputs of
    /// transformers models, which are dicts, and caches.
    pub(crate) fn of_activations(module: &str, name: &str) -> Option<Self> {
        let path: Vec<&str> = module.split('.').collect();
        match path[..] {
            ["transformers", "modeling_outputs"] | ["transformers", "generation", "utils"]
                if name.contains("Output") =>
            {
                Some(Global::Output)
            }
            ["transformers", "models", _, file] if file.starts_with("model") && name.contains("Output") => {
                Some(Global::Output)
            }
            ["transformers", "feature_extraction_utils" | "tokenization_utils_base"]
                if ["BatchFeature", "BatchEncoding"].contains(&name) =>
            {
                Some(Global::Record)
            }
            ["transformers", "cache_utils"] if name.ends_with("Cache") || name.ends_with("Layer") => {
                Some(Global::Record)
            }
            ["numpy"] if name == "ndarray" => Some(Global::NumpyArray),
            ["numpy"] if name == "dtype" => Some(Global::NumpyType),
            ["numpy", "core" | "_core", "multiarray"] if name == "_reconstruct" => {
                Some(Global::NumpyReconstruct)
            }
            ["numpy", "core" | "_core", "numeric"] if name == "_frombuffer" => Some(Global::NumpyFromBuffer),
            ["_codecs"] if name == "encode" => Some(Global::Encode),
            ["torch"] if name == "device" || DESCRIBED_TYPES.contains(&name) => Some(Global::Description),
            _ => Self::of(module, name),
        }
    }
}

/// Types that outputs of transformers models contain in addition to tensors.
const DESCRIBED_TYPES: &[&str] = &["float64", "float32", "float16", "bfloat16", "int64", "int32", "bool"];

const GLOBALS: &[((&str, &str), Global)] = &[
    (("collections", "OrderedDict"), Global::OrderedDict),
    (("collections", "defaultdict"), Global::DefaultDict),
    (("__builtin__", "dict"), Global::Container),
    (("__builtin__", "list"), Global::Container),
    (("builtins", "dict"), Global::Container),
    (("builtins", "list"), Global::Container),
    (("torch", "Size"), Global::Size),
    (("torch._utils", "_rebuild_parameter"), Global::RebuildParameter),
    (("torch._utils", "_rebuild_tensor_v2"), Global::RebuildTensorV2),
    (("torch._utils", "_rebuild_tensor_v3"), Global::RebuildTensorV3),
    (("torch.storage", "UntypedStorage"), Global::Storage(None)),
    (("torch", "DoubleStorage"), Global::Storage(Some(DType::F64))),
    (("torch", "FloatStorage"), Global::Storage(Some(DType::F32))),
    (("torch", "HalfStorage"), Global::Storage(Some(DType::F16))),
    (("torch", "BFloat16Storage"), Global::Storage(Some(DType::BF16))),
    (("torch", "LongStorage"), Global::Storage(Some(DType::I64))),
    (("torch", "IntStorage"), Global::Storage(Some(DType::I32))),
    (("torch", "ShortStorage"), Global::Storage(Some(DType::I16))),
    (("torch", "CharStorage"), Global::Storage(Some(DType::I8))),
    (("torch", "ByteStorage"), Global::Storage(Some(DType::U8))),
    (("torch", "BoolStorage"), Global::Storage(Some(DType::BOOL))),
    // Types without a storage class; torch references no other types by these names.
    (("torch", "uint16"), Global::DType(DType::U16)),
    (("torch", "uint32"), Global::DType(DType::U32)),
    (("torch", "uint64"), Global::DType(DType::U64)),
];
