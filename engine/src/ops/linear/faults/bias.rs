//! A bias that is added several times: by each device of tensor parallelism, or again by the caller of a layer.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, FactorEstimate, LinearParameters, SiteContext};
use crate::ops::linear::exact::{Linear, RepeatedBias};
use crate::ops::linear::faults::{IN_LAYERS, ROW_PARALLEL, input, own, with};
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::BiasScale,
        at: ROW_PARALLEL,
        takes: "ranks:2",
        compute: |at, value| times(at, ranks(value)?),
        read: |at, theirs| {
            let factors = read_times(at, theirs).into_iter();
            factors.filter(|factor| is_count(*factor)).map(of_ranks).collect()
        },
        usual: Some(|at| match biased(at) {
            Some(_) => [2.0, 4.0, 8.0, 3.0].map(of_ranks).into(),
            None => Vec::new(),
        }),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::BiasScale,
        at: IN_LAYERS,
        takes: "2",
        own: |at| biased(at).map_or(ChangeValue::Nothing, |_| ChangeValue::Number(1.0)),
        compute: |at, value| times(at, value.number()?),
        read: |at, theirs| {
            let is_new = |factor: &f64| !(is_row_parallel(at) && is_count(*factor));
            read_times(at, theirs).into_iter().filter(is_new).map(ChangeValue::Number).collect()
        },
        usual: Some(|at| match biased(at).filter(|_| !is_row_parallel(at)) {
            Some(_) => [2.0, 0.5].map(ChangeValue::Number).into(),
            None => Vec::new(),
        }),
        ..CatalogueEntry::PLAIN
    },
];

/// Common multiples of the bias. An estimate becomes one of them if the difference is within its uncertainty.
const USUAL: [f64; 8] = [2.0, 3.0, 4.0, 8.0, 16.0, 0.5, 0.25, 0.125];

fn is_row_parallel(at: &SiteContext) -> bool {
    ROW_PARALLEL.contains(&at.site.point)
}

/// Returns true if a number is a plausible number of devices.
fn is_count(factor: f64) -> bool {
    factor >= 2.0 && factor.fract() == 0.0
}

fn of_ranks(count: f64) -> ChangeValue {
    ChangeValue::Word(format!("ranks:{count}"))
}

/// Parses the number of devices.
fn ranks(value: &ChangeValue) -> Option<f64> {
    let count: u16 = value.as_word()?.strip_prefix("ranks:")?.parse().ok()?;
    Some(count.into()).filter(|count| is_count(*count))
}

/// Returns the product with its bias, if the bias is not zero.
fn biased(at: &SiteContext) -> Option<(LinearParameters, Vec<f32>)> {
    let product = own(at)?;
    let bias = product.bias.clone().filter(|bias| bias.iter().any(|b| *b != 0.0))?;
    Some((product, bias))
}

/// Computes the product with a multiple of its bias. The multiple 0 is excluded, because a missing bias is another
/// entry.
fn times(at: &SiteContext, factor: f64) -> Option<Tensor> {
    let (product, bias) = biased(at).filter(|_| factor != 0.0)?;
    let scaled: Vec<f32> = bias.iter().map(|&b| (factor * f64::from(b)) as f32).collect();
    let is_repeated = is_count(factor) && at.stage::<Linear>().is_some();
    if !is_repeated {
        return with(at, &LinearParameters { bias: Some(scaled), ..product });
    }
    let (x, w) = (input(at)?.clone(), product.w);
    let made = at.n.numerics().affine(&x, &w, &scaled);
    let product = Linear { x, w, bias: None };
    Some(at.n.by(made, RepeatedBias { product, bias, times: factor as usize }))
}

/// Estimates the factor of the bias by least squares.
fn read_times(at: &SiteContext, theirs: &[f64]) -> Vec<f64> {
    let Some((_, bias)) = biased(at) else { return Vec::new() };
    let bias = bias.iter().cycle().map(|&b| f64::from(b));
    let more = at.value.data().iter().zip(theirs).map(|(&own, theirs)| theirs - f64::from(own));
    let pairs = bias.zip(more).map(|(bias, more)| (bias, more + bias));
    // No bias at all is another cause.
    let times = FactorEstimate::read(pairs).filter(|times| !times.holds(0.0));
    let values = times.map(|times| times.values(at, &USUAL));
    values.into_iter().flatten().filter_map(|value| value.number()).collect()
}
