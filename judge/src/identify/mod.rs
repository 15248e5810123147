//! Finds what arrays without a manifest are: our own run of the model on the same tokens tells.

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

/// Values that are held at once.
const MOST_VALUES: usize = 1 << 32;

/// The tap of an array.
#[derive(Clone, Debug)]
pub struct IdentifiedArray {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The type that it is stored in.
    pub dtype: DType,
    /// A shorter type that all of its values have.
    pub rounded: Option<DType>,
    /// The tap, or one per fused part; empty if unknown.
    pub places: Vec<ArraySite>,
    /// The nearest tap, if none is near enough.
    pub nearest: Option<ArraySite>,
    /// Explanation of the result, if it does not follow from the values.
    pub because: Option<String>,
}

/// A site whose values an array has.
#[derive(Clone, Debug)]
pub struct ArraySite {
    /// The site.
    pub site: Site,
    /// The tokens of the run that it holds, if not all: the first, and how many.
    pub rows: Option<(usize, usize)>,
    /// Axes of the array, or of its part, without those of length 1.
    pub axes: Vec<(TapAxis, usize)>,
    /// True if the axes are in the tap's order.
    pub is_in_order: bool,
    /// Part of the array, with the axes of the rest.
    pub of: Option<(ArrayPart, Vec<TapAxis>)>,
    /// Order of the heads, if it differs from the model's.
    pub pairing: Option<RopePairing>,
    /// Scale from our values to the array's.
    pub scale: f64,
    /// Relative L2 error; each operation starts from the file's own values where found.
    pub rel_l2: f64,
    /// True if rounding explains the error, or what follows is right only if the array is this; if not, it is a best guess.
    pub is_certain: bool,
    /// Places that it may as well be.
    pub others: Vec<Site>,
}

/// Finds what arrays are.
///
/// # Errors
/// The errors of a run of the model on these tokens, or if the arrays are more than can be held.
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

/// The arrays of real numbers.
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
            _ if settled.was_supposed(index) => Some("later operations are right if the array is this tap"),
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

/// Explanation for an array of tokens.
const TOKENS: &str = "the tokens";

impl IdentifiedArray {
    /// Returns true if the array has the tokens that the model read.
    pub fn is_tokens(&self) -> bool {
        self.because.as_deref() == Some(TOKENS)
    }

    /// Returns true if each site is certain, or the array has the tokens.
    pub fn is_told(&self) -> bool {
        self.is_tokens() || !self.places.is_empty() && !self.is_guess()
    }

    /// Returns true if the sites are a best guess.
    pub fn is_guess(&self) -> bool {
        self.places.iter().any(|place| !place.is_certain)
    }
}

/// A type of 16 bits that values of a longer one have.
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
