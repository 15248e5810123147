//! Writes dumps of our own engine: a tap that records the values of a run.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use zerocopy::IntoBytes;

use crate::atomic_write::{UnfinishedFile, UnfinishedFolder};
use crate::checkpoint::{Point, Site, ValueKind};
use crate::dump::reader::{MANIFEST, METADATA_KEY, key};
use crate::dump::sketch::{self, sketched};
use crate::dump::{Dump, Manifest, Pass, TensorRow};
use crate::error::{Error, Result};
use crate::format::{FileBytes, npy};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::view::View;
use crate::weight::DType;

/// Records all tapped values of a run, into a directory during the run or into one `.safetensors` file at the
/// end. The final name appears only when the dump is complete.
///
/// A tap cannot fail, so the first error stops the recording. [`Recorder::finish`] returns the error.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    manifest: Manifest,
    sink: RecorderSink,
    sketches: bool,
    error: Option<Error>,
}

/// A value to write: shape and elements.
struct RecordedArray {
    shape: Vec<usize>,
    elements: Elements,
}

enum Elements {
    Ids(Vec<u32>),
    Singles(Vec<f32>),
    Doubles(Vec<f64>),
}

#[derive(Debug)]
enum RecorderSink {
    Directory(UnfinishedFolder),
    /// The unfinished file, and the array data. The header is written at the end.
    Safetensors(UnfinishedFile, SafetensorsBody),
}

/// The little-endian array data of a file whose header is not known yet. Arrays with 8-byte elements are
/// written first, so that every array is aligned.
#[derive(Debug)]
struct SafetensorsBody {
    wide: BufWriter<File>,
    narrow: BufWriter<File>,
}

impl SafetensorsBody {
    /// Opens unnamed temporary files in the directory of the final file.
    fn beside(path: &Path) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let part = || Ok::<_, io::Error>(BufWriter::new(tempfile::tempfile_in(folder)?));
        Ok(Self { wide: part()?, narrow: part()? })
    }

    fn write(&mut self, elements: &Elements) -> io::Result<()> {
        match elements {
            Elements::Ids(ids) => self.narrow.write_all(ids.as_bytes()),
            Elements::Singles(values) => self.narrow.write_all(values.as_bytes()),
            Elements::Doubles(values) => self.wide.write_all(values.as_bytes()),
        }
    }

    fn copy_to(self, file: &mut File) -> io::Result<()> {
        for part in [self.wide, self.narrow] {
            let mut part = part.into_inner().map_err(io::IntoInnerError::into_error)?;
            part.rewind()?;
            io::copy(&mut part, file)?;
        }
        Ok(())
    }
}

impl Recorder {
    /// Starts a dump at `path`: a file if the name ends in `.safetensors`, else a new directory.
    ///
    /// # Errors
    /// If the path already exists, or the directory cannot be created.
    pub fn create(path: &Path, manifest: Manifest) -> Result<Self> {
        if path.exists() {
            return Err(Error::Usage(format!(
                "{} already exists; use another name or remove it",
                path.display()
            )));
        }
        let sink = if path.extension().is_some_and(|extension| extension == "safetensors") {
            let file = UnfinishedFile::of(path).map_err(Error::io("create", path))?;
            RecorderSink::Safetensors(file, SafetensorsBody::beside(path).map_err(Error::io("create", path))?)
        } else {
            let parent = path.parent().unwrap_or(path);
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
            RecorderSink::Directory(UnfinishedFolder::of(path).map_err(Error::io("create", path))?)
        };
        Ok(Self { path: path.to_owned(), manifest, sink, sketches: false, error: None })
    }

    /// Writes sketches instead of activations. Omits attention scores, since the attention weights show the
    /// same. Logits at the end of a pass are written in full.
    pub fn sketching(self) -> Self {
        Self { sketches: true, ..self }
    }

    /// Sets the SHA-256 of the weights, which may be known only after the run.
    pub fn made_from(&mut self, sha256: String) {
        self.manifest.model.sha256 = Some(sha256);
    }

    /// Writes the manifest with the tokens that each pass read and the generated tokens.
    ///
    /// # Errors
    /// The first error of recording or writing. The dump is then removed.
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
        match self.sink {
            RecorderSink::Directory(folder) => {
                let file = folder.path().join(MANIFEST);
                fs::write(&file, json + "\n").map_err(Error::io("write", &file))?;
                folder.finish_new(&self.path).map_err(Error::io("write", &self.path))
            }
            RecorderSink::Safetensors(mut file, body) => {
                let header = header(&self.manifest, json);
                let written = file.as_file().write_all(&header).and_then(|()| body.copy_to(file.as_file()));
                written.and_then(|()| file.finish_new()).map_err(Error::io("write", &self.path))
            }
        }
    }

    fn record(&mut self, site: Site, value: &Tensor) -> Result<()> {
        let sketch = self.sketches && site.point.kind() == ValueKind::Real && site.point != Point::LastLogits;
        if sketch && !sketch::is_sketched(site.point) {
            return Ok(());
        }
        let array = RecordedArray::of(site.point, value, sketch);
        match &mut self.sink {
            RecorderSink::Directory(folder) => write_npy(&folder.path().join(file_name(site)), &array)?,
            RecorderSink::Safetensors(_, body) => {
                body.write(&array.elements).map_err(Error::io("write beside", &self.path))?;
            }
        }
        self.manifest.tensors.push(TensorRow { sketch, ..row(site, value) });
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
    /// Makes a dump in memory that contains only the continuation in the manifest, if there is one.
    ///
    /// # Errors
    /// If the manifest contradicts itself.
    pub fn of_continuation(path: &Path, manifest: &Manifest) -> Result<Self> {
        let json = serde_json::to_string(manifest).expect("a manifest is plain data");
        let data = header(manifest, json).into();
        Self::from_source(FileBytes { path: path.to_owned(), data })
    }
}

impl Manifest {
    /// Returns the bytes of a `.safetensors` dump with these arrays, one per manifest row. Elements are `f32`
    /// or `u32`, little-endian.
    pub fn packed(&self, arrays: &[Vec<u8>]) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("a manifest is plain data");
        [header(self, json), arrays.concat()].concat()
    }
}

/// Makes the manifest row of a recorded value.
fn row(site: Site, value: &Tensor) -> TensorRow {
    let dtype = if site.point.kind() == ValueKind::Token { DType::U32 } else { DType::F32 };
    TensorRow::new(site, dtype, value.shape(), &file_name(site))
}

/// Returns the header of a `.safetensors` file: the manifest as metadata, and the offsets of each array.
fn header(manifest: &Manifest, json: String) -> Vec<u8> {
    let mut offset = 0;
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({ METADATA_KEY: json }))]);
    for wide in [true, false] {
        for row in manifest.tensors.iter().filter(|row| row.sketch == wide) {
            let dtype = match (wide, row.dtype.as_str()) {
                (true, _) => "F64",
                (false, "u32") => "U32",
                (false, _) => "F32",
            };
            let shape = row.site().map_or_else(|_| row.shape.clone(), |site| row.stored_shape(site.point));
            let size = shape.iter().product::<usize>() * if wide { 8 } else { 4 };
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]});
            header.insert(key(&row.file).to_owned(), entry);
            offset += size;
        }
    }
    let mut text = Value::Object(header).to_string();
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Returns the file name of a site, e.g. `p0/l03/attn_norm.npy`, `p0/logits.npy` or `generated.npy`.
fn file_name(site: Site) -> String {
    let pass = site.pass.map_or(String::new(), |pass| format!("p{pass}/"));
    let layer = site.layer.map_or(String::new(), |layer| format!("l{layer:02}/"));
    format!("{pass}{layer}{}.npy", site.point)
}

impl RecordedArray {
    fn of(point: Point, value: &Tensor, sketch: bool) -> Self {
        let elements = match point.kind() {
            ValueKind::Token => Elements::Ids(value.data().iter().map(|&id| id as u32).collect()),
            ValueKind::Real if sketch => {
                let sketch = sketched(point, &View::from(value));
                return Self { shape: sketch.shape().to_vec(), elements: Elements::Doubles(sketch.to_vec()) };
            }
            ValueKind::Real => Elements::Singles(value.data().to_vec()),
        };
        Self { shape: value.shape().to_vec(), elements }
    }
}

fn write_npy(path: &Path, RecordedArray { shape, elements }: &RecordedArray) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }
    let (dtype, bytes) = match elements {
        Elements::Ids(ids) => (DType::U32, ids.as_bytes()),
        Elements::Singles(values) => (DType::F32, values.as_bytes()),
        Elements::Doubles(values) => (DType::F64, values.as_bytes()),
    };
    let header = npy::header(dtype, shape).expect("NumPy has all types of the writer");
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(&header)?;
        file.write_all(bytes)
    };
    write().map_err(Error::io("write", path))
}
