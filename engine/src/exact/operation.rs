//! Operations that are evaluated on demand.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::exact::choice::{Choice, ChoiceSet};
use crate::exact::float::Float;
use crate::exact::profile::Profile;
use crate::exact::value::ExactValue;
use crate::parallel;
use crate::tensor::{Tensor, ValueOrigin};

/// An operation and its inputs.
pub trait Operation: Any + Send + Sync {
    /// Evaluates some results, given by their row-major indices in ascending order.
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue>;

    /// Returns an evaluator that computes some rows column by column; `None` if this is not faster than
    /// [`Operation::at`].
    fn by_columns<'s>(&'s self, _: &Profile, _rows: Range<usize>) -> Option<Box<dyn ColumnEvaluator + 's>> {
        None
    }

    /// Returns true if evaluating a few results costs no more per result than evaluating all results.
    fn is_light(&self) -> bool {
        true
    }

    /// Returns the type that results are rounded to.
    fn results(&self, profile: &Profile) -> Float {
        profile.results
    }

    /// Returns the rounding choices that engines may make in this operation.
    fn choices(&self) -> &'static [Choice] {
        &[]
    }

    /// Returns the input tensors.
    fn inputs(&self) -> Vec<&Tensor> {
        Vec::new()
    }

    /// Returns true if the operation's roundings are unbiased: sums rounded to nearest, with exact inputs.
    fn is_unbiased(&self, _: &Profile) -> bool {
        false
    }

    /// Returns true if unrounded results have only the error of the inputs, as in multiplication by a number or a table
    /// lookup.
    fn is_certain(&self) -> bool {
        false
    }

    /// Returns true for a product with weights.
    fn is_product(&self) -> bool {
        false
    }

    /// Returns true if the operation adds two tensors.
    fn is_sum(&self) -> bool {
        false
    }

    /// For a norm: returns true if it reads the sum of two values, which engines may hold in more digits than they
    /// store. `None` for other operations.
    fn reads_sum(&self) -> Option<bool> {
        None
    }

    /// Returns true if no input gives a value near `value` as the result at index `flat`. Only operations whose results
    /// are on a grid, whatever the inputs, return true. `step` is the distance between neighbouring numbers of the
    /// value's type.
    fn excludes(&self, _flat: usize, _value: f64, _step: f64) -> bool {
        false
    }

    /// Returns true if a fused kernel may read the results before they are rounded. This applies to sums, norms,
    /// scores, tanh, short convolutions, and multiplications by a number or by one factor for each column. The
    /// operation of Mamba-2's step sizes includes the sum of dt and its bias.
    fn is_fused(&self) -> bool {
        false
    }

    /// Returns how many results depend on the same input, at least 1. Such results are not independent, so they count
    /// as one when errors are averaged.
    fn dependence(&self) -> f64 {
        1.0
    }

    /// Returns the relative error that all results of a row share because of a common rounding. Averaging over a row
    /// does not reduce it.
    fn shared(&self) -> f64 {
        0.0
    }

    /// Returns the relative error that all results of a row share because of uncertain inputs. Errors of different rows
    /// are independent.
    fn inherited(&self, _: &Profile) -> f64 {
        0.0
    }
}

/// Evaluates some rows of an operation column by column.
pub trait ColumnEvaluator: Sync {
    /// Evaluates a range of columns in every row. Calls `found(row, column, results)` with consecutive results of one
    /// row, the first one at `column`. Rows are counted from 0.
    fn at(&self, columns: Range<usize>, found: &mut dyn FnMut(usize, usize, &[ExactValue]));
}

/// Operation that computed a tensor, with a cache of the evaluated results.
pub struct Node {
    pub(crate) stage: Box<dyn Operation>,
    /// Rounding profile of the dump's engine.
    pub(crate) profile: Profile,
    /// Rounding profile of our engine.
    pub(crate) own: Profile,
    /// Number of operations from the recorded values to the result of this operation, including this operation.
    pub depth: usize,
    results: usize,
    known: Mutex<HashMap<ChoiceSet, Arc<Vec<ExactValue>>>>,
}

impl Node {
    /// Creates the node of an operation with `results` results.
    pub(crate) fn new(stage: impl Operation + 'static, [profile, own]: [Profile; 2], results: usize) -> Self {
        let before = stage.inputs().into_iter().flat_map(Tensor::origins).filter_map(node_of);
        let depth = 1 + before.map(|node| node.depth).max().unwrap_or(0);
        Self { stage: Box::new(stage), profile, own, depth, results, known: Mutex::default() }
    }

    /// Returns the operation, if it has type `S`.
    pub fn operation<S: Operation>(&self) -> Option<&S> {
        (&*self.stage as &dyn Any).downcast_ref()
    }

    /// Returns the profile of an engine that makes these rounding choices.
    pub(crate) fn rounding(&self, choices: ChoiceSet) -> Profile {
        match choices {
            ChoiceSet::OWN => Profile { made: choices, ..self.own },
            _ => self.profile.otherwise(choices),
        }
    }

    /// Evaluates consecutive results, rounded, as the next operation's inputs. Unless they are a small part, evaluates
    /// all results and keeps them.
    pub(crate) fn part(&self, choices: ChoiceSet, part: Range<usize>) -> Vec<ExactValue> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = known().get(&choices).cloned() {
            return all[part].to_vec();
        }
        let profile = self.rounding(choices);
        let float = self.stage.results(&profile);
        let of = |wanted: Range<usize>| -> Vec<ExactValue> {
            let exacts = self.stage.at(&profile, &wanted.collect::<Vec<_>>());
            exacts.into_iter().map(|exact| exact.rounded(float)).collect()
        };
        if part.len() * SMALL_PART <= self.results {
            return of(part);
        }
        let all = Arc::new(of(0..self.results));
        known().insert(choices, all.clone());
        all[part].to_vec()
    }

    /// Returns the rounding choices of this operation and of all operations between the recorded values and its inputs.
    pub(crate) fn choices(&self) -> ChoiceSet {
        let own: ChoiceSet = self.stage.choices().iter().copied().collect();
        let before = self.stage.inputs().into_iter().flat_map(Tensor::origins).filter_map(node_of);
        before.fold(own, |choices, node| choices.or(node.choices()))
    }
}

/// A part of an operation's results is small if it is at most one in this many. Evaluating small parts one after the other
/// then costs no more than all results do.
const SMALL_PART: usize = 4;

/// Number of results that one thread evaluates as one piece of work.
const PIECE: usize = 1 << 14;

/// Splits ascending indices by rows of `width` values.
pub(crate) fn by_row(wanted: &[usize], width: usize) -> impl Iterator<Item = &[usize]> {
    let mut rest = wanted;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let end = (first / width + 1) * width;
        let is_whole = rest.get(end - first - 1) == Some(&(end - 1));
        let len = if is_whole { end - first } else { rest.partition_point(|&flat| flat < end) };
        let (row, later) = rest.split_at(len);
        rest = later;
        Some(row)
    })
}

/// Returns the range of whole rows of `width` values that ascending indices lie in.
pub(crate) fn rows_around(wanted: &[usize], width: usize) -> Range<usize> {
    match (wanted.first(), wanted.last()) {
        (Some(first), Some(last)) => first / width * width..(last / width + 1) * width,
        _ => 0..0,
    }
}

/// Returns true if ascending indices are consecutive.
pub(crate) fn is_run(wanted: &[usize]) -> bool {
    wanted.first().zip(wanted.last()).is_some_and(|(first, last)| last - first + 1 == wanted.len())
}

/// Evaluates the requested values of each row of `width` values, in order; in parallel if there are many.
pub(crate) fn per_row(
    wanted: &[usize],
    width: usize,
    row: impl Fn(&[usize], &mut Vec<ExactValue>) + Sync,
) -> Vec<ExactValue> {
    let rows: Vec<&[usize]> = by_row(wanted, width).collect();
    let pieces: Vec<&[&[usize]]> = rows.chunks(PIECE.div_ceil(width)).collect();
    let mut exacts = parallel::map(pieces.len(), 8 * PIECE, |piece| {
        let mut exacts = Vec::with_capacity(pieces[piece].iter().map(|row| row.len()).sum());
        pieces[piece].iter().for_each(|flats| row(flats, &mut exacts));
        exacts
    });
    if exacts.len() == 1 { exacts.remove(0) } else { exacts.concat() }
}

/// Returns true if all values of a tensor are recorded, so that each is exact.
pub fn is_given(tensor: &Tensor) -> bool {
    tensor.origins().iter().all(|origin| node_of(origin).is_none())
}

/// Returns the operation that computed a value; `None` for a given value.
pub fn node_of(origin: &ValueOrigin) -> Option<Arc<Node>> {
    origin.source.clone()?.downcast().ok()
}

/// Returns the type that an operation rounds its results to, by the profile of the dump's engine; `None` for recorded
/// values.
pub fn type_of_results(tensor: &Tensor) -> Option<Float> {
    let node = tensor.origins().iter().find_map(node_of)?;
    Some(node.stage.results(&node.profile))
}

/// Evaluates some values of a tensor, in ascending order, for an engine that differs from its profile in `choices`.
/// Values without an origin are exact.
pub fn evaluate(tensor: &Tensor, choices: ChoiceSet, wanted: &[usize]) -> Vec<ExactValue> {
    if let [whole] = tensor.origins()
        && whole.range.start == 0
        && !wanted.is_empty()
        && let Some(node) = node_of(whole)
    {
        return node.stage.at(&node.rounding(choices), wanted);
    }
    let mut found = Vec::with_capacity(wanted.len());
    let (mut start, mut rest) = (0, wanted);
    let given = |flat: &usize| ExactValue::sure(tensor.data()[*flat].into());
    for origin in tensor.origins() {
        let end = start + origin.range.len();
        let (here, later) = rest.split_at(rest.partition_point(|&flat| flat < end));
        rest = later;
        match node_of(origin) {
            Some(node) if !here.is_empty() => {
                let there: Vec<usize> = here.iter().map(|flat| flat - start + origin.range.start).collect();
                found.extend(node.stage.at(&node.rounding(choices), &there));
            }
            _ => found.extend(here.iter().map(given)),
        }
        start = end;
    }
    found.extend(rest.iter().map(given));
    found
}

/// Returns true if no input of the operation that computed a tensor gives a value near `value` at index `flat`. `stored`
/// is the type that the value was stored in, if it is smaller than the type of the operation's results.
pub(crate) fn is_excluded(tensor: &Tensor, flat: usize, value: f64, stored: Option<Float>) -> bool {
    let mut start = 0;
    tensor.origins().iter().any(|origin| {
        let at = flat.checked_sub(start).filter(|&at| at < origin.range.len());
        start += origin.range.len();
        let node = at.and_then(|at| Some((node_of(origin)?, at + origin.range.start)));
        node.is_some_and(|(node, at)| {
            let types = [Some(node.profile.results), stored].into_iter().flatten();
            node.stage.excludes(at, value, types.map(|float| float.step(value)).fold(0.0, f64::max))
        })
    })
}

/// Values that were rounded when stored. Each value represents all numbers within its error bound.
struct RoundedValues {
    values: Vec<ExactValue>,
}

impl Operation for RoundedValues {
    fn at(&self, _: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        wanted.iter().map(|&flat| self.values[flat]).collect()
    }

    fn results(&self, _: &Profile) -> Float {
        Float::F32
    }
}

/// Returns a tensor whose values have an uncertainty. `known` returns each value with its error bound. Operations
/// that read the tensor use this uncertainty.
pub fn within(tensor: Tensor, known: impl Fn(usize) -> (f64, f64)) -> Tensor {
    let exact = |flat: usize| {
        let (value, radius) = known(flat);
        ExactValue::bounded(value, radius)
    };
    let values: Vec<ExactValue> = (0..tensor.data().len()).map(exact).collect();
    let results = values.len();
    tensor.computed_by(Arc::new(Node::new(RoundedValues { values }, [Profile::default(); 2], results)))
}
