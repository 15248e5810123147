//! A dump, the model it was made of, and what computes as its producer does.

use xcheck::align::Selection;
use xcheck::check::{Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::{cross_check, cross_check_dumps};
use xcheck::dump::{Dump, DumpInput, Layout, Manifest, ModelInfo, Producer, Recorder};
use xcheck::engine::{self, RunInput};
use xcheck::model::{LoadedModel, Model};
use xcheck::numerics::Numerics;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, SiteResult, Verdict};

use crate::common::{counterpart, reference_of, rules};

pub struct Scene {
    pub dump: Dump,
    pub model: LoadedModel,
    pub numerics: Box<dyn Numerics>,
}

impl Scene {
    /// A shipped dump of a shipped model.
    pub fn shipped(model: &str, name: &str) -> Self {
        Self::of(model, reference_of(model, name))
    }

    /// A dump that was made of a shipped model.
    pub fn of(model: &str, dump: Dump) -> Self {
        let (model, numerics) = counterpart(model, &dump);
        Self { dump, model, numerics }
    }

    pub fn precision(&self) -> &'static str {
        self.dump.manifest.producer.precision().unwrap_or(self.model.precision.name())
    }

    /// Runs the model against the scene's own dump.
    pub fn judge(&self, fault: &mut dyn Tap) -> Outcome {
        self.judge_dump(&self.dump, Mode::Both, Role::Reference, fault)
    }

    /// Runs the model against another dump of it.
    pub fn judge_dump(&self, dump: &Dump, mode: Mode, role: Role, fault: &mut dyn Tap) -> Outcome {
        self.judge_with(&*self.model.model, dump, mode, role, fault)
    }

    /// Runs the model against a dump that may be of something else.
    pub fn try_judge(&self, dump: &Dump, mode: Mode, role: Role) -> xcheck::Result<Outcome> {
        let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
        let precision = self.precision();
        let rules = Rules { role, ..rules(&selection, &tolerances, precision, mode) };
        cross_check("reference", &*self.model.model, &*self.numerics, dump, rules, &mut ())
    }

    /// Runs another model against a dump.
    pub fn judge_with(
        &self,
        model: &dyn Model,
        dump: &Dump,
        mode: Mode,
        role: Role,
        fault: &mut dyn Tap,
    ) -> Outcome {
        let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
        let precision = self.precision();
        let rules = Rules { role, ..rules(&selection, &tolerances, precision, mode) };
        cross_check("reference", model, &*self.numerics, dump, rules, fault).expect("the two can be compared")
    }
}

/// Compares two dumps as `xcheck compare` does.
pub fn compare(candidate: &Dump, reference: &Dump) -> Outcome {
    compare_selected(candidate, reference, &Selection::everything()).expect("the two can be compared")
}

pub fn compare_selected(
    candidate: &Dump,
    reference: &Dump,
    selection: &Selection,
) -> xcheck::Result<Outcome> {
    let tolerances = Tolerances::shipped();
    let precision = reference.manifest.producer.precision().unwrap_or("any");
    let rules = rules(selection, &tolerances, precision, Mode::Accumulated);
    cross_check_dumps("reference", candidate, reference, rules)
}

pub const fn site(point: Point, layer: usize, pass: usize) -> Site {
    Site { point, layer: Some(layer), pass: Some(pass) }
}

/// A place that belongs to a pass, but to no layer.
pub const fn of_pass(point: Point, pass: usize) -> Site {
    Site { point, layer: None, pass: Some(pass) }
}

#[track_caller]
pub fn row(outcome: &Outcome, site: Site) -> &SiteResult {
    outcome.rows.iter().find(|row| row.site == site).unwrap_or_else(|| panic!("{site} was not compared"))
}

/// What the verdict is, and why.
pub fn told(outcome: &Outcome) -> String {
    let first = outcome.first_divergence().map(|row| row.site.to_string());
    format!("{} {:?} first {first:?} notes {:?}", outcome.verdict, outcome.reason, outcome.notes)
}

#[track_caller]
pub fn assert_passes(outcome: &Outcome) {
    assert_eq!(outcome.verdict, Verdict::Pass, "{}", told(outcome));
}

#[track_caller]
pub fn assert_does_not_pass(outcome: &Outcome) {
    assert!(!outcome.verdict.is_good(), "{}", told(outcome));
}

#[track_caller]
pub fn assert_inconclusive(outcome: &Outcome) {
    assert_eq!(outcome.verdict, Verdict::Inconclusive, "{}", told(outcome));
}

/// The verdict is a failure, and this is the first thing that is wrong.
#[track_caller]
pub fn assert_first_wrong(outcome: &Outcome, site: Site) {
    assert_eq!(outcome.first_divergence().map(|row| row.site), Some(site), "{}", told(outcome));
    assert_eq!(outcome.verdict, Verdict::Fail, "{}", told(outcome));
}

/// A dump of a model by our own engine that claims to be of torch, in a dtype.
pub fn recorded(
    model: &dyn Model,
    numerics: &dyn Numerics,
    dtype: &str,
    script: &RunInput,
    fault: &mut dyn Tap,
) -> Dump {
    let prompt = script.passes.iter().flat_map(|step| step.tokens.iter().flatten()).copied();
    let input = DumpInput { tokens: prompt.take(script.prompt_len).collect(), ..DumpInput::default() };
    let settings = [("dtype".to_owned(), dtype.into())].into_iter().collect();
    let producer = Producer { name: "transformers".into(), version: String::new(), settings, rounding: None };
    let info = ModelInfo { name: String::new(), architecture: model.architecture().into(), sha256: None };
    let layout = Layout { rope_pairing: model.dimensions().rope_pairing };
    let home = tempfile::tempdir().expect("a temporary directory");
    let path = home.path().join("dump.safetensors");
    let manifest = Manifest::new(producer, info, layout, input, Vec::new());
    let mut recorder = Recorder::create(&path, manifest).expect("a new dump");
    let transcript = engine::run(model, numerics, script, &mut (fault, &mut recorder)).expect("it runs");
    recorder.finish(transcript.passes, transcript.generated).expect("it is written");
    Dump::open(&path).expect("it is sound")
}

/// A fault wherever a tap point comes by.
pub struct Everywhere<F: Fn(&mut [f32])>(pub Point, pub Option<usize>, pub F);

impl<F: Fn(&mut [f32])> Tap for Everywhere<F> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if site.point != self.0 || (self.1.is_some() && site.layer != self.1) {
            return value;
        }
        let shape = value.shape().to_vec();
        let mut data = value.into_data();
        (self.2)(&mut data);
        Tensor::new(&shape, data)
    }
}
