//! What several test files need: the shipped model, its references, and judging one against the other.

pub mod faulty;
pub mod finished;
pub mod hard_texts;
pub mod hash;
pub mod share;
pub mod skip;
pub mod sources;
pub mod terminal;
pub mod torch;

use std::path::{Path, PathBuf};

use serde_json::Value;
use xcheck::align::Selection;
use xcheck::check::{EngineRounding, Gate, Mode, Role, Rules, Tolerances};
use xcheck::diagnose::cross_check;
use xcheck::dump::{Dump, DumpInput, Layout, Manifest, ModelInfo, Producer, Recorder};
use xcheck::engine::{self, RunInput};
use xcheck::format::Gguf;
use xcheck::model::llama::{self, Llama};
use xcheck::model::{LoadedModel, Model, ModelFiles};
use xcheck::numerics::{BitnetCpp, KvType, Llama2C, LlamaCpp, Numerics, Transformers};
use xcheck::shipped_models::{self, ShippedModel};
use xcheck::tap::Tap;
use xcheck::verdict::Outcome;

/// The shipped model as llama.cpp's F32 file, to be damaged at will.
pub fn tiny_llama2() -> Llama {
    Llama::from_gguf(&gguf("tiny-llama2-f32"), &llama::FAMILY).expect("the shipped model loads")
}

/// A shipped GGUF file.
pub fn gguf(name: &str) -> Gguf {
    match variant(name) {
        ModelFiles::Gguf(source) => Gguf::read(&source).expect("the shipped file is sound"),
        _ => panic!("{name} is not a plain GGUF file"),
    }
}

/// The files of a shipped model in one of its formats.
pub fn variant(name: &str) -> ModelFiles {
    let variants = shipped_models::MODELS.iter().flat_map(|model| model.variants().expect("it ships"));
    variants.into_iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name} ships")).1
}

/// The folder of a model of `tests/data/architectures`.
pub fn architecture(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/architectures").join(model)
}

/// The shipped models that transformers and llama.cpp run, too: with dumps of both.
pub fn common_models() -> impl Iterator<Item = &'static ShippedModel> {
    let elsewhere = |name: &str| name.starts_with("tiny-bitnet") || name == "tiny-llama2c";
    shipped_models::MODELS.iter().filter(move |model| !elsewhere(model.name))
}

/// Every dump that ships, with the names of its model and of itself.
pub fn references() -> impl Iterator<Item = (&'static str, String, Dump)> {
    shipped_models::MODELS.iter().flat_map(|model| {
        let references = model.references().expect("its dumps are sound");
        references.into_iter().map(|(name, dump)| (model.name, name, dump))
    })
}

/// A shipped reference of tiny-llama2.
pub fn reference(name: &str) -> Dump {
    reference_of("tiny-llama2", name)
}

/// A shipped reference of a shipped model.
pub fn reference_of(model: &str, name: &str) -> Dump {
    let references =
        shipped_models::model(model).expect("it ships").references().expect("its dumps are sound");
    references.into_iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name} ships")).1
}

/// A shipped dump as a producer would have made it that writes these taps alone.
pub fn reference_with_only(model: &str, name: &str, taps: &[&str]) -> Dump {
    let dumps = shipped_models::model(model).expect("it ships").dumps().expect("they can be opened");
    let mut source = dumps.into_iter().find(|(known, _)| known == name).expect("it ships").1;
    let (length, rest) = source.data.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&rest[..length]).expect("a JSON header");
    let manifest = header["__metadata__"]["xcheck"].as_str().expect("a manifest");
    let mut manifest: Value = serde_json::from_str(manifest).expect("it is JSON");
    let rows = manifest["tensors"].as_array_mut().expect("rows");
    rows.retain(|row| taps.contains(&row["tap"].as_str().expect("a name")));
    header["__metadata__"]["xcheck"] = manifest.to_string().into();
    let mut text = header.to_string();
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    source.data = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &rest[length..]].concat().into();
    Dump::from_source(source).expect("it is still sound")
}

/// The shipped model that a reference was made from, and what computes as its producer does.
pub fn counterpart(model: &str, reference: &Dump) -> (LoadedModel, Box<dyn Numerics>) {
    let sha256 = reference.manifest.model.sha256.as_ref();
    let variants = shipped_models::model(model).expect("it ships").variants().expect("they can be opened");
    let made_from = variants.into_iter().find(|(_, files)| Some(&files.sha256()) == sha256);
    let (_, files) = made_from.expect("what it was made from ships");
    let producer = &reference.manifest.producer;
    let bitnet_cpp = producer.name == "bitnet.cpp";
    let numerics: Box<dyn Numerics> = match (producer.setting("dtype"), producer.setting("kv_cache")) {
        _ if producer.name == "llama2.c" => Box::new(Llama2C),
        (None, Some("f32")) if bitnet_cpp => Box::new(BitnetCpp { kv: KvType::F32 }),
        (None, _) if bitnet_cpp => Box::new(BitnetCpp { kv: KvType::F16 }),
        (Some("bf16"), _) => Box::new(Transformers::Bf16),
        (Some("f16"), _) => Box::new(Transformers::F16),
        (Some(_), _) => Box::new(Transformers::F32),
        (None, Some("f32")) => Box::new(LlamaCpp { kv: KvType::F32 }),
        (None, _) => Box::new(LlamaCpp { kv: KvType::F16 }),
    };
    (files.load().expect("it loads"), numerics)
}

/// What reproduces the F32 dump of llama.cpp.
pub const LLAMA_CPP_F32: LlamaCpp = LlamaCpp { kv: KvType::F32 };

/// Runs `model` against llama.cpp's F32 dump, everything selected, both errors measured.
pub fn judge(model: &dyn Model, numerics: &dyn Numerics, fault: &mut dyn Tap) -> Outcome {
    judge_against(&reference("llama.cpp-f32"), model, numerics, fault)
}

/// How to judge by a reference that says how it was computed. Causes take long, and are looked for where a test asks for them.
pub fn rules<'r>(
    selection: &'r Selection,
    tolerances: &'r Tolerances,
    precision: &'r str,
    mode: Mode,
) -> Rules<'r> {
    Rules {
        selection,
        tolerances,
        gate: Gate::Rounding,
        precision,
        mode,
        role: Role::Reference,
        rounding: EngineRounding::Stated,
        is_stated: true,
        suppositions: &[],
        causes: false,
        budget: None,
    }
}

/// Runs `model` against a dump, everything selected, both errors measured.
pub fn judge_against(
    reference: &Dump,
    model: &dyn Model,
    numerics: &dyn Numerics,
    fault: &mut dyn Tap,
) -> Outcome {
    against(reference, model, numerics, false, fault)
}

/// The same, and what explains it.
pub fn explain_against(
    reference: &Dump,
    model: &dyn Model,
    numerics: &dyn Numerics,
    fault: &mut dyn Tap,
) -> Outcome {
    against(reference, model, numerics, true, fault)
}

fn against(
    reference: &Dump,
    model: &dyn Model,
    numerics: &dyn Numerics,
    causes: bool,
    fault: &mut dyn Tap,
) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules { causes, ..rules(&selection, &tolerances, "f32", Mode::Both) };
    cross_check("reference", model, numerics, reference, rules, fault).expect("the two can be compared")
}

/// A dump of a model by our own engine.
pub fn record(model: &dyn Model, numerics: &dyn Numerics, script: &RunInput, path: &Path) {
    record_altered(model, numerics, script, path, &mut ());
}

/// The same of an engine that goes on with what a tap gives back.
pub fn record_altered(
    model: &dyn Model,
    numerics: &dyn Numerics,
    script: &RunInput,
    path: &Path,
    altering: &mut dyn Tap,
) {
    let prompt = script.passes.iter().flat_map(|step| step.tokens.iter().flatten()).copied();
    let input = DumpInput { tokens: prompt.take(script.prompt_len).collect(), ..DumpInput::default() };
    let producer = Producer {
        name: "test".into(),
        version: String::new(),
        settings: Default::default(),
        rounding: None,
    };
    let info = ModelInfo { name: String::new(), architecture: model.architecture().into(), sha256: None };
    let layout = Layout { rope_pairing: model.dimensions().rope_pairing };
    let manifest = Manifest::new(producer, info, layout, input, Vec::new());
    let mut recorder = Recorder::create(path, manifest).expect("a new dump");
    let transcript =
        engine::run(model, numerics, script, &mut (altering, &mut recorder)).expect("the model runs");
    recorder.finish(transcript.passes, transcript.generated).expect("it is written");
}

/// Everything a dump holds, under the shipped tolerances of its producer's precision.
pub fn judge_in(
    mode: Mode,
    selection: &Selection,
    reference: &Dump,
    model: &dyn Model,
    numerics: &dyn Numerics,
    fault: &mut dyn Tap,
) -> Outcome {
    let tolerances = Tolerances::shipped();
    let precision = reference.manifest.producer.precision().unwrap_or("f32");
    let rules = rules(selection, &tolerances, precision, mode);
    cross_check("reference", model, numerics, reference, rules, fault).expect("the two can be compared")
}

/// Whether this machine's C library is the one that made llama.cpp's dumps: elsewhere its cosines, powers and hyperbolic
/// tangents may have another last bit.
pub const SAME_C_LIBRARY: bool = cfg!(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"));

/// Every value is the reference's, of the ordinary run and of every stage by itself; rounding is allowed where the C
/// library is another.
pub fn assert_identical(name: &str, outcome: &Outcome) {
    assert!(!outcome.rows.is_empty(), "{name}");
    for row in &outcome.rows {
        let ordinary = row.accumulated.as_ref().expect("it was compared");
        let judged = row.judged().expect("it was compared");
        let close = !SAME_C_LIBRARY && judged.errors.max_rel_rms <= 2e-6;
        let identical = ordinary.is_identical() && judged.is_identical();
        assert!(identical || close, "{name} {}: {:e}", row.site, ordinary.errors.max_abs);
    }
}
