//! A model for injected faults, the engine that writes the dump, and ours.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::change::{ChangeTap, ModelOperations, Supposition};
use crate::checkpoint::{Point, Site};
use crate::compare::{Gate, Role, Selection, Tolerances};
use crate::diagnose::{EngineRounding, Mode, Outcome, Rules, cross_check};
use crate::dump::{Dump, DumpInput, Layout, Manifest, ModelInfo, Producer};
use crate::engine::{self, RunInput};
use crate::error::Result;
use crate::exact::{Profile, TracedNumerics};
use crate::model::Model;
use crate::numerics::{BitnetCpp, F32, KvType, LlamaCpp, Numerics, Transformers};
use crate::selftest::memory_dump::{DumpForm, MemoryDump};
use crate::tap::Tap;
use crate::tensor::Tensor;

/// A model, the arithmetic that computes with it, and the type that its tolerances go by.
pub struct TestModel {
    /// The model's name.
    pub name: String,
    /// Name of the arithmetic.
    pub arithmetic: &'static str,
    /// The model.
    pub model: Arc<dyn Model>,
    /// Our numerics.
    pub numerics: Box<dyn Numerics>,
    /// Numerics of the engine that writes the dump.
    pub engine: Box<dyn Numerics>,
    prompt: Vec<u32>,
}

/// Shipped models for injected faults, each by its file.
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

/// Arithmetics. In the last one, the engine sums in another order than ours, which is f32.
pub const ARITHMETICS: [&str; 4] = ["f32", "bf16", "llama.cpp", "other-order"];

/// Input tokens; modulo the vocabulary size for small vocabularies.
pub const PROMPT: [u32; 11] = [1, 9, 17, 200, 77, 301, 45, 45, 260, 13, 5];

/// The effect of an injected change in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChangeEffect {
    /// Number of changed operations.
    pub stages: usize,
    /// The first of them that came to other values.
    pub first: Option<Site>,
}

impl TestModel {
    /// A model in one of the [`ARITHMETICS`], or in `f16`.
    pub fn new(name: &str, model: Arc<dyn Model>, arithmetic: &'static str) -> Self {
        let architecture = model.architecture();
        let numerics = || -> Box<dyn Numerics> {
            match arithmetic {
                "f32" | "other-order" => Box::new(F32),
                "bf16" => Box::new(Transformers::Bf16),
                "f16" => Box::new(Transformers::F16),
                // llama.cpp has no ternary types of its own: its fork has.
                _ if architecture.contains("bitnet") => Box::new(BitnetCpp { kv: KvType::F16 }),
                _ => Box::new(LlamaCpp { kv: KvType::F16 }),
            }
        };
        let is_plain = model.matrices().into_iter().all(|(_, matrix)| matrix.dtype == F32.activation_type());
        let engine: Box<dyn Numerics> = match arithmetic {
            // llama.cpp's GELU comes from a table: another function.
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

    /// Returns the prompt tokens.
    pub(super) fn prompt_tokens(&self) -> &[u32] {
        &self.prompt
    }

    /// The prompt, and a few tokens after it.
    pub(super) fn script(&self) -> RunInput {
        RunInput::greedy(&self.prompt, 2)
    }

    /// The dump of an engine that computes so.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn dump(&self, suppositions: &[Supposition], form: DumpForm) -> Result<(Dump, ChangeEffect)> {
        let traced = TracedNumerics::new(&*self.engine, Profile::of(&*self.engine));
        let book = ModelOperations::of(&*self.model, &*self.engine)?;
        let mut changing = ChangeTap::new(&traced, &book, suppositions).forgetting();
        let dump = self.recorded(&traced, &mut changing, form, &self.script())?;
        Ok((dump, ChangeEffect { stages: changing.made.get(), first: changing.first.get() }))
    }

    /// Makes a dump of an engine that continues with the values that a tap returns.
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

    /// The tap points of the model that hold numbers, as far as the last logits.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn points(&self) -> Result<BTreeSet<Point>> {
        let mut points = PointSet(BTreeSet::new());
        engine::run(&*self.model, &*self.numerics, &RunInput::greedy(&self.prompt, 0), &mut points)?;
        Ok(points.0.into_iter().filter(|point| *point <= Point::LastLogits).collect())
    }

    /// The dump of a run with these numerics, along a script, in a form.
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

    /// The candidate, judged.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn check(&self, dump: &Dump) -> Result<Outcome> {
        self.judged(dump, true, true)
    }

    /// Checks a dump without a search for causes. The dump may not state its arithmetic for its weights.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn check_quickly(&self, dump: &Dump, is_stated: bool) -> Result<Outcome> {
        self.judged(dump, is_stated, false)
    }

    fn judged(&self, dump: &Dump, is_stated: bool, causes: bool) -> Result<Outcome> {
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
            budget: None,
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

/// Observer that records other values than the run continues with.
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
