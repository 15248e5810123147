//! Expected size of rounding differences for each type, measured with real pairs of engines.

use std::sync::LazyLock;

use serde::Deserialize;

/// Factor on the largest measured scale up to which rounding explains the differences of a pair.
const MARGIN: f64 = 1.25;
/// Factor on the largest measured scale from which rounding does not explain the differences of a pair.
const EXCESS: f64 = 10.0;

/// Expected size of rounding differences in a type, in log-odds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogOddsScale {
    /// The largest scale that rounding is known to cause, with a margin.
    pub(crate) largest: f64,
    /// The scale above which rounding cannot explain the differences.
    pub(crate) excess: f64,
}

#[derive(Deserialize)]
struct ScaleTable {
    dtype: Vec<MeasuredScale>,
}

#[derive(Deserialize)]
struct MeasuredScale {
    name: String,
    largest: f64,
}

impl LogOddsScale {
    /// Returns the scale of a type; `None` if no pair was measured.
    pub fn named(dtype: &str) -> Option<Self> {
        let name = match dtype {
            "float32" | "fp32" | "float" => "f32",
            "bfloat16" => "bf16",
            "float16" | "fp16" | "half" => "f16",
            other => other,
        };
        let found = TABLE.dtype.iter().find(|scale| scale.name == name)?;
        Some(Self { largest: MARGIN * found.largest, excess: EXCESS * found.largest })
    }

    /// Returns the scale for two sides: the scale of the coarser type.
    pub(crate) fn of_both(one: Self, other: Self) -> Self {
        if one.largest >= other.largest { one } else { other }
    }

    /// Returns the name of the finest type whose rounding can cause this scale.
    pub(crate) fn nearest(scale: f64) -> Option<String> {
        let mut fitting: Vec<_> =
            TABLE.dtype.iter().filter(|known| scale <= MARGIN * known.largest).collect();
        fitting.sort_by(|one, other| one.largest.total_cmp(&other.largest));
        fitting.first().map(|known| known.name.clone())
    }

    /// Returns the names of the types, separated by commas.
    pub fn names() -> String {
        TABLE.dtype.iter().map(|scale| scale.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

static TABLE: LazyLock<ScaleTable> = LazyLock::new(|| {
    toml::from_str(include_str!("rounding_scales.toml")).expect("a test parses the shipped table")
});
