//! How fast a model reads a prompt and generates with nobody looking, in the numerics of llama.cpp or in others, and what
//! it takes of the memory beside the mapped file.
//!
//! `cargo bench --bench generate -- MODEL [THREADS [REPETITIONS [NUMERICS]]]`; the lines are those of
//! `reference-scripts/bench_llama_cpp.py`: a name, the fastest wall-clock seconds, the least processor seconds. Then
//! heap and stacks at their largest (Linux). Nothing is measured without a model.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use xcheck::engine::Engine;
use xcheck::model::{LoadedModel, Model, ModelFiles};
use xcheck::numerics::{self, Numerics};

const PREFILL: usize = 64;
const DECODE: usize = 32;
/// Linux counts processor time in hundredths of a second, whatever its timer does.
const TICKS: f64 = 100.0;

/// Wall-clock and processor seconds.
type Times = [f64; 2];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let Some(path) = args.first() else {
        println!("no model: cargo bench --bench generate -- MODEL [THREADS [REPETITIONS [NUMERICS]]]");
        return;
    };
    let numerics = named(args.get(3).map_or("llama.cpp", String::as_str));
    let number = |index: usize| args.get(index).map_or(2, |arg| arg.parse().expect("a number"));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(number(1)).use_current_thread();
    pool.build_global().expect("nothing has run in it yet");

    // The first run reads the file, and is not counted.
    let (model, kilobytes) = watching_memory(|| {
        let mut model = None;
        print("load", timed(|| model = Some(load(path))));
        let model = model.expect("it has been loaded");
        run(&*model.model, numerics);
        model
    });
    let runs: Vec<[Times; 2]> = (0..number(2)).map(|_| run(&*model.model, numerics)).collect();
    print("prefill", least(runs.iter().map(|run| run[0])));
    print("decode", least(runs.iter().map(|run| run[1])));
    println!("own-megabytes {}", kilobytes * 1024 / 1_000_000);
}

fn load(path: &str) -> LoadedModel {
    let files = ModelFiles::open(Path::new(path)).expect("a model");
    files.load().expect("a model that can be run")
}

fn named(name: &str) -> &'static dyn Numerics {
    *numerics::ALL.iter().find(|numerics| numerics.name() == name).expect("numerics of that name")
}

/// A pass over a prompt, and the mean of the passes after it.
fn run(model: &dyn Model, numerics: &dyn Numerics) -> [Times; 2] {
    let mut engine = Engine::new(model, numerics, PREFILL + DECODE).expect("it fits");
    let token = |position: usize| (1 + position * 37 % 1000) as u32;
    let prompt: Vec<u32> = (0..PREFILL).map(token).collect();
    let mut pass = |tokens: &[u32]| {
        engine.pass(tokens, 1.0, &mut ()).expect("the tokens are of the vocabulary");
    };
    let prefill = timed(|| pass(&prompt));
    let decode = timed(|| (PREFILL..PREFILL + DECODE).for_each(|position| pass(&[token(position)])));
    [prefill, decode.map(|seconds| seconds / DECODE as f64)]
}

fn timed(work: impl FnOnce()) -> Times {
    let (wall, processor) = (Instant::now(), processor_seconds());
    work();
    [wall.elapsed().as_secs_f64(), processor_seconds() - processor]
}

fn least(times: impl Iterator<Item = Times>) -> Times {
    times.fold([f64::INFINITY; 2], |least, times| [least[0].min(times[0]), least[1].min(times[1])])
}

fn print(name: &str, [wall, processor]: Times) {
    println!("{name} {wall:.5} {processor:.5}");
}

/// What all threads have used, of the system as well; 0 where there is no `/proc`.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold anything; behind it, the user's and the system's ticks are fields 11 and 12.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse().unwrap_or(0.0)).sum::<f64>() / TICKS
}

/// What `work` gives, and the most that the process held meanwhile of what is no file's, in kB.
fn watching_memory<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let working = AtomicBool::new(true);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while working.load(Ordering::Relaxed) {
                most = most.max(own_memory());
                thread::sleep(Duration::from_millis(2));
            }
            most
        });
        let result = work();
        working.store(false, Ordering::Relaxed);
        (result, watch.join().expect("it only reads a file"))
    })
}

/// `RssAnon` of `/proc/self/status`, in kB: heap and stacks, not the mapped file.
fn own_memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let figure = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    figure.and_then(|figure| figure.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
