//! What looking costs: a run that compares every value, against the same run with nobody looking; and the speed
//! of comparing, against the speed of merely reading the same numbers.
//!
//! `cargo bench` prints ratios; the fastest of several repetitions counts.

use std::hint::black_box;
use std::time::Instant;

use xcheck::align::{AlignedDump, Selection};
use xcheck::check::{ContinuationValues, EngineProperties, LiveComparison, Role};
use xcheck::dump::ArrayValues;
use xcheck::engine::{self, PassInput, RunInput};
use xcheck::measure::{ColumnSelection, ValuePrecision, measure};
use xcheck::numerics::{F32, Numerics};
use xcheck::shipped_models;

const REPETITIONS: usize = 20;

/// Seconds of the fastest repetition.
fn fastest(mut work: impl FnMut()) -> f64 {
    let times = (0..REPETITIONS).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

fn main() {
    comparing_a_run();
    comparing_arrays();
}

fn comparing_a_run() {
    let shipped = shipped_models::model("tiny-llama2").expect("it ships");
    let loaded = shipped.variants().expect("it ships")[0].1.load().expect("it loads");
    let references = shipped.references().expect("they are sound");
    let (_, reference) = references.iter().find(|(name, _)| name == "transformers-f32").expect("it ships");
    let manifest = &reference.manifest;
    let passes = manifest.passes.iter().map(|pass| PassInput::given(&pass.tokens)).collect();
    let script = RunInput { passes, prompt_len: manifest.input.tokens.len() };
    let selection = Selection::everything();
    let held = AlignedDump::new(reference).expect("it is sound");
    let engine = EngineProperties {
        pairing: loaded.model.dimensions().rope_pairing,
        windows: Vec::new(),
        computed: F32.activation_type(),
        products: F32.activation_type(),
        cache: F32.cache_type(),
        expert_groups: None,
        has_chunks: false,
    };

    let bare = fastest(|| {
        black_box(engine::run(&*loaded.model, &F32, &script, &mut ()).expect("it runs"));
    });
    let looking = fastest(|| {
        let mut comparison =
            LiveComparison::new(&held, Role::Reference, &selection, &engine, ContinuationValues::Own);
        engine::run(&*loaded.model, &F32, &script, &mut comparison).expect("it runs");
        black_box(comparison.finish().expect("it is compared"));
    });
    println!(
        "a run of tiny-llama2, every tap compared: {:.2} of the time with nobody looking",
        looking / bare
    );
}

fn comparing_arrays() {
    const LEN: usize = 1 << 22;
    let array = |seed: usize| ArrayValues {
        shape: vec![LEN],
        data: (0..LEN).map(|index| ((index * 7919 + seed) % 1009) as f64 - 504.0).collect(),
    };
    let (candidate, reference) = (array(0), array(1));
    let reading = fastest(|| {
        let sum: f64 = candidate.data.iter().zip(&reference.data).map(|(one, other)| one + other).sum();
        black_box(sum);
    });
    let measuring = fastest(|| {
        black_box(measure(&candidate, &reference, ValuePrecision::F32, |_| ColumnSelection::All));
    });
    let speed = 2.0 * (LEN * size_of::<f64>()) as f64 / measuring / 1e9;
    println!(
        "all figures of two arrays: {speed:.2} GB/s, {:.2} of the speed of adding them up",
        reading / measuring
    );
}
