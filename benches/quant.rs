//! How fast each format is read: dot products of one token and of eight, decoding and the check of scales, in GB/s of
//! stored weights, beside what the memory gives in the same run.
//!
//! `cargo bench --bench quant [TYPE]...`; the fastest of several repetitions counts.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;
use xcheck::quant::{self, DECODABLE, Dot, DotOrder};
use xcheck::weight::DType;

/// More than caches hold.
const BYTES: usize = 128 << 20;
const COLUMNS: usize = 4096;
const REPETITIONS: usize = 5;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let weights = weights();
    println!("memory: {:.1} GB/s with one thread, {:.1} with all", read_one(&weights), read_all(&weights));
    println!(
        "{:8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}",
        "GB/s", "plain", "fast", "all", "x8", "decode", "check"
    );
    for &dtype in DECODABLE {
        if wanted.is_empty() || wanted.iter().any(|name| name == dtype.name()) {
            measure(dtype, &weights);
        }
    }
}

/// The matrix products run over the same bytes, whatever the type: as numbers they are neither NaN nor infinite, nor
/// denormal, which would take far longer.
fn weights() -> Vec<u8> {
    (0..BYTES).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x0B | 0x30).collect()
}

fn measure(dtype: DType, weights: &[u8]) {
    let row_bytes = dtype.bytes_for(COLUMNS).expect("whole blocks");
    let rows = &weights[..weights.len() / row_bytes * row_bytes];
    let activations: Vec<Vec<u8>> = (0..8).map(|token| activations(dtype, token)).collect();
    let (fast, one) = (quant::dot(dtype, DotOrder::Row), &activations[..1]);
    let part = &rows[..rows.len() / 16 / row_bytes * row_bytes];

    let columns = [
        speed(part, || product(part, row_bytes, quant::plain_dot(dtype, DotOrder::Row), one)),
        speed(rows, || product(rows, row_bytes, fast, one)),
        speed(rows, || product_all(rows, row_bytes, fast, one)),
        speed(rows, || product_all(rows, row_bytes, quant::dot(dtype, DotOrder::Batch), &activations)),
        speed(part, || decode(part, row_bytes, dtype)),
        speed(rows, || check(rows, row_bytes, dtype)),
    ];
    print!("{:8}", dtype.name());
    columns.iter().for_each(|speed| print!(" {speed:>7.2}"));
    println!();
}

fn activations(weights: DType, token: usize) -> Vec<u8> {
    let row: Vec<f32> =
        (0..COLUMNS).map(|index| ((index * 7919 + token) % 1009) as f32 / 504.0 - 1.0).collect();
    let dtype = quant::activation_type(weights);
    let mut out = vec![0; dtype.bytes_for(COLUMNS).expect("whole blocks")];
    quant::quantise_row(dtype, &row, &mut out);
    out
}

/// Gigabytes of `bytes` in a second.
fn speed<T>(bytes: &[u8], mut work: impl FnMut() -> T) -> f64 {
    let times = (0..REPETITIONS).map(|_| {
        let start = Instant::now();
        black_box(work());
        start.elapsed().as_secs_f64()
    });
    bytes.len() as f64 / times.fold(f64::INFINITY, f64::min) / 1e9
}

fn product(rows: &[u8], row_bytes: usize, dot: Dot, activations: &[Vec<u8>]) -> f32 {
    rows.chunks_exact(row_bytes).map(|row| row_product(row, dot, activations)).sum()
}

fn product_all(rows: &[u8], row_bytes: usize, dot: Dot, activations: &[Vec<u8>]) -> f32 {
    rows.par_chunks_exact(row_bytes).map(|row| row_product(row, dot, activations)).sum()
}

fn row_product(row: &[u8], dot: Dot, activations: &[Vec<u8>]) -> f32 {
    activations.iter().map(|activations| dot(row, activations)).sum()
}

fn decode(rows: &[u8], row_bytes: usize, dtype: DType) -> f32 {
    let mut out = vec![0.0; COLUMNS];
    let last = |row| {
        quant::decode_row(dtype, row, &mut out);
        black_box(&out)[COLUMNS - 1]
    };
    rows.chunks_exact(row_bytes).map(last).sum()
}

fn check(rows: &[u8], row_bytes: usize, dtype: DType) -> Option<usize> {
    rows.par_chunks_exact(row_bytes).find_map_first(|row| quant::first_unsound_block(dtype, row))
}

fn read_one(bytes: &[u8]) -> f64 {
    speed(bytes, || sum(bytes))
}

fn read_all(bytes: &[u8]) -> f64 {
    speed(bytes, || bytes.par_chunks(1 << 20).map(sum).reduce(|| 0, u64::wrapping_add))
}

/// Eight sums at a time, so that the memory is what is waited for.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for eight in bytes.as_chunks::<64>().0 {
        for (sum, bytes) in sums.iter_mut().zip(eight.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*bytes));
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}
