//! Reads the arrays of a file as a dump, with a name map.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::checkpoint::{Point, Site, TapAxis, TapScope, ValueKind};
use crate::dump::{
    ArrayPart, DecodeMode, Dump, DumpInput, Layout, Manifest, ModelInfo, Pass, Producer, TensorRow,
};
use crate::error::{Error, Result};
use crate::format::{Arrays, EscapedText};
use crate::map::matched_array::MatchedArray;
use crate::map::passes::passes;
use crate::map::pattern::NamePattern;
use crate::map::shape::{HeadSizes, PassExtent, TapPart};
use crate::map::tokens::MapTokens;
use crate::map::{NameMap, processed_weights, stream};
use crate::view::View;
use crate::weight::{DType, StoredTensor};

/// Facts needed to read a file with a map, besides the file and the map.
#[derive(Clone, Debug, Default)]
pub struct MapContext {
    /// Input tokens; `None` if unknown.
    pub tokens: Option<Vec<u32>>,
    /// Head sizes of the model, as far as they are known.
    pub sizes: HeadSizes,
    /// Number of layers of the model.
    pub layers: Option<usize>,
    /// Number of values per token between two layers.
    pub hidden_size: Option<usize>,
    /// Size of the vocabulary.
    pub vocab_size: Option<usize>,
    /// Architecture of the model.
    pub architecture: Option<String>,
    /// The model's name.
    pub model: String,
    /// Name patterns of arrays to ignore.
    pub ignore: Vec<String>,
}

/// A dump that was read with a map.
#[derive(Clone, Debug)]
pub struct MappedDump {
    /// Dump that the map makes of the file.
    pub dump: Dump,
    /// Number of arrays that were assigned to a site.
    pub placed: usize,
    /// Number of arrays that should be assigned to a site: all except those that the map lists as having no tap.
    asked: usize,
    /// Notes for the report on how the file was read.
    pub notes: Vec<String>,
    /// Arrays that were not assigned to a site and are not ignored.
    pub unplaced: Vec<String>,
    /// First array whose shape does not fit the tap of its name, with the problem.
    pub(super) misfit: Option<String>,
}

impl MappedDump {
    /// Returns true if both readings assign the arrays to the same sites.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let places = |reading: &Self| -> BTreeMap<String, String> {
            let rows = reading.dump.manifest.tensors.iter();
            rows.map(|row| (format!("{:?} {:?} {}", row.layer, row.pass, row.tap), row.file.clone()))
                .collect()
        };
        places(self) == places(other)
    }

    /// Returns true if at least half of the arrays were assigned to a site.
    pub(super) fn is_half(&self) -> bool {
        self.placed > 0 && 2 * self.placed >= self.asked
    }

    /// Returns the message for a file whose names match a map but whose shapes do not.
    pub(super) fn unlike(&self, map: &str, matched: usize) -> String {
        let why = self.misfit.as_deref().unwrap_or_default();
        format!(
            "no manifest; {matched} array names match the map {map}, but their shapes do not: {why}; check \
                that the tokens are those that the model read"
        )
    }

    pub(super) fn told_first(mut self, note: String) -> Self {
        self.notes.insert(0, note);
        self
    }
}

/// A row of the dump's manifest, with its values.
struct MappedRow {
    site: Site,
    name: String,
    row: TensorRow,
    stored: StoredTensor,
}

impl NameMap {
    /// Reads arrays as a dump.
    ///
    /// # Errors
    /// - If the architecture, tokens or sizes are needed but unknown.
    /// - If no array has a site, or two arrays have the same site.
    /// - If an array has a wrong shape for its tap, unless the map is a shipped one.
    pub fn read(&self, arrays: &Arrays, known: &MapContext) -> Result<MappedDump> {
        let path = arrays.tensors.path();
        let refuse = |problem: String| Error::dump(path, problem);
        let architecture =
            known.architecture.clone().or_else(|| self.architecture(arrays)).ok_or_else(|| {
                refuse(format!(
                    "unknown architecture; give --model, or set architecture in the map {}",
                    self.name
                ))
            })?;
        let matched = stream::spread(self.matched(arrays, &architecture), known.layers);
        if matched.is_empty() {
            let problem = format!(
                "no rule of the map {} matches an array; choose another with --map, or write one with xcheck \
                    identify",
                self.name
            );
            return Err(refuse(problem));
        }
        if self.is_shipped && self.name == processed_weights::TRANSFORMER_LENS {
            processed_weights::check(arrays).map_err(refuse)?;
        }
        let goes_on = matched.iter().any(|one| one.pass > 0);
        let tokens = MapTokens::of(self, arrays, known.tokens.as_deref(), goes_on)?;
        let passes = passes(&matched, &tokens).map_err(refuse)?;
        let sizes = known.sizes.or(self.sizes);
        let mut misfits = Vec::new();
        let (mut placed, mut used) = (Vec::new(), vec![false; arrays.tensors.len()]);
        for one in &matched {
            match one.placed(&passes, sizes) {
                Ok(rows) => {
                    used[one.index] = true;
                    placed.extend(rows);
                }
                Err(problem) if self.is_shipped => misfits.push((one.name.as_str(), problem)),
                Err(problem) => return Err(refuse(format!("array '{}': {problem}", EscapedText(&one.name)))),
            }
        }
        let count = used.iter().filter(|&&used| used).count();
        let (placed, twins) = once(placed).map_err(refuse)?;
        let mut notes = vec![self.told(count, arrays, &tokens)];
        notes.extend(stream::note(&matched));
        notes.extend(twins);
        let ignored = known.ignore.iter().map(|written| NamePattern::new(written));
        let ignored = ignored.collect::<std::result::Result<Vec<_>, _>>().map_err(refuse)?;
        // The tokens may be saved under several names, too.
        for (used, (name, _)) in used.iter_mut().zip(arrays.tensors.iter()) {
            *used = *used || tokens.array.as_deref() == Some(name);
        }
        note_twins(arrays, &mut used);
        let names = arrays.tensors.iter().map(|(name, _)| name);
        let known_others = names.zip(&used).filter(|(name, used)| **used || self.is_no_tap(name)).count();
        let asked = arrays.tensors.len() + count - known_others;
        let unplaced = self.left(arrays, &used, &tokens, (&misfits, &ignored));
        let misfit = misfits.first().map(|(name, problem)| format!("'{}': {problem}", EscapedText(name)));
        notes.extend(self.idle(&matched));
        let manifest = self.manifest(known, architecture, &tokens.ids, passes, &placed);
        let dump = dump_of(arrays, manifest, placed)?;
        Ok(MappedDump { dump, placed: count, asked, notes, unplaced, misfit })
    }

    fn manifest(
        &self,
        known: &MapContext,
        architecture: String,
        tokens: &[u32],
        passes: Vec<Pass>,
        placed: &[MappedRow],
    ) -> Manifest {
        let mut settings = self.written.settings.clone();
        if let Some(dtype) = computed_in(placed).filter(|_| !settings.contains_key("dtype")) {
            settings.insert("dtype".to_owned(), dtype.name().into());
        }
        let name = self.written.producer.clone().unwrap_or_else(|| "unknown".to_owned());
        let rounding = self.written.rounding.clone();
        let producer = Producer { name, settings, rounding, ..Producer::default() };
        let model = ModelInfo { name: known.model.clone(), architecture, sha256: None };
        let layout = Layout { rope_pairing: self.written.rope_pairing };
        let decode = if passes.len() > 1 { DecodeMode::Forced } else { DecodeMode::Greedy };
        let prompt = passes.first().map_or(0, |pass| pass.tokens.len());
        let input = DumpInput { prompt: String::new(), tokens: tokens[..prompt].to_vec(), decode };
        Manifest::new(producer, model, layout, input, passes)
    }
}

impl MatchedArray<'_> {
    /// Returns the manifest rows for an array, with their values.
    fn placed(&self, passes: &[Pass], sizes: HeadSizes) -> std::result::Result<Vec<MappedRow>, String> {
        let rule = self.rule;
        self.problem.clone().map_or(Ok(()), Err)?;
        let pass = passes.get(self.pass).ok_or("the pass does not exist")?;
        let tokens = rule.written.rows.as_ref().map_or(pass.tokens.len(), Vec::len);
        let extent = PassExtent { tokens, seen: pass.end(), sizes };
        let stored = self.converted()?;
        let given = rule.axes.as_deref();
        let parts = match (self.form, &rule.written.of) {
            (Some(form), _) => extent.parts(&self.taps, form, &stored.shape, given)?,
            (None, Some(of)) => vec![cut(of, given, self.taps[0])?],
            (None, None) => vec![extent.whole(self.taps[0], &stored.shape, given, rule.written.padded)?],
        };
        let parts = self.taps.iter().zip(parts);
        parts.map(|(&point, part)| self.one(point, part, &stored)).collect()
    }

    fn one(
        &self,
        point: Point,
        part: TapPart,
        stored: &StoredTensor,
    ) -> std::result::Result<MappedRow, String> {
        let layer = match (point.scope(), self.layer) {
            (TapScope::Layer, None) => {
                return Err(format!(
                    "{point} needs a layer; use {{layer}} in the name pattern, or layer = 0"
                ));
            }
            (TapScope::Layer, layer) => layer,
            _ => None,
        };
        let site = Site { point, layer, pass: (point.scope() != TapScope::Run).then_some(self.pass) };
        let written = &self.rule.written;
        let computed = match (&written.computed, written.scale) {
            (None, Some(_)) => short(self.stored.dtype),
            (computed, _) => computed.clone(),
        };
        let axes = part.axes.map(TapAxis::names);
        let rows = written.rows.clone().or(part.rows);
        let mut row = TensorRow::new(site, stored.dtype, &part.shape, "");
        (row.of, row.axes, row.rows, row.computed) = (part.of, axes, rows, computed);
        row.dtype()?;
        Ok(MappedRow { site, name: self.name.clone(), row, stored: stored.clone() })
    }

    /// Returns the array with the type of its rule and scaled values.
    fn converted(&self) -> std::result::Result<StoredTensor, String> {
        let mut stored = self.stored.clone();
        if let Some(dtype) = self.rule.dtype {
            if dtype.block_bytes() != stored.dtype.block_bytes() {
                return Err(format!("cannot reinterpret {} as {dtype}: the sizes differ", stored.dtype));
            }
            stored.dtype = dtype;
        }
        let Some(scale) = self.rule.written.scale else { return Ok(stored) };
        let view = View::stored(&stored.shape, stored.dtype, stored.data.clone());
        let values = view.ok_or_else(|| format!("{} cannot be scaled", stored.dtype))?.to_vec();
        let bytes: Vec<u8> = values.into_iter().flat_map(|value| (value * scale).to_le_bytes()).collect();
        Ok(StoredTensor { dtype: DType::F64, shape: stored.shape, data: bytes.into() })
    }
}

/// Returns the name of a 16-bit type that values may be rounded to before they are stored in a larger type.
fn short(dtype: DType) -> Option<String> {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16).then(|| dtype.name().to_owned())
}

/// Returns the part of an array that a rule states.
fn cut(of: &ArrayPart, given: Option<&[TapAxis]>, point: Point) -> std::result::Result<TapPart, String> {
    let shape = of.ranges()?.into_iter().map(|range| range.len()).collect();
    let axes = given.filter(|axes| *axes != point.axes()).map(<[TapAxis]>::to_vec);
    Ok(TapPart { of: Some(of.clone()), shape, axes, rows: None })
}

/// Keeps one array per site. Two arrays with equal values at one site count as one array saved twice.
fn once(placed: Vec<MappedRow>) -> std::result::Result<(Vec<MappedRow>, Option<String>), String> {
    let mut kept: Vec<MappedRow> = Vec::new();
    let mut places: HashMap<Site, usize> = HashMap::new();
    let mut twins = Vec::new();
    for one in placed {
        let Some(&at) = places.get(&one.site) else {
            places.insert(one.site, kept.len());
            kept.push(one);
            continue;
        };
        let first = &kept[at];
        if !are_equal(first, &one) {
            return Err(format!(
                "arrays '{}' and '{}' both match {}, but have different values; remove one, or distinguish \
                 them in your own map",
                EscapedText(&first.name),
                EscapedText(&one.name),
                one.site
            ));
        }
        twins.push(format!("'{}' as '{}'", EscapedText(&one.name), EscapedText(&first.name)));
    }
    let note = twins.first().map(|first| {
        let more = twins.len() - 1;
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("arrays with equal values under two names, of which one is used: {first}{more}")
    });
    Ok((kept, note))
}

/// Marks arrays as used if they have the same values as a used array. Frameworks often save a module and its
/// return value under two names.
fn note_twins(arrays: &Arrays, used: &mut [bool]) {
    let stored: Vec<&StoredTensor> = arrays.tensors.iter().map(|(_, stored)| stored).collect();
    let is_twin = |at: usize, used: &[bool]| {
        let others = (0..stored.len()).filter(|&other| used[other]);
        others.map(|other| stored[other]).any(|other| {
            other.dtype == stored[at].dtype
                && other.data.len() == stored[at].data.len()
                && other.data[..] == stored[at].data[..]
        })
    };
    for at in 0..stored.len() {
        used[at] = used[at] || is_twin(at, used);
    }
}

fn are_equal(one: &MappedRow, other: &MappedRow) -> bool {
    one.stored.dtype == other.stored.dtype
        && cut_of(&one.row) == cut_of(&other.row)
        && one.row.shape == other.row.shape
        && one.row.rows == other.row.rows
        && one.row.axes() == other.row.axes()
        && one.stored.data[..] == other.stored.data[..]
}

/// Returns the lengths and ranges by which the array is cut into parts; `None` if the array is used whole. Axes of
/// length 1 are ignored.
fn cut_of(row: &TensorRow) -> Option<Vec<(usize, Range<usize>)>> {
    let of = row.of.as_ref()?;
    let ranges = of.shape.iter().copied().zip(of.ranges().ok()?);
    let ranges: Vec<_> = ranges.filter(|(length, _)| *length != 1).collect();
    ranges.iter().any(|(length, range)| range.len() != *length).then_some(ranges)
}

/// Returns the computed type of the run, if the arrays show it: a 16-bit type in which all arrays are stored, or
/// that represents all values exactly.
fn computed_in(placed: &[MappedRow]) -> Option<DType> {
    /// Taps that are often f32 in runs of a smaller type: softmax and logits.
    const OFTEN_WIDER: &[Point] =
        &[Point::AttnScores, Point::AttnWeights, Point::Logits, Point::LastLogits, Point::Probs];
    let is_asked = |one: &&MappedRow| {
        let is_plain = one.row.computed.is_none() && one.site.point.kind() == ValueKind::Real;
        is_plain && !OFTEN_WIDER.contains(&one.site.point)
    };
    let asked: Vec<&MappedRow> = placed.iter().filter(is_asked).collect();
    if asked.is_empty() {
        return None;
    }
    let all = |dtype: DType| asked.iter().all(|one| one.stored.dtype == dtype);
    if let Some(dtype) = [DType::BF16, DType::F16].into_iter().find(|&dtype| all(dtype)) {
        return Some(dtype);
    }
    let is_bf16 = |one: &&MappedRow| one.stored.dtype == DType::F32 && has_zeros(&one.stored.data[..], 2);
    if !all(DType::F32) {
        return None;
    }
    if asked.iter().all(is_bf16) {
        return Some(DType::BF16);
    }
    // If only the products are in bf16, another check decides.
    let mut products = asked.iter().filter(|one| one.site.point.is_of_products()).peekable();
    let is_cast = products.peek().is_some() && products.all(is_bf16);
    (!is_cast).then_some(DType::F32)
}

/// Returns true if the lowest `low` bytes of the first four-byte values are zero.
fn has_zeros(bytes: &[u8], low: usize) -> bool {
    const LOOKED_AT: usize = 4096;
    bytes.as_chunks::<4>().0.iter().take(LOOKED_AT).all(|value| value[..low].iter().all(|&byte| byte == 0))
}

fn dump_of(arrays: &Arrays, mut manifest: Manifest, placed: Vec<MappedRow>) -> Result<Dump> {
    let path = arrays.tensors.path();
    let mut entries = Vec::new();
    for (index, MappedRow { name, mut row, stored, .. }) in placed.into_iter().enumerate() {
        // Each row has its own key, because several rows can share an array name and have different values.
        row.file = format!("{}#{index}", EscapedText(&name));
        entries.push((row.file.clone(), stored));
        manifest.tensors.push(row);
    }
    Dump::of_arrays(path, manifest, Arrays::of(path, entries, Vec::new())?.tensors)
}
