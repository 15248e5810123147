//! How fast products are whose order of sums is our own (numerics `f32` and `transformers`): GFLOP/s of one thread, and what
//! part that is of what its multiply-add units can do at most.
//!
//! `cargo bench --bench product [KERNEL]...`; the fastest of several repetitions counts. On another architecture than
//! x86-64 there is no figure for the most.

use std::hint::black_box;
use std::time::Instant;

use xcheck::kernels::dot::Kernel;
use xcheck::kernels::product::{PartialSums, StridedRows, fill};
use xcheck::tensor::Tensor;

const REPETITIONS: usize = 12;

/// Tokens, outputs and columns: layers of SmolLM2 135M, of Llama 3.2 1B, queries with keys of a head, one token.
const SHAPES: [[usize; 3]; 8] = [
    [128, 1536, 576],
    [512, 1536, 576],
    [512, 576, 1536],
    [512, 2048, 2048],
    [512, 2048, 8192],
    [8, 2048, 2048],
    [512, 512, 64],
    [1, 8192, 2048],
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().expect("nothing has run in it yet");
    for kernel in Kernel::all() {
        if wanted.is_empty() && kernel.name != "plain" || wanted.iter().any(|name| name == kernel.name) {
            measure(kernel);
        }
    }
}

fn measure(kernel: Kernel) {
    let most = most(kernel.name);
    println!("{}: at most {:.0} GFLOP/s", kernel.name, most);
    for shape @ [tokens, outputs, columns] in SHAPES {
        let (x, w) = (numbers(tokens, columns), numbers(outputs, columns));
        let mut values = vec![0.0; tokens * outputs];
        let seconds = fastest(|| {
            values.fill(0.0);
            let rows = values.chunks_mut(outputs).collect();
            fill(kernel, PartialSums::Cut, StridedRows::rows_of(&x), &StridedRows::rows_of(&w), rows);
        });
        let speed = 2.0 * (tokens * outputs * columns) as f64 / seconds / 1e9;
        println!("  {:18} {speed:6.0} {:4.0} %", format!("{shape:?}"), 100.0 * speed / most);
    }
}

fn numbers(rows: usize, columns: usize) -> Tensor {
    let number = |index: usize| (index.wrapping_mul(2_654_435_761) >> 9 & 0xFFFF) as f32 / 65536.0 - 0.5;
    Tensor::new(&[rows, columns], (0..rows * columns).map(number).collect())
}

fn fastest(mut work: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..REPETITIONS).map(time).fold(f64::INFINITY, f64::min)
}

/// Multiply-adds in registers alone, as many at a time as hide how long each takes.
#[cfg(target_arch = "x86_64")]
fn most(kernel: &str) -> f64 {
    use std::arch::x86_64::*;

    const ROUNDS: usize = 1_000_000;
    const CHAINS: usize = 12;

    #[target_feature(enable = "avx512f")]
    fn in_512() {
        let (factor, mut sums) = black_box((_mm512_set1_ps(0.5), [_mm512_set1_ps(1.0); CHAINS]));
        for _ in 0..ROUNDS {
            sums.iter_mut().for_each(|sum| *sum = _mm512_fmadd_ps(*sum, factor, factor));
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    fn in_256() {
        let (factor, mut sums) = black_box((_mm256_set1_ps(0.5), [_mm256_set1_ps(1.0); CHAINS]));
        for _ in 0..ROUNDS {
            sums.iter_mut().for_each(|sum| *sum = _mm256_fmadd_ps(*sum, factor, factor));
        }
        black_box(sums);
    }

    let flops = |lanes: usize, seconds: f64| 2.0 * (ROUNDS * CHAINS * lanes) as f64 / seconds / 1e9;
    // SAFETY: a kernel is given only where its instructions are found.
    match kernel {
        "avx512" => flops(16, fastest(|| unsafe { in_512() })),
        "avx2" => flops(8, fastest(|| unsafe { in_256() })),
        _ => f64::NAN,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn most(_: &str) -> f64 {
    f64::NAN
}
