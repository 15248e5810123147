//! Expected figures of the self-test, from a reviewed run. Later runs may be better, but not worse.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::input;
use crate::selftest::counts::{CorrectCounts, FaultCounts, SelfTestTable};

/// Figures that must not become worse. The default only requires that correct dumps never fail.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedFigures {
    /// Expected counts of injected faults, by kind of change.
    changes: BTreeMap<String, FaultCounts>,
    /// Expected counts of correct dumps, by variant.
    twins: BTreeMap<String, CorrectCounts>,
}

/// A figure that became worse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FigureRegression {
    /// Kind of change, or variant of a correct dump.
    pub(crate) of: String,
    /// Name of the figure, such as `detected`.
    pub(crate) what: &'static str,
    /// Count in this run.
    pub(crate) found: usize,
    /// Expected value.
    pub(crate) promised: usize,
}

impl fmt::Display for FigureRegression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}, expected {}", self.of, self.found, self.what, self.promised)
    }
}

impl ExpectedFigures {
    /// Returns the expected figures of the shipped models.
    ///
    /// # Panics
    /// If the shipped file is damaged, which a test rules out.
    pub fn shipped() -> Self {
        Self::parse(include_str!("../../selftest.toml")).expect("a test parses the shipped file")
    }

    /// Reads expected figures from a file.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid.
    pub fn open(path: &Path) -> Result<Self> {
        let text = input::text(path)?;
        let refuse = |problem| Error::BadContainer { file: path.to_owned(), format: "selftest", problem };
        Self::parse(&text).map_err(refuse)
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string().replace('\n', " "))
    }

    /// Makes expected figures from a table.
    pub fn of(table: &SelfTestTable) -> Self {
        let twins = table.twins.iter().map(|(name, found)| ((*name).to_owned(), *found));
        Self { changes: table.changes.clone(), twins: twins.collect() }
    }

    /// Formats the figures as a file.
    pub fn text(&self) -> String {
        let figures = toml::to_string(self).expect("figures can be written as TOML");
        format!(
            "# What `xcheck selftest` finds, written by `xcheck selftest --write`; a run that finds less fails. See docs/explanation/selftest.md.\n\n\
             {figures}"
        )
    }

    /// Returns the figures that became worse. The number of false alarms must not grow, and a wrong cause is
    /// never accepted.
    pub fn broken_by(&self, table: &SelfTestTable) -> Vec<FigureRegression> {
        let mut broken = Vec::new();
        let mut hold = |of: &str, what, found, promised| {
            if found < promised {
                broken.push(FigureRegression { of: of.to_owned(), what, found, promised });
            }
        };
        for (kind, promised) in &self.changes {
            let found = table.changes.get(kind).copied().unwrap_or_default();
            hold(kind, "with an effect", found.planted, promised.planted);
            hold(kind, "detected", found.detected, promised.detected);
            hold(kind, "located", found.located, promised.located);
            hold(kind, "named", found.named, promised.named);
        }
        for (name, promised) in &self.twins {
            let known = table.twins.iter().find(|(known, _)| known == name);
            let found = known.map(|(_, found)| *found).unwrap_or_default();
            hold(name, "judged", found.judged, promised.judged);
            hold(name, "passed", found.passed, promised.passed);
        }
        broken.extend(self.more_alarms(table));
        broken
    }

    /// Returns the correct dumps with more false alarms than expected.
    fn more_alarms<'t>(&'t self, table: &'t SelfTestTable) -> impl Iterator<Item = FigureRegression> + 't {
        table.twins.iter().filter_map(|(name, found)| {
            let promised = self.twins.get(*name).map_or(0, |promised| promised.false_alarms);
            (found.false_alarms > promised).then(|| FigureRegression {
                of: (*name).to_owned(),
                what: "false alarms",
                found: found.false_alarms,
                promised,
            })
        })
    }
}
