//! Norms that read a sum before it is rounded, as kernels do that fuse the two: where a dump has left out what was added, the sum may
//! have been any number that rounds to what is held. That excuses such engines, and no faults of others.

use std::path::Path;

use xcheck::align::Selection;
use xcheck::check::{Mode, Role, Tolerances};
use xcheck::checkpoint::{Point, Site};
use xcheck::diagnose::cross_check;
use xcheck::dump::Dump;
use xcheck::engine::RunInput;
use xcheck::model::decoder::Norm;
use xcheck::model::llama::{Llama, LlamaBlock};
use xcheck::numerics::Transformers;
use xcheck::ops::norm::RmsNorm;
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;
use xcheck::verdict::{Outcome, Verdict};

use super::clay::Clay;
use super::scene::{Scene, recorded, told};
use crate::common::{rules, tiny_llama2};

const PROMPT: [u32; 12] = [1, 393, 395, 260, 394, 486, 263, 305, 315, 17, 200, 77];
const MODES: [Mode; 3] = [Mode::Both, Mode::Local, Mode::Layers];

fn fused(engine: &str) -> Scene {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("tests/data/engines/tiny-qwen3/{engine}.safetensors"));
    Scene::of("tiny-qwen3", Dump::open(&file).expect("it is a sound dump"))
}

/// A run of an engine that rounds each sum before it is normed, in bf16.
fn made(change: impl FnOnce(&mut Llama)) -> Clay {
    let mut model = tiny_llama2();
    change(&mut model);
    let dump = recorded(&model, &Transformers::Bf16, "bf16", &RunInput::greedy(&PROMPT, 2), &mut ());
    Clay::of(&dump)
}

fn judged(clay: &Clay, mode: Mode) -> Outcome {
    let (selection, tolerances) = (Selection::everything(), Tolerances::shipped());
    let rules =
        xcheck::check::Rules { role: Role::Candidate, ..rules(&selection, &tolerances, "torch-bf16", mode) };
    cross_check("engine", &tiny_llama2(), &Transformers::Bf16, &clay.dump(), rules, &mut ())
        .expect("the two can be compared")
}

const SUMMANDS: [Point; 2] = [Point::AttnOut, Point::FfnOut];

#[test]
fn engines_that_fuse_residual_and_rms_norm_pass_with_and_without_the_summand() {
    for engine in ["vllm-bf16", "sglang-bf16"] {
        let scene = fused(engine);
        let clay = Clay::of(&scene.dump);
        for left_out in [&[][..], &SUMMANDS, &[Point::AttnOut], &[Point::FfnOut]] {
            let dump = clay.clone().without(left_out).dump();
            for mode in MODES {
                let outcome = scene.judge_dump(&dump, mode, Role::Candidate, &mut ());
                assert_eq!(
                    outcome.verdict,
                    Verdict::Pass,
                    "{engine} without {left_out:?}, {mode:?}: {}",
                    told(&outcome)
                );
            }
        }
    }
}

fn ffn_norm(layer: &mut LlamaBlock) -> &mut RmsNorm {
    match &mut layer.ffn.norm {
        Some(Norm::Rms(norm)) => norm,
        _ => unreachable!("Llama has an RMSNorm"),
    }
}

/// What moves few results to their neighbours is no sum in more digits, which would move a fifth of them. (What moves about as many
/// is not told from one: docs/explanation/verdicts.md.)
#[test]
fn a_wrong_rms_norm_eps_of_an_engine_without_fusion_is_not_excused() {
    type Change = fn(&mut Llama, f32);
    let changes: [(&str, Change); 2] = [
        ("attn_norm", |model, times| model.layers[1].attn_norm.eps *= times),
        ("ffn_norm", |model, times| ffn_norm(&mut model.layers[0]).eps *= times),
    ];
    for mode in MODES {
        let honest = judged(&made(|_| ()).without(&SUMMANDS), mode);
        assert_eq!(honest.verdict, Verdict::Pass, "{mode:?}: {}", told(&honest));
    }
    let mut seen = 0;
    for (what, change) in changes {
        for times in [10.0] {
            let clay = made(|model| change(model, times));
            seen += usize::from(!judged(&clay, Mode::Both).verdict.is_good());
            // A layer that goes on with its own values has nothing held inside it.
            for mode in [Mode::Both, Mode::Local] {
                let outcome = judged(&clay.clone().without(&SUMMANDS), mode);
                assert!(!outcome.verdict.is_good(), "{what}, {times} times, {mode:?}: {}", told(&outcome));
            }
        }
    }
    assert_eq!(seen, 2, "both are seen where all is held");
}

/// A norm that reads the sum before it is rounded, in some passes.
struct Fusing<'f> {
    norm: &'f RmsNorm,
    passes: &'f [usize],
    summands: [Vec<f32>; 2],
}

impl Tap for Fusing<'_> {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let short = |value: f64| half::bf16::from_f64(value).to_f64();
        match (site.point, site.layer) {
            (Point::BlockOut, Some(0)) => self.summands[0] = value.data().to_vec(),
            (Point::AttnOut, Some(1)) => self.summands[1] = value.data().to_vec(),
            (Point::FfnNorm, Some(1)) if site.pass.is_some_and(|pass| self.passes.contains(&pass)) => {
                let [residual, added] = &self.summands;
                let sums: Vec<f64> =
                    residual.iter().zip(added).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
                let of_row = |row: &[f64]| {
                    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
                    let inverse = 1.0 / (mean + f64::from(self.norm.eps)).sqrt();
                    let gains = self.norm.weight.iter().map(|&gain| short(gain.into()));
                    let normed = row.iter().map(|x| short(x * inverse));
                    normed.zip(gains).map(|(x, gain)| short(x * gain) as f32).collect::<Vec<f32>>()
                };
                let rows = sums.chunks(self.norm.weight.len()).flat_map(of_row).collect();
                return Tensor::new(value.shape(), rows);
            }
            _ => {}
        }
        value
    }
}

/// What one pass does, all do.
#[test]
fn an_engine_fuses_in_every_pass_or_in_none() {
    let model = tiny_llama2();
    let with = |passes: &[usize], left_out: &[Point]| {
        let mut layer = model.layers[1].clone();
        let mut fusing = Fusing { norm: ffn_norm(&mut layer), passes, summands: Default::default() };
        let dump = recorded(&model, &Transformers::Bf16, "bf16", &RunInput::greedy(&PROMPT, 2), &mut fusing);
        judged(&Clay::of(&dump).without(left_out), Mode::Local)
    };
    for left_out in [&[][..], &SUMMANDS] {
        let all = with(&[0, 1, 2], left_out);
        assert_eq!(all.verdict, Verdict::Pass, "{}", told(&all));
        let one = with(&[1], left_out);
        assert_eq!(one.verdict, Verdict::Inconclusive, "{}", told(&one));
        assert!(told(&one).contains("which other passes rule out"), "{}", told(&one));
    }
}
