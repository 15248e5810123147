//! Opening a dump, whatever its container, and reading its arrays.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::checkpoint::{Point, Site};
use crate::dump::npz::{member_names, read_member};
use crate::dump::{Manifest, TensorRow, Values};
use crate::error::{Error, Result};
use crate::format::npy::U2;
use crate::format::{Safetensors, Source, TensorFile, npy, plain};
use crate::weight::DType;

/// Name of the manifest in a directory or `.npz`.
pub(super) const MANIFEST: &str = "manifest.json";
/// More than the manifest of any dump; a member that claims more is damaged.
const MANIFEST_LIMIT: u64 = 1 << 28;
/// Key of the manifest in the metadata of a `.safetensors` file.
pub(super) const METADATA_KEY: &str = "xcheck";

/// A dump whose manifest was checked and whose arrays are all there.
#[derive(Debug)]
pub struct Dump {
    /// Where it is, for messages.
    pub path: PathBuf,
    /// What it holds.
    pub manifest: Manifest,
    container: Container,
    rows: HashMap<Site, usize>,
}

#[derive(Debug)]
enum Container {
    Directory(PathBuf),
    Npz(Bytes),
    Safetensors(TensorFile),
}

impl Dump {
    /// Opens a directory, a `.safetensors` or an `.npz` file.
    ///
    /// # Errors
    /// If there is no manifest, it contradicts the contract, or an array that it lists is not there.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            let file = path.join(MANIFEST);
            let json = std::fs::read(&file).map_err(Error::io("read", &file))?;
            return Self::new(path, &json, Container::Directory(path.to_owned()));
        }
        Self::from_source(Source::open(path)?)
    }

    /// Opens a `.safetensors` or `.npz` file whose bytes are at hand.
    ///
    /// # Errors
    /// As [`Dump::open`].
    pub fn from_source(source: Source) -> Result<Self> {
        const ZIP: &[u8] = b"PK\x03\x04";
        if source.data.starts_with(ZIP) {
            let json = read_member(&source.data, MANIFEST, MANIFEST_LIMIT)
                .map_err(|p| Error::dump(&source.path, p))?;
            return Self::new(&source.path, &json, Container::Npz(source.data));
        }
        let file = Safetensors::read(&source)?;
        let json = file.metadata.get(METADATA_KEY).ok_or_else(|| {
            let problem =
                format!("no manifest: __metadata__ has no key '{METADATA_KEY}'; is it a model's weights?");
            Error::dump(&source.path, problem)
        })?;
        Self::new(&source.path, json.as_bytes(), Container::Safetensors(file.tensors))
    }

    fn new(path: &Path, json: &[u8], container: Container) -> Result<Self> {
        let manifest = Manifest::parse(json, path)?;
        let mut rows = HashMap::new();
        for (index, row) in manifest.tensors.iter().enumerate() {
            rows.insert(row.site().map_err(|problem| Error::dump(path, problem))?, index);
        }
        let dump = Self { path: path.to_owned(), manifest, container, rows };
        dump.check_arrays_exist()?;
        Ok(dump)
    }

    /// Whether a safetensors file is a dump: its metadata holds a manifest.
    pub fn is_inside(file: &Safetensors) -> bool {
        file.metadata.contains_key(METADATA_KEY)
    }

    /// The places whose values it holds, in no order.
    pub fn sites(&self) -> impl Iterator<Item = Site> {
        self.rows.keys().copied()
    }

    /// The tap points of which it holds anything.
    pub fn points(&self) -> BTreeSet<Point> {
        self.sites().map(|site| site.point).collect()
    }

    /// Whether it holds the values of a place.
    pub fn holds(&self, site: Site) -> bool {
        self.rows.contains_key(&site)
    }

    /// What the manifest says of a place, if it holds it.
    pub fn row(&self, site: Site) -> Option<&TensorRow> {
        self.rows.get(&site).map(|&index| &self.manifest.tensors[index])
    }

    /// The values of a place as they are stored, `None` if it does not hold them.
    ///
    /// # Errors
    /// If the array is damaged or is not what the manifest says.
    pub fn read(&self, site: Site) -> Result<Option<Values>> {
        let Some(row) = self.row(site) else { return Ok(None) };
        let place = |problem: String| Error::dump(&self.path, format!("{}: {problem}", row.file));
        let values = self.read_row(row)?;
        if values.shape != row.shape {
            return Err(place(format!("shape {:?}, the manifest says {:?}", values.shape, row.shape)));
        }
        Ok(Some(values))
    }

    fn read_row(&self, row: &TensorRow) -> Result<Values> {
        let place = |problem: String| Error::dump(&self.path, format!("{}: {problem}", row.file));
        let dtype = row.dtype().map_err(place)?;
        let u2 = if dtype == DType::BF16 { U2::Bf16 } else { U2::Integer };
        let stored = match &self.container {
            Container::Directory(root) => npy::read(&Source::open(&root.join(&row.file))?, u2)?,
            Container::Npz(archive) => {
                let data = read_member(archive, &row.file, row.size()).map_err(place)?.into();
                npy::read(&Source { path: self.path.join(&row.file), data }, u2)?
            }
            Container::Safetensors(file) => {
                file.get(key(&row.file)).expect("opening checked that it is there").clone()
            }
        };
        if stored.dtype != dtype {
            return Err(place(format!("dtype {}, the manifest says {dtype}", stored.dtype)));
        }
        let data = plain::decode(dtype, &stored.data).expect("the contract's types have no blocks");
        Ok(Values { shape: stored.shape, data })
    }

    fn check_arrays_exist(&self) -> Result<()> {
        let listed = self.manifest.tensors.iter().map(|row| row.file.as_str());
        let mut missing: Vec<&str> = match &self.container {
            Container::Directory(root) => listed.filter(|file| !root.join(file).is_file()).collect(),
            Container::Safetensors(tensors) => {
                listed.filter(|file| tensors.get(key(file)).is_none()).collect()
            }
            Container::Npz(archive) => {
                let names = member_names(archive).map_err(|problem| Error::dump(&self.path, problem))?;
                listed.filter(|file| !names.contains(*file)).collect()
            }
        };
        missing.sort_unstable();
        match missing.as_slice() {
            [] => Ok(()),
            [first, more @ ..] => {
                let others =
                    if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
                Err(Error::dump(
                    &self.path,
                    format!("'{first}'{others} is in the manifest but not in the dump; copy it whole"),
                ))
            }
        }
    }
}

/// The key of an array in a `.safetensors` dump.
pub(super) fn key(file: &str) -> &str {
    file.strip_suffix(".npy").unwrap_or(file)
}
