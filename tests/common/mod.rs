//! What several test files need: the shipped model, its references, and judging one against the other.
#![allow(dead_code)] // each test file uses its own part

pub mod faulty;
pub mod torch;

use std::path::Path;

use xcheck::compare::{Selection, Tolerances};
use xcheck::diagnose::{Mode, Outcome, Rules, cross_check};
use xcheck::dump::{Dump, Input, Layout, Manifest, ModelInfo, Producer, Recorder};
use xcheck::engine::{self, Script};
use xcheck::format::Gguf;
use xcheck::model::llama::Llama;
use xcheck::model::{Model, ModelFiles};
use xcheck::numerics::{KvType, LlamaCpp, Numerics};
use xcheck::shipped;
use xcheck::tap::Tap;

/// The shipped model as llama.cpp's F32 file, to be damaged at will.
pub fn tiny_llama2() -> Llama {
    Llama::from_gguf(&gguf("tiny-llama2-f32")).expect("the shipped model loads")
}

/// A shipped GGUF file.
pub fn gguf(name: &str) -> Gguf {
    match variant(name) {
        ModelFiles::Gguf(source) => Gguf::read(&source).expect("the shipped file is sound"),
        ModelFiles::HuggingFace { .. } => panic!("{name} is not a GGUF file"),
    }
}

/// The files of a shipped model in one of its formats.
pub fn variant(name: &str) -> ModelFiles {
    let variants = shipped::MODELS.iter().flat_map(|model| model.variants());
    variants.into_iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name} ships")).1
}

/// A shipped reference of tiny-llama2.
pub fn reference(name: &str) -> Dump {
    reference_of("tiny-llama2", name)
}

/// A shipped reference of a shipped model.
pub fn reference_of(model: &str, name: &str) -> Dump {
    let references = shipped::model(model).expect("it ships").references().expect("its dumps are sound");
    references.into_iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name} ships")).1
}

/// What reproduces the F32 dump of llama.cpp.
pub const LLAMA_CPP_F32: LlamaCpp = LlamaCpp { kv: KvType::F32 };

/// Runs `model` against llama.cpp's F32 dump, everything selected, both errors measured.
pub fn judge(model: &dyn Model, numerics: &dyn Numerics, fault: &mut dyn Tap) -> Outcome {
    judge_against(&reference("llama.cpp-f32"), model, numerics, fault)
}

/// Runs `model` against a dump, everything selected, both errors measured.
pub fn judge_against(
    reference: &Dump,
    model: &dyn Model,
    numerics: &dyn Numerics,
    fault: &mut dyn Tap,
) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules { selection: &selection, tolerances: &tolerances, precision: "f32", mode: Mode::Both };
    cross_check("reference", model, numerics, reference, rules, fault).expect("the two can be compared")
}

/// A dump of a model by our own engine.
pub fn record(model: &dyn Model, numerics: &dyn Numerics, script: &Script, path: &Path) {
    let prompt = script.passes.iter().flat_map(|step| step.tokens.iter().flatten()).copied();
    let input = Input { tokens: prompt.take(script.prompt_len).collect(), ..Input::default() };
    let producer = Producer { name: "test".into(), version: String::new(), settings: Default::default() };
    let info = ModelInfo { name: String::new(), architecture: model.architecture().into(), sha256: None };
    let layout = Layout { rope_pairing: model.dimensions().rope_pairing };
    let manifest = Manifest::new(producer, info, layout, input, Vec::new());
    let mut recorder = Recorder::create(path, manifest).expect("a new dump");
    let transcript = engine::run(model, numerics, script, &mut recorder).expect("the model runs");
    recorder.finish(transcript.passes, transcript.generated).expect("it is written");
}
