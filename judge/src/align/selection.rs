//! The selection of values to compare: checkpoints, layers, passes and positions.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Checkpoint, Point, Site, TapScope};
use crate::error::{Error, Result};

/// A list of numbers and ranges, e.g. `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Ranges(Vec<RangeInclusive<usize>>);

impl Ranges {
    /// Returns true if a number is in one of the ranges.
    pub fn contains(&self, number: usize) -> bool {
        self.0.iter().any(|range| range.contains(&number))
    }

    /// Makes ranges from ascending numbers.
    pub(crate) fn of(numbers: &[usize]) -> Self {
        let mut ranges: Vec<RangeInclusive<usize>> = Vec::new();
        for &number in numbers {
            match ranges.last_mut().filter(|range| range.end() + 1 == number) {
                Some(range) => *range = *range.start()..=number,
                None => ranges.push(number..=number),
            }
        }
        Self(ranges)
    }

    /// Formats the ranges with single numbers written once, e.g. "0,2-3".
    pub(crate) fn in_short(&self) -> String {
        let range = |range: &RangeInclusive<usize>| match range.start() == range.end() {
            true => range.start().to_string(),
            false => format!("{}-{}", range.start(), range.end()),
        };
        self.0.iter().map(range).collect::<Vec<_>>().join(",")
    }

    /// Returns the largest number in the ranges.
    pub fn last(&self) -> usize {
        self.0.iter().map(|range| *range.end()).max().unwrap_or(0)
    }
}

/// Formats every range with its start and end, e.g. "0-0,2-3".
impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |range: &RangeInclusive<usize>| format!("{}-{}", range.start(), range.end());
        f.write_str(&self.0.iter().map(range).collect::<Vec<_>>().join(","))
    }
}

impl From<Ranges> for String {
    fn from(ranges: Ranges) -> Self {
        ranges.to_string()
    }
}

impl TryFrom<String> for Ranges {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let range = |part: &str| {
            let (start, end) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>();
            match (number(start), number(end)) {
                (Ok(start), Ok(end)) if start <= end => Ok(start..=end),
                (Ok(start), Ok(end)) => Err(format!(
                    "invalid range '{part}': the start is above the end; \
                    write {end}-{start}"
                )),
                _ => Err(format!("invalid value '{part}', expected a number or a range such as 0-3")),
            }
        };
        text.split(',').map(range).collect::<Result<_, _>>().map(Ranges)
    }
}

/// A list of checkpoints by name, number or range, e.g. `all`, `rope,scores` or `1-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints(pub Vec<Checkpoint>);

impl FromStr for Checkpoints {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut chosen = Vec::new();
        for part in text.split(',').map(str::trim) {
            chosen.extend(checkpoints(part)?);
        }
        chosen.sort_unstable();
        chosen.dedup();
        Ok(Self(chosen))
    }
}

fn checkpoints(part: &str) -> Result<Vec<Checkpoint>, String> {
    if part == "all" {
        return Ok(Checkpoint::with_input().to_vec());
    }
    if !part.starts_with(|first: char| first.is_ascii_digit()) {
        let of_a_tap = |unknown| match part.parse::<Point>().map(Point::checkpoint) {
            Ok(checkpoint) => {
                format!(
                    "'{part}' is a tap, expected a checkpoint; use {}, {checkpoint}, which contains it",
                    checkpoint.number()
                )
            }
            Err(_) => unknown,
        };
        return Ok(vec![part.parse().map_err(of_a_tap)?]);
    }
    let numbers: Ranges = part.parse()?;
    let last = Checkpoint::all().len();
    if numbers.contains(0) || numbers.last() > last {
        return Err(format!("invalid checkpoint '{part}', expected a number from 1 to {last}"));
    }
    Ok(Checkpoint::all().iter().copied().filter(|checkpoint| numbers.contains(checkpoint.number())).collect())
}

/// The selected checkpoints, layers, passes and positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Selected checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// True if the user named the checkpoints. A missing one must then be reported.
    pub explicit: bool,
    /// Selected layers. `None` for all. Values outside layers are not affected.
    pub layers: Option<Ranges>,
    /// Selected passes. `None` for all. Values of the whole run are not affected.
    pub passes: Option<Ranges>,
    /// Selected positions. `None` for all. Values of the whole run are not affected.
    pub positions: Option<Ranges>,
}

impl Selection {
    /// Selects everything that the reference records.
    pub fn everything() -> Self {
        let checkpoints = Checkpoint::with_input().to_vec();
        Self { checkpoints, explicit: false, layers: None, passes: None, positions: None }
    }

    /// Selects only the checkpoints inside layers.
    pub fn inside_layers(mut self) -> Self {
        let inside =
            |checkpoint: &Checkpoint| checkpoint.points().all(|point| point.scope() == TapScope::Layer);
        self.checkpoints.retain(inside);
        self
    }

    /// Returns true if a site with these positions is selected.
    pub fn takes(&self, site: Site, positions: &Range<usize>) -> bool {
        let chosen = |ranges: &Option<Ranges>, number: Option<usize>| match (ranges, number) {
            (Some(ranges), Some(number)) => ranges.contains(number),
            _ => true,
        };
        let at_positions = self
            .positions
            .as_ref()
            .is_none_or(|ranges| site.pass.is_none() || positions.clone().any(|p| ranges.contains(p)));
        self.checkpoints.contains(&site.point.checkpoint())
            && chosen(&self.layers, site.layer)
            && chosen(&self.passes, site.pass)
            && at_positions
    }

    /// Checks that the selected layers, passes and positions exist.
    ///
    /// # Errors
    /// For the first number that is too large. The message states the valid range.
    pub fn check(&self, n_layers: usize, n_passes: usize, n_positions: usize) -> Result<()> {
        let asked = [
            ("--layer", "layer", &self.layers, n_layers),
            ("--pass", "pass", &self.passes, n_passes),
            ("--position", "position", &self.positions, n_positions),
        ];
        for (option, what, ranges, count) in asked {
            if let Some(last) = ranges.as_ref().map(Ranges::last).filter(|&last| last >= count) {
                let there_are = match count {
                    0 => "the dump has none".to_owned(),
                    count => format!("expected 0 to {}", count - 1),
                };
                return Err(Error::Usage(format!("{option}: {what} {last} does not exist; {there_are}")));
            }
        }
        Ok(())
    }
}
