//! Options for the errors to measure and the criterion of the verdict.

use clap::{Args, ValueEnum};

use crate::align::Selection;
use crate::check::{Gate, Mode};
use crate::cli::options::SelectionOptions;
use crate::exact::Profile;

/// Options for the errors to measure.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ModeOptions {
    /// Measure only local errors: each operation starts from the dump's values
    ///
    /// If the dump lacks the inputs of an operation, the computation starts from the nearest values before
    /// it.
    #[arg(long, alias = "isolate", help_heading = "Judging")]
    introduced: bool,
    /// Measure only accumulated errors, in a run from the token ids
    #[arg(long, alias = "propagate", conflicts_with = "introduced", help_heading = "Judging")]
    total: bool,
    /// Start each layer from the dump's own input of the layer
    ///
    /// With --layer, only these layers are judged.
    #[arg(
        long,
        visible_alias = "by-layer",
        conflicts_with_all = ["introduced", "total"],
        help_heading = "Judging"
    )]
    from_reference: bool,
    /// Criterion of the verdict: rounding error bounds or tolerances
    #[arg(long, value_enum, value_name = "WHAT", default_value = "rounding", help_heading = "Judging")]
    gate: GateName,
    /// Rounding profile that the dump's engine must follow
    ///
    /// Without it, xcheck searches for a profile that explains the dump's values. The error message for an
    /// unknown name lists the profiles.
    #[arg(long, value_name = "PROFILE", value_parser = profile, help_heading = "Judging")]
    rounding: Option<(String, Profile)>,
    /// Accepted for old command lines: steps after a tie are always judged
    #[arg(long, hide = true)]
    follow_reference: bool,
}

fn profile(name: &str) -> std::result::Result<(String, Profile), String> {
    let known = || Profile::names().collect::<Vec<_>>().join(", ");
    let profile =
        Profile::named(name).ok_or_else(|| format!("unknown profile, expected one of: {}", known()))?;
    Ok((name.to_owned(), profile))
}

/// The criterion for a verdict, as an option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum GateName {
    /// Rounding error bounds, computed from each operation's inputs or measured
    #[default]
    Rounding,
    /// Fixed tolerances: those of the specifications, or of --tolerance
    Tolerance,
}

impl GateName {
    /// Returns the criterion of the verdict.
    pub(super) fn gate(self) -> Gate {
        match self {
            GateName::Rounding => Gate::Rounding,
            GateName::Tolerance => Gate::Tolerance,
        }
    }

    /// Returns the arguments that choose this criterion again; empty for the default.
    pub(super) fn words(self) -> impl Iterator<Item = String> {
        let words = (self == GateName::Tolerance).then(|| ["--gate", "tolerance"].map(str::to_owned));
        words.into_iter().flatten()
    }
}

impl ModeOptions {
    /// Returns the requested rounding profile.
    pub(crate) fn profile(&self) -> Option<Profile> {
        self.rounding.as_ref().map(|(_, profile)| *profile)
    }

    /// Returns the requested criterion of the verdict.
    pub fn gate(&self) -> Gate {
        self.gate.gate()
    }

    /// Returns which errors to measure.
    pub(crate) fn mode(&self) -> Mode {
        match (self.introduced, self.total, self.from_reference) {
            (true, ..) => Mode::Local,
            (_, true, _) => Mode::Accumulated,
            (.., true) => Mode::Layers,
            _ => Mode::Both,
        }
    }

    /// Returns the selection. Taps outside the layers are independent of a layer that is run alone, so they are
    /// selected only with all layers, or by name.
    pub(crate) fn selection(&self, select: &SelectionOptions) -> Selection {
        let selection = select.selection();
        let layers_alone = self.from_reference && selection.layers.is_some() && !selection.explicit;
        if layers_alone { selection.inside_layers() } else { selection }
    }

    /// Returns the arguments that choose the same mode again.
    pub(super) fn words(&self) -> Vec<String> {
        let flags = self.from_reference.then(|| "--from-reference".to_owned()).into_iter();
        let rounding = self.rounding.iter().flat_map(|(name, _)| ["--rounding".to_owned(), name.clone()]);
        flags.chain(self.gate.words()).chain(rounding).collect()
    }
}
