//! Inputs of an operation: exact numbers, or numbers with an uncertainty.

use std::ops::Range;

use crate::exact::float::Float;
use crate::exact::operation::{Node, is_given, node_of};
use crate::exact::profile::{FusedResults, Profile};
use crate::exact::unrounded_origin::UnroundedOrigin;
use crate::exact::value::ExactValue;
use crate::tensor::{Tensor, ValueOrigin};

/// Consecutive values of an input, with their uncertainty.
#[derive(Clone, Debug)]
pub(crate) struct InputValues {
    pub(crate) values: Vec<f64>,
    /// Sigma and radius of each value; `None` if all values are exact.
    pub(crate) doubt: Option<InputUncertainty>,
}

/// Uncertainty of an operation's input values.
#[derive(Clone, Debug)]
pub(crate) struct InputUncertainty {
    pub(crate) sigma: Vec<f64>,
    pub(crate) radius: Vec<f64>,
}

/// Tensor that an operation reads: all of it, or at least the range of values that it needs. Indices are those of the
/// tensor.
pub(crate) enum InputTensor<'t> {
    /// Exact values, recorded in the dump.
    Given(&'t [f32]),
    /// Computed values without uncertainty, from the index `first` on.
    Sure {
        /// Index of the first value.
        first: usize,
        /// The values.
        values: Vec<f64>,
    },
    /// Values with an uncertainty, from the index `first` on.
    Within {
        /// Index of the first value.
        first: usize,
        /// The values.
        exacts: Vec<ExactValue>,
    },
}

impl<'t> InputTensor<'t> {
    /// Evaluates a tensor under a profile. Do not call it inside a parallel loop, because it waits for the whole
    /// tensor.
    pub(crate) fn of(tensor: &'t Tensor, profile: &Profile) -> Self {
        Self::of_part(tensor, profile, 0..tensor.data().len())
    }

    /// Evaluates a range of a tensor's values under a profile.
    pub(crate) fn of_part(tensor: &'t Tensor, profile: &Profile, part: Range<usize>) -> Self {
        match is_given(tensor) {
            true => InputTensor::Given(tensor.data()),
            false => Self::from(part.start, evaluated(tensor, profile, part)),
        }
    }

    /// Evaluates an input that may be fused with the operations before it. The result covers both the rounded and the
    /// unrounded input.
    pub(crate) fn read(tensor: &'t Tensor, profile: &Profile, part: Range<usize>) -> Self {
        Self::fused_with(tensor, profile, part, |node| node.stage.is_fused())
    }

    /// Evaluates an input that is scaled. A kernel of a product may scale its results before it rounds them.
    pub(crate) fn scaled(tensor: &'t Tensor, profile: &Profile, part: Range<usize>) -> Self {
        Self::fused_with(tensor, profile, part, |node| node.stage.is_fused() || node.stage.is_product())
    }

    fn fused_with(
        tensor: &'t Tensor,
        profile: &Profile,
        part: Range<usize>,
        is_fused: impl Fn(&Node) -> bool,
    ) -> Self {
        if profile.fused == FusedResults::Nothing {
            return Self::of_part(tensor, profile, part);
        }
        let is_sum = |origin: &ValueOrigin| match UnroundedOrigin::of(origin) {
            Some(before) => before.is_sum(),
            None => node_of(origin).is_some_and(|node| node.stage.is_sum()),
        };
        Self::with(tensor, profile, part, is_fused, |origin, exacts, before| {
            match UnroundedOrigin::of(origin).as_deref() {
                _ if profile.fused == FusedResults::Norms && is_sum(origin) => {}
                Some(UnroundedOrigin::Unknown { .. }) => {
                    exacts.iter_mut().for_each(|x| *x = x.unrounded(profile.results))
                }
                _ => exacts.iter_mut().zip(before()).for_each(|(x, before)| *x = x.or(before)),
            }
        })
    }

    /// Evaluates an input that is certainly fused and therefore not rounded.
    pub(crate) fn unrounded(tensor: &'t Tensor, profile: &Profile, part: Range<usize>) -> Self {
        let is_fused = |node: &Node| node.stage.is_fused();
        Self::with(tensor, profile, part, is_fused, |origin, exacts, before| {
            match UnroundedOrigin::of(origin).as_deref() {
                Some(UnroundedOrigin::Unknown { .. }) => {
                    exacts.iter_mut().for_each(|x| *x = x.unrounded(profile.results))
                }
                _ => exacts.iter_mut().zip(before()).for_each(|(x, before)| *x = before),
            }
        })
    }

    /// Evaluates a range of a tensor's values and applies `change` to them and, if known, to their values before rounding.
    fn with(
        tensor: &'t Tensor,
        profile: &Profile,
        part: Range<usize>,
        is_fused: impl Fn(&Node) -> bool,
        change: impl Fn(&ValueOrigin, &mut [ExactValue], &dyn Fn() -> Vec<ExactValue>),
    ) -> Self {
        if tensor.origins().is_empty() {
            return Self::of_part(tensor, profile, part);
        }
        let first = part.start;
        let mut exacts = evaluated(tensor, profile, part.clone());
        let mut rest = exacts.as_mut_slice();
        for (origin, results) in origins_of(tensor, part) {
            let (piece, later) = rest.split_at_mut(results.len());
            let node = match UnroundedOrigin::of(origin).as_deref() {
                Some(UnroundedOrigin::Of(node)) => Some(node.clone()),
                _ => node_of(origin).filter(|node| is_fused(node)),
            };
            let before = |node: &Node| {
                let wanted: Vec<usize> = results.clone().collect();
                node.stage.at(&node.rounding(profile.made), &wanted)
            };
            change(origin, piece, &|| node.iter().flat_map(|node| before(node)).collect());
            rest = later;
        }
        Self::from(first, exacts)
    }

    fn from(first: usize, exacts: Vec<ExactValue>) -> Self {
        match exacts.iter().all(|exact| exact.radius == 0.0) {
            true => InputTensor::Sure { first, values: exacts.iter().map(|exact| exact.value).collect() },
            false => InputTensor::Within { first, exacts },
        }
    }

    /// Rounds the values to a type. Rounding to `f32` changes nothing.
    pub(crate) fn rounded(self, float: Float) -> Self {
        match self {
            known if float == Float::F32 => known,
            InputTensor::Given(values) => {
                let values = values.iter().map(|&x| float.round(x.into())).collect();
                InputTensor::Sure { first: 0, values }
            }
            InputTensor::Sure { first, values } => {
                InputTensor::Sure { first, values: values.into_iter().map(|x| float.round(x)).collect() }
            }
            InputTensor::Within { first, exacts } => {
                Self::from(first, exacts.into_iter().map(|x| x.rounded(float)).collect())
            }
        }
    }

    /// Returns the values if they were recorded; `None` if they were computed.
    pub(crate) fn given(&self) -> Option<&'t [f32]> {
        match self {
            InputTensor::Given(values) => Some(values),
            _ => None,
        }
    }

    /// Returns all values, if none has an uncertainty.
    pub(crate) fn sure(&self) -> Option<Vec<f64>> {
        match self {
            InputTensor::Given(values) => Some(values.iter().map(|&x| x.into()).collect()),
            InputTensor::Sure { values, .. } => Some(values.clone()),
            InputTensor::Within { .. } => None,
        }
    }

    /// Applies `f` to each requested value.
    pub(crate) fn each(&self, wanted: &[usize], f: impl Fn(ExactValue) -> ExactValue) -> Vec<ExactValue> {
        wanted.iter().map(|&flat| f(self.get(flat))).collect()
    }

    /// Returns `len` values, starting at index `start`.
    pub(crate) fn part(&self, start: usize, len: usize) -> InputValues {
        let values = match self {
            InputTensor::Given(values) => values[start..][..len].iter().map(|&x| x.into()).collect(),
            InputTensor::Sure { first, values } => values[start - first..][..len].to_vec(),
            InputTensor::Within { first, exacts } => {
                return InputValues::new(exacts[start - first..][..len].iter().copied());
            }
        };
        InputValues { values, doubt: None }
    }

    pub(crate) fn get(&self, flat: usize) -> ExactValue {
        match self {
            InputTensor::Given(values) => ExactValue::sure(values[flat].into()),
            InputTensor::Sure { first, values } => ExactValue::sure(values[flat - first]),
            InputTensor::Within { first, exacts } => exacts[flat - first],
        }
    }
}

/// Returns all values of a tensor as an operation reads them: rounded, with their uncertainty.
pub fn known(tensor: &Tensor) -> Vec<ExactValue> {
    match is_given(tensor) {
        true => tensor.data().iter().map(|&x| ExactValue::sure(x.into())).collect(),
        false => evaluated(tensor, &Profile::default(), 0..tensor.data().len()),
    }
}

fn evaluated(tensor: &Tensor, profile: &Profile, part: Range<usize>) -> Vec<ExactValue> {
    let mut exacts = Vec::with_capacity(part.len());
    let first = part.start;
    for (origin, results) in origins_of(tensor, part) {
        match node_of(origin) {
            Some(node) => exacts.extend(node.part(profile.made, results)),
            None => {
                let given = &tensor.data()[first + exacts.len()..][..results.len()];
                exacts.extend(given.iter().map(|&x| ExactValue::sure(x.into())));
            }
        }
    }
    exacts
}

/// Returns the origins of a range of a tensor's values, each with the range of its own results that lie in it.
fn origins_of(tensor: &Tensor, part: Range<usize>) -> impl Iterator<Item = (&ValueOrigin, Range<usize>)> {
    let mut end = 0;
    tensor.origins().iter().filter_map(move |origin| {
        let start = end;
        end += origin.range.len();
        let values = part.start.max(start)..part.end.min(end);
        let results = |flat: usize| origin.range.start + flat - start;
        (!values.is_empty()).then(|| (origin, results(values.start)..results(values.end)))
    })
}

impl InputValues {
    pub(crate) fn new(exacts: impl Iterator<Item = ExactValue>) -> Self {
        let exacts: Vec<ExactValue> = exacts.collect();
        let values = exacts.iter().map(|exact| exact.value).collect();
        let is_known = exacts.iter().all(|exact| exact.radius == 0.0);
        let doubt = (!is_known).then(|| InputUncertainty {
            sigma: exacts.iter().map(|exact| exact.sigma).collect(),
            radius: exacts.iter().map(|exact| exact.radius).collect(),
        });
        Self { values, doubt }
    }

    pub(crate) fn get(&self, index: usize) -> ExactValue {
        let value = self.values[index];
        match &self.doubt {
            None => ExactValue::sure(value),
            Some(doubt) => ExactValue { value, sigma: doubt.sigma[index], radius: doubt.radius[index] },
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Applies `f` to each value.
    pub(crate) fn map(&self, f: impl Fn(ExactValue) -> ExactValue) -> Self {
        Self::new((0..self.len()).map(|index| f(self.get(index))))
    }
}
