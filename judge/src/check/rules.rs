//! Rules of a comparison, set by the caller before anything is read.

use serde::{Deserialize, Serialize};

use crate::align::Selection;
use crate::catalogue::Supposition;
use crate::check::budget::Budget;
use crate::check::tolerance::Tolerances;
use crate::exact::Profile;

/// The rules of a comparison.
#[derive(Clone, Copy)]
pub struct Rules<'r> {
    /// The values selected for comparison.
    pub selection: &'r Selection,
    /// The tolerance table.
    pub tolerances: &'r Tolerances,
    /// The precision for looking up tolerances: the type of the weights, or the torch dtype of the whole run.
    pub precision: &'r str,
    /// The criterion of the verdict if the model is run.
    pub gate: Gate,
    /// The errors to measure.
    pub mode: Mode,
    /// Role of the dump that is compared with our engine.
    pub role: Role,
    /// Rounding of the dump's engine.
    pub rounding: EngineRounding,
    /// True if the dump states the arithmetic used with its weights. Otherwise its engine may have rounded
    /// activations to 8 bits.
    pub is_stated: bool,
    /// Changes from `--suppose` that our engine applies.
    pub suppositions: &'r [Supposition],
    /// True to search for causes. The search is slow and does not change the verdict.
    pub causes: bool,
    /// Time limit of the search for causes, if any.
    pub budget: Option<&'r Budget>,
}

/// The rounding of a dump's engine, as far as the caller knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EngineRounding {
    /// The manifest states the rounding, or it equals that of our numerics. If this does not explain the
    /// values, other rounding is tried.
    Stated,
    /// The dump's values show this rounding. If it does not explain other values, other rounding is tried.
    Shown(Profile),
    /// The user requires this rounding. No other rounding is tried.
    Demanded(Profile),
}

/// The kinds of errors to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Local and accumulated errors.
    Both,
    /// Accumulated errors only: the model runs from the token ids, without recorded inputs.
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

/// The role of a dump that is compared with our engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The dump is judged against our engine.
    Candidate,
    /// Our engine is judged against the dump.
    Reference,
}

impl Role {
    /// Returns the other role: reference for candidate, and candidate for reference.
    pub(crate) fn other(self) -> Self {
        match self {
            Role::Candidate => Role::Reference,
            Role::Reference => Role::Candidate,
        }
    }

    /// Returns the role's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Role::Candidate => "candidate",
            Role::Reference => "reference",
        }
    }
}

/// The criterion of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Error bounds and noise floor. Needs a model.
    Rounding,
    /// The tolerance table. Needs no model.
    Tolerance,
}

impl Gate {
    /// Returns the criterion's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Gate::Rounding => "rounding",
            Gate::Tolerance => "tolerance",
        }
    }
}
