//! Whether what two engines have made of the same inputs is what rounding can make of them.

use crate::exact::bias::{Bias, Biases};
use crate::exact::profile::{Choice, Choices, Float, Profile};
use crate::exact::stage::{evaluate, node_of};
use crate::exact::value::{Exact, U};
use crate::tensor::Tensor;

/// Results that are evaluated together.
const BATCH: usize = 1 << 20;

/// Smaller numbers are zero on machines that flush them.
const FLUSHED: f64 = f32::MIN_POSITIVE as f64;

/// Two results of one operation on the same inputs.
pub struct Compared<'c> {
    /// What traced numerics made, with its origin.
    pub traced: &'c Tensor,
    /// The dump's values and the engine's, both as [`Self::traced`] is laid out.
    pub sides: [&'c [f64]; 2],
    /// What the dump's values were rounded to when they were stored, if that is shorter than what was computed.
    pub stored: Option<Float>,
    /// Whether the dump's values have more digits than `f32`.
    pub is_double: bool,
    /// Which of the values have a meaning.
    pub sees: &'c dyn Fn(usize) -> bool,
}

/// What was found of the results of one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// Results that no rounding explains.
    pub beyond: usize,
    /// The largest error in units of what rounding may come to: above 1 for those beyond.
    pub headroom: f64,
    /// Where that is: the flat index, the value, and what it comes to exactly.
    pub worst: Option<(usize, f64, Exact)>,
    /// The systematic error that stands out most from rounding, where rounding has no direction.
    pub bias: Option<Bias>,
}

impl Side {
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
}

impl Judged {
    /// Whether rounding explains what both have made.
    pub fn is_explained(&self) -> bool {
        self.dump.is_explained() && self.engine.is_explained()
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
    let declared = judge_by(compared, Choices::default());
    let Some(node) = nodes().next().filter(|_| may_differ && !declared.dump.is_explained()) else {
        return Some(declared);
    };
    let possible = |choice: &Choice| node.profile.with_other(*choice).is_some();
    let choices: Vec<Choice> = node.choices().iter().filter(possible).collect();
    if choices.len() > MOST_CHOICES {
        return Some(declared);
    }
    let singles = choices.iter().map(|&choice| Choices::default().with(choice));
    let pairs = choices.iter().enumerate().flat_map(|(at, &one)| {
        choices[at + 1..].iter().map(move |&other| Choices::default().with(one).with(other))
    });
    for set in singles.chain(pairs) {
        let other = judge_by(compared, set);
        if other.dump.is_explained() {
            return Some(Judged { found: set.iter().collect(), engine: declared.engine, ..other });
        }
    }
    Some(declared)
}

fn judge_by(compared: &Compared, choices: Choices) -> Judged {
    let Compared { traced, sides: [dump, engine], sees, .. } = *compared;
    let node = traced.origins().iter().find_map(node_of);
    let profile = node.as_ref().map_or_else(Profile::default, |node| node.profile.otherwise(choices));
    let seen = || (0..dump.len()).filter(|&flat| sees(flat));
    let different: Vec<usize> =
        seen().filter(|&flat| dump[flat].to_bits() != engine[flat].to_bits()).collect();
    let mut judged = Judged { evaluated: different.len(), profile, ..Judged::default() };
    if different.is_empty() {
        return judged;
    }
    let float = node.as_ref().map_or(Float::F32, |node| node.stage.results(&profile));
    let mut sides = [dump, engine].map(|values| Measured::new(values, traced.shape(), float));
    sides[0].stored = compared.stored;
    sides.iter_mut().for_each(|side| side.is_double = compared.is_double);
    // What differs nowhere else says nothing of a direction: values that are alike are evaluated for that alone.
    let unbiased = node.filter(|node| node.stage.is_unbiased(&profile)).map(|node| node.stage.shared());
    let many = different.len() * 8 > seen().count();
    let wanted = if unbiased.is_some() && many { seen().collect() } else { different };
    for batch in wanted.chunks(BATCH) {
        let exacts = evaluate(traced, choices, batch);
        sides.iter_mut().for_each(|side| side.add(batch, &exacts, unbiased.is_some() && many));
    }
    let [dump, engine] = sides.map(|side| side.finish(unbiased.unwrap_or(0.0)));
    (judged.dump, judged.engine) = (dump, engine);
    judged
}

/// The results of one engine, as they are measured.
struct Measured<'m> {
    values: &'m [f64],
    float: Float,
    stored: Option<Float>,
    is_double: bool,
    side: Side,
    biases: Biases,
}

impl<'m> Measured<'m> {
    fn new(values: &'m [f64], shape: &[usize], float: Float) -> Self {
        Self {
            values,
            float,
            stored: None,
            is_double: false,
            side: Side::default(),
            biases: Biases::new(shape),
        }
    }

    fn add(&mut self, batch: &[usize], exacts: &[Exact], with_bias: bool) {
        for (&flat, exact) in batch.iter().zip(exacts) {
            let value = self.values[flat];
            // What has more digits than f32 is from an engine which rounds nothing, where ours does.
            let finer = if self.is_double { U * value.abs() } else { 0.0 };
            let exact = &exact.moved(0.0, finer);
            let headroom = headroom(value, exact, self.float, self.stored);
            self.side.beyond += usize::from(!(headroom <= 1.0));
            if self.side.worst.is_none() || !(headroom <= self.side.headroom) {
                (self.side.headroom, self.side.worst) = (headroom, Some((flat, value, *exact)));
            }
            if with_bias {
                self.biases.add(flat, value, exact, self.stored.unwrap_or(self.float));
            }
        }
    }

    fn finish(self, shared: f64) -> Side {
        Side { bias: self.biases.largest(shared), ..self.side }
    }
}

/// How far a value is from what it comes to exactly, in units of what rounding may come to. What was rounded in the end
/// may have been any number that rounds to it.
fn headroom(value: f64, exact: &Exact, float: Float, stored: Option<Float>) -> f64 {
    let cells = [Some(float), stored].into_iter().flatten().map(|float| float.cell(value));
    let (low, high) = cells.fold((value, value), |cell, other| (cell.0.min(other.0), cell.1.max(other.1)));
    let distance = (low - exact.value).max(exact.value - high).max(0.0);
    if exact.value.is_nan() { f64::NAN } else { distance / exact.radius.max(FLUSHED) }
}
