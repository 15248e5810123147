//! Counts of self-test results.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::change::CauseFamily;
use crate::error;
use crate::selftest::correct_dump::{CorrectDump, OTHER_KERNELS, TWINS};
use crate::selftest::fault_injection::{FaultDetection, InjectedFault, told};
use crate::selftest::memory_dump::{DumpForm, RecordedTaps};
use crate::selftest::test_model::TestModel;
use crate::verdict::Verdict;

/// Counts of judged dumps with an injected fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Injected changes that altered a value.
    pub planted: usize,
    /// Faults whose dump fails.
    pub detected: usize,
    /// Faults whose first failure is at the injected site.
    pub located: usize,
    /// Faults named by kind and value, alone or among equivalent ones.
    pub named: usize,
    /// Faults named as one of several possible causes.
    pub among: usize,
    /// Faults that pass because rounding explains them.
    pub hidden: usize,
    /// Faults whose dump is inconclusive.
    pub in_doubt: usize,
    /// Faults with a wrong cause.
    pub misnamed: usize,
    /// Faults that fail without a cause.
    #[serde(default)]
    pub unnamed: usize,
    /// Changes that altered no value for this text. They do not count as injected.
    pub no_effect: usize,
}

impl AddAssign for FaultCounts {
    fn add_assign(&mut self, other: Self) {
        self.planted += other.planted;
        self.detected += other.detected;
        self.located += other.located;
        self.named += other.named;
        self.among += other.among;
        self.hidden += other.hidden;
        self.in_doubt += other.in_doubt;
        self.misnamed += other.misnamed;
        self.unnamed += other.unnamed;
        self.no_effect += other.no_effect;
    }
}

/// Counts of judged dumps from correct engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorrectCounts {
    /// Number of judged correct dumps.
    pub judged: usize,
    /// Correct dumps that pass.
    pub passed: usize,
    /// Correct dumps that are inconclusive.
    pub in_doubt: usize,
    /// Dumps that fail, or that get a cause.
    pub false_alarms: usize,
}

/// The rows of the result table in which a fault is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRow {
    /// The kind of change, or "passes" and "heads" for a change of some passes or heads.
    pub(crate) name: &'static str,
    /// The family of the kind.
    pub(crate) family: CauseFamily,
    /// Arithmetic of the model.
    pub(crate) arithmetic: &'static str,
    /// Taps that the dump records.
    pub(crate) recorded: RecordedTaps,
}

impl FaultRow {
    fn of(bed: &TestModel, fault: &InjectedFault, recorded: RecordedTaps) -> Self {
        let kind = fault.change.entry.kind;
        let (name, family) = match (&fault.change.passes, &fault.change.heads) {
            (None, None) => (kind.name(), kind.family()),
            (Some(_), _) => (CauseFamily::Passes.name(), CauseFamily::Passes),
            (None, Some(_)) => (CauseFamily::Heads.name(), CauseFamily::Heads),
        };
        Self { name, family, arithmetic: bed.arithmetic, recorded }
    }
}

/// Result of one judged dump.
#[derive(Clone, Debug)]
pub enum SelfTestResult {
    /// A fault: its row in the table, its counts, and a remark if it was not found correctly.
    Change(FaultRow, FaultCounts, Option<String>),
    /// A correct dump: the name of its variant, its counts, and a remark if it did not pass.
    Twin(&'static str, CorrectCounts, Option<String>),
}

/// A dump to judge.
pub enum SelfTestJob<'b> {
    /// A dump with an injected fault and these taps.
    Change(&'b TestModel, InjectedFault, RecordedTaps),
    /// A dump of a correct engine, with the name of its variant.
    Twin(&'b TestModel, &'static str, CorrectDump),
}

/// Counts of all judged dumps.
#[derive(Clone, Debug, Default)]
pub struct SelfTestTable {
    /// Counts of injected faults, by kind of change.
    pub changes: BTreeMap<String, FaultCounts>,
    /// Counts of injected faults by family, in the order of a forward pass.
    pub families: BTreeMap<CauseFamily, FaultCounts>,
    /// Counts of injected faults by recorded taps and arithmetic.
    pub recorded: BTreeMap<(RecordedTaps, &'static str), FaultCounts>,
    /// Counts of correct dumps by variant, in the order of [`TWINS`].
    pub twins: Vec<(&'static str, CorrectCounts)>,
    /// Remarks on faults that were not found correctly, and on correct dumps that did not pass.
    pub remarks: Vec<String>,
}

impl SelfTestJob<'_> {
    /// Makes the dump and judges it; `None` if the variant does not exist.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn judged(&self) -> error::Result<Option<SelfTestResult>> {
        match self {
            SelfTestJob::Change(bed, plant, recorded) => change(bed, plant, *recorded).map(Some),
            SelfTestJob::Twin(bed, name, how) => twin(bed, name, *how),
        }
    }
}

fn change(bed: &TestModel, plant: &InjectedFault, recorded: RecordedTaps) -> error::Result<SelfTestResult> {
    let row = FaultRow::of(bed, plant, recorded);
    let form = DumpForm { thinned: recorded, ..DumpForm::FULL };
    let (dump, made) = bed.dump(std::slice::from_ref(&plant.supposed), form)?;
    let Some(first) = made.first else {
        let count = FaultCounts { no_effect: 1, ..FaultCounts::default() };
        return Ok(SelfTestResult::Change(row, count, None));
    };
    let outcome = bed.check(&dump)?;
    let one = |is: bool| usize::from(is);
    let told = told(&outcome, &plant.change, made.stages);
    let failed = outcome.verdict == Verdict::Fail;
    let count = FaultCounts {
        planted: 1,
        detected: one(failed),
        located: one(outcome.first_divergence().is_some_and(|row| recorded.shows(first, row.site))),
        named: one(matches!(told, FaultDetection::Right | FaultDetection::Among)),
        among: one(told == FaultDetection::Among),
        hidden: one(told == FaultDetection::Hidden),
        in_doubt: one(told == FaultDetection::Open),
        misnamed: one(matches!(told, FaultDetection::OtherValue | FaultDetection::Wrong)),
        unnamed: one(told == FaultDetection::Unnamed),
        no_effect: 0,
    };
    let is_found = count.located == count.detected && count.in_doubt == 0;
    let is_as_it_is = count.misnamed + count.unnamed == 0 && (is_found || recorded != RecordedTaps::Full);
    let remark = || {
        let first_found = outcome.first_divergence().map_or("nowhere".into(), |row| row.site.to_string());
        let what = outcome.findings.first().map_or("no cause", |finding| finding.what.as_str());
        format!(
            "{} in {}, {}, {}: injected at {first}, first failure at {first_found}: {what}",
            plant.change,
            bed.name,
            bed.arithmetic,
            recorded.name()
        )
    };
    Ok(SelfTestResult::Change(row, count, (!is_as_it_is).then(remark)))
}

fn twin(bed: &TestModel, name: &'static str, how: CorrectDump) -> error::Result<Option<SelfTestResult>> {
    let Some(dump) = how.dump(bed)? else { return Ok(None) };
    let outcome = bed.check(&dump)?;
    let alarm = outcome.verdict == Verdict::Fail || !outcome.findings.is_empty();
    let doubt = !alarm && outcome.verdict == Verdict::Inconclusive;
    let found = CorrectCounts {
        judged: 1,
        passed: usize::from(!alarm && !doubt),
        in_doubt: usize::from(doubt),
        false_alarms: usize::from(alarm),
    };
    let remark = || {
        let why = outcome.reason.clone().unwrap_or_default();
        let name = match how {
            CorrectDump::Kernels(..) | CorrectDump::Fused(..) => format!("{name}: {how:?}"),
            _ => name.to_owned(),
        };
        format!("{name}, {}, {}: {}: {why}", bed.name, bed.arithmetic, outcome.verdict.name())
    };
    Ok(Some(SelfTestResult::Twin(name, found, (alarm || doubt).then(remark))))
}

impl SelfTestTable {
    /// Counts the results of the self-test in a table.
    pub fn of(results: Vec<SelfTestResult>) -> Self {
        let names = TWINS.into_iter().map(|(name, _)| name).chain([OTHER_KERNELS]);
        let twins = names.map(|name| (name, CorrectCounts::default())).collect();
        let mut table = Self { twins, ..Self::default() };
        for result in results {
            match result {
                SelfTestResult::Change(row, count, remark) => {
                    *table.recorded.entry((row.recorded, row.arithmetic)).or_default() += count;
                    if row.recorded == RecordedTaps::Full {
                        *table.changes.entry(row.name.to_owned()).or_default() += count;
                        *table.families.entry(row.family).or_default() += count;
                    }
                    table.remarks.extend(remark);
                }
                SelfTestResult::Twin(name, found, remark) => {
                    let known = table.twins.iter_mut().find(|(known, _)| *known == name);
                    let sum = &mut known.expect("the table lists every twin").1;
                    sum.judged += found.judged;
                    sum.passed += found.passed;
                    sum.in_doubt += found.in_doubt;
                    sum.false_alarms += found.false_alarms;
                    table.remarks.extend(remark);
                }
            }
        }
        table
    }

    /// Returns the counts over all kinds of faults, with all taps recorded.
    pub fn all(&self) -> FaultCounts {
        let mut all = FaultCounts::default();
        self.changes.values().for_each(|count| all += *count);
        all
    }

    /// Returns the number of correct dumps that fail.
    pub fn false_alarms(&self) -> usize {
        self.twins.iter().map(|(_, found)| found.false_alarms).sum()
    }
}
