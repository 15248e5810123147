//! How to judge: what the caller decides, before anything is read.

use crate::change::Supposition;
use crate::compare::{Gate, Role, Selection, Tolerances};
use crate::exact::Profile;

/// How to judge, whatever is compared.
#[derive(Clone, Copy)]
pub struct Rules<'r> {
    /// What to look at.
    pub selection: &'r Selection,
    /// How much error is allowed.
    pub tolerances: &'r Tolerances,
    /// The precision under which tolerances are looked up: the weights' type, or the torch dtype of everything.
    pub precision: &'r str,
    /// What decides where the model is run.
    pub gate: Gate,
    /// Which errors to measure.
    pub mode: Mode,
    /// What a dump is that our engine is compared with.
    pub role: Role,
    /// How the dump's engine rounds.
    pub rounding: Rounding,
    /// Whether the dump says how its engine computes with its weights. Where it does not, they may have met activations
    /// of 8 bits, or not.
    pub is_stated: bool,
    /// What our engine is supposed to compute otherwise than the model asks for.
    pub suppositions: &'r [Supposition],
    /// Whether what explains a failure is looked for, which takes longer than all else, and changes no verdict.
    pub causes: bool,
}

/// How the engine of a dump rounds, as far as the caller knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounding {
    /// As its manifest says, or else as our numerics do; where that does not explain it, otherwise.
    Stated,
    /// So, by what its values show; where that does not explain it, otherwise.
    Shown(Profile),
    /// So, and not otherwise.
    Demanded(Profile),
}

/// Which errors were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What is introduced, and the total.
    Both,
    /// The total error only, from the tokens on.
    Total,
    /// The introduced error only: each stage starts from the nearest values that the dump holds.
    Introduced,
    /// The introduced error of layers: each layer starts from the dump's own input of it, and errors travel on to its end.
    Layers,
}

impl Mode {
    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Both => "both",
            Mode::Total => "total",
            Mode::Introduced => "introduced",
            Mode::Layers => "layers",
        }
    }
}
