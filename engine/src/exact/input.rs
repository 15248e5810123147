//! Inputs of an operation: exact numbers, or numbers with an uncertainty.

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

/// Tensor that an operation reads.
pub(crate) enum InputTensor<'t> {
    /// Exact values, recorded in the dump.
    Given(&'t [f32]),
    /// Computed values without uncertainty.
    Sure(Vec<f64>),
    /// Values with an uncertainty.
    Within(Vec<ExactValue>),
}

impl<'t> InputTensor<'t> {
    /// Evaluates a tensor under a profile. Do not call it inside a parallel loop, because it waits for the whole
    /// tensor.
    pub(crate) fn of(tensor: &'t Tensor, profile: &Profile) -> Self {
        match is_given(tensor) {
            true => InputTensor::Given(tensor.data()),
            false => Self::from(all(tensor, profile)),
        }
    }

    /// Evaluates an input that may be fused with the operations before it. The result covers both the rounded and the
    /// unrounded input.
    pub(crate) fn read(tensor: &'t Tensor, profile: &Profile) -> Self {
        Self::fused_with(tensor, profile, |node| node.stage.is_fused())
    }

    /// Evaluates an input that is scaled. A kernel of a product may scale its results before it rounds them.
    pub(crate) fn scaled(tensor: &'t Tensor, profile: &Profile) -> Self {
        Self::fused_with(tensor, profile, |node| node.stage.is_fused() || node.stage.is_product())
    }

    fn fused_with(tensor: &'t Tensor, profile: &Profile, is_fused: impl Fn(&Node) -> bool) -> Self {
        if profile.fused == FusedResults::Nothing {
            return Self::of(tensor, profile);
        }
        let is_sum = |origin: &ValueOrigin| match UnroundedOrigin::of(origin) {
            Some(before) => before.is_sum(),
            None => node_of(origin).is_some_and(|node| node.stage.is_sum()),
        };
        Self::with(tensor, profile, is_fused, |origin, exacts, before| {
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
    pub(crate) fn unrounded(tensor: &'t Tensor, profile: &Profile) -> Self {
        let is_fused = |node: &Node| node.stage.is_fused();
        Self::with(tensor, profile, is_fused, |origin, exacts, before| {
            match UnroundedOrigin::of(origin).as_deref() {
                Some(UnroundedOrigin::Unknown { .. }) => {
                    exacts.iter_mut().for_each(|x| *x = x.unrounded(profile.results))
                }
                _ => exacts.iter_mut().zip(before()).for_each(|(x, before)| *x = before),
            }
        })
    }

    /// Evaluates a tensor under a profile and applies `change` to it and, if known, to its value before rounding.
    fn with(
        tensor: &'t Tensor,
        profile: &Profile,
        is_fused: impl Fn(&Node) -> bool,
        change: impl Fn(&ValueOrigin, &mut [ExactValue], &dyn Fn() -> Vec<ExactValue>),
    ) -> Self {
        if tensor.origins().is_empty() {
            return Self::of(tensor, profile);
        }
        let mut exacts = all(tensor, profile);
        let mut rest = exacts.as_mut_slice();
        for origin in tensor.origins() {
            let (piece, later) = rest.split_at_mut(origin.range.len());
            let node = match UnroundedOrigin::of(origin).as_deref() {
                Some(UnroundedOrigin::Of(node)) => Some(node.clone()),
                _ => node_of(origin).filter(|node| is_fused(node)),
            };
            let before = |node: &Node| {
                let wanted: Vec<usize> = origin.range.clone().collect();
                node.stage.at(&node.rounding(profile.made), &wanted)
            };
            change(origin, piece, &|| node.iter().flat_map(|node| before(node)).collect());
            rest = later;
        }
        Self::from(exacts)
    }

    fn from(exacts: Vec<ExactValue>) -> Self {
        match exacts.iter().all(|exact| exact.radius == 0.0) {
            true => InputTensor::Sure(exacts.iter().map(|exact| exact.value).collect()),
            false => InputTensor::Within(exacts),
        }
    }

    /// Rounds the values to a type. Rounding to `f32` changes nothing.
    pub(crate) fn rounded(self, float: Float) -> Self {
        match self {
            known if float == Float::F32 => known,
            InputTensor::Given(values) => {
                InputTensor::Sure(values.iter().map(|&x| float.round(x.into())).collect())
            }
            InputTensor::Sure(values) => {
                InputTensor::Sure(values.into_iter().map(|x| float.round(x)).collect())
            }
            InputTensor::Within(exacts) => Self::from(exacts.into_iter().map(|x| x.rounded(float)).collect()),
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
            InputTensor::Sure(values) => Some(values.clone()),
            InputTensor::Within(_) => None,
        }
    }

    /// Applies `f` to each requested value.
    pub(crate) fn each(&self, wanted: &[usize], f: impl Fn(ExactValue) -> ExactValue) -> Vec<ExactValue> {
        wanted.iter().map(|&flat| f(self.get(flat))).collect()
    }

    /// Returns `len` values, starting at index `first`.
    pub(crate) fn part(&self, first: usize, len: usize) -> InputValues {
        let part = first..first + len;
        let values = match self {
            InputTensor::Given(values) => values[part].iter().map(|&x| x.into()).collect(),
            InputTensor::Sure(values) => values[part].to_vec(),
            InputTensor::Within(exacts) => return InputValues::new(exacts[part].iter().copied()),
        };
        InputValues { values, doubt: None }
    }

    pub(crate) fn get(&self, flat: usize) -> ExactValue {
        match self {
            InputTensor::Given(values) => ExactValue::sure(values[flat].into()),
            InputTensor::Sure(values) => ExactValue::sure(values[flat]),
            InputTensor::Within(exacts) => exacts[flat],
        }
    }
}

/// Returns all values of a tensor as an operation reads them: rounded, with their uncertainty.
pub fn known(tensor: &Tensor) -> Vec<ExactValue> {
    match is_given(tensor) {
        true => tensor.data().iter().map(|&x| ExactValue::sure(x.into())).collect(),
        false => all(tensor, &Profile::default()),
    }
}

fn all(tensor: &Tensor, profile: &Profile) -> Vec<ExactValue> {
    let mut exacts = Vec::with_capacity(tensor.data().len());
    for origin in tensor.origins() {
        match node_of(origin) {
            Some(node) => exacts.extend(&node.all(profile.made)[origin.range.clone()]),
            None => {
                let given = exacts.len()..exacts.len() + origin.range.len();
                exacts.extend(tensor.data()[given].iter().map(|&x| ExactValue::sure(x.into())));
            }
        }
    }
    exacts
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
