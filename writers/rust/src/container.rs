//! Files under names of their own, until the dump is whole.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use serde_json::{json, Value};

use crate::error::{refuse, Error, Result};
use crate::values::Values;

/// Widths of elements, widest first: the arrays follow each other so, that each is aligned.
const WIDTHS: [usize; 3] = [8, 4, 2];
/// The limit of safetensors' own readers.
const LONGEST_HEADER: usize = 100_000_000;

/// What a dump is written to.
#[derive(Debug)]
pub(crate) struct Container {
    /// The name that it gets at the end.
    path: PathBuf,
    /// The name that it has until then.
    part: PathBuf,
    kind: Kind,
    keys: BTreeSet<String>,
    is_finished: bool,
}

#[derive(Debug)]
enum Kind {
    Folder,
    /// Elements by width, on their way into a file whose header is known at the end.
    File {
        spools: Box<[Option<Spool>; 3]>,
        entries: Vec<Entry>,
    },
}

#[derive(Debug)]
struct Spool {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
}

/// An array of the file: where it is among the elements of its width.
#[derive(Debug)]
struct Entry {
    key: String,
    dtype: &'static str,
    shape: Vec<usize>,
    spool: usize,
    offset: u64,
    bytes: u64,
}

impl Container {
    /// A file where the path ends so, else a folder.
    pub fn create(path: &Path) -> Result<Self> {
        if path.exists() {
            return refuse(format!("{} already exists; name another or remove it", path.display()));
        }
        let part = beside(path, ".part");
        let kind = if path.extension().is_some_and(|extension| extension == "safetensors") {
            // It is filled at the end: a folder that is not there is told before the long work.
            File::create(&part).map_err(Error::io("create", &part))?;
            Kind::File { spools: Box::default(), entries: Vec::new() }
        } else {
            let made = fs::create_dir(&part);
            if made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
                let part = part.display();
                return refuse(format!(
                    "{part} is there, of a run that is not over or was killed; remove it"
                ));
            }
            made.map_err(Error::io("create", &part))?;
            Kind::Folder
        };
        Ok(Self { path: path.to_owned(), part, kind, keys: BTreeSet::new(), is_finished: false })
    }

    /// Whether an array is there already.
    pub fn holds(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Stores an array under a key: p0/l00/q.
    pub fn store(&mut self, key: &str, shape: &[usize], values: Values) -> Result<()> {
        self.keys.insert(key.to_owned());
        let [_, dtype, npy] = values.names();
        match &mut self.kind {
            Kind::Folder => write_npy(&self.part.join(format!("{key}.npy")), npy, shape, values),
            Kind::File { spools, entries } => {
                let width = values.width();
                let spool = WIDTHS.iter().position(|&known| known == width).unwrap_or(0);
                let to = match &mut spools[spool] {
                    Some(there) => there,
                    none => none.insert(Spool::create(beside(&self.path, &format!(".part{width}")))?),
                };
                let (offset, bytes) = (to.bytes, (values.len() * width) as u64);
                values.write_to(&mut to.file).map_err(Error::io("write", &to.path))?;
                to.bytes += bytes;
                let (key, shape) = (key.to_owned(), shape.to_vec());
                entries.push(Entry { key, dtype, shape, spool, offset, bytes });
                Ok(())
            }
        }
    }

    /// Writes the manifest, and gives the dump its name.
    pub fn finish(&mut self, manifest: &str) -> Result<()> {
        match &mut self.kind {
            Kind::Folder => {
                let file = self.part.join("manifest.json");
                fs::write(&file, manifest).map_err(Error::io("write", &file))?;
            }
            Kind::File { spools, entries } => {
                let header = header(manifest, spools, entries);
                if header.len() > LONGEST_HEADER {
                    let bytes = header.len();
                    return refuse(format!(
                        "the header would have {bytes} bytes, readers take 100 MB; write a folder"
                    ));
                }
                let written = write_safetensors(&self.part, &header, spools);
                written.map_err(Error::io("write", &self.part))?;
            }
        }
        fs::rename(&self.part, &self.path).map_err(Error::io("rename to", &self.path))?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Container {
    /// What is not finished is removed. That it cannot be is nothing that anybody could be told here.
    fn drop(&mut self) {
        if let Kind::File { spools, .. } = &mut self.kind {
            for spool in spools.iter_mut().filter_map(Option::take) {
                let _ = fs::remove_file(&spool.path);
            }
        }
        if self.is_finished {
            return;
        }
        let _ = match self.kind {
            Kind::Folder => fs::remove_dir_all(&self.part),
            Kind::File { .. } => fs::remove_file(&self.part),
        };
    }
}

impl Spool {
    fn create(path: PathBuf) -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path);
        let file = BufWriter::new(file.map_err(Error::io("create", &path))?);
        Ok(Self { path, file, bytes: 0 })
    }
}

/// The path with something behind it.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// What stands before the elements: the manifest, and where each array is.
fn header(manifest: &str, spools: &[Option<Spool>; 3], entries: &[Entry]) -> String {
    let bytes = |spool: usize| spools[spool].as_ref().map_or(0, |spool| spool.bytes);
    let base = [0, bytes(0), bytes(0) + bytes(1)];
    let mut text = format!("{{\"__metadata__\":{}", json!({ "xcheck": manifest }));
    for entry in entries {
        let start = base[entry.spool] + entry.offset;
        let offsets = [start, start + entry.bytes];
        let place = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": offsets});
        text += &format!(",{}:{place}", Value::from(entry.key.as_str()));
    }
    text.push('}');
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    text
}

fn write_safetensors(path: &Path, header: &str, spools: &mut [Option<Spool>; 3]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for spool in spools.iter_mut().flatten() {
        spool.file.flush()?;
        spool.file.get_ref().rewind()?;
        let copied = io::copy(&mut spool.file.get_ref(), &mut file)?;
        if copied != spool.bytes {
            let problem =
                format!("{} has {copied} bytes, {} were written", spool.path.display(), spool.bytes);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem));
        }
    }
    Ok(())
}

fn write_npy(path: &Path, dtype: &str, shape: &[usize], values: Values) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    let mut file = BufWriter::new(File::create(path).map_err(Error::io("create", path))?);
    let written = file.write_all(&npy_header(dtype, shape));
    let written = written.and_then(|()| values.write_to(&mut file)).and_then(|()| file.flush());
    written.map_err(Error::io("write", path))
}

/// A Python dict, padded so that the elements begin at a multiple of 64.
fn npy_header(dtype: &str, shape: &[usize]) -> Vec<u8> {
    let lengths: String = shape.iter().map(|length| format!("{length},")).collect();
    let mut dict = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({lengths}), }}");
    dict += &" ".repeat(63 - (10 + dict.len()) % 64);
    dict.push('\n');
    [b"\x93NUMPY\x01\x00", &(dict.len() as u16).to_le_bytes()[..], dict.as_bytes()].concat()
}
