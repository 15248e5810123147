//! Verdict on the results of two engines for the same inputs: rounding explains them or not.

use std::ops::Range;

use crate::exact::bias::{BiasAccumulator, ResultWindow, SharedError};
use crate::exact::error_statistics::ErrorStatistics;
use crate::exact::float::Float;
use crate::exact::norm::RmsNormalisation;
use crate::exact::operation::{ColumnEvaluator, Node, evaluate, is_given, node_of};
use crate::exact::profile::{Choice, ChoiceSet, FusedResults, Profile};
use crate::exact::result_pair::{EngineErrors, PIECE, ResultPair};
use crate::exact::value::ExactValue;
use crate::parallel;

/// Results that are evaluated together.
const BATCH: usize = 1 << 19;

/// Result for both engines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationVerdict {
    /// Results that were evaluated; the others are the same bits on both sides.
    pub evaluated: usize,
    /// Result for the dump's engine.
    pub dump: EngineErrors,
    /// Result for our engine.
    pub engine: EngineErrors,
    /// Deviations of the dump's engine from its profile, if these explain its values.
    pub found: Vec<Choice>,
    /// Choices that explain the values as well as `found`, among those that all layers of an engine share.
    pub alternatives: Vec<Choice>,
    /// Rounding profile with these deviations.
    pub profile: Profile,
    /// True if a norm of a short-type sum reads the sum before rounding; `None` if undetermined, as it is for the
    /// mean square alone.
    pub reads_unrounded: Option<bool>,
}

/// Fewer values do not tell whether a norm has read its sum before it was rounded: a fifth of them are others then.
const TELLING: usize = 64;

impl OperationVerdict {
    fn with_reading(self, compared: &ResultPair) -> Self {
        let norms = || {
            let nodes = compared.traced.origins().iter().filter_map(node_of);
            nodes.filter_map(|node| Some(node.operation::<RmsNormalisation>()?.reads_sum()))
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

/// Maximum number of choices that are tried between two recorded values; with more, one of them would explain too
/// much.
const MOST_CHOICES: usize = 6;

/// Largest number of consecutive operations: that of fused attention, from keys on. For longer chains, perturbed runs
/// are more precise, since many codes of quantised activations may round either way.
pub const DEEPEST: usize = 5;

/// Judges the results of an operation. If rounding does not explain the dump's, and nothing says that its profile is the
/// right one (`may_differ`), what engines do differently is tried: one choice or two at a time. `None` where too much lies
/// between the results and values that were given.
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
    if nodes().any(|node| node.own != node.profile) {
        declared.engine = judge_by(compared, ChoiceSet::OWN).0.engine;
    }
    let Some(node) = nodes().next().filter(|_| may_differ && !declared.dump.is_explained()) else {
        return declared;
    };
    let possible = |choice: &Choice| node.profile.with_other(*choice).is_some();
    let mut choices: Vec<Choice> = node.choices().iter().filter(possible).collect();
    // Of what a dump leaves out, other operands of TF32, chains, sums of several devices and norms of unrounded sums are tried last.
    let last = [
        Choice::is_of_wide_sums,
        Choice::is_other_tf32,
        Choice::is_of_chains,
        Choice::is_of_parts,
        Choice::is_of_sums,
    ];
    // Of scales of integer weights there is proof in the weights.
    let counted = |choices: &[Choice]| choices.iter().filter(|choice| !choice.is_of_row_scales()).count();
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
    // Most choices are ruled out by a few values.
    for set in singles.chain(pairs).filter(|&set| explains(compared, set, &examples)) {
        let (other, _, is_too_sure) = judge_by(compared, set);
        if other.dump.is_explained() && !is_too_sure {
            let found: Vec<Choice> = set.iter().collect();
            let alternatives = alternatives(compared, &found, &choices, &examples);
            return OperationVerdict { found, alternatives, engine: declared.engine, ..other };
        }
    }
    declared
}

/// Returns the other choices that explain the values, if `found` is shared by all layers. A short row may fit several choices, and
/// only the other layers tell which of them the engine made.
fn alternatives(
    compared: &ResultPair,
    found: &[Choice],
    choices: &[Choice],
    examples: &[usize],
) -> Vec<Choice> {
    if !found.iter().any(|choice| choice.is_of_all_layers()) {
        return Vec::new();
    }
    let others = choices.iter().filter(|choice| choice.is_of_all_layers() && !found.contains(choice));
    let explains_all = |choice: &Choice| {
        let set = ChoiceSet::default().with(*choice);
        explains(compared, set, examples) && {
            let (other, _, is_too_sure) = judge_by(compared, set);
            other.dump.is_explained() && !is_too_sure
        }
    };
    others.copied().filter(explains_all).collect()
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

/// Returns true if these values of the dump are within rounding, by a profile with these choices.
fn explains(compared: &ResultPair, choices: ChoiceSet, values: &[usize]) -> bool {
    let mut measured = ErrorStatistics::new(compared, choices, false, None);
    measured.add(values, &evaluate(compared.traced, choices, values));
    measured.sides[0].over == 0
}

/// Returns the result by a profile with these choices, some unexplained values of the dump, and if the values are
/// more precise than the profile allows.
fn judge_by(compared: &ResultPair, choices: ChoiceSet) -> (OperationVerdict, Vec<usize>, bool) {
    let node = compared.traced.origins().iter().find_map(node_of);
    let profile = node.as_ref().map_or_else(Profile::default, |node| node.rounding(choices));
    let different = compared.count(false);
    let mut judged = OperationVerdict { evaluated: different, profile, ..OperationVerdict::default() };
    if different == 0 {
        return (judged, Vec::new(), false);
    }
    // What differs nowhere else says nothing of a direction: values that are alike are evaluated for that alone.
    let unbiased = node
        .as_ref()
        .filter(|node| node.stage.is_unbiased(&profile))
        // Steps of eight bits drown it.
        .filter(|_| compared.eighth().is_none())
        // But where much is not known, it says how little is off.
        .filter(|_| profile.reads_sums() || different * 8 > compared.count(true))
        .map(|node| SharedError {
            shared: node.stage.shared(),
            of_row: node.stage.inherited(&profile),
            dependence: node.stage.dependence(),
        });
    let wants_all = unbiased.is_some();
    let mut measured = ErrorStatistics::new(compared, choices, wants_all, None);
    let tiled = |rows: &Range<usize>| {
        let node = node.as_deref().filter(|_| wants_all)?;
        by_columns(compared, node, choices, rows)
    };
    // Columns are made ready once for all rows that are taken together.
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

/// The operation of all results, if these are best computed a few columns at a time.
fn by_columns<'n>(
    compared: &ResultPair,
    node: &'n Node,
    choices: ChoiceSet,
    rows: &Range<usize>,
) -> Option<Box<dyn ColumnEvaluator + 'n>> {
    let is_whole = compared.traced.origins().len() == 1 && compared.traced.shape().len() == 2;
    is_whole.then(|| node.stage.by_columns(&node.rounding(choices), rows.clone())).flatten()
}

/// Rows whose columns are computed together, at least; columns that are.
const ROWS: usize = 512;
const COLUMNS: usize = 64;

/// Judges all meaningful results of some rows.
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
        let exacts = stage.at(columns.clone());
        for (row, exacts) in rows.clone().zip(exacts.chunks(columns.len())) {
            let seen = (compared.sees)(row);
            let seen =
                seen.start.clamp(columns.start, columns.end)..seen.end.clamp(columns.start, columns.end);
            if !seen.is_empty() {
                measured.add_run(row, seen.start, &exacts[seen.start - first..seen.end - first]);
            }
        }
        measured
    };
    parallel::map(width.div_ceil(COLUMNS), rows.len() * COLUMNS * VALUE, of_columns)
}

/// Some or all of the results of rows.
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
    // So many that what pieces know of places is soon put together; the same for every number of threads.
    let piece = PIECE.max(if wants_all { 16 * BiasAccumulator::places(compared.traced.shape()) } else { 0 });
    // Where inputs are no results themselves, those that a few results start from are soon found.
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

/// `f` of pieces of [`PIECE`] values or more.
fn in_pieces<'c>(
    pieces: &[Range<usize>],
    f: impl Fn(Range<usize>) -> ErrorStatistics<'c> + Sync,
) -> Vec<ErrorStatistics<'c>> {
    parallel::map(pieces.len(), PIECE * VALUE, |piece| f(pieces[piece].clone()))
}

/// Nanoseconds that evaluating and weighing a result takes, about.
const VALUE: usize = 32;

/// Results that are evaluated one after the other by one thread: what is known of them stays near.
const NEAR: usize = 1 << 14;

/// Returns true if every operation starts from recorded values.
fn starts_from_given(compared: &ResultPair, choices: ChoiceSet) -> bool {
    let nodes = compared.traced.origins().iter().filter_map(node_of);
    nodes.into_iter().all(|node| {
        let is_light = !node.rounding(choices).reads_sums() && node.stage.is_light();
        is_light && node.stage.inputs().into_iter().all(is_given)
    })
}
