//! Our own engine as a producer: a tap that writes what it sees.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use npyz::WriterBuilder;
use safetensors::tensor::{Dtype, TensorView};

use crate::checkpoint::{Kind, Point, Site};
use crate::dump::reader::{MANIFEST, METADATA_KEY, key};
use crate::dump::{Dump, Manifest, Pass, TensorRow};
use crate::error::{Error, Result};
use crate::format::Source;
use crate::tap::Tap;
use crate::tensor::Tensor;

/// Writes every value it is shown: to a directory as it comes, or to one `.safetensors` file at the end.
///
/// A tap cannot fail, so the first error is kept, nothing more is written, and [`Recorder::finish`] returns it.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    manifest: Manifest,
    sink: Sink,
    error: Option<Error>,
}

#[derive(Debug)]
enum Sink {
    Directory,
    /// The file, opened before the run, and the elements of each tensor row, little-endian.
    Safetensors(File, Vec<Vec<u8>>),
}

impl Recorder {
    /// Starts a dump at `path`: a `.safetensors` file if it is named so, else a new directory.
    ///
    /// # Errors
    /// If something is already there, or the directory cannot be made.
    pub fn create(path: &Path, manifest: Manifest) -> Result<Self> {
        if path.exists() {
            return Err(Error::Usage(format!(
                "{} already exists; name another or remove it",
                path.display()
            )));
        }
        let sink = if path.extension().is_some_and(|extension| extension == "safetensors") {
            Sink::Safetensors(File::create_new(path).map_err(Error::io("create", path))?, Vec::new())
        } else {
            fs::create_dir_all(path).map_err(Error::io("create", path))?;
            Sink::Directory
        };
        Ok(Self { path: path.to_owned(), manifest, sink, error: None })
    }

    /// States the SHA-256 of the weights, which may be known only when the run is over.
    pub fn made_from(&mut self, sha256: String) {
        self.manifest.model.sha256 = Some(sha256);
    }

    /// Writes what is left: the manifest, completed by what only the run knew, the tokens of its passes and those
    /// it chose.
    ///
    /// # Errors
    /// The first error of the recording. Without its manifest a directory is no dump, and a file is removed.
    pub fn finish(mut self, passes: Vec<Vec<u32>>, generated: Vec<u32>) -> Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        for tokens in passes {
            let position = self.manifest.passes.last().map_or(0, Pass::end);
            self.manifest.passes.push(Pass { position, tokens, temperature: None });
        }
        self.manifest.generated = Some(generated);
        let json = serde_json::to_string_pretty(&self.manifest).expect("a manifest is plain data");
        match &mut self.sink {
            Sink::Directory => {
                let file = self.path.join(MANIFEST);
                fs::write(&file, json + "\n").map_err(Error::io("write", &file))
            }
            Sink::Safetensors(file, arrays) => {
                let bytes = safetensors(&self.manifest, arrays, json);
                file.write_all(&bytes).map_err(Error::io("write", &self.path)).inspect_err(|_| {
                    // The write has failed already; that nothing can be removed either adds nothing.
                    let _ = fs::remove_file(&self.path);
                })
            }
        }
    }

    fn record(&mut self, site: Site, value: &Tensor) -> Result<()> {
        match &mut self.sink {
            Sink::Directory => write_npy(&self.path.join(file_name(site)), site.point, value)?,
            Sink::Safetensors(_, arrays) => arrays.push(little_endian(site.point, value)),
        }
        self.manifest.tensors.push(row(site, value));
        Ok(())
    }
}

impl Tap for Recorder {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.error.is_none() {
            self.error = self.record(site, &value).err();
        }
        value
    }
}

impl Dump {
    /// A dump in memory that holds the continuation its manifest names, if it names one, and no other value.
    ///
    /// # Errors
    /// If the manifest contradicts itself.
    pub fn of_continuation(path: &Path, manifest: &Manifest) -> Result<Self> {
        let json = serde_json::to_string(manifest).expect("a manifest is plain data");
        let data = safetensors(manifest, &[], json).into();
        Self::from_source(Source { path: path.to_owned(), data })
    }
}

/// What a manifest says of a value that is written here.
fn row(site: Site, value: &Tensor) -> TensorRow {
    TensorRow {
        tap: site.point.name().to_owned(),
        pass: site.pass,
        layer: site.layer,
        dtype: if site.point.kind() == Kind::Token { "u32" } else { "f32" }.to_owned(),
        shape: value.shape().to_vec(),
        file: file_name(site),
        axes: None,
        sha256: None,
    }
}

/// The whole file: the manifest in the metadata, one tensor per row.
fn safetensors(manifest: &Manifest, arrays: &[Vec<u8>], json: String) -> Vec<u8> {
    let views = manifest.tensors.iter().zip(arrays).map(|(row, data)| {
        let dtype = if row.dtype == "u32" { Dtype::U32 } else { Dtype::F32 };
        let view =
            TensorView::new(dtype, row.shape.clone(), data).expect("the shape was taken from the data");
        (key(&row.file), view)
    });
    let metadata = [(METADATA_KEY.to_owned(), json)].into();
    safetensors::serialize(views, Some(metadata)).expect("the views are valid")
}

/// `p0/l03/attn_norm.npy`, `p0/logits.npy`, `generated.npy`
fn file_name(site: Site) -> String {
    let pass = site.pass.map_or(String::new(), |pass| format!("p{pass}/"));
    let layer = site.layer.map_or(String::new(), |layer| format!("l{layer:02}/"));
    format!("{pass}{layer}{}.npy", site.point)
}

fn little_endian(point: Point, value: &Tensor) -> Vec<u8> {
    let values = value.data().iter();
    match point.kind() {
        Kind::Token => values.flat_map(|&id| (id as u32).to_le_bytes()).collect(),
        Kind::Real => values.flat_map(|value| value.to_le_bytes()).collect(),
    }
}

fn write_npy(path: &Path, point: Point, value: &Tensor) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }
    let file = BufWriter::new(File::create(path).map_err(Error::io("create", path))?);
    let written = match point.kind() {
        Kind::Token => write_array(file, value.shape(), value.data().iter().map(|&id| id as u32)),
        Kind::Real => write_array(file, value.shape(), value.data().iter().copied()),
    };
    written.map_err(Error::io("write", path))
}

fn write_array<T: npyz::AutoSerialize>(
    mut file: BufWriter<File>,
    shape: &[usize],
    values: impl Iterator<Item = T>,
) -> std::io::Result<()> {
    let shape: Vec<u64> = shape.iter().map(|&length| length as u64).collect();
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut file).begin_nd()?;
    writer.extend(values)?;
    writer.finish()?;
    file.flush()
}
