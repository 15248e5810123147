//! Opens dumps in any container and reads their arrays.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::checkpoint::{Point, Site, TapAxis};
use crate::dump::directory::Directory;
use crate::dump::npz::Npz;
use crate::dump::sequence_part::ForeignKeys;
use crate::dump::tensor_row::{check_scale, together};
use crate::dump::{ArrayValues, ElementScale, Manifest, TensorRow};
use crate::error::{Error, Result};
use crate::format::{FileBytes, Safetensors, TensorFile, npy};
use crate::view::View;
use crate::weight::{DType, StoredTensor};

/// File name of the manifest in a directory or `.npz` archive.
pub const MANIFEST: &str = "manifest.json";
/// Key of the manifest in the metadata of a `.safetensors` file.
pub(super) const METADATA_KEY: &str = "xcheck";
/// The site of the greedy continuation.
const CONTINUATION: Site = Site { point: Point::Generated, layer: None, pass: None };

/// An opened dump. Its manifest was checked, and all its arrays exist.
#[derive(Clone, Debug)]
pub struct Dump {
    /// Path for messages.
    pub path: PathBuf,
    /// The manifest.
    pub manifest: Manifest,
    /// Tokens of the requested prompt, if its text was given. A dump of other tokens fails.
    pub expected_tokens: Option<Vec<u32>>,
    container: Container,
    rows: HashMap<Site, usize>,
    /// Manifest row of the greedy continuation, if no array records it.
    listed: Option<TensorRow>,
    /// True if the dump's file is on another machine.
    is_elsewhere: bool,
    /// Manifests of all sequences of the file, this one included.
    sequences: Arc<Vec<Manifest>>,
    /// Files that were read and checked against their hashes.
    seen: Arc<Mutex<HashSet<String>>>,
}

#[derive(Clone, Debug)]
enum Container {
    Directory(Directory),
    Npz(Npz),
    Safetensors(TensorFile),
}

impl Dump {
    /// Opens a directory, `.safetensors` or `.npz` file with a single sequence.
    ///
    /// # Errors
    /// The errors of [`Dump::open_all`], or if the dump has several sequences.
    pub fn open(path: &Path) -> Result<Self> {
        Self::alone(Self::open_all(path)?)
    }

    /// Opens a directory, `.safetensors` or `.npz` file. Returns one dump per sequence.
    ///
    /// # Errors
    /// If there is no manifest, it violates the dump format, or a listed array is missing.
    pub fn open_all(path: &Path) -> Result<Vec<Self>> {
        if path.is_dir() {
            let file = path.join(MANIFEST);
            if !file.exists() {
                return Err(no_manifest(path));
            }
            let container = Container::Directory(Directory::new(path));
            return Self::of_manifest(path, &FileBytes::open(&file)?.data, container, false);
        }
        Self::all_from_source(FileBytes::open(path)?)
    }

    /// Opens the bytes of a `.safetensors` or `.npz` file with a single sequence.
    ///
    /// # Errors
    /// The errors of [`Dump::open`].
    pub fn from_source(source: FileBytes) -> Result<Self> {
        Self::alone(Self::all_from_source(source)?)
    }

    /// Makes a dump from arrays in memory. The `file` of each manifest row is the array's key.
    ///
    /// # Errors
    /// If the manifest violates the dump format, or a listed array is missing.
    pub(crate) fn of_arrays(path: &Path, manifest: Manifest, arrays: TensorFile) -> Result<Self> {
        manifest.check().map_err(|problem| Error::dump(path, problem))?;
        Self::new(path, manifest, Container::Safetensors(arrays), false)
    }

    fn alone(mut dumps: Vec<Self>) -> Result<Self> {
        let held = dumps.len();
        match dumps.pop() {
            Some(dump) if held == 1 => Ok(dump),
            Some(dump) => {
                let problem = format!(
                    "the dump has {held} sequences, expected one; select one, e.g. {}#0",
                    dump.path.display()
                );
                Err(Error::dump(&dump.path, problem))
            }
            None => unreachable!("a manifest describes at least one sequence"),
        }
    }

    /// Opens the bytes of a `.safetensors` or `.npz` file. Returns one dump per sequence.
    ///
    /// # Errors
    /// The errors of [`Dump::open_all`].
    pub fn all_from_source(source: FileBytes) -> Result<Vec<Self>> {
        const ZIP: &[u8] = b"PK\x03\x04";
        let is_elsewhere = source.data.pin().is_some();
        if source.data.first(ZIP.len()) == ZIP {
            let refuse = |problem| Error::dump(&source.path, problem);
            let archive = Npz::open(source.data.whole()).map_err(refuse)?;
            let json = archive.read_manifest(MANIFEST).map_err(refuse)?;
            return Self::of_manifest(&source.path, &json, Container::Npz(archive), is_elsewhere);
        }
        let file = Safetensors::read(&source)?;
        let json = file.metadata.get(METADATA_KEY).ok_or_else(|| {
            let problem = format!(
                "no manifest: __metadata__ has no key '{METADATA_KEY}'; the file may be a model's \
                    weights"
            );
            Error::dump(&source.path, problem)
        })?;
        Self::of_manifest(&source.path, json.as_bytes(), Container::Safetensors(file.tensors), is_elsewhere)
    }

    fn of_manifest(path: &Path, json: &[u8], container: Container, is_elsewhere: bool) -> Result<Vec<Self>> {
        let manifests = Arc::new(Manifest::parse(json, path)?);
        let of_sequence = |manifest: &Manifest| {
            let dump = Self::new(path, manifest.clone(), container.clone(), is_elsewhere)?;
            Ok(Self { sequences: manifests.clone(), ..dump })
        };
        manifests.iter().map(of_sequence).collect()
    }

    /// Opens the other sequences of the same file.
    ///
    /// # Errors
    /// The errors of [`Dump::open_all`].
    pub(crate) fn siblings(&self) -> Result<Vec<Self>> {
        let others = self.sequences.iter().filter(|other| other.sequence != self.manifest.sequence);
        let opened = others
            .map(|other| Self::new(&self.path, other.clone(), self.container.clone(), self.is_elsewhere));
        opened.collect()
    }

    fn new(path: &Path, manifest: Manifest, container: Container, is_elsewhere: bool) -> Result<Self> {
        let mut rows = HashMap::new();
        for (index, row) in manifest.tensors.iter().enumerate() {
            rows.insert(row.site().map_err(|problem| Error::dump(path, problem))?, index);
        }
        let (path, listed) = (path.to_owned(), None);
        let (sequences, seen, expected_tokens) = (Arc::default(), Arc::default(), None);
        let mut dump =
            Self { path, manifest, expected_tokens, container, rows, listed, is_elsewhere, sequences, seen };
        dump.check_arrays_exist()?;
        dump.settle_continuation()?;
        dump.manifest.check_successors().map_err(|problem| Error::dump(&dump.path, problem))?;
        Ok(dump)
    }

    /// Reads the same arrays with changed manifest rows. Omits arrays for which `row` returns `None`.
    ///
    /// # Errors
    /// If a changed row has no valid site.
    pub fn read_as(&self, row: impl Fn(&TensorRow) -> Option<TensorRow>) -> Result<Self> {
        let mut dump = self.clone();
        dump.manifest.tensors = self.manifest.tensors.iter().filter_map(row).collect();
        dump.rows.clear();
        for (index, row) in dump.manifest.tensors.iter().enumerate() {
            let site = row.site().map_err(|problem| Error::dump(&self.path, problem))?;
            dump.rows.insert(site, index);
        }
        Ok(dump)
    }

    /// Reads the continuation from the manifest, an array, or both, and stores it in the manifest. If both
    /// exist, they must agree.
    fn settle_continuation(&mut self) -> Result<()> {
        let Some(array) = self.read(CONTINUATION)? else {
            let listed = self.manifest.generated.as_ref().filter(|ids| !ids.is_empty());
            self.listed = listed.map(|ids| row_of_list(ids.len()));
            return Ok(());
        };
        let file = &self.manifest.tensors[self.rows[&CONTINUATION]].file;
        let refuse = |problem| Error::dump(&self.path, problem);
        let ids = token_ids(&array).map_err(|problem| refuse(format!("{file}: {problem}")))?;
        let problem = self.manifest.generated.as_ref().and_then(|listed| contradiction(listed, &ids, file));
        problem.map_or(Ok(()), |problem| Err(refuse(problem)))?;
        self.manifest.generated = Some(ids);
        Ok(())
    }

    /// Returns true if a safetensors file is a dump: its metadata contains a manifest.
    pub fn is_inside(file: &Safetensors) -> bool {
        file.metadata.contains_key(METADATA_KEY)
    }

    /// Returns true if an `.npz` file is a dump: one of its members is a manifest.
    pub fn is_npz(source: &FileBytes) -> bool {
        let names = Npz::open(source.data.whole()).and_then(|archive| archive.member_names());
        names.is_ok_and(|names| names.contains(MANIFEST))
    }

    /// Returns the sites with recorded values, in any order.
    pub fn sites(&self) -> impl Iterator<Item = Site> {
        self.rows.keys().copied().chain(self.listed.iter().map(|_| CONTINUATION))
    }

    /// Returns the recorded taps.
    pub fn points(&self) -> BTreeSet<Point> {
        self.sites().map(|site| site.point).collect()
    }

    /// Returns true if the dump records all values of a site.
    pub fn holds(&self, site: Site) -> bool {
        self.row(site).is_some_and(|row| !row.sketch && row.rows.is_none())
    }

    /// Returns true if operations can start from a site. All values must be recorded, either in more than 8
    /// bits or as the engine computed with them.
    pub(crate) fn starts_at(&self, site: Site) -> bool {
        let is_coarse = |row: &TensorRow| row.dtype().is_ok_and(DType::is_f8) && !row.is_computed_with();
        self.holds(site) && !self.row(site).is_some_and(is_coarse) && !self.lacks_keys(site)
    }

    /// Returns true if a pass of several tokens records only the keys that its last token sees, although
    /// earlier tokens see others.
    fn lacks_keys(&self, site: Site) -> bool {
        let pass = site.pass.and_then(|pass| self.manifest.passes.get(pass));
        let Some((pass, row)) = pass.filter(|pass| pass.tokens.len() > 1).zip(self.row(site)) else {
            return false;
        };
        let axes = row.axes().expect("opening the dump checked the axes");
        axes.iter().zip(&row.shape).any(|(&axis, &keys)| axis == TapAxis::Key && keys < pass.end())
    }

    /// Returns the recorded rows of a site, if the dump does not record all rows.
    pub fn held_rows(&self, site: Site) -> Option<&[usize]> {
        self.row(site)?.rows.as_deref()
    }

    /// Returns true if the dump has a sketch of a site.
    pub fn sketches(&self, site: Site) -> bool {
        self.row(site).is_some_and(|row| row.sketch)
    }

    /// Returns the manifest row of a site, if recorded. A continuation that is only in the manifest has a
    /// row, too.
    pub fn row(&self, site: Site) -> Option<&TensorRow> {
        let array = self.rows.get(&site).map(|&index| &self.manifest.tensors[index]);
        array.or_else(|| self.listed.as_ref().filter(|_| site == CONTINUATION))
    }

    /// Returns the axes of a site's values, if recorded.
    pub fn axes(&self, site: Site) -> Option<Vec<TapAxis>> {
        self.row(site).map(|row| row.axes().expect("opening the dump checked the axes"))
    }

    /// Returns the values of a site as `f64`. `None` if not recorded.
    ///
    /// # Errors
    /// If the array is damaged or does not match the manifest.
    pub fn read(&self, site: Site) -> Result<Option<ArrayValues>> {
        Ok(self.view(site)?.map(|view| ArrayValues::from(&view)))
    }

    /// Returns the values of a site in their stored type. `None` if not recorded.
    ///
    /// # Errors
    /// The errors of [`Dump::read`].
    pub fn view(&self, site: Site) -> Result<Option<View<'static>>> {
        let Some(row) = self.row(site).filter(|row| !row.sketch) else { return Ok(None) };
        if self.listed.is_some() && site == CONTINUATION {
            let ids = self.manifest.generated.iter().flatten();
            let bytes: Vec<u8> = ids.flat_map(|id| id.to_le_bytes()).collect();
            return Ok(View::stored(&row.shape, DType::U32, bytes));
        }
        let refuse = |problem| Error::dump(&self.path, format!("{}: {problem}", row.file));
        let view = match &row.share {
            None => self.view_of(row, &row.shape)?,
            Some(share) => {
                let whole = self.view_of(&share.whole, &share.whole.shape)?;
                share.of(whole, site.point).map_err(refuse)?
            }
        };
        row.check_values(site.point, &view).map_err(refuse)?;
        Ok(Some(view))
    }

    /// Returns a site's values at keys of other sequences, if there are any.
    ///
    /// # Errors
    /// The errors of [`Dump::read`].
    pub fn foreign(&self, site: Site) -> Result<Option<ForeignKeys>> {
        let Some(share) = self.row(site).and_then(|row| row.share.as_ref()) else { return Ok(None) };
        let whole = self.view_of(&share.whole, &share.whole.shape)?;
        let refuse = |problem| Error::dump(&self.path, format!("{}: {problem}", share.whole.file));
        share.foreign(whole, site.point).map_err(refuse)
    }

    /// Returns the sketch of a site, as defined in [`sketch`](crate::measure::sketch). `None` if there is
    /// none.
    ///
    /// # Errors
    /// The errors of [`Dump::read`].
    pub fn sketch(&self, site: Site) -> Result<Option<View<'static>>> {
        let row = self.row(site).filter(|row| row.sketch);
        row.map(|row| self.view_of(row, &row.stored_shape(site.point))).transpose()
    }

    fn view_of(&self, row: &TensorRow, shape: &[usize]) -> Result<View<'static>> {
        let stored = self.stored_of(row, shape)?;
        let Some(scale) = &row.scale else { return Ok(stored) };
        Ok(stored.scaled(self.scales_of(row, scale, shape)?))
    }

    /// Returns the scale of each element. Scales are rounded to `f32`, so that products with 8-bit values are
    /// exact in `f64`.
    fn scales_of(&self, row: &TensorRow, scale: &ElementScale, shape: &[usize]) -> Result<View<'static>> {
        let file = match scale {
            ElementScale::Number(number) => return Ok(View::constant(shape, f64::from(*number as f32))),
            ElementScale::File(file) => file,
        };
        let refuse = |problem: String| Error::dump(&self.path, format!("{file}: {problem}"));
        let StoredTensor { dtype, shape: own, data } =
            self.read_row(&row.of_scale().expect("the scale is stored in a file"))?;
        let scales = View::stored(&own, dtype, data).expect("reading the row checked the shape");
        scales.to_vec().into_iter().try_for_each(check_scale).map_err(refuse)?;
        let misfit = || {
            refuse(format!(
                "scales of shape {own:?} cannot be broadcast to values of shape {shape:?} (NumPy rules)"
            ))
        };
        scales.spread(shape).ok_or_else(misfit)
    }

    fn stored_of(&self, row: &TensorRow, shape: &[usize]) -> Result<View<'static>> {
        let place = |problem: String| Error::dump(&self.path, format!("{}: {problem}", row.file));
        let stored = self.read_row(row)?;
        let no_ids = || place("invalid token id: a number above 2^53".into());
        let Some(of) = &row.of else {
            if stored.shape != shape {
                return Err(place(format!("shape {:?}, but the manifest states {shape:?}", stored.shape)));
            }
            return View::stored(&stored.shape, stored.dtype, stored.data).ok_or_else(no_ids);
        };
        if stored.shape.iter().product::<usize>() != of.shape.iter().product::<usize>() {
            return Err(place(format!(
                "shape {:?} cannot be reshaped to {:?}, the shape in \"of\"",
                stored.shape, of.shape
            )));
        }
        let whole = View::stored(&of.shape, stored.dtype, stored.data).ok_or_else(no_ids)?;
        let ranges = of.ranges().map_err(place)?;
        let cut = ranges.into_iter().enumerate().fold(whole, |view, (axis, range)| view.slice(axis, range));
        let counts = together(cut.shape(), shape).expect("opening the dump checked the shape");
        Ok(counts.iter().enumerate().rev().fold(cut, |cut, (axis, &count)| {
            let first: usize = counts[..axis].iter().sum();
            (first..first + count - 1).rev().fold(cut, View::merged)
        }))
    }

    fn read_row(&self, row: &TensorRow) -> Result<StoredTensor> {
        let place = |problem: String| Error::dump(&self.path, format!("{}: {problem}", row.file));
        let dtype = row.dtype().map_err(place)?;
        let bits = Some(dtype).filter(|&dtype| dtype == DType::BF16 || dtype.is_f8());
        let stored = match &self.container {
            Container::Directory(directory) => directory.read(row, bits)?,
            Container::Npz(archive) => {
                let elements = row.size().expect("opening the dump checked the shape");
                let data = archive.read_array(&row.file, elements).map_err(place)?.into();
                npy::read(&FileBytes { path: self.path.join(&row.file), data }, bits)?
            }
            Container::Safetensors(file) => {
                file.get(key(&row.file)).expect("opening the dump checked that the array exists").clone()
            }
        };
        if !row.is_of(stored.dtype) {
            return Err(place(format!("dtype {}, but the manifest states {dtype}", stored.dtype)));
        }
        let seen = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_elsewhere && !seen().contains(&row.file) {
            row.check_content(&stored.data).map_err(place)?;
            seen().insert(row.file.clone());
        }
        Ok(stored)
    }

    /// Checks an array against the hash in its manifest row, if stated. Downloaded data is checked during the
    /// download.
    ///
    /// # Errors
    /// If the hash differs, and the errors of [`Dump::read`].
    pub fn check_content(&self, site: Site) -> Result<()> {
        let Some(row) = self.rows.get(&site).map(|&index| &self.manifest.tensors[index]) else {
            return Ok(());
        };
        let place = |problem: String| Error::dump(&self.path, format!("{}: {problem}", row.file));
        row.check_content(&self.read_row(row)?.data).map_err(place)
    }

    /// Adds the stored elements of a site to a hash, if recorded.
    ///
    /// # Errors
    /// The errors of [`Dump::read`].
    pub(crate) fn hash_content(&self, site: Site, hash: &mut Sha256) -> Result<()> {
        let Some(&index) = self.rows.get(&site) else { return Ok(()) };
        let row = &self.manifest.tensors[index];
        for row in [Some(row.clone()), row.of_scale()].into_iter().flatten() {
            hash.update(&self.read_row(&row)?.data[..]);
        }
        Ok(())
    }

    fn check_arrays_exist(&self) -> Result<()> {
        let rows = &self.manifest.tensors;
        let scales: Vec<TensorRow> = rows.iter().filter_map(TensorRow::of_scale).collect();
        let listed = rows.iter().chain(&scales);
        let missing: Vec<&TensorRow> = match &self.container {
            Container::Directory(directory) => listed.filter(|row| !directory.holds(row)).collect(),
            Container::Safetensors(tensors) => {
                listed.filter(|row| tensors.get(key(&row.file)).is_none()).collect()
            }
            Container::Npz(archive) => {
                let names = archive.member_names().map_err(|problem| Error::dump(&self.path, problem))?;
                listed.filter(|row| !names.contains(&row.file)).collect()
            }
        };
        let mut missing: Vec<&str> = missing.into_iter().map(|row| row.file.as_str()).collect();
        missing.sort_unstable();
        match missing.as_slice() {
            [] => Ok(()),
            [first, more @ ..] => {
                let others =
                    if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
                Err(Error::dump(
                    &self.path,
                    format!(
                        "missing array '{first}'{others}, which the manifest lists; copy the complete \
                        dump"
                    ),
                ))
            }
        }
    }
}

/// Returns the key of an array in a `.safetensors` dump.
pub(super) fn key(file: &str) -> &str {
    file.strip_suffix(".npy").unwrap_or(file)
}

/// Makes a row for a continuation that is only in the manifest.
fn row_of_list(tokens: usize) -> TensorRow {
    TensorRow::new(CONTINUATION, DType::U32, &[tokens], MANIFEST)
}

fn token_ids(values: &ArrayValues) -> Result<Vec<u32>, String> {
    let id = |&value: &f64| {
        let id = value as u32;
        if f64::from(id) == value { Ok(id) } else { Err(format!("invalid token id {value}")) }
    };
    values.data.iter().map(id).collect()
}

/// Describes the first difference between the two lists, if any.
fn contradiction(listed: &[u32], array: &[u32], file: &str) -> Option<String> {
    if let Some(step) = listed.iter().zip(array).position(|(listed, stored)| listed != stored) {
        return Some(format!(
            "token {step} of generated is {} in {MANIFEST}, but {} in {file}",
            listed[step], array[step]
        ));
    }
    let (listed, stored) = (listed.len(), array.len());
    (listed != stored).then(|| format!("generated has {listed} tokens in {MANIFEST}, but {stored} in {file}"))
}

/// Makes the error for a directory without a manifest. Lists dumps inside the directory, if there are any.
fn no_manifest(folder: &Path) -> Error {
    const SHOWN: usize = 4;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_dump = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "safetensors" || ending == "npz")
            || path.join(MANIFEST).exists()
    };
    let mut dumps: Vec<_> = entries.filter(is_dump).map(|path| path.display().to_string()).collect();
    dumps.sort();
    let hint = match dumps.is_empty() {
        true => String::new(),
        false => format!("; name one of the dumps inside it: {}", dumps[..SHOWN.min(dumps.len())].join(", ")),
    };
    Error::dump(folder, format!("the folder has no {MANIFEST}, so it is not a dump{hint}"))
}
