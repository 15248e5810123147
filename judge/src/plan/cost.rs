//! Cost of a unit in work, weights and values. These estimates only affect how units are distributed.

use std::str::FromStr;

use crate::dump::Dump;
use crate::model::Model;
use crate::plan::Unit;
use crate::weight::Matrix;

/// Assumed floating-point operations per second: those of two laptop threads (the README's figure for a prefill).
const RATE: f64 = 65e9;

/// Assumed speed in bytes per second for reading weights and dumps.
const BANDWIDTH: f64 = 1e9;

/// The cost of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations, in 10⁹, of one forward pass over all tokens.
    pub gflop: f64,
    /// Bytes of weights that the unit reads.
    pub weights_bytes: u64,
    /// Bytes of the dump that the unit reads.
    pub dump_bytes: u64,
}

impl Cost {
    pub(super) fn of(unit: &Unit, model: &dyn Model, dump: &Dump) -> Self {
        let sizes = model.dimensions();
        let passes = &dump.manifest.passes;
        let tokens: usize = passes.iter().map(|pass| pass.tokens.len()).sum();
        // Attention scores and weighted sums: each query with each key.
        let pairs: usize = passes.iter().map(|pass| pass.tokens.len() * pass.end()).sum();
        let (embed, layers, head) = match unit.part() {
            Some(part) => (part.embed, part.layers, part.head),
            None => (true, 0..sizes.n_layers, true),
        };
        let mut cost = Cost::default();
        for layer in layers {
            for (_, w) in model.layer_matrices(layer) {
                cost.gflop += 2.0 * (w.rows * w.cols * tokens) as f64 / 1e9;
                cost.weights_bytes += bytes(w);
            }
            cost.gflop += 4.0 * (pairs * sizes.hidden_size) as f64 / 1e9;
        }
        if head {
            let w = model.head();
            cost.gflop += 2.0 * (w.rows * w.cols * tokens) as f64 / 1e9;
            cost.weights_bytes += bytes(w);
        }
        if embed {
            let row = bytes(model.head()) / sizes.vocab_size.max(1) as u64;
            cost.weights_bytes += row * tokens as u64;
        }
        let rows = dump.manifest.tensors.iter();
        let own = rows.filter(|row| row.site().is_ok_and(|site| unit.contains(site, sizes.n_layers)));
        cost.dump_bytes = own.filter_map(|row| row.size()).sum();
        cost
    }

    /// Returns the sum of both costs.
    pub fn and(self, other: Self) -> Self {
        Self {
            gflop: self.gflop + other.gflop,
            weights_bytes: self.weights_bytes + other.weights_bytes,
            dump_bytes: self.dump_bytes + other.dump_bytes,
        }
    }

    /// Returns the bytes of weights and dump values.
    pub(crate) fn bytes(&self) -> u64 {
        self.weights_bytes + self.dump_bytes
    }

    /// Returns the estimated time in seconds on a small machine.
    pub fn seconds(&self) -> f64 {
        self.gflop * 1e9 / RATE + self.bytes() as f64 / BANDWIDTH
    }
}

fn bytes(w: &Matrix) -> u64 {
    w.dtype.bytes_for(w.rows * w.cols).unwrap_or(0) as u64
}

/// The limit per machine, such as `2GB`, `500MB`, `60s` or `5m`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Bytes of weights and dump values.
    Bytes(u64),
    /// Maximum time in seconds on a small machine.
    Seconds(f64),
}

impl Limit {
    /// Returns true if a cost is within the limit.
    pub fn holds(&self, cost: &Cost) -> bool {
        match self {
            Limit::Bytes(bytes) => cost.bytes() <= *bytes,
            Limit::Seconds(seconds) => cost.seconds() <= *seconds,
        }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "invalid limit '{text}', expected a size such as 2GB or 500MB, or a time such as 60s \
                or 5m"
            )
        };
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(refuse)?;
        let number: f64 = text[..digits].parse().map_err(|_| refuse())?;
        let limit = match text[digits..].trim() {
            "GB" => Limit::Bytes((number * 1e9) as u64),
            "MB" => Limit::Bytes((number * 1e6) as u64),
            "kB" => Limit::Bytes((number * 1e3) as u64),
            "s" => Limit::Seconds(number),
            "m" => Limit::Seconds(60.0 * number),
            "h" => Limit::Seconds(3600.0 * number),
            _ => return Err(refuse()),
        };
        if number > 0.0 { Ok(limit) } else { Err(refuse()) }
    }
}
