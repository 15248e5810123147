//! Serialisation of enums as one word in `report.json`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::change::CauseKind;
use crate::check::{Gate, Mode, Role};
use crate::checkpoint::{Checkpoint, ModulePath, Point};
use crate::noise::Statistic;
use crate::report::schema::form::JsonForm;
use crate::verdict::{CauseSearch, Doubt, Verdict};
use crate::weight::DType;

/// An enum whose variants have names in `report.json`.
pub(crate) trait NamedEnum: Copy + 'static {
    const ALL: &'static [Self];

    fn word(self) -> &'static str;

    /// Returns the variant for a word that is not in [`Self::ALL`].
    fn other(_word: &str) -> Option<Self> {
        None
    }
}

/// An enum variant that is serialised by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EnumName<T>(pub T);

impl<T: NamedEnum> JsonForm for EnumName<T> {
    type Value = T;

    fn of(value: T) -> Self {
        Self(value)
    }

    fn value(self) -> T {
        self.0
    }
}

impl<T: NamedEnum> Serialize for EnumName<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.word())
    }
}

impl<'de, T: NamedEnum> Deserialize<'de> for EnumName<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = T::ALL.iter().copied().find(|known| known.word() == text);
        known.or_else(|| T::other(&text)).map(Self).ok_or_else(|| {
            let words: Vec<_> = T::ALL.iter().map(|known| known.word()).collect();
            D::Error::custom(format!("unknown value '{text}', expected one of {}", words.join(", ")))
        })
    }
}

macro_rules! words {
    ($($type:ty: $all:expr;)*) => {
        $(impl NamedEnum for $type {
            const ALL: &'static [Self] = $all;

            fn word(self) -> &'static str {
                self.name()
            }
        })*
    };
}

impl NamedEnum for Point {
    const ALL: &'static [Self] = Point::ALL;

    fn word(self) -> &'static str {
        self.name()
    }

    /// Returns the output of a module with this name.
    fn other(word: &str) -> Option<Self> {
        ModulePath::named(word).ok().map(Point::Module)
    }
}

words! {
    Checkpoint: Checkpoint::with_input();
    CauseKind: CauseKind::ALL;
    DType: DType::ALL;
    Verdict: &[Verdict::Pass, Verdict::Tie, Verdict::Known, Verdict::Inconclusive, Verdict::Fail];
    Gate: &[Gate::Rounding, Gate::Tolerance];
    Role: &[Role::Candidate, Role::Reference];
    Mode: &[Mode::Both, Mode::Accumulated, Mode::Local, Mode::Layers];
    Doubt: &[Doubt::None, Doubt::Large, Doubt::Exceeds];
    Statistic: &Statistic::ALL;
    CauseSearch: &[CauseSearch::Prompt, CauseSearch::Nonfinite, CauseSearch::Stages, CauseSearch::Parts, CauseSearch::Choices];
}
