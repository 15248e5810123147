//! What the readers of `format/` accept, what they refuse, and that damage makes them neither panic nor
//! allocate more than the file justifies.

mod bitnet;
pub mod builder;
mod detect;
mod gguf_metadata;
mod gguf_refusals;
mod gguf_tensors;
mod llama2c;
mod memory;
mod mutations;
mod npy;
mod pytorch;
mod safetensors;

use xcheck::format::{self, FileBytes, Format, Gguf, Safetensors};
use xcheck::weight::StoredTensor;
use xcheck::{Error, Result};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// The name that every message must say.
const FILE: &str = "hostile.file";

fn source(bytes: impl Into<Vec<u8>>) -> FileBytes {
    FileBytes { path: FILE.into(), data: bytes.into().into() }
}

fn read_gguf(bytes: impl Into<Vec<u8>>) -> Result<Gguf> {
    Gguf::read(&source(bytes))
}

fn read_safetensors(bytes: impl Into<Vec<u8>>) -> Result<Safetensors> {
    Safetensors::read(&source(bytes))
}

fn read_npy(bytes: impl Into<Vec<u8>>) -> Result<StoredTensor> {
    format::npy::read(&source(bytes), None)
}

fn detect_format(bytes: impl Into<Vec<u8>>) -> Result<Format> {
    Format::detect(&source(bytes))
}

/// One line that names the file: what every refusal owes the user.
fn assert_is_a_message(error: &Error) {
    let message = error.to_string();
    assert!(message.contains(FILE), "no file in: {message}");
    assert!(!message.contains(char::is_control), "not one plain line: {message:?}");
}

fn assert_says(message: &str, part: impl AsRef<str>) {
    assert!(message.contains(part.as_ref()), "{:?} is not in: {message}", part.as_ref());
}

/// Asserts that reading was refused with this variant, in a message that has all the given parts.
macro_rules! assert_refused_as {
    ($result:expr, $variant:pat, $($part:expr),+ $(,)?) => {{
        let error = $result.expect_err("this must be refused");
        assert!(matches!(error, $variant), "another variant: {error:?}");
        crate::format::assert_is_a_message(&error);
        let message = error.to_string();
        $(crate::format::assert_says(&message, $part);)+
    }};
}
pub(crate) use assert_refused_as;

/// The same of a file that is not what its format says.
macro_rules! assert_refused {
    ($result:expr, $variant:pat, $($part:expr),+ $(,)?) => {
        crate::format::assert_refused_as!($result, xcheck::Error::Format($variant), $($part),+)
    };
}
pub(crate) use assert_refused;
