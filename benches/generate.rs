//! How fast a model reads a prompt and generates with nobody looking, in the numerics of llama.cpp (a BitNet model: of
//! bitnet.cpp) or in others, and what it takes of the memory beside the mapped file.
//!
//! `cargo bench --bench generate -- MODEL [THREADS [REPETITIONS [NUMERICS [TOKENS]]]]`; the lines are those of
//! `reference-scripts/check/bench_llama_cpp.py`: a name, the fastest wall-clock seconds, the least processor seconds; `first`
//! is the time to the first token after a short prompt; TOKENS (64) are those of the longer one. Then how much of the speed at which the same threads merely
//! read the weights decoding reaches, heap and stacks at their largest (Linux), and the size of the KV cache at 2048
//! positions. Nothing is measured without a model.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use xcheck::checkpoint::{Point, Site};
use xcheck::engine::Engine;
use xcheck::model::{LoadedModel, Model, ModelFiles};
use xcheck::numerics::{self, Numerics};
use xcheck::tap::Tap;
use xcheck::tensor::Tensor;

/// Looks at the logits of every position.
struct AllLogits;

impl Tap for AllLogits {
    fn tap(&mut self, _: Site, value: Tensor) -> Tensor {
        value
    }

    fn wants(&self, site: Site) -> bool {
        site.point == Point::Logits
    }
}

const SHORT: usize = 8;
const PREFILL: usize = 64;
const DECODE: usize = 32;
/// Linux counts processor time in hundredths of a second, whatever its timer does.
const TICKS: f64 = 100.0;

/// Wall-clock and processor seconds.
type Times = [f64; 2];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let Some(path) = args.first() else {
        println!(
            "no model: cargo bench --bench generate -- MODEL [THREADS [REPETITIONS [NUMERICS [TOKENS]]]]"
        );
        return;
    };
    let number = |index: usize| args.get(index).map_or(2, |arg| arg.parse().expect("a number"));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(number(1)).use_current_thread();
    pool.build_global().expect("nothing has run in it yet");

    let prefill = args.get(4).map_or(PREFILL, |arg| arg.parse().expect("a number"));

    // The first run reads the file, and is not counted.
    let (model, kilobytes) = watching_memory(|| {
        let mut model = None;
        print("load", timed(|| model = Some(load(path))));
        let model = model.expect("it has been loaded");
        run(&*model.model, numerics_of(&*model.model, args.get(3)), prefill);
        model
    });
    let numerics = numerics_of(&*model.model, args.get(3));
    let runs: Vec<[Times; 4]> = (0..number(2)).map(|_| run(&*model.model, numerics, prefill)).collect();
    print("first", least(runs.iter().map(|run| run[0])));
    print("prefill", least(runs.iter().map(|run| run[1])));
    print("prefill-last", least(runs.iter().map(|run| run[2])));
    let decode = least(runs.iter().map(|run| run[3]));
    print("decode", decode);
    let bytes = weight_bytes(&*model.model) as f64;
    let reading = least((0..number(2).max(3)).map(|_| timed(|| read_weights(&*model.model))));
    print("reading", reading);
    println!("tokens-per-second {:.2}", 1.0 / decode[0]);
    println!("gigabytes-per-second {:.2} of {:.2}", bytes / decode[0] / 1e9, bytes / reading[0] / 1e9);
    println!("own-megabytes {}", kilobytes * 1024 / 1_000_000);
    println!("kv-megabytes-at-2048 {}", kv_bytes(&*model.model, 2048) / 1_000_000);
}

/// The numerics of that name; without one, or for `auto`, those of the engine that such models are made for.
fn numerics_of(model: &dyn Model, name: Option<&String>) -> &'static dyn Numerics {
    let made_for = if model.architecture() == "bitnet" { "bitnet.cpp" } else { "llama.cpp" };
    let name = name.map(String::as_str).filter(|name| *name != "auto").unwrap_or(made_for);
    *numerics::ALL.iter().find(|numerics| numerics.name() == name).expect("numerics of that name")
}

/// Bytes of weights that a pass of one token reads: all matrices but the embeddings, of which it reads a row.
fn weight_bytes(model: &dyn Model) -> usize {
    weights(model).map(<[u8]>::len).sum()
}

fn weights(model: &dyn Model) -> impl Iterator<Item = &[u8]> {
    let matrices = model.matrices().into_iter().filter(|(name, _)| name != "token_embd");
    matrices.map(|(_, matrix)| matrix.row_range(0..matrix.rows))
}

/// Looks at every byte of them, in as many threads as compute.
fn read_weights(model: &dyn Model) {
    let sum = |bytes: &[u8]| {
        let words = bytes.as_chunks::<8>().0.iter();
        words.fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
    };
    let sums = weights(model).map(|bytes| bytes.par_chunks(1 << 20).map(sum).reduce(|| 0, u64::wrapping_add));
    black_box(sums.fold(0, u64::wrapping_add));
}

/// Keys and values of so many positions, as they are kept: in f32, rounded to the cache's type.
fn kv_bytes(model: &dyn Model, positions: usize) -> usize {
    let dimensions = model.dimensions();
    2 * dimensions.n_layers * positions * dimensions.kv_width * size_of::<f32>()
}

fn load(path: &str) -> LoadedModel {
    let files = ModelFiles::open(Path::new(path)).expect("a model");
    files.load().expect("a model that can be run")
}

/// A pass over a short prompt; one over a longer one, with the logits of every position and with those of the last; and
/// the mean of the passes after that.
fn run(model: &dyn Model, numerics: &dyn Numerics, prefill: usize) -> [Times; 4] {
    let engine = || Engine::new(model, numerics, prefill + DECODE).expect("it fits");
    let token = |position: usize| (1 + position * 37 % 1000) as u32;
    let prompt: Vec<u32> = (0..prefill).map(token).collect();
    let pass = |engine: &mut Engine, tokens: &[u32]| {
        engine.pass(tokens, 1.0, &mut ()).expect("the tokens are of the vocabulary");
    };
    let mut short = engine();
    let first = timed(|| pass(&mut short, &prompt[..SHORT]));
    let (mut looked_at, mut engine) = (engine(), engine());
    let all = timed(|| {
        looked_at.pass(&prompt, 1.0, &mut AllLogits).expect("the tokens are of the vocabulary");
    });
    drop(looked_at);
    let last = timed(|| pass(&mut engine, &prompt));
    let decode =
        timed(|| (prefill..prefill + DECODE).for_each(|position| pass(&mut engine, &[token(position)])));
    [first, all, last, decode.map(|seconds| seconds / DECODE as f64)]
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
