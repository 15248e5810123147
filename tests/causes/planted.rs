//! The beds of `xcheck selftest`, where nothing may go wrong.

use std::collections::BTreeSet;
use std::ops::Deref;

use xcheck::catalogue::Supposition;
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::Dump;
use xcheck::selftest::{self, DumpForm};
use xcheck::shipped_models;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::Outcome;

pub use xcheck::selftest::{FaultDetection, RecordedTaps};

/// A model that ships, and the arithmetic that computes with it.
pub struct Bed(selftest::TestModel);

impl Deref for Bed {
    type Target = selftest::TestModel;

    fn deref(&self) -> &selftest::TestModel {
        &self.0
    }
}

impl Bed {
    pub fn new(name: &str, arithmetic: &'static str) -> Self {
        let mut variants =
            shipped_models::MODELS.iter().flat_map(|model| model.variants().expect("it ships"));
        let (_, files) = variants.find(|(known, _)| known == name).expect("it ships");
        Self(selftest::TestModel::new(name, files.load().expect("it loads").model.into(), arithmetic))
    }

    /// The dump of an engine that computes so, and how many stages it computes otherwise.
    pub fn dump(&self, suppositions: &[Supposition], thinned: RecordedTaps) -> (Dump, usize) {
        let (dump, made) =
            self.0.dump(suppositions, DumpForm { thinned, ..DumpForm::FULL }).expect("it runs");
        (dump, made.stages)
    }

    /// Injects changes that are given as `--suppose` takes them.
    pub fn dump_named(&self, typed: &[&str], thinned: RecordedTaps) -> (Dump, usize) {
        let supposed: Vec<Supposition> =
            typed.iter().map(|typed| Supposition::named(typed).expect("it can be supposed")).collect();
        self.dump(&supposed, thinned)
    }

    /// Demands that a fault fails, and that it is the only cause, or one of equal ones.
    pub fn assert_named(&self, typed: &str, thinned: RecordedTaps) {
        let change = Supposition::named(typed).expect("it can be supposed").change.remove(0);
        let (dump, made) = self.dump_named(&[typed], thinned);
        let outcome = self.check(&dump);
        let found = selftest::told(&outcome, &change, made);
        let is_named = matches!(found, FaultDetection::Right | FaultDetection::Among);
        let what: Vec<&str> = outcome.findings.iter().map(|finding| finding.what.as_str()).collect();
        assert!(is_named && what.len() == 1, "{typed}, {thinned:?}: {:?}, {what:?}", outcome.verdict);
    }

    pub fn dump_with(&self, tap: &mut dyn Tap) -> Dump {
        self.0.dump_with(tap).expect("it runs")
    }

    pub fn dump_written(&self, write: &dyn Fn(Site, &Tensor) -> (Site, Tensor)) -> Dump {
        self.0.dump_written(write).expect("it runs")
    }

    pub fn points(&self) -> BTreeSet<Point> {
        self.0.points().expect("it runs")
    }

    pub fn check(&self, dump: &Dump) -> Outcome {
        self.0.check(dump).expect("it can be judged")
    }
}
