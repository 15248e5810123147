//! Tensors as a dump stores them, and the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_core::{DType, Tensor};
use safetensors::tensor::{Dtype, View};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// One tensor of a dump. Equal if every bit is: NaN equals itself, 0 does not equal -0.
#[derive(PartialEq, Eq)]
pub struct Record {
    tap: &'static str,
    pass: Option<usize>,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Record {
    /// Copies `values`, which are f32, f16, bf16 or u32.
    pub fn new(tap: &'static str, pass: Option<usize>, values: &Tensor) -> Result<Self> {
        let flat = values.flatten_all()?;
        let (dtype, bytes) = match values.dtype() {
            DType::F32 => ("f32", flat.to_vec1::<f32>()?.iter().flat_map(|x| x.to_le_bytes()).collect()),
            DType::F16 => {
                ("f16", flat.to_vec1::<half::f16>()?.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
            DType::BF16 => {
                ("bf16", flat.to_vec1::<half::bf16>()?.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
            DType::U32 => ("u32", flat.to_vec1::<u32>()?.iter().flat_map(|x| x.to_le_bytes()).collect()),
            other => bail!("{tap}: a tensor of {other:?}"),
        };
        Ok(Self { tap, pass, dtype, shape: values.dims().to_vec(), bytes })
    }

    fn key(&self) -> String {
        self.pass.map_or(self.tap.into(), |pass| format!("p{pass}/{}", self.tap))
    }

    fn row(&self) -> Value {
        let file = format!("{}.npy", self.key());
        let mut row = json!({"tap": self.tap, "dtype": self.dtype, "shape": self.shape, "file": file});
        if let Some(pass) = self.pass {
            row["pass"] = pass.into();
        }
        row
    }
}

impl View for &Record {
    fn dtype(&self) -> Dtype {
        match self.dtype {
            "f32" => Dtype::F32,
            "f16" => Dtype::F16,
            "bf16" => Dtype::BF16,
            _ => Dtype::U32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Writes the records and `manifest`, completed with one row for each.
pub fn write(out: &Path, mut manifest: Value, records: &[Record]) -> Result<()> {
    manifest["tensors"] = records.iter().map(Record::row).collect();
    let metadata = HashMap::from([("xcheck".to_string(), serde_json::to_string(&manifest)?)]);
    let tensors = records.iter().map(|record| (record.key(), record));
    safetensors::serialize_to_file(tensors, Some(metadata), out).with_context(|| out.display().to_string())
}

/// The lowest id among the largest logits.
pub fn lowest_argmax(logits: &Tensor) -> Result<u32> {
    let logits = logits.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    let mut best = 0;
    for (id, value) in logits.iter().enumerate() {
        if *value > logits[best] {
            best = id;
        }
    }
    Ok(u32::try_from(best)?)
}

/// The digest of the files, concatenated.
pub fn sha256(files: &[PathBuf]) -> Result<String> {
    let mut digest = Sha256::new();
    for path in files {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        let mut block = vec![0; 1 << 20];
        loop {
            let count = io::Read::read(&mut file, &mut block)?;
            if count == 0 {
                break;
            }
            digest.update(&block[..count]);
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The version in Cargo.toml, where it is pinned: the library does not say its own.
pub fn candle_version() -> &'static str {
    let pins = include_str!("../Cargo.toml");
    pins.lines()
        .find_map(|line| line.strip_prefix("candle-core = \"="))
        .map_or("unknown", |pin| pin.trim_end_matches('"'))
}
