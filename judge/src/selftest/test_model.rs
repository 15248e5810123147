//! A model for self-tests, with the numerics of the engine that writes the dump and our numerics.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::align::Selection;
use crate::catalogue::{ChangeTap, Supposition};
use crate::change::ModelOperations;
use crate::check::{Budget, EngineRounding, Gate, Mode, Role, Rules, Tolerances};
use crate::checkpoint::{Point, Site};
use crate::diagnose::cross_check;
use crate::dump::{Dump, DumpInput, Layout, Manifest, ModelInfo, Producer};
use crate::engine::{self, RunInput};
use crate::error::Result;
use crate::exact::Profile;
use crate::model::Model;
use crate::numerics::{BitnetCpp, F32, KvType, LlamaCpp, Numerics, Transformers};
use crate::selftest::memory_dump::{DumpForm, MemoryDump};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::tracing::TracedNumerics;
use crate::verdict::Outcome;

/// A model and an arithmetic for the self-test.
pub struct TestModel {
    /// Name of the model.
    pub name: String,
    /// Name of the arithmetic, one of [`ARITHMETICS`] or `f16`.
    pub arithmetic: &'static str,
    /// The model.
    pub model: Arc<dyn Model>,
    /// Numerics of our engine, which judges the dump.
    pub numerics: Box<dyn Numerics>,
    /// Numerics of the engine that writes the dump.
    pub engine: Box<dyn Numerics>,
    prompt: Vec<u32>,
}

/// Shipped models for the self-test, by file name.
pub const MODELS: [&str; 8] = [
    "tiny-llama2-f32",
    "tiny-llama3-f32",
    "tiny-qwen3-f32",
    "tiny-gemma3-f32",
    "tiny-gpt2-f32",
    "tiny-bitnet-i2_s",
    "tiny-llama2-q8_0",
    "tiny-llama3-f16",
];

/// Arithmetics of the self-test. In `other-order`, both sides compute in f32, but the engine under test sums
/// in another order.
pub const ARITHMETICS: [&str; 4] = ["f32", "bf16", "llama.cpp", "other-order"];

/// Input tokens, taken modulo the vocabulary size.
pub const PROMPT: [u32; 11] = [1, 9, 17, 200, 77, 301, 45, 45, 260, 13, 5];

/// Effect of an injected change on a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChangeEffect {
    /// Number of operations in the run that the change altered.
    pub stages: usize,
    /// First site whose values the change altered.
    pub(crate) first: Option<Site>,
}

impl TestModel {
    /// Makes a test model with one of the [`ARITHMETICS`], or with `f16`.
    pub fn new(name: &str, model: Arc<dyn Model>, arithmetic: &'static str) -> Self {
        let architecture = model.architecture();
        let numerics = || -> Box<dyn Numerics> {
            match arithmetic {
                "f32" | "other-order" => Box::new(F32),
                "bf16" => Box::new(Transformers::Bf16),
                "f16" => Box::new(Transformers::F16),
                // llama.cpp itself has no ternary types; its fork bitnet.cpp has.
                _ if architecture.contains("bitnet") => Box::new(BitnetCpp { kv: KvType::F16 }),
                _ => Box::new(LlamaCpp { kv: KvType::F16 }),
            }
        };
        let is_plain = model.matrices().into_iter().all(|(_, matrix)| matrix.dtype == F32.activation_type());
        let engine: Box<dyn Numerics> = match arithmetic {
            // llama.cpp's GELU uses a lookup table, so it is a different function.
            "other-order" if architecture.contains("gemma") || architecture.contains("gpt2") => {
                Box::new(Transformers::F32)
            }
            "other-order" if is_plain => Box::new(LlamaCpp { kv: KvType::F32 }),
            _ => numerics(),
        };
        let vocabulary = model.dimensions().vocab_size as u32;
        let prompt = PROMPT.map(|id| id % vocabulary).to_vec();
        Self { name: name.to_owned(), arithmetic, numerics: numerics(), engine, model, prompt }
    }

    pub(super) fn prompt_tokens(&self) -> &[u32] {
        &self.prompt
    }

    /// Returns the run input: the prompt, and a few tokens after it.
    pub(super) fn script(&self) -> RunInput {
        RunInput::greedy(&self.prompt, 2)
    }

    /// Makes the dump of an engine with the supposed changes.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn dump(&self, suppositions: &[Supposition], form: DumpForm) -> Result<(Dump, ChangeEffect)> {
        let traced = TracedNumerics::new(&*self.engine, Profile::of(&*self.engine));
        let operations = ModelOperations::of(&*self.model, &*self.engine)?;
        let mut changing = ChangeTap::new(&traced, &operations, suppositions).forgetting();
        let dump = self.recorded(&traced, &mut changing, form, &self.script())?;
        Ok((dump, ChangeEffect { stages: changing.made.get(), first: changing.first.get() }))
    }

    /// Makes the dump of an engine whose run continues with the values that a tap returns.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn dump_with(&self, tap: &mut dyn Tap) -> Result<Dump> {
        self.recorded(&*self.engine, tap, DumpForm::FULL, &self.script())
    }

    /// Makes a dump of a correct engine that writes its values under other names or in another form.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn dump_written(&self, write: &dyn Fn(Site, &Tensor) -> (Site, Tensor)) -> Result<Dump> {
        let mut memory = MemoryDump::new(self.manifest(), DumpForm::FULL);
        let mut taps = ChangedRecording { write, memory: &mut memory };
        let transcript = engine::run(&*self.model, &*self.engine, &self.script(), &mut taps)?;
        memory.finish(transcript)
    }

    /// Returns the model's taps with floating-point values, up to the last logits.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn points(&self) -> Result<BTreeSet<Point>> {
        let mut points = PointSet(BTreeSet::new());
        engine::run(&*self.model, &*self.numerics, &RunInput::greedy(&self.prompt, 0), &mut points)?;
        Ok(points.0.into_iter().filter(|point| *point <= Point::LastLogits).collect())
    }

    /// Makes the dump of a run with these numerics, for a script, in the given form.
    pub(super) fn recorded(
        &self,
        numerics: &dyn Numerics,
        tap: &mut dyn Tap,
        form: DumpForm,
        script: &RunInput,
    ) -> Result<Dump> {
        let mut memory = MemoryDump::new(self.manifest(), form);
        let mut taps = (tap, &mut memory);
        let transcript = engine::run(&*self.model, numerics, script, &mut taps)?;
        memory.finish(transcript)
    }

    fn manifest(&self) -> Manifest {
        let producer = Producer {
            name: "planted".into(),
            version: "1".into(),
            settings: self.settings(),
            rounding: None,
        };
        let model =
            ModelInfo { name: String::new(), architecture: self.model.architecture().into(), sha256: None };
        let layout = Layout { rope_pairing: self.model.dimensions().rope_pairing };
        let input = DumpInput { tokens: self.prompt.clone(), ..DumpInput::default() };
        Manifest::new(producer, model, layout, input, Vec::new())
    }

    fn settings(&self) -> Map<String, Value> {
        let settings = match self.arithmetic {
            "llama.cpp" => json!({"kv_cache": "f16"}),
            "other-order" => json!({"dtype": "f32"}),
            dtype => json!({"dtype": dtype}),
        };
        settings.as_object().expect("an object").clone()
    }

    /// Judges the dump as a candidate.
    ///
    /// # Errors
    /// If the dump cannot be judged.
    pub fn check(&self, dump: &Dump) -> Result<Outcome> {
        self.judged(dump, true, true, None)
    }

    /// Judges the dump as a candidate, with a time limit and an effort of the search for causes.
    ///
    /// # Errors
    /// If the dump cannot be judged.
    pub fn check_within(&self, dump: &Dump, budget: &Budget) -> Result<Outcome> {
        self.judged(dump, true, true, Some(budget))
    }

    /// Judges a dump without a search for causes. With `is_stated` false, the dump does not state its
    /// arithmetic for its weights.
    ///
    /// # Errors
    /// If the dump cannot be judged.
    pub fn check_quickly(&self, dump: &Dump, is_stated: bool) -> Result<Outcome> {
        self.judged(dump, is_stated, false, None)
    }

    fn judged(&self, dump: &Dump, is_stated: bool, causes: bool, budget: Option<&Budget>) -> Result<Outcome> {
        let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
        let rules = Rules {
            selection: &selection,
            tolerances: &tolerances,
            gate: Gate::Rounding,
            precision: dump.manifest.producer.precision().unwrap_or("f32"),
            mode: Mode::Both,
            role: Role::Candidate,
            rounding: EngineRounding::Stated,
            is_stated,
            suppositions: &[],
            causes,
            budget,
        };
        cross_check("planted", &*self.model, &*self.numerics, dump, rules, &mut ())
    }
}

struct PointSet(BTreeSet<Point>);

impl Tap for PointSet {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        self.0.insert(site.point);
        value
    }
}

/// A tap that records changed values, while the run continues with the original ones.
struct ChangedRecording<'w> {
    write: &'w dyn Fn(Site, &Tensor) -> (Site, Tensor),
    memory: &'w mut MemoryDump,
}

impl Tap for ChangedRecording<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let (written, other) = (self.write)(site, &value);
        self.memory.tap(written, other);
        value
    }
}
