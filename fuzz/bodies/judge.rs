//! The judge: a changed value never passes unseen, and how a dump says something never changes a verdict.

use std::io::{Cursor, Write};
use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use serde_json::Value;
use xcheck::align::Selection;
use xcheck::check::{EngineRounding, Gate, Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site, TapAxis, ValueKind};
use xcheck::diagnose::cross_check_dumps;
use xcheck::dump::{ArrayValues, Dump};
use xcheck::format::FileBytes;
use xcheck::verdict::Outcome;
use xcheck::weight::DType;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::clay::Clay;

const DUMP: &[u8] = include_bytes!("../../checkpoints/tiny-qwen3/dumps/llama.cpp-f32.safetensors");

/// How many values of each vector the original has.
const KEPT: usize = 4;

/// The first layer of a real dump, and the first values of its vectors: the fewer they are, the more often they are judged.
static ORIGINAL: LazyLock<Dump> = LazyLock::new(|| {
    let data = DUMP.to_vec().into();
    let whole = Dump::from_source(FileBytes { path: "original".into(), data }).expect("it ships");
    let mut clay = Clay::of(&whole).keep(|site| site.layer.is_none_or(|layer| layer == 0));
    let arrays = clay.arrays.iter_mut();
    arrays
        .filter(|(site, _)| {
            matches!(site.point.axes().last(), Some(TapAxis::HeadDim | TapAxis::Hidden | TapAxis::Ffn))
        })
        .for_each(|(_, array)| shorten(&mut array.values));
    clay.dump()
});

/// The first values along the last axis.
fn shorten(values: &mut ArrayValues) {
    let last = values.shape.last_mut().expect("it is a vector");
    values.data = values.data.chunks_exact(*last).flat_map(|vector| &vector[..KEPT]).copied().collect();
    *last = KEPT;
}

fn compare(candidate: &Dump, reference: &Dump) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules {
        selection: &selection,
        tolerances: &tolerances,
        gate: Gate::Rounding,
        precision: "f32",
        mode: Mode::Accumulated,
        role: Role::Reference,
        rounding: EngineRounding::Stated,
        is_stated: true,
        suppositions: &[],
        causes: true,
        budget: None,
    };
    cross_check_dumps("fuzz", candidate, reference, rules).expect("the two can be compared")
}

/// A dump that was changed in one value, or in none, and then told otherwise.
pub fn judge(data: &[u8]) -> bool {
    tried(&mut Unstructured::new(data)).is_ok()
}

fn tried(u: &mut Unstructured) -> Result<()> {
    let mut clay = Clay::of(&ORIGINAL);
    let changed = if u.arbitrary()? { changed(u, &mut clay)? } else { None };
    if u.arbitrary()? {
        clay = clay.cut(&lengths(u)?);
    }
    let wide = u.arbitrary()?;
    for (site, array) in &mut clay.arrays {
        if wide && site.point.kind() == ValueKind::Real {
            array.dtype = DType::F64;
        }
        if site.point.axes().len() > 1 && u.arbitrary()? {
            let names: Vec<_> = site.point.axes().iter().map(|axis: &TapAxis| axis.name()).rev().collect();
            (array.axes, array.values) = (Some(names), turned(&array.values));
        }
    }
    let told = if u.arbitrary()? { archived(&clay.bytes()) } else { clay.dump() };
    for outcome in [compare(&told, &ORIGINAL), compare(&ORIGINAL, &told)] {
        let good = outcome.verdict.is_good();
        match changed {
            None => assert!(good, "the same is {:?}: {:?}", outcome.verdict, outcome.reason),
            Some(site) => assert!(!good, "{site} was changed and is {:?}", outcome.verdict),
        }
    }
    Ok(())
}

/// Changes one value by more than any tolerance, where a change means something.
fn changed(u: &mut Unstructured, clay: &mut Clay) -> Result<Option<Site>> {
    let mut sites: Vec<Site> = clay.arrays.keys().copied().collect();
    sites.retain(|site| site.point.kind() == ValueKind::Real);
    // What attention computes of keys in the future means nothing, and what is once in a pass goes when it is cut.
    sites.retain(|site| {
        !matches!(site.point, Point::AttnScores | Point::AttnWeights | Point::LastLogits | Point::Probs)
    });
    sites.sort_by_key(|site| site.flow_order());
    let site = *u.choose(&sites)?;
    let values = &mut clay.arrays.get_mut(&site).expect("it is held").values.data;
    let at = u.choose_index(values.len())?;
    let largest = values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    values[at] += (1.0 + f64::from(u.int_in_range(0..=1000u16)?)) * largest.max(1.0);
    Ok(Some(site))
}

/// What a safetensors file holds, as an archive of arrays.
fn archived(file: &[u8]) -> Dump {
    let (length, rest) = file.split_first_chunk().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).expect("it is ours");
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut put = |name: &str, bytes: &[u8]| {
        let written = zip.start_file(name, stored).is_ok() && zip.write_all(bytes).is_ok();
        assert!(written, "memory takes it");
    };
    put("manifest.json", header["__metadata__"]["xcheck"].as_str().expect("a manifest").as_bytes());
    for (name, entry) in
        header.as_object().expect("an object").iter().filter(|(name, _)| *name != "__metadata__")
    {
        let place = |index: usize| entry["data_offsets"][index].as_u64().expect("a place") as usize;
        let descr = match entry["dtype"].as_str() {
            Some("F64") => "<f8",
            Some("F32") => "<f4",
            Some("U32") => "<u4",
            other => panic!("the original has no {other:?}"),
        };
        let lengths: Vec<u64> = serde_json::from_value(entry["shape"].clone()).expect("lengths");
        let shape: String = lengths.iter().map(|length| format!("{length},")).collect();
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
        let head = [b"\x93NUMPY\x01\x00".as_slice(), &(text.len() as u16).to_le_bytes(), text.as_bytes()];
        put(&format!("{name}.npy"), &[&head.concat(), &data[place(0)..place(1)]].concat());
    }
    let data = zip.finish().expect("memory takes it").into_inner().into();
    Dump::from_source(FileBytes { path: "archived.npz".into(), data }).expect("it is a sound dump")
}

/// Passes of other lengths over the same prompt. Those after it choose, and stay what they are.
fn lengths(u: &mut Unstructured) -> Result<Vec<usize>> {
    let prompt = ORIGINAL.manifest.input.tokens.len();
    let (mut left, mut lengths) = (prompt, Vec::new());
    while left > 0 {
        lengths.push(u.int_in_range(1..=left)?);
        left -= lengths[lengths.len() - 1];
    }
    let later = ORIGINAL.manifest.passes.iter().filter(|pass| pass.position >= prompt);
    lengths.extend(later.map(|pass| pass.tokens.len()));
    Ok(lengths)
}

/// The same values with their axes the other way round.
fn turned(values: &ArrayValues) -> ArrayValues {
    let shape: Vec<usize> = values.shape.iter().rev().copied().collect();
    let at = |mut flat: usize| {
        // The index along each axis, last first, is that along the turned ones, first first.
        let mut index = Vec::new();
        for &length in shape.iter().rev() {
            index.push(flat % length);
            flat /= length;
        }
        index.iter().zip(&values.shape).fold(0, |at, (index, length)| at * length + index)
    };
    ArrayValues { data: (0..values.data.len()).map(|flat| values.data[at(flat)]).collect(), shape }
}
