//! Counts of the results.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::change::CauseKind;
use crate::compare::Verdict;
use crate::error;
use crate::selftest::bed::Bed;
use crate::selftest::memory::Form;
use crate::selftest::plants::{Plant, Told, told};
use crate::selftest::twins::{OTHER_KERNELS, TWINS, Twin};

/// The counts of injected faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Changes that came to other values somewhere.
    pub planted: usize,
    /// Faults whose dump failed.
    pub detected: usize,
    /// Faults whose first failure is at the injected site.
    pub located: usize,
    /// Faults named by kind and value, alone or among equivalent ones.
    pub named: usize,
    /// Faults named among other causes.
    pub among: usize,
    /// Faults that pass because rounding explains them.
    pub hidden: usize,
    /// Undetermined faults.
    pub in_doubt: usize,
    /// Faults with a wrong name or none.
    pub misnamed: usize,
    /// Changes without an effect on this text, which do not count as injected.
    pub no_effect: usize,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.planted += other.planted;
        self.detected += other.detected;
        self.located += other.located;
        self.named += other.named;
        self.among += other.among;
        self.hidden += other.hidden;
        self.in_doubt += other.in_doubt;
        self.misnamed += other.misnamed;
        self.no_effect += other.no_effect;
    }
}

/// The counts of correct dumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Number of judged dumps.
    pub judged: usize,
    /// Dumps that pass.
    pub passed: usize,
    /// Inconclusive dumps.
    pub in_doubt: usize,
    /// Dumps that fail, or that get a cause.
    pub false_alarms: usize,
}

/// A judged fault or correct dump.
#[derive(Clone, Debug)]
pub enum Result {
    /// A fault: its kind, its counts, and a remark if it was not detected correctly.
    Change(CauseKind, Count, Option<String>),
    /// A twin: its name.
    Twin(&'static str, Found, Option<String>),
}

/// A dump to judge.
pub enum Job<'b> {
    /// A change.
    Change(&'b Bed, Plant),
    /// A correct dump.
    Twin(&'b Bed, &'static str, Twin),
}

/// Everything that was judged.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// By kind of change.
    pub changes: BTreeMap<String, Count>,
    /// By kind of twin, in the order of [`TWINS`].
    pub twins: Vec<(&'static str, Found)>,
    /// Results that differ from the injected fault.
    pub remarks: Vec<String>,
}

impl Job<'_> {
    /// Makes the dump and judges it; `None` if there is no such correct dump.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn judged(&self) -> error::Result<Option<Result>> {
        match self {
            Job::Change(bed, plant) => change(bed, plant).map(Some),
            Job::Twin(bed, name, how) => twin(bed, name, *how),
        }
    }
}

fn change(bed: &Bed, plant: &Plant) -> error::Result<Result> {
    let kind = plant.change.entry.kind;
    let (dump, made) = bed.dump(std::slice::from_ref(&plant.supposed), Form::FULL)?;
    let Some(first) = made.first else {
        return Ok(Result::Change(kind, Count { no_effect: 1, ..Count::default() }, None));
    };
    let outcome = bed.check(&dump)?;
    let one = |is: bool| usize::from(is);
    let told = told(&outcome, &plant.change, made.stages);
    let failed = outcome.verdict == Verdict::Fail;
    let count = Count {
        planted: 1,
        detected: one(failed),
        located: one(outcome.first_divergence().is_some_and(|row| row.site == first)),
        named: one(matches!(told, Told::Right | Told::Among)),
        among: one(told == Told::Among),
        hidden: one(told == Told::Hidden),
        in_doubt: one(told == Told::Open),
        misnamed: one(matches!(told, Told::OtherValue | Told::Wrong | Told::Unnamed)),
        no_effect: 0,
    };
    let is_as_it_is = count.misnamed == 0 && count.located == count.detected && count.in_doubt == 0;
    let remark = || {
        let first_found = outcome.first_divergence().map_or("nowhere".into(), |row| row.site.to_string());
        let what = outcome.findings.first().map_or("no cause", |finding| finding.what.as_str());
        format!(
            "{} in {}, {}: made at {first}, found at {first_found}: {what}",
            plant.change, bed.name, bed.arithmetic
        )
    };
    Ok(Result::Change(kind, count, (!is_as_it_is).then(remark)))
}

fn twin(bed: &Bed, name: &'static str, how: Twin) -> error::Result<Option<Result>> {
    let Some(dump) = how.dump(bed)? else { return Ok(None) };
    let outcome = bed.check(&dump)?;
    let alarm = outcome.verdict == Verdict::Fail || !outcome.findings.is_empty();
    let doubt = !alarm && outcome.verdict == Verdict::Inconclusive;
    let found = Found {
        judged: 1,
        passed: usize::from(!alarm && !doubt),
        in_doubt: usize::from(doubt),
        false_alarms: usize::from(alarm),
    };
    let remark = || {
        let why = outcome.reason.clone().unwrap_or_default();
        let name = if let Twin::Kernels(..) = how { format!("{name}: {how:?}") } else { name.to_owned() };
        format!("{name}, {}, {}: {}: {why}", bed.name, bed.arithmetic, outcome.verdict.name())
    };
    Ok(Some(Result::Twin(name, found, (alarm || doubt).then(remark))))
}

impl Table {
    /// Puts results together.
    pub fn of(results: Vec<Result>) -> Self {
        let names = TWINS.into_iter().map(|(name, _)| name).chain([OTHER_KERNELS]);
        let twins = names.map(|name| (name, Found::default())).collect();
        let mut table = Self { twins, ..Self::default() };
        for result in results {
            match result {
                Result::Change(kind, count, remark) => {
                    *table.changes.entry(kind.name().to_owned()).or_default() += count;
                    table.remarks.extend(remark);
                }
                Result::Twin(name, found, remark) => {
                    let known = table.twins.iter_mut().find(|(known, _)| *known == name);
                    let sum = &mut known.expect("it is listed").1;
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

    /// Over all kinds.
    pub fn all(&self) -> Count {
        let mut all = Count::default();
        self.changes.values().for_each(|count| all += *count);
        all
    }

    /// Returns the number of correct dumps that failed.
    pub fn false_alarms(&self) -> usize {
        self.twins.iter().map(|(_, found)| found.false_alarms).sum()
    }
}
