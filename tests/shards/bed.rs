//! A comparison, made as a whole and in parts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, SystemTime};

use xcheck::align::Selection;
use xcheck::catalogue::{ChangeTap, Supposition};
use xcheck::change::ModelOperations;
use xcheck::check::{EngineRounding, Gate, Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::{UnitWork, cross_check, cross_check_units};
use xcheck::dump::{Dump, DumpInput, Layout, Manifest, ModelInfo, Producer, Recorder};
use xcheck::engine::{self, RunInput};
use xcheck::exact::Profile;
use xcheck::model::Model;
use xcheck::numerics::Numerics;
use xcheck::plan::Plan;
use xcheck::report::{
    Comparison, ModelRecord, Report, ReportContent, ShardedComparison, Timing, json, junit, markdown, merge,
    parse,
};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::tracing::TracedNumerics;
use xcheck::verdict::{Evidence, Outcome};

/// What is compared, and how.
pub struct Case<'c> {
    pub name: String,
    pub model: &'c dyn Model,
    pub numerics: &'c dyn Numerics,
    pub dump: &'c Dump,
    pub mode: Mode,
    pub gate: Gate,
    pub role: Role,
    pub selection: Selection,
}

impl<'c> Case<'c> {
    pub fn new(name: &str, model: &'c dyn Model, numerics: &'c dyn Numerics, dump: &'c Dump) -> Self {
        Self {
            name: name.to_owned(),
            model,
            numerics,
            dump,
            mode: Mode::Local,
            gate: Gate::Rounding,
            role: Role::Candidate,
            selection: Selection::everything(),
        }
    }

    fn rules<'r>(&'r self, tolerances: &'r Tolerances) -> Rules<'r> {
        Rules {
            selection: &self.selection,
            tolerances,
            gate: self.gate,
            precision: self.dump.manifest.producer.precision().unwrap_or("f32"),
            mode: self.mode,
            role: self.role,
            rounding: EngineRounding::Stated,
            is_stated: true,
            suppositions: &[],
            causes: true,
            budget: None,
        }
    }

    pub fn plan(&self) -> Plan {
        Plan::of(self.model, self.dump, self.numerics.activation_type(), &self.selection)
    }

    pub fn whole(&self) -> Outcome {
        let tolerances = Tolerances::shipped();
        cross_check("a dump", self.model, self.numerics, self.dump, self.rules(&tolerances), &mut ())
            .expect("it can be judged")
    }

    /// Some units, by themselves.
    pub fn part(&self, wanted: Range<usize>, done: Vec<(usize, Evidence)>) -> Outcome {
        self.part_seen_by(wanted, done, &mut ())
    }

    /// The same with an onlooker.
    pub fn part_seen_by(
        &self,
        wanted: Range<usize>,
        done: Vec<(usize, Evidence)>,
        onlooker: &mut dyn Tap,
    ) -> Outcome {
        let tolerances = Tolerances::shipped();
        let work = UnitWork { wanted: Some(wanted), done, finished: None };
        let rules = self.rules(&tolerances);
        cross_check_units("a dump", self.model, self.numerics, self.dump, rules, work, onlooker)
            .expect("it can be judged")
    }

    pub fn report(&self, outcome: Outcome, plan: Option<&Plan>) -> Report {
        let sharded = plan.map(|plan| ShardedComparison {
            plan: plan.hash.clone(),
            units: plan.units.clone(),
            asked: BTreeMap::from([("computed in".to_owned(), self.numerics.name().to_owned())]),
            remarks: Vec::new(),
        });
        let comparison = Comparison {
            model: ModelRecord {
                name: self.name.clone(),
                architecture: self.model.architecture().to_owned(),
                format: "gguf".to_owned(),
                quantisation: "f32".to_owned(),
                sha256: Some("0123".to_owned()),
            },
            outcome,
            again: vec!["check".to_owned(), "--model".to_owned(), self.name.clone()],
            reference: Some("a dump".to_owned()),
            tokens: Default::default(),
            timing: timing(),
            sharded,
        };
        Report {
            command: command(),
            results: vec![comparison],
            checkpoints: self.selection.checkpoints.clone(),
            served: None,
        }
    }

    /// The text of `report.json` of a part.
    pub fn text(&self, wanted: Range<usize>, plan: &Plan) -> String {
        json(&self.report(self.part(wanted, Vec::new()), Some(plan)))
    }
}

pub fn timing() -> Timing {
    Timing { started: SystemTime::UNIX_EPOCH, took: Duration::ZERO }
}

pub fn command() -> Vec<String> {
    vec!["the same".to_owned()]
}

/// A report as it was read from its text.
pub fn read(text: &str) -> Report {
    match parse(text).expect("it is a report") {
        ReportContent::Report(report) => *report,
        ReportContent::Refused(error) => panic!("it has no verdict: {error}"),
    }
}

/// Reports of parts, put together.
pub fn merged(texts: &[String]) -> xcheck::Result<Report> {
    let read = |(index, text): (usize, &String)| {
        (format!("part {index}"), ReportContent::Report(Box::new(read(text))))
    };
    merge(texts.iter().enumerate().map(read).collect(), command(), timing())
}

/// Every format of a report.
pub fn formats(report: &Report) -> [String; 3] {
    [json(report), markdown(report), junit(report)]
}

/// A dump of an engine that computes otherwise, and writes the taps that `keeps` says.
pub fn dump_of(
    model: &dyn Model,
    numerics: &dyn Numerics,
    supposed: &[Supposition],
    keeps: &dyn Fn(Site) -> bool,
    path: &Path,
) -> Dump {
    let traced = TracedNumerics::new(numerics, Profile::of(numerics));
    let book = ModelOperations::of(model, numerics).expect("it runs");
    let changing = ChangeTap::new(&traced, &book, supposed).forgetting();
    let settings = serde_json::json!({"dtype": numerics.activation_type().name(), "kv_cache": numerics.cache_type().name()});
    let producer = Producer {
        name: "planted".into(),
        version: "1".into(),
        settings: settings.as_object().expect("an object").clone(),
        rounding: None,
    };
    let info = ModelInfo { name: String::new(), architecture: model.architecture().into(), sha256: None };
    let layout = Layout { rope_pairing: model.dimensions().rope_pairing };
    let input = DumpInput { tokens: PROMPT.to_vec(), ..DumpInput::default() };
    let manifest = Manifest::new(producer, info, layout, input, Vec::new());
    let mut recorder = Recorder::create(path, manifest).expect("a new dump");
    let mut taps = (changing, Kept { keeps, recorder: &mut recorder });
    let transcript = engine::run(model, &traced, &RunInput::greedy(&PROMPT, 2), &mut taps).expect("it runs");
    recorder.finish(transcript.passes, transcript.generated).expect("it is written");
    Dump::open(path).expect("it is whole")
}

const PROMPT: [u32; 11] = [1, 9, 17, 200, 77, 301, 45, 45, 260, 13, 5];

struct Kept<'k> {
    keeps: &'k dyn Fn(Site) -> bool,
    recorder: &'k mut Recorder,
}

impl Tap for Kept<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if (self.keeps)(site) { self.recorder.tap(site, value) } else { value }
    }
}

/// What enters and leaves layers, and what comes after them.
pub fn blocks(site: Site) -> bool {
    use Point::*;
    matches!(site.point, Embed | BlockOut | Logits | LastLogits | Argmax | Generated)
}
