//! Fault of a product whose sum is split into parts that are rounded to a short type before they are added
//! (split-K).

use std::collections::BTreeSet;

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, SiteContext, distance};
use crate::exact::{Float, Profile};
use crate::numerics::Numerics;
use crate::ops::linear::exact::{Linear, SplitSums};
use crate::ops::linear::faults::{IN_LAYERS, input, own};
use crate::quant::decode_matrix_row;
use crate::tensor::Tensor;
use crate::weight::Matrix;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::SplitK,
    at: IN_LAYERS,
    takes: "2|columns:8",
    compute: |at, value| split(at, width(at, value)?),
    read: read_split,
    usual: Some(|_| Vec::new()),
    ..CatalogueEntry::PLAIN
}];

/// Returns the number of columns of a part. The value states this number, or the number of parts.
fn width(at: &SiteContext, value: &ChangeValue) -> Option<usize> {
    let columns = input(at)?.row_len();
    let width = match value {
        ChangeValue::Number(parts) if parts.fract() == 0.0 => columns.div_ceil(*parts as usize),
        ChangeValue::Word(word) => word.strip_prefix("columns:")?.parse().ok()?,
        _ => return None,
    };
    (width > 0 && width < columns).then_some(width)
}

/// Returns the type that parts are rounded to: the type of activations, or `bf16` if activations are `f32`.
fn short(at: &SiteContext) -> Float {
    Float::of(at.n.activation_type()).filter(|float| *float != Float::F32).unwrap_or(Float::Bf16)
}

/// Computes the product as a sum of rounded parts.
fn split(at: &SiteContext, width: usize) -> Option<Tensor> {
    let (x, product, short) = (input(at)?, own(at)?, short(at));
    at.stage::<Linear>()?;
    let rounded = |x: Tensor| x.map(|x| short.round(x.into()) as f32);
    let columns = x.row_len();
    let part = |first: usize| {
        let is_in = |flat: usize| (first..first + width).contains(&(flat % columns));
        let data = x.data().iter().enumerate().map(|(flat, &x)| if is_in(flat) { x } else { 0.0 });
        let x = Tensor::new(x.shape(), data.collect());
        rounded(at.n.numerics().linear_of_pass(&x, &product.w, None, at.positions.len()))
    };
    let add = |a: Tensor, b: Tensor| rounded(at.n.numerics().add(&a, &b));
    let sum = (0..columns).step_by(width).map(part).reduce(add)?;
    let bias = product.bias.clone();
    let made = match &bias {
        Some(bias) => {
            let weights = Profile::of(at.n.numerics()).weights;
            let bias: Vec<f32> = bias.iter().map(|&b| weights.round(b.into()) as f32).collect();
            let data = sum.data().iter().zip(bias.iter().cycle()).map(|(sum, bias)| sum + bias);
            rounded(Tensor::new(sum.shape(), data.collect()))
        }
        None => sum,
    };
    let product = Linear { x: x.clone(), w: product.w, bias };
    Some(at.n.by(made, SplitSums { product, width, short }))
}

/// Largest relative error of a product that differs only in rounding.
const SMALL: f64 = 0.03;

/// Number of outputs that are computed to find the width.
const OUTPUTS: usize = 8;

/// Largest share of wrong values among the computed outputs. A different order of sums may round a few values to a
/// neighbour.
const MOST_WRONG: f64 = 0.02;

/// Finds the widths of parts that reproduce the dump's first outputs.
fn read_split(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let (Some(x), Some(product)) = (input(at), own(at)) else { return Vec::new() };
    let short = short(at);
    let is_rounded = theirs.iter().all(|&y| y.is_nan() || short.round(y) == y);
    let off = distance(at.value, theirs);
    if !is_rounded || at.stage::<Linear>().is_none() || !(off > 0.0 && off < SMALL) {
        return Vec::new();
    }
    let columns = x.row_len();
    let halves = (1..).map(|power| 1usize << power).take_while(|width| *width < columns);
    let parts = [2, 3, 4, 6, 8, 12, 16, 24, 32].into_iter().filter(|parts| columns.is_multiple_of(*parts));
    let widths: BTreeSet<usize> = halves.chain(parts.map(|parts| columns / parts)).collect();
    let weights = Profile::of(at.n.numerics()).weights;
    let few = FirstOutputs { x, w: &product.w, bias: product.bias.as_deref(), short, weights, theirs };
    let fitting = widths.into_iter().filter(|&width| width < columns && few.wrong(width) < MOST_WRONG);
    fitting.flat_map(|width| values(width, columns)).collect()
}

/// Returns the values of `--suppose` for a width: the width itself if it is a power of two, as in kernels, and the
/// number of parts.
fn values(width: usize, columns: usize) -> Vec<ChangeValue> {
    let by_width = ChangeValue::Word(format!("columns:{width}"));
    let by_parts = columns.is_multiple_of(width).then_some(ChangeValue::Number((columns / width) as f64));
    match (width.is_power_of_two(), by_parts) {
        (false, Some(parts)) => vec![parts],
        (_, parts) => [by_width].into_iter().chain(parts).collect(),
    }
}

/// The first outputs of a product, which show the width of its parts.
struct FirstOutputs<'s> {
    x: &'s Tensor,
    w: &'s Matrix,
    bias: Option<&'s [f32]>,
    short: Float,
    /// Type that weights are rounded to before the product.
    weights: Float,
    theirs: &'s [f64],
}

impl FirstOutputs<'_> {
    /// Returns the share of values that parts of this width do not reproduce.
    fn wrong(&self, width: usize) -> f64 {
        let (mut wrong, mut all, mut row) = (0.0, 0.0, vec![0.0f32; self.w.cols]);
        for output in 0..OUTPUTS.min(self.w.rows) {
            decode_matrix_row(self.w, output, &mut row);
            let row: Vec<f64> = row.iter().map(|&w| self.stored(w)).collect();
            for token in 0..self.x.rows() {
                let part = |(x, w): (&[f32], &[f64])| {
                    self.short.round(x.iter().zip(w).map(|(&x, w)| f64::from(x) * w).sum())
                };
                let parts = self.x.row(token).chunks(width).zip(row.chunks(width)).map(part);
                let sum = parts.reduce(|a, b| self.short.round(a + b)).unwrap_or(0.0);
                let bias = self.bias.map_or(0.0, |bias| self.stored(bias[output]));
                all += 1.0;
                wrong += f64::from(self.short.round(sum + bias) != self.theirs[token * self.w.rows + output]);
            }
        }
        wrong / all
    }

    /// Returns a weight, rounded as the product reads it.
    fn stored(&self, w: f32) -> f64 {
        self.weights.round(w.into())
    }
}
