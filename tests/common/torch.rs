//! Writes PyTorch checkpoints byte by byte, well-formed or hostile.

use std::io::{Cursor, Write};

use xcheck::format::TensorFile;
use xcheck::weight::DType;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A zip archive of members below the folder `archive`, as they are.
pub fn archive<'m>(members: impl IntoIterator<Item = (&'m str, &'m [u8])>) -> Vec<u8> {
    archive_with(CompressionMethod::Stored, members)
}

/// The same, compressed in some way.
pub fn archive_with<'m>(
    method: CompressionMethod,
    members: impl IntoIterator<Item = (&'m str, &'m [u8])>,
) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(format!("archive/{name}"), options).expect("a new member");
        zip.write_all(bytes).expect("it is written to memory");
    }
    zip.finish().expect("it is written to memory").into_inner()
}

/// A checkpoint of tensors in the order of a file, each in a storage of its own.
pub fn checkpoint(tensors: &TensorFile) -> Vec<u8> {
    let mut pickle = Pickle::new().op(b"}(");
    let keys: Vec<String> = (0..tensors.len()).map(|key| format!("data/{key}")).collect();
    for (key, (name, tensor)) in tensors.iter().enumerate() {
        let shape: Vec<i64> = tensor.shape.iter().map(|&len| len as i64).collect();
        let strides = row_major(&shape);
        let storage = Storage { class: class(tensor.dtype), key, elements: tensor.elements() as i64 };
        pickle = pickle.text(name).tensor(storage, 0, &shape, &strides);
    }
    let pickle = pickle.op(b"u.").bytes;
    let storages = tensors.iter().map(|(_, tensor)| &tensor.data[..]);
    let storages = keys.iter().map(String::as_str).zip(storages);
    archive([("data.pkl", &pickle[..]), ("byteorder", b"little")].into_iter().chain(storages))
}

/// Strides in which the last axis is the fastest.
pub fn row_major(shape: &[i64]) -> Vec<i64> {
    (1..=shape.len()).map(|inner| shape[inner..].iter().product()).collect()
}

fn class(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "FloatStorage",
        DType::F16 => "HalfStorage",
        DType::BF16 => "BFloat16Storage",
        other => panic!("no test needs {other}"),
    }
}

/// What a pickle says of a storage.
#[derive(Clone, Copy)]
pub struct Storage {
    pub class: &'static str,
    pub key: usize,
    pub elements: i64,
}

/// A pickle in the making.
#[derive(Clone)]
pub struct Pickle {
    pub bytes: Vec<u8>,
}

impl Pickle {
    /// Protocol 2, and nothing yet.
    pub fn new() -> Self {
        Self { bytes: b"\x80\x02".to_vec() }
    }

    /// Opcodes, and their arguments, as they are.
    pub fn op(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    pub fn text(self, text: &str) -> Self {
        self.op(b"X").op(&(text.len() as u32).to_le_bytes()).op(text.as_bytes())
    }

    pub fn int(self, number: i64) -> Self {
        self.op(b"\x8a\x08").op(&number.to_le_bytes())
    }

    pub fn global(self, module: &str, name: &str) -> Self {
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }

    pub fn storage(self, storage: Storage) -> Self {
        let named = self.op(b"(").text("storage").global("torch", storage.class);
        named.text(&storage.key.to_string()).text("cpu").int(storage.elements).op(b"tQ")
    }

    pub fn numbers(self, numbers: &[i64]) -> Self {
        numbers.iter().fold(self.op(b"("), |pickle, &number| pickle.int(number)).op(b"t")
    }

    pub fn tensor(self, storage: Storage, offset: i64, shape: &[i64], strides: &[i64]) -> Self {
        let call = self.global("torch._utils", "_rebuild_tensor_v2").op(b"(").storage(storage).int(offset);
        call.numbers(shape).numbers(strides).op(b"\x89}tR")
    }
}
