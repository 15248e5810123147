//! Rounding evaluation of a site: tests whether rounding explains both sides' results, given the same inputs.

use crate::check::rules::Role;
use crate::exact::{
    BiasEstimate, BiasGroup, Choice, EngineErrors, ExactValue, FusedResults, InexactValue, OperationVerdict,
    Profile,
};
use crate::measure::{larger, unravel};

/// The evaluation of both sides of a site against the exact result.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundingEvaluation {
    /// The candidate's errors.
    pub candidate: EngineErrors,
    /// The reference's errors.
    pub reference: EngineErrors,
    /// Number of evaluated values. The other values are bit-identical on both sides.
    pub(crate) evaluated: usize,
    /// Deviations of the dump's engine from its rounding profile, one short phrase each.
    pub(crate) found: Vec<String>,
    /// Other deviations that would explain the values as well. Only deviations that an engine has in all
    /// layers or in none.
    pub(crate) alternatives: Vec<String>,
    /// For a norm after a sum in a 16-bit type: true if the dump's engine reads the sum before rounding.
    /// `None` if undetermined.
    pub(crate) reads_unrounded: Option<bool>,
    /// True if the engine has fused kernels, which pass on values before rounding.
    pub(crate) is_fused: bool,
    /// True if the values fit TF32 operands although the dump does not state TF32, or the reverse.
    pub(crate) is_tf32: bool,
    /// True if the engine sums a product in parts, as several devices do, and rounds each part.
    pub(crate) is_in_parts: bool,
    /// True if no input of the last operation gives one of the dump's values, whatever comes before.
    pub(crate) is_impossible: bool,
    /// The lengths of the tap's axes.
    pub(crate) shape: Vec<usize>,
}

impl RoundingEvaluation {
    /// Makes an evaluation from a verdict. `role` is the dump's role, `shape` the shape of the values.
    pub fn new(judged: OperationVerdict, role: Role, shape: &[usize]) -> Self {
        let OperationVerdict {
            evaluated,
            dump,
            engine,
            found,
            alternatives,
            profile,
            reads_unrounded,
            is_impossible,
        } = judged;
        let (candidate, reference) = match role {
            Role::Candidate => (dump, engine),
            Role::Reference => (engine, dump),
        };
        let is_fused = profile.fused != FusedResults::Nothing;
        let is_tf32 =
            found.iter().any(|choice| matches!(choice, Choice::Tf32 | Choice::Tf32Away | Choice::Tf32Cut));
        let is_in_parts = found.iter().any(|choice| choice.is_of_parts());
        let [found, alternatives] = [found, alternatives]
            .map(|choices| choices.into_iter().map(|choice| profile.told(choice)).collect());
        let shape = shape.to_vec();
        Self {
            candidate,
            reference,
            evaluated,
            found,
            alternatives,
            reads_unrounded,
            is_fused,
            is_tf32,
            is_in_parts,
            is_impossible,
            shape,
        }
    }

    /// Swaps the found deviation for the alternative that starts with `choice`, if the found one is a choice that all
    /// layers of an engine share. Does nothing if `choice` was found already.
    pub(crate) fn prefer(&mut self, choice: &str) {
        let is_named = |told: &String| told.starts_with(choice);
        let is_shared = |told: &String| Profile::OF_ALL_LAYERS.iter().any(|shared| told.starts_with(shared));
        if self.found.iter().any(is_named) {
            return;
        }
        let at = self.alternatives.iter().position(is_named);
        if let Some((found, at)) = self.found.iter_mut().find(|told| is_shared(told)).zip(at) {
            std::mem::swap(found, &mut self.alternatives[at]);
        }
    }

    /// Returns the number of values above their error bound, both sides together.
    pub(crate) fn over(&self) -> usize {
        self.candidate.over + self.reference.over
    }

    /// Returns the largest ratio of an error to its error bound.
    pub(crate) fn bound_ratio(&self) -> f64 {
        larger(self.candidate.bound_ratio, self.reference.bound_ratio)
    }

    /// Returns true if rounding explains both sides.
    pub(crate) fn is_explained(&self) -> bool {
        self.sides().iter().all(|(_, side)| side.is_explained())
    }

    /// Describes the values that rounding does not explain. `None` if it explains all.
    pub(crate) fn why(&self) -> Option<String> {
        let told: Vec<String> =
            self.sides().iter().filter_map(|(role, side)| self.told(*role, side)).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// Returns the index of a value along each axis.
    pub(crate) fn index(&self, flat: usize) -> Vec<usize> {
        unravel(flat, &self.shape)
    }

    /// Returns one side's errors.
    pub(crate) fn side(&self, role: Role) -> &EngineErrors {
        match role {
            Role::Candidate => &self.candidate,
            Role::Reference => &self.reference,
        }
    }

    fn sides(&self) -> [(Role, &EngineErrors); 2] {
        [(Role::Candidate, &self.candidate), (Role::Reference, &self.reference)]
    }

    fn told(&self, role: Role, side: &EngineErrors) -> Option<String> {
        let whose = role.name();
        if side.over > 0 {
            let InexactValue { flat, value, exact, .. } = *side.worst.first()?;
            let index = self.index(flat);
            let count = if side.over == 1 {
                format!("1 value of the {whose} is above its error bound")
            } else {
                format!("{} values of the {whose} are above their error bound", side.over)
            };
            let value = shortest(value);
            let should = exactly(&exact, side.bound_ratio);
            return Some(format!("{count}, the worst {value} at {index:?}: {should}"));
        }
        let bias = side.bias.filter(BiasEstimate::is_systematic)?;
        Some(format!(
            "values of the {whose} have a bias: {}, which rounding to nearest cannot cause ({:.0} sigma)",
            systematic(&bias),
            bias.z.abs()
        ))
    }
}

/// Formats the exact value and its error bound.
fn exactly(exact: &ExactValue, bound_ratio: f64) -> String {
    let ExactValue { value, radius, .. } = *exact;
    let plain = value == 0.0 || (1e-4..1e7).contains(&value.abs());
    let digits = if plain { format!("{value:.9}") } else { format!("{value:.8e}") };
    match radius > 0.0 {
        true => format!("exactly {digits} ± {radius:.1e} (err/bound {bound_ratio:.1e})"),
        false => format!("exactly {digits}, with no rounding involved"),
    }
}

/// Formats a value with the shortest digits that identify it in `f32`, if it is an `f32` value.
fn shortest(value: f64) -> String {
    let single = value as f32;
    if f64::from(single) == value { single.to_string() } else { value.to_string() }
}

fn systematic(bias: &BiasEstimate) -> String {
    let of = match bias.group {
        BiasGroup::Whole => "all".to_owned(),
        BiasGroup::Axis(axis) => format!("at index {} of axis {axis}", bias.index),
        BiasGroup::Channel => format!("in channel {}", bias.index),
    };
    match bias.is_scale {
        true => format!("{of} off by a relative {:.1e}", bias.error),
        false => format!("{of} off by {:.1e}", bias.error),
    }
}
