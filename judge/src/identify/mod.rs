//! Identification of arrays without a manifest, by comparison with our own run of the model on the same
//! tokens.

mod array_layout;
mod assignment;
mod distance;
mod finder;
mod map_writer;
mod residual;
mod search;
mod sizes;

use crate::checkpoint::{Site, TapAxis};
use crate::dump::ArrayPart;
use crate::engine::{self, RunInput};
use crate::error::{Error, Result};
use crate::format::Arrays;
use crate::identify::assignment::Assignment;
use crate::identify::finder::{FileArray, SiteMatch};
use crate::identify::search::Search;
use crate::identify::sizes::AxisSizes;
use crate::model::Model;
use crate::numerics::Numerics;
use crate::tensor::RopePairing;
use crate::view::View;
use crate::weight::DType;

pub use map_writer::{guesses_of, map_of};

/// Maximum number of values in memory at once.
const MOST_VALUES: usize = 1 << 32;

/// An array with the sites that were found for it.
#[derive(Clone, Debug)]
pub struct IdentifiedArray {
    /// Name of the array.
    pub name: String,
    /// Shape of the array.
    pub shape: Vec<usize>,
    /// Type in which the array is stored.
    pub dtype: DType,
    /// Smaller type that represents all values exactly, if there is one.
    pub rounded: Option<DType>,
    /// Sites of the array: one, or one per fused part; empty if unknown.
    pub places: Vec<ArraySite>,
    /// The nearest site, if no site is near enough.
    pub nearest: Option<ArraySite>,
    /// Explanation of the result, if the values alone are not enough to see it.
    pub because: Option<String>,
}

/// A site whose values are in an array.
#[derive(Clone, Debug)]
pub struct ArraySite {
    /// Tap, layer and pass of the values.
    pub site: Site,
    /// First token and number of tokens in the array, if it does not have all tokens of the run.
    pub rows: Option<(usize, usize)>,
    /// Axes of the array (or of its fused part) without those of length 1.
    pub axes: Vec<(TapAxis, usize)>,
    /// True if the axes are in the tap's order.
    pub is_in_order: bool,
    /// Fused part of the array with its axes, if the site is only a part.
    pub of: Option<(ArrayPart, Vec<TapAxis>)>,
    /// RoPE pairing of the array, if it differs from the model's.
    pub pairing: Option<RopePairing>,
    /// Factor by which our values are multiplied to match the array.
    pub scale: f64,
    /// Relative L2 error. Each operation starts from the file's own values where they were found.
    pub rel_l2: f64,
    /// True if rounding explains the error, or if later values match only with this assignment. Otherwise the
    /// site is a best guess.
    pub is_certain: bool,
    /// Other sites that fit equally well.
    pub others: Vec<Site>,
}

/// Identifies the arrays of a file by a run of the model on the given tokens.
///
/// # Errors
/// If the model cannot run on these tokens, or if the arrays exceed the memory limit.
pub fn identify(
    arrays: &Arrays,
    tokens: &[u32],
    model: &dyn Model,
    numerics: &dyn Numerics,
) -> Result<Vec<IdentifiedArray>> {
    let script = RunInput::greedy(tokens, 0);
    engine::check(model, numerics, &script)?;
    let numbers = numbers(arrays)?;
    let search = Search { numbers: &numbers, model, numerics, script: &script };
    let settled = search.settled()?;
    Ok(identified(arrays, tokens, &numbers, &settled, &AxisSizes::of(&model.dimensions())))
}

/// Returns the arrays of floating-point numbers, with their values.
fn numbers(arrays: &Arrays) -> Result<Vec<FileArray>> {
    let is_real = |dtype| matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16);
    let real: Vec<_> = arrays.tensors.iter().filter(|(_, stored)| is_real(stored.dtype)).collect();
    let all: usize = real.iter().map(|(_, stored)| stored.elements()).sum();
    if all > MOST_VALUES {
        let problem = format!(
            "the file has {all} values, more than the limit of {MOST_VALUES}; use a part of the file, or a \
                shorter prompt"
        );
        return Err(Error::dump(arrays.tensors.path(), problem));
    }
    let number = |(name, stored): (&str, &crate::weight::StoredTensor)| {
        let view = View::stored(&stored.shape, stored.dtype, stored.data.clone())?;
        let values = view.to_vec().into_iter().map(|value| value as f32).collect();
        Some(FileArray { name: name.to_owned(), shape: stored.shape.clone(), values })
    };
    Ok(real.into_iter().filter_map(number).collect())
}

fn identified(
    arrays: &Arrays,
    tokens: &[u32],
    numbers: &[FileArray],
    settled: &Assignment,
    sizes: &AxisSizes,
) -> Vec<IdentifiedArray> {
    let of = |(name, stored): (&str, &crate::weight::StoredTensor)| {
        let blank = IdentifiedArray {
            name: name.to_owned(),
            shape: stored.shape.clone(),
            dtype: stored.dtype,
            rounded: None,
            places: Vec::new(),
            nearest: None,
            because: None,
        };
        let Some(index) = numbers.iter().position(|one| one.name == name) else {
            let view = View::stored(&stored.shape, stored.dtype, stored.data.clone());
            let ids = view.map(|view| view.to_vec()).unwrap_or_default();
            let read: Vec<f64> = tokens.iter().copied().map(f64::from).collect();
            let because = if ids == read { TOKENS } else { "integers other than the tokens" };
            return IdentifiedArray { because: Some(because.to_owned()), ..blank };
        };
        let values = &numbers[index].values;
        let because = match values {
            values if values.iter().any(|value| value.is_nan()) => Some("contains NaN"),
            values if values.iter().all(|value| *value == 0.0) => Some("all zeros"),
            _ if settled.was_supposed(index) => Some(
                "identified from later values: if the array is this tap, the operations after the tap are correct",
            ),
            _ => None,
        };
        IdentifiedArray {
            rounded: rounded(stored.dtype, values),
            places: settled.places(index, sizes),
            nearest: settled.nearest(index),
            because: because.map(str::to_owned),
            ..blank
        }
    };
    arrays.tensors.iter().map(of).collect()
}

/// Explanation shown for an array of token ids.
const TOKENS: &str = "the tokens";

impl IdentifiedArray {
    /// Returns true if the array contains the input tokens.
    pub fn is_tokens(&self) -> bool {
        self.because.as_deref() == Some(TOKENS)
    }

    /// Returns true if every site of the array is certain, or the array contains the input tokens.
    pub fn is_told(&self) -> bool {
        self.is_tokens() || !self.places.is_empty() && !self.is_guess()
    }

    /// Returns true if the array's sites are a best guess.
    pub fn is_guess(&self) -> bool {
        self.places.iter().any(|place| !place.is_certain)
    }
}

/// Returns a 16-bit type that represents all values exactly, if the stored type is larger.
fn rounded(dtype: DType, values: &[f32]) -> Option<DType> {
    let is_short = |short: fn(f32) -> f32| values.iter().all(|&value| short(value) == value);
    let is_long = matches!(dtype, DType::F32 | DType::F64) && values.iter().any(|value| *value != 0.0);
    match is_long {
        true if is_short(|value| half::bf16::from_f32(value).to_f32()) => Some(DType::BF16),
        true if is_short(|value| half::f16::from_f32(value).to_f32()) => Some(DType::F16),
        _ => None,
    }
}

impl ArraySite {
    fn of(one: &SiteMatch, others: Vec<Site>, is_certain: bool) -> Self {
        let SiteMatch { site, near, way } = one;
        Self {
            site: *site,
            rows: way.rows,
            axes: way.order(),
            is_in_order: way.is_in_order() || way.pairing.is_some() && in_order_but_for_pairs(way),
            of: way.part.as_ref().map(|part| (part.of.clone(), part.axes.clone())),
            pairing: way.pairing,
            scale: near.scale,
            rel_l2: near.rel_l2,
            is_certain,
            others,
        }
    }
}

fn in_order_but_for_pairs(way: &array_layout::ArrayLayout) -> bool {
    let others: Vec<_> = way.axes.iter().filter(|one| one.axis != TapAxis::HeadDim).collect();
    let heads_last = way.axes.iter().rev().take(2).all(|one| one.axis == TapAxis::HeadDim);
    heads_last && others.windows(2).all(|two| two[0].ours >= two[1].ours)
}
