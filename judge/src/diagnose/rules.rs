//! Rules of a comparison, set by the caller before anything is read.

use crate::change::Supposition;
use crate::compare::{Gate, Role, Selection, Tolerances};
use crate::diagnose::budget::Budget;
use crate::exact::Profile;

/// The rules of a comparison.
#[derive(Clone, Copy)]
pub struct Rules<'r> {
    /// The selected values.
    pub selection: &'r Selection,
    /// The tolerances.
    pub tolerances: &'r Tolerances,
    /// The precision under which tolerances are looked up: the weights' type, or the torch dtype of everything.
    pub precision: &'r str,
    /// The criterion if the model is run.
    pub gate: Gate,
    /// The errors to measure.
    pub mode: Mode,
    /// Role of the dump that our engine is compared with.
    pub role: Role,
    /// Rounding of the dump's engine.
    pub rounding: EngineRounding,
    /// True if the dump states its arithmetic for its weights. Otherwise activations may have been rounded to
    /// 8 bits.
    pub is_stated: bool,
    /// Supposed changes of our engine.
    pub suppositions: &'r [Supposition],
    /// True to search for causes. The search takes the longest and changes no verdict.
    pub causes: bool,
    /// Time limit of the search, if there is one.
    pub budget: Option<&'r Budget>,
}

/// The rounding of a dump's engine, as far as the caller knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EngineRounding {
    /// Stated in the manifest, else like our numerics. If that does not explain the values, other rounding is
    /// tried.
    Stated,
    /// Shown by the values. If that does not explain them, other rounding is tried.
    Shown(Profile),
    /// Given by the user; no other rounding is tried.
    Demanded(Profile),
}

/// The measured errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Local and accumulated errors.
    Both,
    /// Accumulated errors only, from the tokens on.
    Accumulated,
    /// Local errors only: each operation starts from the nearest recorded values.
    Local,
    /// Local errors of layers: each layer starts from its recorded input, and errors accumulate until its
    /// end.
    Layers,
}

impl Mode {
    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Both => "both",
            Mode::Accumulated => "accumulated",
            Mode::Local => "local",
            Mode::Layers => "layers",
        }
    }
}
