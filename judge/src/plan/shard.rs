//! Distribution of the units to shards.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::plan::Cost;

/// One shard of several, counted from 1, such as `3/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Index of the shard, from 1.
    pub index: usize,
    /// Total number of shards.
    pub of: usize,
}

impl Shard {
    /// Returns the units of this shard, given the costs of all units.
    pub fn units(&self, costs: &[Cost]) -> Range<usize> {
        shards(costs, self.of).get(self.index - 1).cloned().unwrap_or(costs.len()..costs.len())
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').map(|(index, of)| (index.trim().parse(), of.trim().parse()));
        match numbers {
            Some((Ok(index), Ok(of))) if 1 <= index && index <= of => Ok(Self { index, of }),
            _ => Err(format!(
                "invalid shard '{text}', expected e.g. 3/16 for the third of sixteen, counted \
                from 1"
            )),
        }
    }
}

/// Splits the units into at most `n` slices with the lowest possible maximum cost. Returns fewer slices if
/// more would not help.
pub fn shards(costs: &[Cost], n: usize) -> Vec<Range<usize>> {
    // In whole microseconds, so that all machines get the same sums.
    let costs: Vec<u64> = costs.iter().map(|cost| (cost.seconds() * 1e6) as u64 + 1).collect();
    let (mut too_little, mut enough) =
        (costs.iter().copied().max().unwrap_or(0).saturating_sub(1), costs.iter().sum::<u64>());
    while enough - too_little > 1 {
        let middle = too_little + (enough - too_little) / 2;
        if packed(&costs, middle).len() <= n { enough = middle } else { too_little = middle }
    }
    packed(&costs, enough)
}

/// Packs units into slices in order, each with a total cost up to `limit`.
fn packed(costs: &[u64], limit: u64) -> Vec<Range<usize>> {
    let mut slices: Vec<Range<usize>> = Vec::new();
    let mut sum = 0;
    for (index, cost) in costs.iter().enumerate() {
        match slices.last_mut().filter(|_| sum + cost <= limit) {
            Some(slice) => slice.end = index + 1,
            None => {
                slices.push(index..index + 1);
                sum = 0;
            }
        }
        sum += cost;
    }
    slices
}
