//! Verdict on two engines' results for the same inputs: whether rounding explains them.

use std::collections::HashMap;
use std::ops::Range;

use crate::exact::bias::{BiasAccumulator, ResultWindow, SharedError};
use crate::exact::choice::{Choice, ChoiceSet};
use crate::exact::error_statistics::ErrorStatistics;
use crate::exact::float::Float;
use crate::exact::operation::{ColumnEvaluator, Node, evaluate, is_excluded, is_given, node_of};
use crate::exact::profile::{FusedResults, Operands, Profile};
use crate::exact::result_pair::{EngineErrors, PIECE, ResultPair};
use crate::exact::value::ExactValue;
use crate::parallel;
use crate::tensor::Tensor;

/// Number of results that are evaluated together.
const BATCH: usize = 1 << 19;

/// Verdict on one operation, for both engines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationVerdict {
    /// Number of evaluated results; the others have the same bits in both engines.
    pub evaluated: usize,
    /// Errors of the dump's engine.
    pub dump: EngineErrors,
    /// Errors of our engine.
    pub engine: EngineErrors,
    /// Deviations of the dump's engine from its profile, if these explain its values.
    pub found: Vec<Choice>,
    /// Choices that explain the values as well as `found`, if `found` is a choice that all layers of an engine share.
    pub alternatives: Vec<Choice>,
    /// Rounding profile with these deviations.
    pub profile: Profile,
    /// True if a norm reads a sum before it is rounded to a short type. `None` if undetermined, or if only the norm's
    /// mean square reads the unrounded sum.
    pub reads_unrounded: Option<bool>,
    /// True if no input of the operation gives one of the dump's values.
    pub is_impossible: bool,
}

/// Minimum number of values needed to see whether a norm reads its sum before rounding. About a fifth of the values
/// differs between the two cases.
const TELLING: usize = 64;

impl OperationVerdict {
    fn with_reading(self, compared: &ResultPair) -> Self {
        let norms = || {
            let nodes = compared.traced.origins().iter().filter_map(node_of);
            nodes.filter_map(|node| node.stage.reads_sum())
        };
        let could_be = self.profile.stream() != Float::F32
            && !self.profile.mean_of_sums
            && self.profile.fused != FusedResults::All;
        let is_told =
            self.dump.is_explained() && compared.sides[0].len() >= TELLING && compared.stored.is_none();
        let is_norm = norms().next().is_some() && norms().all(|reads_sum| reads_sum);
        let reads = (could_be && is_told && is_norm).then_some(self.profile.norm_of_sums);
        Self { reads_unrounded: reads, ..self }
    }
}

/// Maximum number of choices between two recorded values. With more choices, one of them would explain almost any
/// error.
const MOST_CHOICES: usize = 6;

/// Maximum number of consecutive operations without a recorded value: those of fused attention, from the keys on.
/// For longer chains, perturbed runs are more precise, since many codes of quantised activations may round either
/// way.
pub const DEEPEST: usize = 5;

/// Judges the results of an operation. If rounding does not explain the dump's values and `may_differ` is true,
/// alternative rounding choices are tried, one or two at a time. `None` if too many operations lie between recorded
/// values and the results.
pub fn judge(compared: &ResultPair, may_differ: bool) -> Option<OperationVerdict> {
    let nodes = || compared.traced.origins().iter().filter_map(node_of);
    if nodes().any(|node| node.depth > DEEPEST) {
        return None;
    }
    Some(tried(compared, may_differ).with_reading(compared))
}

fn tried(compared: &ResultPair, may_differ: bool) -> OperationVerdict {
    let nodes = || compared.traced.origins().iter().filter_map(node_of);
    let (mut declared, examples, _) = judge_by(compared, ChoiceSet::default());
    let is_impossible =
        |&flat: &usize| is_excluded(compared.traced, flat, compared.sides[0].get(flat), compared.stored);
    declared.is_impossible = examples.iter().any(is_impossible);
    if nodes().any(|node| node.own != node.profile) {
        declared.engine = judge_by(compared, ChoiceSet::OWN).0.engine;
    }
    let Some(node) = nodes().next().filter(|_| may_differ && !declared.dump.is_explained()) else {
        return declared;
    };
    let possible = |choice: &Choice| node.profile.with_other(*choice).is_some();
    let mut choices: Vec<Choice> = node.choices().iter().filter(possible).collect();
    // Tried last: rare choices, wide sums, other TF32 operands, chains, sums over several devices, and norms of unrounded sums.
    let last = [
        Choice::is_rare,
        Choice::is_of_wide_sums,
        Choice::is_other_tf32,
        Choice::is_of_chains,
        Choice::is_of_parts,
        Choice::is_of_sums,
    ];
    // Row scales do not count towards the limit, because the weights themselves prove them. Numbers of devices count as
    // one choice.
    let counted = |choices: &[Choice]| {
        let parts = choices.iter().filter(|choice| choice.is_of_parts()).count();
        choices.iter().filter(|choice| !choice.is_of_row_scales()).count() - parts.saturating_sub(1)
    };
    for is_last in last {
        if counted(&choices) > MOST_CHOICES {
            choices.retain(|&choice| !is_last(choice));
        }
    }
    if counted(&choices) > MOST_CHOICES {
        return declared;
    }
    let singles = choices.iter().map(|&choice| ChoiceSet::default().with(choice));
    let pairs = choices.iter().enumerate().flat_map(|(at, &one)| {
        choices[at + 1..].iter().map(move |&other| ChoiceSet::default().with(one).with(other))
    });
    // A few values rule out most choices.
    for set in singles.chain(pairs).filter(|&set| explains(compared, set, &examples)) {
        let (other, _, is_too_sure) = judge_by(compared, set);
        if other.dump.is_explained() && !is_too_sure {
            let alternatives = alternatives(compared, (set, &other.profile), &choices, &examples);
            return OperationVerdict {
                found: set.iter().collect(),
                alternatives,
                engine: declared.engine,
                ..other
            };
        }
    }
    declared
}

/// Returns other choices that explain the values as well as the choice in `found`, if that choice is one that all
/// layers of an engine share. A short row may fit several choices; only other layers then show which choice the
/// engine made.
fn alternatives(
    compared: &ResultPair,
    (found, profile): (ChoiceSet, &Profile),
    choices: &[Choice],
    examples: &[usize],
) -> Vec<Choice> {
    let (shared, own): (Vec<Choice>, Vec<Choice>) =
        found.iter().partition(|choice| choice.is_of_all_layers());
    let [shared] = shared[..] else { return Vec::new() };
    let explains_too = |choice: &Choice| {
        let set: ChoiceSet = own.iter().copied().chain([*choice]).collect();
        explains(compared, set, examples) && {
            let (other, _, is_too_sure) = judge_by(compared, set);
            other.dump.is_explained() && !is_too_sure
        }
    };
    // Choices before `shared` were already rejected, alone and together with `own`. The two tie rules of TF32 count as
    // one choice.
    let is_alike = |choice: Choice| profile.operands == Operands::Tf32 && choice == Choice::Tf32Away;
    let later = choices.iter().copied().skip_while(|&choice| choice != shared).skip(1);
    later.filter(|&choice| choice.is_of_all_layers() && !is_alike(choice)).filter(explains_too).collect()
}

/// Returns true if the exact values explain the dump's values at the indices `wanted`.
pub(crate) fn exacts_explain(compared: &ResultPair, wanted: &[usize], exacts: &[ExactValue]) -> bool {
    let mut measured = ErrorStatistics::new(compared, ChoiceSet::default(), false, None);
    measured.add(wanted, exacts);
    measured.sides[0].over == 0
}

/// Returns the dump's values that its profile's rounding does not explain.
pub fn unexplained(compared: &ResultPair) -> Vec<usize> {
    let different = compared.wanted(0..compared.sides[0].rows(), false);
    let exacts = evaluate(compared.traced, ChoiceSet::default(), &different);
    let mut measured = ErrorStatistics::new(compared, ChoiceSet::default(), false, None);
    let mut is_over = |flat: usize, exact: &ExactValue| {
        let before = measured.sides[0].over;
        measured.add(&[flat], &[*exact]);
        measured.sides[0].over > before
    };
    let all = different.into_iter().zip(&exacts);
    all.filter(|&(flat, exact)| is_over(flat, exact)).map(|(flat, _)| flat).collect()
}

/// Number of values that are enough to rule out most choices. The first value alone rules out many, and needs the inputs
/// of one row only.
const FEW: usize = 4;

/// Returns true if a profile with these choices explains the given values of the dump.
fn explains(compared: &ResultPair, choices: ChoiceSet, values: &[usize]) -> bool {
    let (few, others) = values.split_at(values.len().min(FEW));
    let (first, few) = few.split_at(few.len().min(1));
    [first, few, others].into_iter().all(|values| {
        let mut measured = ErrorStatistics::new(compared, choices, false, None);
        measured.add(values, &evaluate(compared.traced, choices, values));
        measured.sides[0].over == 0
    })
}

/// Judges the dump's values under its profile with these rounding choices. Returns the verdict, the indices of some
/// values that rounding does not explain, and true if the values are more precise than the profile allows.
fn judge_by(compared: &ResultPair, choices: ChoiceSet) -> (OperationVerdict, Vec<usize>, bool) {
    let node = compared.traced.origins().iter().find_map(node_of);
    let profile = node.as_ref().map_or_else(Profile::default, |node| node.rounding(choices));
    let different = compared.count(false);
    let mut judged = OperationVerdict { evaluated: different, profile, ..OperationVerdict::default() };
    if different == 0 {
        return (judged, Vec::new(), false);
    }
    // Estimating a bias needs all values, identical ones as well.
    let unbiased = node
        .as_ref()
        .filter(|node| node.stage.is_unbiased(&profile))
        // The coarse steps of 8-bit types hide any bias.
        .filter(|_| compared.eighth().is_none())
        // A bias is still estimated if inputs are uncertain, since it then limits the error.
        .filter(|_| profile.reads_sums() || different * 8 > compared.count(true))
        .map(|node| {
            let repeats = repeats(compared.traced);
            SharedError {
                shared: node.stage.shared(),
                of_row: node.stage.inherited(&profile) * repeats.sqrt(),
                dependence: node.stage.dependence() * repeats,
            }
        });
    let wants_all = unbiased.is_some();
    let mut measured = ErrorStatistics::new(compared, choices, wants_all, None);
    let tiled = |rows: &Range<usize>| {
        let node = node.as_deref().filter(|_| wants_all)?;
        by_columns(compared, node, choices, rows)
    };
    // Columns are prepared once for all rows of a batch.
    let batch = if tiled(&(0..0)).is_some() { BATCH.max(ROWS * compared.sides[0].width()) } else { BATCH };
    for rows in compared.pieces(batch) {
        let found = match tiled(&rows) {
            Some(stage) => judge_columns(compared, choices, &rows, &*stage),
            None => judge_rows(compared, choices, &rows, wants_all),
        };
        measured = found.into_iter().fold(measured, ErrorStatistics::plus);
    }
    let is_too_sure = measured.is_too_sure();
    let examples;
    (judged.dump, judged.engine, examples) = measured.finish(unbiased.unwrap_or_default());
    (judged, examples, is_too_sure)
}

/// Returns how often a row occurs, averaged over the rows. Repeated tokens have equal or nearly equal inputs and so
/// the same errors, which averaging does not reduce. Reads the rows of our engine, so that a dump cannot widen its
/// own bounds. Compares some values of each row, to 8 significant bits.
fn repeats(results: &Tensor) -> f64 {
    const COMPARED: usize = 32;
    let width = results.shape().last().copied().unwrap_or(1).max(1);
    let mut counts: HashMap<Vec<u32>, f64> = HashMap::new();
    for row in results.data().chunks(width) {
        let some = row.iter().step_by(width.div_ceil(COMPARED));
        *counts.entry(some.map(|value| value.to_bits() >> 16).collect()).or_default() += 1.0;
    }
    // Rows of zeros are common even if inputs differ, so each counts as a single row.
    let of = |(row, &count): (&Vec<u32>, &f64)| {
        if row.iter().all(|value| *value == 0) { count } else { count * count }
    };
    counts.iter().map(of).sum::<f64>() * width as f64 / results.data().len().max(1) as f64
}

/// Returns a column evaluator for all results, if evaluating by columns is faster.
fn by_columns<'n>(
    compared: &ResultPair,
    node: &'n Node,
    choices: ChoiceSet,
    rows: &Range<usize>,
) -> Option<Box<dyn ColumnEvaluator + 'n>> {
    let is_whole = compared.traced.origins().len() == 1 && compared.traced.shape().len() == 2;
    is_whole.then(|| node.stage.by_columns(&node.rounding(choices), rows.clone())).flatten()
}

/// Minimum number of rows in a batch whose columns are evaluated together.
const ROWS: usize = 512;
/// Number of columns that are evaluated together.
const COLUMNS: usize = 96;

/// Judges the results of some rows, column by column. Skips results without meaning, such as scores of hidden keys.
fn judge_columns<'c>(
    compared: &ResultPair<'c>,
    choices: ChoiceSet,
    rows: &Range<usize>,
    stage: &dyn ColumnEvaluator,
) -> Vec<ErrorStatistics<'c>> {
    let width = compared.sides[0].width();
    let of_columns = |index: usize| {
        let first = index * COLUMNS;
        let columns = first..width.min(first + COLUMNS);
        let part = ResultWindow { rows: rows.clone(), columns: columns.clone() };
        let mut measured = ErrorStatistics::new(compared, choices, true, Some(part));
        stage.at(columns, &mut |row, first, exacts| {
            let (row, end) = (rows.start + row, first + exacts.len());
            let seen = (compared.sees)(row);
            let seen = seen.start.clamp(first, end)..seen.end.clamp(first, end);
            if !seen.is_empty() {
                measured.add_run(row, seen.start, &exacts[seen.start - first..seen.end - first]);
            }
        });
        measured
    };
    parallel::map(width.div_ceil(COLUMNS), rows.len() * COLUMNS * VALUE, of_columns)
}

/// Judges the results of some rows: all results if `wants_all` is true, otherwise those that differ between the two
/// engines.
fn judge_rows<'c>(
    compared: &ResultPair<'c>,
    choices: ChoiceSet,
    rows: &Range<usize>,
    wants_all: bool,
) -> Vec<ErrorStatistics<'c>> {
    let width = compared.sides[0].width().max(1);
    let pieces = |rows: &Range<usize>, values: usize| -> Vec<Range<usize>> {
        let step = values.div_ceil(width);
        let end = rows.end;
        rows.clone().step_by(step).map(|first| first..end.min(first + step)).collect()
    };
    let new = |rows: Range<usize>| {
        ErrorStatistics::new(compared, choices, wants_all, Some(ResultWindow { rows, columns: 0..width }))
    };
    // The piece size keeps merging of the column sums cheap, and is the same for every number of threads.
    let piece = PIECE.max(if wants_all { 16 * BiasAccumulator::places(compared.traced.shape()) } else { 0 });
    // If all inputs are recorded, evaluating the inputs of a few results is cheap.
    if starts_from_given(compared, choices) {
        let of_piece = |rows: Range<usize>| {
            let mut measured = new(rows.clone());
            for rows in pieces(&rows, NEAR) {
                let wanted = compared.wanted(rows, wants_all);
                measured.add(&wanted, &evaluate(compared.traced, choices, &wanted));
            }
            measured
        };
        return in_pieces(&pieces(rows, piece), of_piece);
    }
    let wanted = compared.all_wanted(rows.clone(), wants_all);
    let exacts = evaluate(compared.traced, choices, &wanted);
    let of_piece = |rows: Range<usize>| {
        let mut measured = new(rows.clone());
        let [first, end] =
            [rows.start, rows.end].map(|row| wanted.partition_point(|&flat| flat < row * width));
        measured.add(&wanted[first..end], &exacts[first..end]);
        measured
    };
    in_pieces(&pieces(rows, piece), of_piece)
}

/// Applies `f` to pieces of [`PIECE`] values or more, and merges the statistics.
fn in_pieces<'c>(
    pieces: &[Range<usize>],
    f: impl Fn(Range<usize>) -> ErrorStatistics<'c> + Sync,
) -> Vec<ErrorStatistics<'c>> {
    parallel::map(pieces.len(), PIECE * VALUE, |piece| f(pieces[piece].clone()))
}

/// Approximate time to evaluate and judge one result, in nanoseconds.
const VALUE: usize = 32;

/// Number of results that one thread evaluates at a time, so that their data stays in the cache.
const NEAR: usize = 1 << 14;

/// Returns true if every operation starts from recorded values.
fn starts_from_given(compared: &ResultPair, choices: ChoiceSet) -> bool {
    let nodes = compared.traced.origins().iter().filter_map(node_of);
    nodes.into_iter().all(|node| {
        let is_light = !node.rounding(choices).reads_sums() && node.stage.is_light();
        is_light && node.stage.inputs().into_iter().all(is_given)
    })
}
