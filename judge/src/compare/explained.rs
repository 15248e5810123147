//! Evaluation by rounding: whether it explains the results of both sides from the same inputs.

use crate::compare::Role;
use crate::exact::{Bias, Exact, Fused, Judged, Off, Side, Strand};
use crate::measure::{larger, unravel};

/// The evaluation of both sides of a site against the exact result.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The candidate's result.
    pub candidate: Side,
    /// The reference's result.
    pub reference: Side,
    /// Values that were evaluated; the others are the same bits on both sides.
    pub evaluated: usize,
    /// Deviations of the dump's engine from its rounding profile, each in a few words.
    pub found: Vec<String>,
    /// For a norm of a sum in a 16-bit type: true if the dump's engine reads the sum before it is rounded.
    /// `None` if undetermined.
    pub reads_unrounded: Option<bool>,
    /// True if the engine has fused kernels, which use values before rounding.
    pub is_fused: bool,
    /// The lengths of the tap's axes.
    pub shape: Vec<usize>,
}

impl Explained {
    /// Evaluates a comparison with a dump of that role, with values of that shape.
    pub fn new(judged: Judged, role: Role, shape: &[usize]) -> Self {
        let Judged { evaluated, dump, engine, found, profile, reads_unrounded } = judged;
        let (candidate, reference) = match role {
            Role::Candidate => (dump, engine),
            Role::Reference => (engine, dump),
        };
        let is_fused = profile.fused != Fused::Nothing;
        let found = found.into_iter().map(|choice| profile.told(choice)).collect();
        Self { candidate, reference, evaluated, found, reads_unrounded, is_fused, shape: shape.to_vec() }
    }

    /// Values of either side that no rounding explains.
    pub fn over(&self) -> usize {
        self.candidate.over + self.reference.over
    }

    /// Returns the largest err/bound.
    pub fn bound_ratio(&self) -> f64 {
        larger(self.candidate.bound_ratio, self.reference.bound_ratio)
    }

    /// Returns true if rounding explains both sides.
    pub fn is_explained(&self) -> bool {
        self.sides().iter().all(|(_, side)| side.is_explained())
    }

    /// Describes the values that rounding does not explain.
    pub fn why(&self) -> Option<String> {
        let told: Vec<String> =
            self.sides().iter().filter_map(|(role, side)| self.told(*role, side)).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// The index of a value along each axis.
    pub fn index(&self, flat: usize) -> Vec<usize> {
        unravel(flat, &self.shape)
    }

    /// Returns the result of one side.
    pub fn side(&self, role: Role) -> &Side {
        match role {
            Role::Candidate => &self.candidate,
            Role::Reference => &self.reference,
        }
    }

    fn sides(&self) -> [(Role, &Side); 2] {
        [(Role::Candidate, &self.candidate), (Role::Reference, &self.reference)]
    }

    fn told(&self, role: Role, side: &Side) -> Option<String> {
        let whose = role.name();
        if side.over > 0 {
            let Off { flat, value, exact, .. } = *side.worst.first()?;
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
        let bias = side.bias.filter(Bias::is_systematic)?;
        Some(format!(
            "values of the {whose} have a bias: {}, which rounding to nearest cannot cause ({:.0} sigma)",
            systematic(&bias),
            bias.z.abs()
        ))
    }
}

/// Describes the exact value and its bound.
fn exactly(exact: &Exact, bound_ratio: f64) -> String {
    let Exact { value, radius, .. } = *exact;
    let plain = value == 0.0 || (1e-4..1e7).contains(&value.abs());
    let digits = if plain { format!("{value:.9}") } else { format!("{value:.8e}") };
    match radius > 0.0 {
        true => format!("exactly {digits} ± {radius:.1e} (err/bound {bound_ratio:.1e})"),
        false => format!("exactly {digits}, with no rounding involved"),
    }
}

/// With the digits that tell it from its neighbours in `f32`, if it is one.
fn shortest(value: f64) -> String {
    let single = value as f32;
    if f64::from(single) == value { single.to_string() } else { value.to_string() }
}

fn systematic(bias: &Bias) -> String {
    let of = match bias.strand {
        Strand::Whole => "all".to_owned(),
        Strand::Axis(axis) => format!("at index {} of axis {axis}", bias.index),
        Strand::Channel => format!("in channel {}", bias.index),
    };
    match bias.is_scale {
        true => format!("{of} off by a relative {:.1e}", bias.error),
        false => format!("{of} off by {:.1e}", bias.error),
    }
}
