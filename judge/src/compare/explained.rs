//! Whether rounding explains what both sides have made of the same inputs.

use crate::compare::Role;
use crate::exact::{Bias, Exact, Fused, Judged, Off, Side, Strand};
use crate::measure::{larger, unravel};

/// Both sides of a place, against what the stage comes to exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// What the candidate has made.
    pub candidate: Side,
    /// What the reference has.
    pub reference: Side,
    /// Values that were evaluated; the others are the same bits on both sides.
    pub evaluated: usize,
    /// What the dump's engine does otherwise than its profile says, each in a few words.
    pub found: Vec<String>,
    /// Of a norm of a sum in a short type, whether the dump's engine reads that before it is rounded, where that is told.
    pub reads_unrounded: Option<bool>,
    /// Whether that engine has kernels which go on with what they have not rounded.
    pub is_fused: bool,
    /// The lengths of the tap's axes.
    pub shape: Vec<usize>,
}

impl Explained {
    /// Of a comparison with a dump of that role, of values of that shape.
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
    pub fn beyond(&self) -> usize {
        self.candidate.beyond + self.reference.beyond
    }

    /// The largest error in units of what rounding may come to.
    pub fn headroom(&self) -> f64 {
        larger(self.candidate.headroom, self.reference.headroom)
    }

    /// Whether rounding explains both sides.
    pub fn is_explained(&self) -> bool {
        self.sides().iter().all(|(_, side)| side.is_explained())
    }

    /// What rounding does not explain, for a person.
    pub fn why(&self) -> Option<String> {
        let told: Vec<String> =
            self.sides().iter().filter_map(|(role, side)| self.told(*role, side)).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// The index of a value along each axis.
    pub fn index(&self, flat: usize) -> Vec<usize> {
        unravel(flat, &self.shape)
    }

    /// What one of the two has made.
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
        if side.beyond > 0 {
            let Off { flat, value, exact, .. } = *side.worst.first()?;
            let index = self.index(flat);
            let count = if side.beyond == 1 {
                format!("1 value of the {whose} is above its error bound")
            } else {
                format!("{} values of the {whose} are above their error bound", side.beyond)
            };
            let value = shortest(value);
            let should = exactly(&exact, side.headroom);
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

/// What a value should have been.
fn exactly(exact: &Exact, headroom: f64) -> String {
    let Exact { value, radius, .. } = *exact;
    let plain = value == 0.0 || (1e-4..1e7).contains(&value.abs());
    let digits = if plain { format!("{value:.9}") } else { format!("{value:.8e}") };
    match radius > 0.0 {
        true => format!("exactly {digits} ± {radius:.1e} (err/bound {headroom:.1e})"),
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
