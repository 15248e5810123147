//! Short notation for many sites: taps with the same layers and passes share a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::align::Ranges;
use crate::checkpoint::{Point, Site};
use crate::report::RecordedRow;
use serde::Deserialize;

/// A set of layers, or of passes.
type NumberSet = BTreeSet<Option<usize>>;

/// Some taps in all of these layers and passes. `None` for taps outside layers, or for values of the whole
/// run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "FileBlock")]
pub(crate) struct SiteBlock {
    pub(crate) taps: Vec<Point>,
    pub(crate) layers: Option<Ranges>,
    pub(crate) passes: Option<Ranges>,
}

/// A block in a baseline file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileBlock {
    taps: String,
    layers: Option<String>,
    passes: Option<String>,
    /// Number of values at each site.
    pub(crate) each: Option<u64>,
    /// Number of values at all sites together, in version 1 of the file.
    pub(crate) values: Option<u64>,
}

impl TryFrom<FileBlock> for SiteBlock {
    type Error = String;

    fn try_from(read: FileBlock) -> Result<Self, String> {
        Self::parse(&read.taps, read.layers.as_deref(), read.passes.as_deref())
    }
}

/// Largest number of sites of one tap: 126 layers in about a hundred thousand passes.
const MOST: usize = 1 << 24;

impl SiteBlock {
    /// Parses the fields of a block.
    ///
    /// # Errors
    /// If a tap is unknown, or a field is not a list of numbers.
    pub(crate) fn parse(taps: &str, layers: Option<&str>, passes: Option<&str>) -> Result<Self, String> {
        let tap = |name: &str| {
            name.parse().map_err(|_| format!("unknown tap '{name}'; `xcheck checkpoints` lists all taps"))
        };
        let taps = taps.split_whitespace().map(tap).collect::<Result<Vec<Point>, _>>()?;
        if taps.is_empty() {
            return Err("missing tap name; `xcheck checkpoints` lists all taps".to_owned());
        }
        let ranges =
            |text: Option<&str>| -> Result<Option<Ranges>, String> { text.map(str::parse).transpose() };
        let (layers, passes) = (ranges(layers)?, ranges(passes)?);
        let count =
            |ranges: &Option<Ranges>| ranges.as_ref().map_or(1, |ranges| ranges.last().saturating_add(1));
        match count(&layers).saturating_mul(count(&passes)) {
            places if places > MOST => Err(format!("{places} sites of a tap exceed the limit")),
            _ => Ok(Self { taps, layers, passes }),
        }
    }

    /// Returns true if the block contains the site of a row.
    pub(crate) fn contains(&self, row: &RecordedRow) -> bool {
        self.is_beside(row) && is_in(&self.passes, row.site.pass)
    }

    /// Returns true if the block contains the tap and layer of a row, in any pass.
    pub(crate) fn is_beside(&self, row: &RecordedRow) -> bool {
        is_in(&self.layers, row.site.layer)
            && self.passes.is_some() == row.site.pass.is_some()
            && self.taps.contains(&row.site.point)
    }

    /// Returns all sites of the block.
    pub(crate) fn sites(&self) -> impl Iterator<Item = Site> {
        let numbers = |ranges: &Option<Ranges>| -> Vec<Option<usize>> {
            match ranges {
                None => vec![None],
                Some(ranges) => {
                    (0..=ranges.last()).filter(|&number| ranges.contains(number)).map(Some).collect()
                }
            }
        };
        let (layers, passes) = (numbers(&self.layers), numbers(&self.passes));
        self.taps.iter().flat_map(move |&point| {
            let (layers, passes) = (layers.clone(), passes.clone());
            layers.into_iter().flat_map(move |layer| {
                passes.clone().into_iter().map(move |pass| Site { point, layer, pass })
            })
        })
    }

    /// Returns the names of the taps, separated by spaces.
    pub(crate) fn tap_names(&self) -> String {
        self.taps.iter().map(|tap| tap.name()).collect::<Vec<_>>().join(" ")
    }

    /// Groups sites into as few blocks as possible, in the order of their taps.
    pub(crate) fn of(sites: impl IntoIterator<Item = Site>) -> Vec<Self> {
        let mut order: Vec<Point> = Vec::new();
        let mut passes: BTreeMap<(usize, Option<usize>), NumberSet> = BTreeMap::new();
        for Site { point, layer, pass } in sites {
            let known = order.iter().position(|known| *known == point);
            let tap = known.unwrap_or_else(|| {
                order.push(point);
                order.len() - 1
            });
            passes.entry((tap, layer)).or_default().insert(pass);
        }
        let mut layers: BTreeMap<(usize, NumberSet), NumberSet> = BTreeMap::new();
        for ((tap, layer), passes) in passes {
            layers.entry((tap, passes)).or_default().insert(layer);
        }
        let mut blocks: Vec<Self> = Vec::new();
        for ((tap, passes), layers) in layers {
            let (tap, layers, passes) = (order[tap], ranges(&layers), ranges(&passes));
            match blocks.iter_mut().find(|block| (&block.layers, &block.passes) == (&layers, &passes)) {
                Some(block) => block.taps.push(tap),
                None => blocks.push(Self { taps: vec![tap], layers, passes }),
            }
        }
        blocks
    }
}

fn is_in(ranges: &Option<Ranges>, number: Option<usize>) -> bool {
    match (ranges, number) {
        (None, None) => true,
        (Some(ranges), Some(number)) => ranges.contains(number),
        _ => false,
    }
}

/// Returns the ranges of the numbers; `None` without numbers.
fn ranges(numbers: &NumberSet) -> Option<Ranges> {
    let numbers: Vec<usize> = numbers.iter().flatten().copied().collect();
    (!numbers.is_empty()).then(|| Ranges::of(&numbers))
}

/// "q_rope, layers 0-3, passes 0-4".
impl fmt::Display for SiteBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tap_names())?;
        for (one, many, ranges) in [("layer", "layers", &self.layers), ("pass", "passes", &self.passes)] {
            let Some(ranges) = ranges else { continue };
            let text = ranges.in_short();
            write!(f, ", {} {text}", if text.contains(['-', ',']) { many } else { one })?;
        }
        Ok(())
    }
}
