//! The judge: a changed value never passes unseen, and how a dump says something never changes a verdict.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use xcheck::checkpoint::{Axis, Kind, Point, Site};
use xcheck::compare::{Gate, Role, Selection, Tolerances};
use xcheck::diagnose::{Mode, Outcome, Rules, cross_check_dumps};
use xcheck::dump::{Dump, Values};
use xcheck::format::Source;
use xcheck::weight::DType;

use super::clay::Clay;

const DUMP: &[u8] = include_bytes!("../../checkpoints/tiny-qwen3/dumps/llama.cpp-f32.safetensors");

static ORIGINAL: LazyLock<Dump> = LazyLock::new(|| {
    let data = DUMP.to_vec().into();
    Dump::from_source(Source { path: "original".into(), data }).expect("it ships")
});

fn compare(candidate: &Dump, reference: &Dump) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules {
        selection: &selection,
        tolerances: &tolerances,
        gate: Gate::Rounding,
        precision: "f32",
        mode: Mode::Total,
        role: Role::Reference,
        profile: None,
        is_stated: true,
        suppositions: &[],
    };
    cross_check_dumps("fuzz", candidate, reference, rules).expect("the two can be compared")
}

/// A dump that was changed in one value, or in none, and then told otherwise.
pub fn judge(data: &[u8]) {
    let _ = tried(&mut Unstructured::new(data));
}

fn tried(u: &mut Unstructured) -> Result<()> {
    let mut clay = Clay::of(&ORIGINAL);
    let changed = if u.arbitrary()? { changed(u, &mut clay)? } else { None };
    if u.arbitrary()? {
        clay = clay.cut(&lengths(u)?);
    }
    let wide = u.arbitrary()?;
    for (site, array) in &mut clay.arrays {
        if wide && site.point.kind() == Kind::Real {
            array.dtype = DType::F64;
        }
        if site.point.axes().len() > 1 && u.arbitrary()? {
            let names: Vec<_> = site.point.axes().iter().map(|axis: &Axis| axis.name()).rev().collect();
            (array.axes, array.values) = (Some(names), turned(&array.values));
        }
    }
    let told = clay.dump();
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
    sites.retain(|site| site.point.kind() == Kind::Real);
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
fn turned(values: &Values) -> Values {
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
    Values { data: (0..values.data.len()).map(|flat| values.data[at(flat)]).collect(), shape }
}
