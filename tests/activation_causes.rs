//! A divergence is explained where the reference's own values tell what it computed, and only there.

use crate::common;
use crate::common::faulty::At;
use crate::common::terminal::Terminal;
use crate::common::{
    LLAMA_CPP_F32, counterpart, explain_against, gguf, record, reference_of, rules, tiny_llama2,
};
use tempfile::TempDir;
use xcheck::align::Selection;
use xcheck::change::CauseKind;
use xcheck::check::{Mode, Rules, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::cross_check_dumps;
use xcheck::dump::Dump;
use xcheck::engine::RunInput;
use xcheck::model::gemma3::{self, Gemma3};
use xcheck::model::{Activation, Model};
use xcheck::numerics::{F32, Numerics};
use xcheck::verdict::{Outcome, Verdict};

const FIRST: Site = Site { point: Point::FfnAct, layer: Some(0), pass: Some(0) };

#[track_caller]
fn assert_explained(outcome: &Outcome, reference: &str, candidate: &str) {
    assert_eq!(outcome.first_divergence().map(|row| row.site), Some(FIRST), "{:?}", outcome.reason);
    let [finding] = outcome.findings.as_slice() else { panic!("one finding, not {:?}", outcome.findings) };
    assert_eq!((finding.site, finding.kind), (FIRST, CauseKind::Activation));
    let values = [&finding.reference, &finding.candidate].map(Option::as_deref);
    assert_eq!(values, [Some(reference), Some(candidate)], "{}", finding.what);
}

fn judge(name: &str, reference: &str, change: impl FnOnce(&mut dyn Model)) -> Outcome {
    let reference = reference_of(name, reference);
    let (mut loaded, numerics) = counterpart(name, &reference);
    change(&mut *loaded.model);
    explain_against(&reference, &*loaded.model, &*numerics, &mut ())
}

#[test]
fn silu_in_a_reference_is_named_if_ours_is_squared_relu() {
    let mut model = tiny_llama2();
    model.config.activation = Activation::SquaredRelu;
    let outcome = explain_against(&common::reference("llama.cpp-f32"), &model, &LLAMA_CPP_F32, &mut ());
    assert_explained(&outcome, "silu", "relu2");
}

#[test]
fn gelu_tanh_in_a_gpt2_reference_is_named_if_ours_is_gelu_erf() {
    let outcome =
        judge("tiny-gpt2", "transformers-f32", |model| assert!(model.set_gelu(Activation::GeluErf)));
    assert_explained(&outcome, "gelu_pytorch_tanh", "gelu");
}

#[test]
fn gelu_tanh_in_a_gemma_reference_is_named_if_ours_is_gelu_erf() {
    let outcome = judge("tiny-gemma3", "llama.cpp-f32", |model| assert!(model.set_gelu(Activation::GeluErf)));
    assert_explained(&outcome, "gelu_pytorch_tanh", "gelu");
}

#[test]
fn gelu_erf_in_a_reference_is_named_if_ours_is_gelu_tanh() {
    let folder = TempDir::new().expect("a folder");
    let mut model = Gemma3::from_gguf(&gguf("tiny-gemma3-f32"), &gemma3::FAMILY).expect("it loads");
    model.config.activation = Activation::GeluErf;
    let reference = recorded(&model, &F32, &folder, "erf");
    model.config.activation = Activation::GeluTanh;
    assert_explained(&explain_against(&reference, &model, &F32, &mut ()), "gelu", "gelu_pytorch_tanh");
}

fn recorded(model: &dyn Model, numerics: &dyn Numerics, folder: &TempDir, name: &str) -> Dump {
    let path = folder.path().join(name);
    record(model, numerics, &RunInput::greedy(&[1, 9, 17, 200, 77], 2), &path);
    Dump::open(&path).expect("it is whole")
}

#[test]
fn no_activation_is_named_if_neither_gelu_nor_silu_gives_the_references_values() {
    let folder = TempDir::new().expect("a folder");
    let model = tiny_llama2();
    let reference = recorded(&model, &F32, &folder, "own");
    let mut wrong = At(FIRST, |values| values.iter_mut().for_each(|value| *value *= 1.01));
    let outcome = explain_against(&reference, &model, &F32, &mut wrong);
    assert_eq!((outcome.verdict, outcome.findings.len()), (Verdict::Fail, 0));
    assert_eq!(outcome.first_divergence().map(|row| row.site), Some(FIRST));
}

#[test]
fn no_activation_is_named_if_its_error_is_inherited() {
    let folder = TempDir::new().expect("a folder");
    let model = tiny_llama2();
    let reference = recorded(&model, &F32, &folder, "own");
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules { causes: true, ..rules(&selection, &tolerances, "f32", Mode::Accumulated) };
    let gate = Site { point: Point::FfnGate, ..FIRST };
    let mut wrong = At(gate, |values| values.iter_mut().for_each(|value| *value += 0.1));
    let outcome =
        xcheck::diagnose::cross_check("own", &model, &F32, &reference, rules, &mut wrong).expect("it runs");
    assert_eq!(outcome.first_divergence().map(|row| row.site), Some(gate));
    assert!(outcome.rows.iter().any(|row| row.site == FIRST && row.verdict == Verdict::Fail));
    assert!(outcome.findings.is_empty(), "{:?}", outcome.findings);
}

#[test]
fn two_dumps_with_other_activations_name_both() {
    let folder = TempDir::new().expect("a folder");
    let mut model = tiny_llama2();
    let theirs = recorded(&model, &F32, &folder, "silu");
    model.config.activation = Activation::GeluTanh;
    let ours = recorded(&model, &F32, &folder, "gelu");
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules { causes: true, ..rules(&selection, &tolerances, "f32", Mode::Both) };
    let outcome = cross_check_dumps("silu", &ours, &theirs, rules).expect("they can be compared");
    assert_explained(&outcome, "SiLU", "GELU (tanh form)");
}

#[test]
fn what_explains_a_divergence_is_printed_and_stands_in_the_reports() {
    let terminal = Terminal::new();
    let arguments = [
        "run",
        "--model",
        "tiny-gpt2",
        "--reference",
        "transformers-f32",
        "--gelu",
        "erf",
        "--report",
        "out",
    ];
    let finished = terminal.run(&arguments);
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    assert!(
        finished.stdout.contains("  cause     activation: the reference computes with"),
        "{}",
        finished.stdout
    );
    let (_, report) = terminal.json(&arguments);
    let finding = &report["references"][0]["findings"][0];
    assert_eq!((&finding["tap"], &finding["layer"]), (&"ffn_act".into(), &0.into()));
    assert_eq!((&finding["kind"], &finding["stage"]), (&"activation".into(), &"ffn_out".into()));
    assert_eq!((&finding["key"], &finding["candidate"]), (&"activation_function".into(), &"gelu".into()));
    assert!(finding["what"].as_str().expect("a sentence").contains("gelu"));
    let markdown = std::fs::read_to_string(terminal.path().join("out/report.md")).expect("it is written");
    assert!(markdown.contains("- cause: activation: the reference computes with"), "{markdown}");
}
