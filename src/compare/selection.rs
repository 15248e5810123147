//! Which values a comparison is asked to look at.

use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::checkpoint::{Checkpoint, Scope, Site};

/// Numbers and ranges: `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges(Vec<RangeInclusive<usize>>);

impl Ranges {
    /// Whether a number is in one of the ranges.
    pub fn contains(&self, number: usize) -> bool {
        self.0.iter().any(|range| range.contains(&number))
    }

    /// The largest number that is asked for.
    pub fn last(&self) -> usize {
        self.0.iter().map(|range| *range.end()).max().unwrap_or(0)
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let (start, end) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>();
            match (number(start), number(end)) {
                (Ok(start), Ok(end)) if start <= end => Ok(start..=end),
                _ => Err(format!("'{part}' is neither a number nor a range such as 0-3")),
            }
        };
        text.split(',').map(range).collect::<Result<_, _>>().map(Ranges)
    }
}

/// Checkpoints by name, number or range: `all`, `rope,scores`, `1-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints(pub Vec<Checkpoint>);

impl FromStr for Checkpoints {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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
        return Ok(vec![part.parse()?]);
    }
    let numbers: Ranges = part.parse()?;
    let last = Checkpoint::all().len();
    if numbers.contains(0) || numbers.last() > last {
        return Err(format!("'{part}' is outside the checkpoints 1 to {last}"));
    }
    Ok(Checkpoint::all().iter().copied().filter(|checkpoint| numbers.contains(checkpoint.number())).collect())
}

/// Which values to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// These checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// Whether the checkpoints were asked for by the user, so that one that is missing is not to be overlooked.
    pub explicit: bool,
    /// Only these layers; what lies outside layers is not affected.
    pub layers: Option<Ranges>,
    /// Only these passes; what lies outside passes is not affected.
    pub passes: Option<Ranges>,
    /// Whether a generation that parts from the reference's in a tie is judged further, along the reference's tokens.
    pub follow_reference: bool,
}

impl Selection {
    /// Whatever the reference holds.
    pub fn everything() -> Self {
        let checkpoints = Checkpoint::with_input().to_vec();
        Self { checkpoints, explicit: false, layers: None, passes: None, follow_reference: false }
    }

    /// Nothing but the layers: without the checkpoints that lie outside them.
    pub fn inside_layers(mut self) -> Self {
        let inside = |checkpoint: &Checkpoint| checkpoint.points().all(|point| point.scope() == Scope::Layer);
        self.checkpoints.retain(inside);
        self
    }

    /// Whether a value is to be looked at.
    pub fn includes(&self, site: Site) -> bool {
        let chosen = |ranges: &Option<Ranges>, number: Option<usize>| match (ranges, number) {
            (Some(ranges), Some(number)) => ranges.contains(number),
            _ => true,
        };
        self.checkpoints.contains(&site.point.checkpoint())
            && chosen(&self.layers, site.layer)
            && chosen(&self.passes, site.pass)
    }
}
