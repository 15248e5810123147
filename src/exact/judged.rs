//! Whether what two engines have made of the same inputs is what rounding can make of them.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::exact::bias::{Bias, Biases, Common, Term};
use crate::exact::norm::Rms;
use crate::exact::profile::{Choice, Choices, Float, Profile};
use crate::exact::stage::{Node, evaluate, node_of};
use crate::exact::value::{Exact, U};
use crate::spread::Spread;
use crate::tensor::Tensor;
use crate::view::View;

/// Results that are evaluated together.
const BATCH: usize = 1 << 21;

/// Smaller numbers are zero on machines that flush them.
const FLUSHED: f64 = f32::MIN_POSITIVE as f64;

/// Two results of one operation on the same inputs.
pub struct Compared<'c> {
    /// What traced numerics made, with its origin.
    pub traced: &'c Tensor,
    /// The dump's values and the engine's, both as [`Self::traced`] is laid out.
    pub sides: [&'c View<'c>; 2],
    /// What the dump's values were rounded to when they were stored, if that is shorter than what was computed. They may
    /// have scales.
    pub stored: Option<Float>,
    /// Whether the dump's values have more digits than `f32`.
    pub is_double: bool,
    /// Which columns of a row have a meaning; those behind its end count for nothing.
    pub sees: &'c (dyn Fn(usize) -> Range<usize> + Sync),
}

/// Values that are looked at together.
const PIECE: usize = 1 << 16;

impl Compared<'_> {
    /// All rows, in pieces of about so many values.
    fn pieces(&self, values: usize) -> Vec<Range<usize>> {
        let (rows, step) = (self.sides[0].rows(), values.div_ceil(self.sides[0].width().max(1)));
        (0..rows).step_by(step).map(|first| first..rows.min(first + step)).collect()
    }

    /// The type of eight bits that the dump's values are stored in, if they are.
    fn eighth(&self) -> Option<Float> {
        self.stored.filter(|float| float.is_eighth())
    }

    /// Which values of some rows have a meaning, and of these all or those that are other bits on both sides: in eight bits,
    /// those that ours would not be stored as.
    fn wanted(&self, rows: Range<usize>, wants_all: bool) -> Vec<usize> {
        let (width, [dump, engine]) = (self.sides[0].width(), self.sides);
        let mut wanted = Vec::new();
        let (mut theirs, mut ours, mut scales) = (vec![0.0; width], vec![0.0; width], vec![1.0; width]);
        let eighth = self.eighth();
        for row in rows {
            let seen = (self.sees)(row);
            let seen = seen.start.min(width)..seen.end.min(width);
            let flats = row * width + seen.start..row * width + seen.end;
            if wants_all {
                wanted.extend(flats);
                continue;
            }
            if dump.raw(row, seen.clone()).is_some_and(|bits| Some(bits) == engine.raw(row, seen.clone())) {
                continue;
            }
            dump.read(row, seen.clone(), &mut theirs);
            engine.read(row, seen.clone(), &mut ours);
            if let Some(of_dump) = dump.scales() {
                of_dump.read(row, seen, &mut scales);
            }
            let is_other = |at: usize| match eighth {
                None => theirs[at].to_bits() != ours[at].to_bits(),
                Some(float) => !float.may_store(ours[at], theirs[at], scales[at]),
            };
            wanted.extend(flats.enumerate().filter(|&(at, _)| is_other(at)).map(|(_, flat)| flat));
        }
        wanted
    }

    /// The same of many rows, in order.
    fn all_wanted(&self, rows: Range<usize>, wants_all: bool) -> Vec<usize> {
        let step = PIECE.div_ceil(self.sides[0].width().max(1));
        let pieces = rows.clone().into_par_iter().step_by(step);
        let of_piece = |first: usize| self.wanted(first..rows.end.min(first + step), wants_all);
        pieces.map(of_piece).collect::<Vec<_>>().concat()
    }

    /// How many there are of them.
    fn count(&self, wants_all: bool) -> usize {
        let of_piece = |rows: Range<usize>| self.wanted(rows, wants_all).len();
        self.pieces(PIECE).into_par_iter().map(of_piece).sum()
    }
}

/// What was found of the results of one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// Results that no rounding explains.
    pub beyond: usize,
    /// The largest error in units of what rounding may come to: above 1 for those beyond.
    pub headroom: f64,
    /// The values that are furthest from exact, the worst first.
    pub worst: Vec<Off>,
    /// The systematic error that stands out most from rounding, where rounding has no direction.
    pub bias: Option<Bias>,
    /// Where errors are, and how many of what size, in units of what rounding may come to; `None` where nothing differs.
    pub spread: Option<Spread>,
}

/// A value beside what it comes to exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Off {
    /// Its index in the array.
    pub flat: usize,
    /// What it is.
    pub value: f64,
    /// What it should be.
    pub exact: Exact,
    /// Its error in units of what rounding may come to.
    pub headroom: f64,
}

/// So many of the worst values are kept.
const WORST: usize = 6;

impl Side {
    /// Counts a value. Of equals the first is the worst; NaN is larger than any number.
    fn meet(&mut self, off: Off) {
        let is_worse = |known: &Off| {
            !known.headroom.is_nan() && (off.headroom.is_nan() || off.headroom > known.headroom)
        };
        let at = self.worst.iter().position(is_worse).unwrap_or(self.worst.len());
        if at < WORST {
            self.worst.truncate(WORST - 1);
            self.worst.insert(at, off);
            self.headroom = self.worst[0].headroom;
        }
    }

    /// Whether rounding explains it.
    pub fn is_explained(&self) -> bool {
        self.beyond == 0 && self.bias.as_ref().is_none_or(|bias| !bias.is_systematic())
    }
}

/// What was found of both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judged {
    /// Results that were evaluated; the others are the same bits on both sides.
    pub evaluated: usize,
    /// What the dump's engine has made.
    pub dump: Side,
    /// What ours has.
    pub engine: Side,
    /// What the dump's engine does otherwise than its profile says, where that explains it.
    pub found: Vec<Choice>,
    /// How it rounds, by that.
    pub profile: Profile,
    /// Of a norm of a sum in a short type, whether it reads that before it is rounded; `None` where that is not told.
    pub reads_unrounded: Option<bool>,
}

/// Fewer values do not tell whether a norm has read its sum before it was rounded: a fifth of them are others then.
const TELLING: usize = 64;

impl Judged {
    fn with_reading(self, compared: &Compared) -> Self {
        let norms = || {
            let nodes = compared.traced.origins().iter().filter_map(node_of);
            nodes.filter_map(|node| Some(node.operation::<Rms>()?.reads_sum()))
        };
        let could_be = self.profile.with_other(Choice::NormOfSums).is_some();
        let is_told =
            self.dump.is_explained() && compared.sides[0].len() >= TELLING && compared.stored.is_none();
        let is_norm = norms().next().is_some() && norms().all(|reads_sum| reads_sum);
        let reads = (could_be && is_told && is_norm).then_some(self.profile.norm_of_sums);
        Self { reads_unrounded: reads, ..self }
    }
}

/// More choices than an engine can have made differently between two values that a dump holds are not tried: too much
/// would be explained by one of them.
const MOST_CHOICES: usize = 6;

/// As many operations as attention in one kernel has, from keys on. Over more of them, codes of quantised activations go
/// either way in so many places that what may have been is told better by runs that are moved.
const DEEPEST: usize = 5;

/// Judges the results of an operation. If rounding does not explain the dump's, and nothing says that its profile is the
/// right one (`may_differ`), what engines do differently is tried: one choice or two at a time. `None` where too much lies
/// between the results and values that were given.
pub fn judge(compared: &Compared, may_differ: bool) -> Option<Judged> {
    let nodes = || compared.traced.origins().iter().filter_map(node_of);
    if nodes().any(|node| node.depth > DEEPEST) {
        return None;
    }
    Some(tried(compared, may_differ).with_reading(compared))
}

fn tried(compared: &Compared, may_differ: bool) -> Judged {
    let nodes = || compared.traced.origins().iter().filter_map(node_of);
    let (mut declared, examples, _) = judge_by(compared, Choices::default());
    if nodes().any(|node| node.own != node.profile) {
        declared.engine = judge_by(compared, Choices::OWN).0.engine;
    }
    let Some(node) = nodes().next().filter(|_| may_differ && !declared.dump.is_explained()) else {
        return declared;
    };
    let possible = |choice: &Choice| node.profile.with_other(*choice).is_some();
    let mut choices: Vec<Choice> = node.choices().iter().filter(possible).collect();
    // Of what a dump leaves out, norms of unrounded sums are tried last.
    if choices.len() > MOST_CHOICES {
        choices.retain(|&choice| choice != Choice::NormOfSums);
    }
    if choices.len() > MOST_CHOICES {
        return declared;
    }
    let singles = choices.iter().map(|&choice| Choices::default().with(choice));
    let pairs = choices.iter().enumerate().flat_map(|(at, &one)| {
        choices[at + 1..].iter().map(move |&other| Choices::default().with(one).with(other))
    });
    // Most choices are ruled out by a few values.
    for set in singles.chain(pairs).filter(|&set| explains(compared, set, &examples)) {
        let (other, _, is_too_sure) = judge_by(compared, set);
        if other.dump.is_explained() && !is_too_sure {
            return Judged { found: set.iter().collect(), engine: declared.engine, ..other };
        }
    }
    declared
}

/// Which of the dump's values no rounding explains, by its profile.
pub fn unexplained(compared: &Compared) -> Vec<usize> {
    let different = compared.wanted(0..compared.sides[0].rows(), false);
    let exacts = evaluate(compared.traced, Choices::default(), &different);
    let mut measured = Measured::new(compared, Choices::default(), false);
    let mut is_beyond = |flat: usize, exact: &Exact| {
        let before = measured.sides[0].beyond;
        measured.add(&[flat], &[*exact]);
        measured.sides[0].beyond > before
    };
    let all = different.into_iter().zip(&exacts);
    all.filter(|&(flat, exact)| is_beyond(flat, exact)).map(|(flat, _)| flat).collect()
}

/// Whether these values of the dump are within rounding, by a profile with those choices.
fn explains(compared: &Compared, choices: Choices, values: &[usize]) -> bool {
    let mut measured = Measured::new(compared, choices, false);
    measured.add(values, &evaluate(compared.traced, choices, values));
    measured.sides[0].beyond == 0
}

/// What is found by a profile with those choices; some of the dump's values that it does not explain; and whether they are
/// nearer to it than they can be.
fn judge_by(compared: &Compared, choices: Choices) -> (Judged, Vec<usize>, bool) {
    let node = compared.traced.origins().iter().find_map(node_of);
    let profile = node.as_ref().map_or_else(Profile::default, |node| node.rounding(choices));
    let different = compared.count(false);
    let mut judged = Judged { evaluated: different, profile, ..Judged::default() };
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
        .filter(|_| profile.norm_of_sums || different * 8 > compared.count(true))
        .map(|node| Common {
            shared: node.stage.shared(),
            of_row: node.stage.inherited(&profile),
            dependence: node.stage.dependence(),
        });
    let mut measured = Measured::new(compared, choices, unbiased.is_some());
    // So many that what pieces know of strands is soon put together; the same for every number of threads.
    let strands: usize = compared.traced.shape().iter().skip(1).product();
    let piece = PIECE.max(16 * strands);
    for rows in compared.pieces(BATCH) {
        let batch = compared.all_wanted(rows, unbiased.is_some());
        let exacts = evaluate(compared.traced, choices, &batch);
        let pieces = batch.par_chunks(piece).zip(exacts.par_chunks(piece)).map(|(batch, exacts)| {
            let mut measured = Measured::new(compared, choices, unbiased.is_some());
            measured.add(batch, exacts);
            measured
        });
        measured = pieces.collect::<Vec<_>>().into_iter().fold(measured, Measured::followed_by);
    }
    let examples = std::mem::take(&mut measured.examples);
    let is_too_sure = measured.biases.as_ref().is_some_and(Biases::is_too_sure);
    (judged.dump, judged.engine) = measured.finish(unbiased.unwrap_or_default());
    (judged, examples, is_too_sure)
}

/// So many values that are not explained are kept.
const EXAMPLES: usize = 64;

/// Results of both engines, as they are measured.
struct Measured<'m> {
    values: [&'m View<'m>; 2],
    float: Float,
    /// What the dump's values were rounded to when they were stored; ours were not.
    stored: [Option<Float>; 2],
    is_double: bool,
    sides: [Side; 2],
    biases: Option<Biases>,
    /// Some of the dump's values that are beyond rounding, in ascending order.
    examples: Vec<usize>,
}

impl<'m> Measured<'m> {
    fn new(compared: &Compared<'m>, choices: Choices, with_bias: bool) -> Self {
        let node = compared.traced.origins().iter().find_map(node_of);
        let results = |node: Arc<Node>| node.stage.results(&node.rounding(choices));
        let spread = || Spread::new(compared.traced.shape());
        Self {
            values: compared.sides,
            float: node.map_or(Float::F32, results),
            examples: Vec::new(),
            stored: [compared.stored, None],
            is_double: compared.is_double,
            sides: [(); 2].map(|()| Side { spread: Some(spread()), ..Side::default() }),
            biases: with_bias.then(|| Biases::new(compared.traced.shape())),
        }
    }

    fn add(&mut self, batch: &[usize], exacts: &[Exact]) {
        let width = self.values[0].width();
        let mut sides = [vec![0.0; width], vec![0.0; width]];
        let mut scales = vec![1.0; width];
        let mut exacts = exacts.iter();
        for row in batch.chunk_by(|one, next| one / width == next / width) {
            let (start, first, last) = (row[0] / width, row[0] % width, row[row.len() - 1] % width);
            for (values, read) in self.values.iter().zip(&mut sides) {
                values.read(start, first..last + 1, read);
            }
            if let Some(of_dump) = self.values[0].scales() {
                of_dump.read(start, first..last + 1, &mut scales);
            }
            for (&flat, exact) in row.iter().zip(&mut exacts) {
                let at = flat % width - first;
                self.add_one(flat, [sides[0][at], sides[1][at]], scales[at], exact);
            }
        }
    }

    fn add_one(&mut self, flat: usize, values: [f64; 2], scale: f64, exact: &Exact) {
        // What has more digits than f32 is from an engine which rounds nothing, where ours does.
        let finer = if self.is_double { U * exact.value.abs() } else { 0.0 };
        let exact = Exact { radius: exact.radius + finer, ..*exact };
        for ((side, value), stored) in self.sides.iter_mut().zip(values).zip(self.stored) {
            let headroom = headroom(value, &exact, self.float, stored.map(|stored| (stored, scale)));
            side.beyond += usize::from(!(headroom <= 1.0));
            side.meet(Off { flat, value, exact, headroom });
            if let Some(spread) = &mut side.spread {
                spread.add(flat, headroom);
            }
        }
        if self.examples.len() < EXAMPLES.min(self.sides[0].beyond) {
            self.examples.push(flat);
        }
        if let Some(biases) = &mut self.biases {
            let float = self.stored[0].unwrap_or(self.float);
            biases.add(flat, &Term::new(values, &exact, float, scale));
        }
    }

    /// With what was measured of results that follow these.
    fn followed_by(mut self, next: Self) -> Self {
        for (side, next) in self.sides.iter_mut().zip(next.sides) {
            side.beyond += next.beyond;
            next.worst.into_iter().for_each(|off| side.meet(off));
            side.spread = side.spread.take().zip(next.spread).map(|(one, next)| one.followed_by(&next));
        }
        self.examples.extend(next.examples);
        self.examples.truncate(EXAMPLES);
        self.biases = self.biases.zip(next.biases).map(|(biases, next)| biases.plus(&next));
        self
    }

    fn finish(self, common: Common) -> (Side, Side) {
        let bias = |side: usize| self.biases.as_ref().and_then(|biases| biases.largest(side, common));
        let [dump, engine] = self.sides;
        (Side { bias: bias(0), ..dump }, Side { bias: bias(1), ..engine })
    }
}

/// How far a value is from what it comes to exactly, in units of what rounding may come to. What was rounded in the end
/// may have been any number that rounds to it; and so may what was stored in a type, under a scale.
fn headroom(value: f64, exact: &Exact, float: Float, stored: Option<(Float, f64)>) -> f64 {
    let (low, high) = float.cell(value);
    let (low, high) = stored.map_or((low, high), |(stored, scale)| {
        let other = stored.stored_cell(value, scale, float);
        (low.min(other.0), high.max(other.1))
    });
    let distance = (low - exact.value).max(exact.value - high).max(0.0);
    // `max` takes the other of NaN and a number.
    if exact.value.is_nan() || value.is_nan() { f64::NAN } else { distance / exact.radius.max(FLUSHED) }
}
