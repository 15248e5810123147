//! What judging costs: a model against a dump of itself whose sums were added up in another order, so that most values
//! differ in their last bits.
//!
//! `cargo bench --bench judging -- MODEL [LENGTH ...]`: for dumps of so many tokens in one pass (5 and 500), wall-clock
//! and processor seconds of
//!
//! - `rounding`: both runs of `xcheck check`, each stage evaluated exactly,
//! - `tolerance`: the same judged by a table that allows everything, so that nothing is evaluated or weighed,
//! - `audit`: the one run of `xcheck audit`,
//! - `forward`: a run with nobody looking,
//!
//! and the ratios of the first to the second and of the third to the fourth. Nothing is measured without a model.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use tempfile::TempDir;
use xcheck::align::Selection;
use xcheck::check::{EngineRounding, Gate, Mode, Role, Rules, Tolerances};
use xcheck::diagnose::cross_check;
use xcheck::dump::{Dump, DumpInput, Layout, Manifest, ModelInfo, Producer, Recorder};
use xcheck::engine::{self, RunInput};
use xcheck::model::{Model, ModelFiles};
use xcheck::numerics::{F32, Llama2C};
use xcheck::verdict::Outcome;

/// Linux counts processor time in hundredths of a second, whatever its timer does.
const TICKS: f64 = 100.0;

const LENGTHS: [usize; 2] = [5, 500];

/// Wall-clock and processor seconds.
type Times = [f64; 2];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let Some((path, lengths)) = args.split_first() else {
        println!("no model: cargo bench --bench judging -- MODEL [LENGTH ...]");
        return;
    };
    let files = ModelFiles::open(Path::new(path)).expect("a model");
    let model = files.load().expect("a model that can be run").model;
    let asked: Vec<usize> = lengths.iter().map(|length| length.parse().expect("a number")).collect();
    for &length in if asked.is_empty() { &LENGTHS[..] } else { &asked } {
        measure(&*model, length);
    }
}

fn measure(model: &dyn Model, length: usize) {
    let home = TempDir::new().expect("a temporary folder");
    let script = RunInput::greedy(&tokens(length, model.dimensions().vocab_size), 0);
    let path = home.path().join("dump.safetensors");
    record(model, &script, &path);
    let dump = Dump::open(&path).expect("it is sound");
    let lenient = Tolerances::shipped().overridden_by(&anything(home.path())).expect("the table is sound");
    let selection = Selection::everything();
    let shipped = Tolerances::shipped();
    let rules = |gate, mode| Rules {
        selection: &selection,
        // A table of the user's decides whatever the gate is.
        tolerances: if gate == Gate::Tolerance { &lenient } else { &shipped },
        precision: "f32",
        gate,
        mode,
        role: Role::Candidate,
        rounding: EngineRounding::Stated,
        is_stated: true,
        suppositions: &[],
        causes: true,
        budget: None,
    };
    let judged = |gate, mode| {
        let rules = rules(gate, mode);
        let mut outcome = None;
        let times = timed(|| {
            let judged = cross_check("dump", model, &F32, &dump, rules, &mut ());
            outcome = Some(judged.expect("the two can be compared"));
        });
        (times, outcome.expect("it was judged"))
    };

    // The first run reads the file, and is not counted.
    forward(model, &script);
    let (rounding, outcome) = judged(Gate::Rounding, Mode::Both);
    tell(&outcome, length);
    let (tolerance, _) = judged(Gate::Tolerance, Mode::Both);
    let (audit, _) = judged(Gate::Rounding, Mode::Local);
    let forward = timed(|| forward(model, &script));
    for (name, times) in
        [("rounding", rounding), ("tolerance", tolerance), ("audit", audit), ("forward", forward)]
    {
        println!("{name}-{length} {:.3} {:.3}", times[0], times[1]);
    }
    ratio("rounding/tolerance", length, rounding, tolerance);
    ratio("audit/forward", length, audit, forward);
}

/// How much of the dump there was to evaluate.
fn tell(outcome: &Outcome, length: usize) {
    let (verdict, coverage) = (outcome.verdict, &outcome.coverage);
    let identical = coverage.elements_identical as f64 / coverage.elements as f64;
    println!(
        "{length} tokens: {verdict}, {} values, {:.0} % identical",
        coverage.elements,
        100.0 * identical
    );
}

fn ratio(what: &str, length: usize, one: Times, other: Times) {
    println!("{what}-{length} {:.2} {:.2}", one[0] / other[0], one[1] / other[1]);
}

fn tokens(length: usize, vocabulary: usize) -> Vec<u32> {
    (0..length).map(|position| ((1 + position * 37) % vocabulary) as u32).collect()
}

fn forward(model: &dyn Model, script: &RunInput) {
    black_box(engine::run(model, &F32, script, &mut ()).expect("it runs"));
}

/// The model's values as llama2.c adds them up.
fn record(model: &dyn Model, script: &RunInput, path: &Path) {
    let tokens = script.passes.iter().flat_map(|step| step.tokens.iter().flatten()).copied();
    let input = DumpInput { tokens: tokens.take(script.prompt_len).collect(), ..DumpInput::default() };
    let producer = Producer {
        name: "llama2.c".into(),
        version: String::new(),
        settings: [("dtype".to_owned(), "f32".into())].into_iter().collect(),
        rounding: None,
    };
    let info = ModelInfo { name: String::new(), architecture: model.architecture().into(), sha256: None };
    let layout = Layout { rope_pairing: model.dimensions().rope_pairing };
    let manifest = Manifest::new(producer, info, layout, input, Vec::new());
    let mut recorder = Recorder::create(path, manifest).expect("a new dump");
    let transcript = engine::run(model, &Llama2C, script, &mut recorder).expect("the model runs");
    recorder.finish(transcript.passes, transcript.generated).expect("it is written");
}

/// A table by which every error is allowed.
fn anything(home: &Path) -> std::path::PathBuf {
    let file = home.join("anything.toml");
    let entry = |checkpoint| format!("{checkpoint} = {{ max_abs = 1e30, source = \"this benchmark\" }}\n");
    let entries: String = xcheck::checkpoint::Checkpoint::with_input().iter().map(entry).collect();
    fs::write(&file, format!("[any.any]\n{entries}")).expect("it is written");
    file
}

fn timed(work: impl FnOnce()) -> Times {
    let (wall, processor) = (Instant::now(), processor_seconds());
    work();
    [wall.elapsed().as_secs_f64(), processor_seconds() - processor]
}

/// What all threads have used, of the system as well; 0 where there is no `/proc`.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold anything; behind it, the user's and the system's ticks are fields 11 and 12.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse().unwrap_or(0.0)).sum::<f64>() / TICKS
}
