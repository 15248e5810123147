//! Dumps of several sequences (version 2). Splits a run so that each sequence looks as if it had been dumped
//! alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::checkpoint::{Point, TapAxis, TapScope};
use crate::dump::layout::lengths;
use crate::dump::manifest::{DecodeMode, DumpInput, Layout, Manifest, ModelInfo, Pass, check_rows};
use crate::dump::sequence_part::SequencePart;
use crate::dump::{Producer, TensorRow};

/// A manifest of version 2, as stored in the file.
#[derive(Deserialize)]
pub(super) struct ManifestV2 {
    producer: Producer,
    model: ModelInfo,
    #[serde(default)]
    layout: Layout,
    input: InputV2,
    passes: Vec<PassV2>,
    #[serde(default)]
    generated: Option<Vec<u32>>,
    tensors: Vec<TensorRow>,
    #[serde(default)]
    inputs: Map<String, Value>,
}

#[derive(Deserialize)]
struct InputV2 {
    #[serde(default)]
    sequences: Option<Vec<SequenceInput>>,
    #[serde(default)]
    tokens: Option<Vec<u32>>,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    decode: DecodeMode,
}

/// The input of one sequence, as stored in the file.
#[derive(Clone, Debug, Deserialize)]
struct SequenceInput {
    #[serde(default)]
    name: Option<String>,
    #[serde(flatten)]
    input: DumpInput,
    #[serde(default)]
    generated: Option<Vec<u32>>,
}

impl SequenceInput {
    /// Returns the sequence's name, or its number if it has no name.
    fn known_as(&self, index: usize) -> String {
        self.name.clone().unwrap_or_else(|| index.to_string())
    }
}

/// Checks that the names of sequences are unique.
fn check_names(sequences: &[SequenceInput]) -> Result<(), String> {
    let mut known = HashMap::new();
    for (index, sequence) in sequences.iter().enumerate() {
        let name = sequence.known_as(index);
        if let Some(first) = known.insert(name.clone(), index) {
            return Err(format!(
                "duplicate sequence name '{name}' of input.sequences[{first}] and [{index}]; an unnamed \
                    sequence uses its number as its name"
            ));
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct PassV2 {
    tokens: Vec<u32>,
    position: RowPositions,
    #[serde(default)]
    sequence: Option<Vec<Option<usize>>>,
    #[serde(default)]
    keys: Option<PassKeys>,
    #[serde(default)]
    temperature: Option<f32>,
}

/// The position of the first row of a pass, or of each row.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a position, or a list with one position per row")]
enum RowPositions {
    First(usize),
    Each(Vec<usize>),
}

/// The keys that attention reads: one list for all rows of a pass, or one list per batch entry.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected {\"sequence\": [...], \"position\": [...]}, or a list with one such object per \
        batch entry"
)]
enum PassKeys {
    Shared(KeySlots),
    OfEntries(Vec<KeySlots>),
}

#[derive(Deserialize)]
struct KeySlots {
    sequence: Vec<Option<usize>>,
    position: Vec<usize>,
}

/// The sequence and position of a token. `None` for padding.
type SequencePosition = Option<(usize, usize)>;

impl ManifestV2 {
    /// Splits the manifest into one manifest per sequence.
    pub(super) fn taken_apart(self) -> Result<Vec<Manifest>, String> {
        let InputV2 { sequences, tokens, prompt, decode } = &self.input;
        let manifest = |input, passes| {
            Manifest::new(self.producer.clone(), self.model.clone(), self.layout, input, passes)
        };
        let alone =
            |tokens: &Vec<u32>| DumpInput { prompt: prompt.clone(), tokens: tokens.clone(), decode: *decode };
        match (sequences, tokens.as_ref().map(alone)) {
            (None, None) => Err("input has neither tokens nor sequences".into()),
            (Some(sequences), _) if sequences.is_empty() => Err("input.sequences is empty".into()),
            (Some(sequences), _) => self.several(sequences, manifest),
            (None, Some(input)) => match self.passes.iter().map(PassV2::plain).collect() {
                Some(passes) => {
                    let generated = self.generated;
                    let (tensors, inputs) = (self.tensors, self.inputs);
                    Ok(vec![Manifest { generated, tensors, inputs, ..manifest(input, passes) }])
                }
                None => {
                    let generated = self.generated.clone();
                    self.several(&[SequenceInput { name: None, input, generated }], manifest)
                }
            },
        }
    }

    fn several(
        &self,
        sequences: &[SequenceInput],
        manifest: impl Fn(DumpInput, Vec<Pass>) -> Manifest,
    ) -> Result<Vec<Manifest>, String> {
        check_names(sequences)?;
        SequencePasses::new(&self.passes, sequences.len())?.taken_apart(sequences, &self.tensors, manifest)
    }
}

impl PassV2 {
    /// Converts to a version 1 pass, if no version 2 fields are set.
    fn plain(&self) -> Option<Pass> {
        match (&self.position, &self.sequence, &self.keys) {
            (&RowPositions::First(position), None, None) => {
                Some(Pass { position, tokens: self.tokens.clone(), temperature: self.temperature })
            }
            _ => None,
        }
    }

    /// Returns the sequence and position of each row.
    fn places(&self, sequences: usize) -> Result<Vec<SequencePosition>, String> {
        let rows = self.tokens.len();
        let first;
        let positions = match &self.position {
            RowPositions::Each(each) => each,
            RowPositions::First(start) => {
                first = (0..rows).map(|row| start.saturating_add(row)).collect::<Vec<_>>();
                &first
            }
        };
        match &self.sequence {
            Some(sequence) => places(sequence, positions, rows, sequences),
            None => places(&vec![Some(0); rows], positions, rows, sequences),
        }
    }
}

fn places(
    sequence: &[Option<usize>],
    position: &[usize],
    rows: usize,
    sequences: usize,
) -> Result<Vec<SequencePosition>, String> {
    if sequence.len() != rows || position.len() != rows {
        let (one, other) = (sequence.len(), position.len());
        return Err(format!("{rows} rows, but \"sequence\" has {one} entries and \"position\" {other}"));
    }
    if let Some(unknown) = sequence.iter().flatten().find(|&&sequence| sequence >= sequences) {
        return Err(format!("invalid sequence {unknown}, expected a number below {sequences}"));
    }
    Ok(sequence
        .iter()
        .zip(position)
        .map(|(sequence, &position)| sequence.map(|one| (one, position)))
        .collect())
}

/// The passes of a run that reads several sequences.
struct SequencePasses<'w> {
    passes: &'w [PassV2],
    /// The sequence and position of each row, by pass.
    places: Vec<Vec<SequencePosition>>,
}

/// A pass from the view of one sequence.
struct SequencePass {
    /// Index of the pass in the file.
    pass: usize,
    /// Rows of the pass that belong to the sequence.
    rows: Vec<usize>,
    /// The sequence's index among the sequences in this pass, and their number.
    nth: (usize, usize),
}

/// The location of a sequence in an array.
struct SequenceLocation {
    /// Index on the batch axis, if the array has one.
    entry: Option<usize>,
    /// Indices of the tokens that belong to the sequence.
    tokens: Option<Vec<usize>>,
}

impl<'w> SequencePasses<'w> {
    fn new(passes: &'w [PassV2], sequences: usize) -> Result<Self, String> {
        let of_pass = |(index, pass): (usize, &PassV2)| {
            pass.places(sequences).map_err(|problem| format!("passes[{index}]: {problem}"))
        };
        let places = passes.iter().enumerate().map(of_pass).collect::<Result<_, _>>()?;
        Ok(Self { passes, places })
    }

    fn taken_apart(
        &self,
        sequences: &[SequenceInput],
        tensors: &[TensorRow],
        manifest: impl Fn(DumpInput, Vec<Pass>) -> Manifest,
    ) -> Result<Vec<Manifest>, String> {
        let of_sequence = |(index, sequence): (usize, &SequenceInput)| {
            let visits = self.visits(index);
            let passes = visits.iter().map(|visit| self.pass(index, visit)).collect::<Result<_, _>>()?;
            let mut own = manifest(sequence.input.clone(), passes);
            own.check_passes().map_err(|problem| format!("sequence {index}: {problem}"))?;
            own.generated.clone_from(&sequence.generated);
            own.sequence = Some(sequence.known_as(index));
            for (at, row) in tensors.iter().enumerate() {
                let place = |problem| format!("tensors[{at}] ({}): {problem}", row.file);
                own.tensors.extend(self.share(index, &visits, row).map_err(place)?);
            }
            Ok(own)
        };
        sequences.iter().enumerate().map(of_sequence).collect()
    }

    /// Returns the passes that read a sequence.
    fn visits(&self, sequence: usize) -> Vec<SequencePass> {
        let visit = |(pass, places): (usize, &Vec<SequencePosition>)| {
            let is_own = |row: &usize| places[*row].is_some_and(|(whose, _)| whose == sequence);
            let rows: Vec<usize> = (0..places.len()).filter(is_own).collect();
            let mut order: Vec<usize> = Vec::new();
            for (whose, _) in places.iter().flatten() {
                if !order.contains(whose) {
                    order.push(*whose);
                }
            }
            let nth = (order.iter().position(|&whose| whose == sequence)?, order.len());
            Some(SequencePass { pass, rows, nth })
        };
        self.places.iter().enumerate().filter_map(visit).collect()
    }

    fn pass(&self, sequence: usize, visit: &SequencePass) -> Result<Pass, String> {
        let (written, places) = (&self.passes[visit.pass], &self.places[visit.pass]);
        let positions: Vec<usize> =
            visit.rows.iter().filter_map(|&row| places[row]).map(|(_, at)| at).collect();
        let position = positions[0];
        if !positions.windows(2).all(|two| two[0].checked_add(1) == Some(two[1])) {
            let pass = visit.pass;
            return Err(format!(
                "passes[{pass}]: sequence {sequence} has positions {positions:?}, expected consecutive \
                    positions"
            ));
        }
        let tokens = visit.rows.iter().map(|&row| written.tokens[row]).collect();
        Ok(Pass { position, tokens, temperature: written.temperature })
    }

    /// Returns the sequence's part of an array, if it has one.
    fn share(
        &self,
        sequence: usize,
        visits: &[SequencePass],
        row: &TensorRow,
    ) -> Result<Option<TensorRow>, String> {
        if row.module.is_some() {
            return Err("outputs of modules cannot be recorded for several sequences, or with padding; record each text \
                        in a dump of its own, without padding"
                .into());
        }
        let point = row.point()?;
        if point.scope() == TapScope::Run {
            return Err(
                "a dump of several sequences needs one list per sequence; write \"generated\" of each sequence in input.sequences"
                    .into(),
            );
        }
        if row.sketch {
            return Err("\"sketch\" cannot be used in a dump of several sequences".into());
        }
        let Some(pass) = row.pass.filter(|&pass| pass < self.passes.len()) else {
            return Err(match row.pass {
                Some(pass) => {
                    format!("pass {pass} does not exist: the dump has {} passes", self.passes.len())
                }
                None => format!("missing \"pass\", which {point} needs"),
            });
        };
        let Some(own) = visits.iter().position(|visit| visit.pass == pass) else { return Ok(None) };
        let visit = &visits[own];
        let whole = self.checked(with_axes(row, point), pass)?;
        let axes = whole.axes()?;
        let length = |axis| axes.iter().position(|&known| known == axis).map(|at| whole.shape[at]);
        let batch = length(TapAxis::Batch);
        let Some(SequenceLocation { entry, tokens }) =
            self.stand(visit, point, &whole, [batch, length(TapAxis::Token)])?
        else {
            return Ok(None);
        };
        let (keys, owners) = match length(TapAxis::Key) {
            Some(keys) if point.axes().contains(&TapAxis::Key) => {
                let (taken, owners) = self.keys_of(sequence, visit, entry.zip(batch), keys)?;
                (Some(taken), owners)
            }
            _ => (None, Vec::new()),
        };
        let mut shape = lengths(&whole.shape, &axes, point.axes()).ok_or("an axis of the tap is missing")?;
        for (counts, taken) in [(TapAxis::Token, &tokens), (TapAxis::Key, &keys)] {
            let axis = point.axes().iter().position(|&axis| axis == counts);
            if let (Some(axis), Some(taken)) = (axis, taken) {
                shape[axis] = taken.len();
            }
        }
        let rows = self.held_rows(visit, &whole).filter(|rows| rows.len() < visit.rows.len());
        let share = Some(Arc::new(SequencePart { whole, entry, tokens, keys, owners }));
        Ok(Some(TensorRow { pass: Some(own), shape, axes: None, rows, of: None, share, ..row.clone() }))
    }

    /// Checks an array before it is split between sequences.
    fn checked(&self, whole: TensorRow, pass: usize) -> Result<TensorRow, String> {
        whole.check_parts()?;
        let (axes, rows) = (whole.axes()?, self.places[pass].len());
        if axes.len() != whole.shape.len() {
            return Err(format!(
                "shape {:?} does not match the axes {axes:?}; state the axes with \"axes\"",
                whole.shape
            ));
        }
        if whole.shape.contains(&0) || whole.size().is_none() {
            return Err(format!("shape {:?} is empty or too large", whole.shape));
        }
        match &whole.rows {
            Some(listed) => check_rows(listed, rows).map(|()| whole),
            None => Ok(whole),
        }
    }

    /// Finds the location of a sequence in an array with this batch size and number of tokens. `None` if none
    /// of the array's rows belong to the sequence.
    fn stand(
        &self,
        visit: &SequencePass,
        point: Point,
        whole: &TensorRow,
        [batch, tokens]: [Option<usize>; 2],
    ) -> Result<Option<SequenceLocation>, String> {
        let (entries, all) = (batch.unwrap_or(1), self.places[visit.pass].len());
        if !point.axes().iter().any(|axis| matches!(axis, TapAxis::Token | TapAxis::Key)) {
            let (nth, of) = visit.nth;
            return match batch {
                None if of == 1 => Ok(Some(SequenceLocation { entry: None, tokens: None })),
                Some(entries) if entries == of => {
                    Ok(Some(SequenceLocation { entry: Some(nth), tokens: None }))
                }
                _ => Err(format!("the pass reads {of} sequences, but the array has rows for {entries}")),
            };
        }
        if whole.rows.is_some() && entries > 1 {
            return Err("\"rows\" counts the rows of the whole pass; omit the axis batch".into());
        }
        let counted = whole.rows.as_ref().map_or(all, Vec::len);
        let per_entry = tokens.unwrap_or(all / entries);
        if entries.checked_mul(per_entry) != Some(counted) {
            return Err(format!(
                "the axes batch ({entries}) and token ({per_entry}) do not give the expected {counted} rows"
            ));
        }
        let place = |&row: &usize| match &whole.rows {
            Some(listed) => listed.binary_search(&row).ok(),
            None => Some(row),
        };
        let found: Vec<usize> = visit.rows.iter().filter_map(place).collect();
        let Some(entry) = found.first().map(|first| first / per_entry) else { return Ok(None) };
        if found.iter().any(|at| at / per_entry != entry) {
            return Err(format!("a sequence is spread over several entries of a batch of {entries}"));
        }
        let tokens = tokens.map(|_| found.iter().map(|at| at % per_entry).collect());
        Ok(Some(SequenceLocation { entry: batch.map(|_| entry), tokens }))
    }

    /// Returns the sequence's recorded rows, counted within the sequence's pass. `None` if the array has all
    /// rows.
    fn held_rows(&self, visit: &SequencePass, whole: &TensorRow) -> Option<Vec<usize>> {
        let listed = whole.rows.as_ref()?;
        let rows = visit.rows.iter().enumerate();
        Some(rows.filter(|(_, row)| listed.binary_search(row).is_ok()).map(|(own, _)| own).collect())
    }

    /// Returns the sequence's keys in an array, ordered by position, and the owner of each key.
    fn keys_of(
        &self,
        sequence: usize,
        visit: &SequencePass,
        entry: Option<(usize, usize)>,
        keys: usize,
    ) -> Result<(Vec<usize>, Vec<Option<usize>>), String> {
        let slots = latest(self.slots(visit.pass, entry)?, keys)?;
        let own = slots.iter().enumerate().filter_map(|(at, place)| {
            place.filter(|(whose, _)| *whose == sequence).map(|(_, position)| (position, at))
        });
        // A paged cache stores keys in the order of its pages.
        let own: BTreeMap<usize, usize> = own.collect();
        let end = self.places[visit.pass].iter().flatten().filter(|(whose, _)| *whose == sequence);
        let end = end.map(|(_, position)| position + 1).max().unwrap_or(0);
        let owners: Vec<Option<usize>> = slots.iter().map(|place| place.map(|(whose, _)| whose)).collect();
        let is_told_twice = owners.iter().filter(|owner| **owner == Some(sequence)).count() > own.len();
        if own.is_empty() || is_told_twice || !own.keys().copied().eq(end - own.len().min(end)..end) {
            let told = slots.iter().flatten().filter(|(whose, _)| *whose == sequence);
            let positions: Vec<usize> = told.map(|(_, position)| *position).collect();
            return Err(format!(
                "the keys of sequence {sequence} have positions {positions:?}, expected the latest positions \
                    up to {}, each once",
                end - 1
            ));
        }
        Ok((own.into_values().collect(), owners))
    }

    /// Returns the keys that attention reads in a pass: as the manifest states, or all keys cached so far.
    fn slots(&self, pass: usize, entry: Option<(usize, usize)>) -> Result<Vec<SequencePosition>, String> {
        let said = match (&self.passes[pass].keys, entry) {
            (None, _) => None,
            (Some(PassKeys::Shared(slots)), _) => Some(slots),
            (Some(PassKeys::OfEntries(all)), Some((entry, entries))) if all.len() == entries => {
                Some(&all[entry])
            }
            (Some(PassKeys::OfEntries(all)), _) => {
                return Err(format!(
                    "\"keys\" of passes[{pass}] has {} batch entries, but the array has another number; write one for each entry",
                    all.len()
                ));
            }
        };
        if let Some(KeySlots { sequence, position }) = said {
            return places(sequence, position, sequence.len(), usize::MAX);
        }
        let (entry, entries) = entry.unwrap_or((0, 1));
        let mut slots = Vec::new();
        for (index, places) in self.places[..=pass].iter().enumerate() {
            if !places.len().is_multiple_of(entries) {
                return Err(format!(
                    "passes[{index}] has {} rows, which cannot be split into a batch of {entries}",
                    places.len()
                ));
            }
            let per_entry = places.len() / entries;
            slots.extend_from_slice(&places[entry * per_entry..][..per_entry]);
        }
        Ok(slots)
    }
}

/// Returns as many keys as the array has: all keys, or the latest of each sequence. The latest keys suffice
/// for a layer with a sliding window.
fn latest(slots: Vec<SequencePosition>, keys: usize) -> Result<Vec<SequencePosition>, String> {
    let mut positions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    slots.iter().flatten().for_each(|&(whose, position)| positions.entry(whose).or_default().push(position));
    match slots.len().checked_sub(keys) {
        Some(0) => return Ok(slots),
        // With one sequence, the oldest entries are dropped first, including padding.
        Some(gone) if positions.len() < 2 => return Ok(slots[gone..].to_vec()),
        _ => {}
    }
    let Some(each) = shared_evenly(keys, positions.values().map(Vec::len).collect()) else {
        return Err(format!("{keys} keys, expected {}; describe them in \"keys\" of the pass", slots.len()));
    };
    for known in positions.values_mut() {
        known.sort_unstable();
        known.drain(..known.len().saturating_sub(each));
    }
    let is_kept =
        |(whose, position): (usize, usize)| positions[&whose].first().is_some_and(|&first| position >= first);
    Ok(slots.into_iter().filter(|place| place.is_some_and(is_kept)).collect())
}

/// Returns the number of keys per sequence that gives `all` keys in total. Shorter sequences keep all their keys.
/// `None` if no number does.
fn shared_evenly(all: usize, mut lengths: Vec<usize>) -> Option<usize> {
    lengths.sort_unstable();
    let mut left = all;
    for (index, &length) in lengths.iter().enumerate() {
        let sharing = lengths.len() - index;
        if length * sharing >= left {
            return (left > 0 && left.is_multiple_of(sharing)).then_some(left / sharing);
        }
        left -= length;
    }
    None
}

/// Adds axis names to a row. An array with one axis more than the tap has a batch axis.
fn with_axes(row: &TensorRow, point: Point) -> TensorRow {
    let own = point.axes();
    let batch = (row.shape.len() == own.len() + 1).then_some(TapAxis::Batch);
    let names = || TapAxis::names(batch.iter().chain(own).copied());
    TensorRow { axes: Some(row.axes.clone().unwrap_or_else(names)), ..row.clone() }
}
