//! An engine that is honest but for the faults that are planted in its model, and its gate.

use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use xcheck::align::Selection;
use xcheck::check::{EngineRounding, Gate, Mode, Role, Rules, Tolerances};
use xcheck::checkpoint::Checkpoint;
use xcheck::diagnose::cross_check;
use xcheck::dump::Dump;
use xcheck::engine::RunInput;
use xcheck::model::llama::{self, Llama};
use xcheck::numerics::{KvType, LlamaCpp, Numerics};
use xcheck::ratchet::{Baseline, gate, updated};
use xcheck::report::{Comparison, ModelRecord, Report, Timing};
use xcheck::tensor::Tensor;
use xcheck::verdict::Verdict;
use xcheck::weight::Matrix;

use crate::common::faulty::{Base, Faulty};
use crate::common::{gguf, record};

pub const LLAMA_CPP: LlamaCpp = LlamaCpp { kv: KvType::F16 };
pub const TODAY: &str = "2026-06-01";
const PROMPT: &[u32] = &[1, 393, 395, 260, 394, 486];

pub fn model() -> Llama {
    Llama::from_gguf(&gguf("tiny-llama2-q8_0"), &llama::FAMILY).expect("the shipped model loads")
}

/// The model with something in it changed.
pub fn with(change: impl FnOnce(&mut Llama)) -> Llama {
    let mut model = model();
    change(&mut model);
    model
}

/// The build of the engine that adds up the blocks of a product in another order, by its number.
pub fn build(number: usize) -> Faulty {
    Faulty { base: Base(&LLAMA_CPP), linear: Some(ORDERS[number]), ..Faulty::default() }
}

macro_rules! builds {
    ($($number:literal)*) => {
        const ORDERS: &[fn(&Tensor, &Matrix) -> Tensor] = &[$(in_order::<$number>),*];
    };
}

builds! { 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 }

/// Each block of 32 columns is quantised, multiplied and scaled by itself; then they are added up, one by one or in pairs.
fn in_order<const NUMBER: u64>(x: &Tensor, w: &Matrix) -> Tensor {
    let columns = x.row_len();
    let blocks = columns / 32;
    let of_block = |block: usize| {
        let is_in = |at: usize| (block * 32..block * 32 + 32).contains(&(at % columns));
        let alone = x.data().iter().enumerate().map(|(at, x)| if is_in(at) { *x } else { 0.0 });
        LLAMA_CPP.linear(&Tensor::new(x.shape(), alone.collect()), w)
    };
    let mut dice = dice(NUMBER);
    let mut parts: Vec<Tensor> = (0..blocks).map(of_block).collect();
    (1..blocks).rev().for_each(|at| parts.swap(at, dice(at + 1)));
    while parts.len() > 1 {
        let last = parts.pop().expect("there are two");
        let at = if dice(2) == 0 { 0 } else { parts.len() - 1 };
        let sum = parts[at].data().iter().zip(last.data()).map(|(a, b)| a + b).collect();
        parts[at] = Tensor::new(last.shape(), sum);
    }
    parts.pop().expect("a row has a block")
}

/// Numbers below one that is given: splitmix64 (Steele et al., 2014).
pub fn dice(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |sides| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
}

/// What `xcheck audit` finds in a run of the engine.
pub fn audit(engine: &Llama, numerics: &dyn Numerics) -> Report {
    audited(engine, numerics, true)
}

/// The same without causes.
pub fn audit_alone(engine: &Llama, numerics: &dyn Numerics) -> Report {
    audited(engine, numerics, false)
}

/// What is found without causes in a run of which only some taps were kept.
pub fn audit_of(engine: &Llama, numerics: &dyn Numerics, kept: &[&str], mode: Mode) -> Report {
    let dump = dump_of(engine, numerics);
    let dump = dump.read_as(|row| kept.contains(&row.tap.as_str()).then(|| row.clone()));
    judged(&dump.expect("it has a place for each"), mode, false)
}

fn audited(engine: &Llama, numerics: &dyn Numerics, causes: bool) -> Report {
    judged(&dump_of(engine, numerics), Mode::Local, causes)
}

fn dump_of(engine: &Llama, numerics: &dyn Numerics) -> Dump {
    let folder = TempDir::new().expect("a temporary directory");
    let path = folder.path().join("engine.safetensors");
    record(engine, numerics, &RunInput::greedy(PROMPT, 2), &path);
    Dump::open(&path).expect("it was just written")
}

fn judged(dump: &Dump, mode: Mode, causes: bool) -> Report {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules = Rules {
        selection: &selection,
        tolerances: &tolerances,
        gate: Gate::Rounding,
        precision: "q8_0",
        mode,
        role: Role::Candidate,
        rounding: EngineRounding::Stated,
        is_stated: true,
        suppositions: &[],
        causes,
        budget: None,
    };
    let outcome =
        cross_check("engine", &model(), &LLAMA_CPP, dump, rules, &mut ()).expect("it can be judged");
    let model = ModelRecord {
        name: "tiny-llama2".into(),
        architecture: "llama".into(),
        format: "gguf".into(),
        quantisation: "q8_0".into(),
        sha256: Some("ea85".into()),
    };
    let timing = Timing { started: SystemTime::UNIX_EPOCH, took: Duration::ZERO };
    let again = vec!["audit".to_owned()];
    let result = Comparison {
        model,
        outcome,
        again,
        reference: None,
        tokens: Default::default(),
        timing,
        sharded: None,
    };
    let checkpoints = Checkpoint::with_input().to_vec();
    Report { command: vec!["audit".into()], results: vec![result], checkpoints, served: None }
}

/// The baseline of a report, with a reason for whatever fails in it.
pub fn baseline(report: &Report) -> Baseline {
    reasoned(&updated(report, &Baseline::default(), TODAY, false).expect("something was compared"))
}

/// A person has said why.
pub fn reasoned(baseline: &Baseline) -> Baseline {
    let text =
        baseline.text().replace("\"TODO\"", "\"a known bug\"").replace("link = \"\"", "link = \"bugs/7\"");
    let text = text.replace(&format!("expires = {TODAY}"), "expires = 2026-12-31");
    Baseline::parse(&text).expect("it is still a baseline")
}

/// What a report becomes at the gate.
pub fn gated(report: &Report, baseline: &Baseline) -> Report {
    gated_on(report, baseline, TODAY)
}

pub fn gated_on(report: &Report, baseline: &Baseline, today: &str) -> Report {
    let mut report = report.clone();
    gate(&mut report, baseline, today).expect("the baseline is of this");
    report
}

/// The verdict, and what is told of it.
pub fn told(report: &Report) -> (Verdict, String) {
    let outcome = &report.results[0].outcome;
    let reason = outcome.reason.clone().unwrap_or_default();
    (report.verdict(), [vec![reason], outcome.notes.clone()].concat().join("\n"))
}

/// A matrix with another bit in the scale of a Q8_0 block.
pub fn flip_scale_bit(matrix: &mut Matrix, row: usize, block: usize, bit: u32) {
    const BLOCK_BYTES: usize = 34;
    let mut bytes: Vec<u8> = (0..matrix.rows).flat_map(|row| matrix.row(row).to_vec()).collect();
    let at = row * matrix.row(row).len() + block * BLOCK_BYTES + bit as usize / 8;
    bytes[at] ^= 1 << (bit % 8);
    *matrix = matrix.with_elements(bytes).expect("it is as large as before");
}
