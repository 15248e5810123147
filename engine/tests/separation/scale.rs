//! Faults are seen, and honest results pass, whatever the size of the residual stream.

use xcheck_engine::ops::activation::Activation;

use super::activations::Gated;
use super::attention::Heads;
use super::dice::Law;
use super::linear::Linear;
use super::order::{Adder, Order};
use super::specimen::{Specimen, Store, times};

const SIZES: [f32; 5] = [1e-4, 1e-2, 1.0, 1e2, 1e4];

/// An honest stage, and how its results lie.
struct Stage {
    specimen: Specimen,
    /// Values that hold all heads, and values of one of these.
    row: usize,
    head: usize,
    /// What comes of a cache that holds the row of another position.
    stale: Vec<f32>,
}

impl Stage {
    fn with(&self, fault: &str, size: f32, own: Vec<f32>) -> Specimen {
        let name = format!("{}, {fault}, stream times {size:e}", self.specimen.name);
        Specimen::new(name, self.specimen.traced.clone(), own)
    }

    fn swapped(&self) -> Vec<f32> {
        let mut own = self.specimen.own.clone();
        for row in own.chunks_mut(self.row) {
            let (one, two) = row[..2 * self.head].split_at_mut(self.head);
            one.swap_with_slice(two);
        }
        own
    }
}

/// The last row is that of the first token.
fn stale(own: &[f32], row: usize) -> Vec<f32> {
    let mut own = own.to_vec();
    let last = own.len() - row;
    own.copy_within(..row, last);
    own
}

fn stages(size: f32) -> [Stage; 4] {
    let linear = Linear::new(Law::Normal, [8, 1024, 256], Store::F32, 7000).scaled(size);
    let own = linear.by(&Adder::new(Order::Shuffled, 1024, 1));
    let linear =
        Stage { row: 256, head: 64, stale: stale(&own, 256), specimen: linear.specimen("linear", own) };

    let mut added = Gated::new(Activation::Silu, Law::Normal, [8, 256], Store::F32, 7100);
    (added.gate, added.up) = (times(&added.gate, size.into()), times(&added.up, size.into()));
    let own = added.sums(|a, b| a + b);
    let added = Stage { row: 256, head: 64, stale: stale(&own, 256), specimen: added.added("add", own) };

    let mut heads = Heads::new(Law::Normal, [4, 4, 256, 64], Store::F32, 7200);
    let scaled = [&heads.q, &heads.k, &heads.v].map(|x| times(x, size.into()));
    [heads.q, heads.k, heads.v] = scaled;
    let weights = heads.weights(7300);
    let by_64 = Adder::new(Order::Shuffled, 64, 2);
    let by_256 = Adder::new(Order::Shuffled, 256, 3);
    let scores = heads.scores_specimen("scores", heads.scores(&by_64, heads.scale()));
    let context = heads.context_specimen("context", &weights, heads.context(&weights, &by_256));
    // The last position holds what the first does: both heads of the cache.
    let cached = 2 * 64;
    (heads.k, heads.v) = (stale(&heads.k, cached), stale(&heads.v, cached));
    let scores = Stage {
        row: scores.own.len(),
        head: 4 * 256,
        stale: heads.scores(&by_64, heads.scale()),
        specimen: scores,
    };
    let context = Stage { row: 256, head: 64, stale: heads.context(&weights, &by_256), specimen: context };
    [linear, added, scores, context]
}

#[test]
fn faults_are_seen_and_honest_results_pass_at_every_size_of_the_stream() {
    for size in SIZES {
        for stage in stages(size) {
            let own = &stage.specimen.own;
            stage.with("honest", size, own.clone()).assert_honest();
            stage.with("all zero", size, vec![0.0; own.len()]).assert_caught();
            stage.with("times 1.001", size, times(own, 1.001)).assert_caught();
            stage.with("heads swapped", size, stage.swapped()).assert_caught();
            stage.with("stale row", size, stage.stale.clone()).assert_caught();
        }
    }
}
