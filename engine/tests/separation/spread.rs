//! The sigmas are those of real sums: one after the other in `f32`, in a random order.

use xcheck_engine::exact::{ChoiceSet, evaluate};
use xcheck_engine::numerics::Numerics;
use xcheck_engine::tensor::Tensor;

use super::attention::{self, Heads};
use super::dice::Law;
use super::linear::Linear;
use super::norm::{Rows, Way};
use super::order::{Adder, Order};
use super::specimen::Store;

/// Runs, each in another order.
const RUNS: u64 = 16;

/// The root mean square of errors, each over its sigma, in runs that are each in an order of their own.
fn ratio(traced: &Tensor, width: usize, run: impl Fn(&Adder) -> Vec<f32>) -> f64 {
    let wanted: Vec<usize> = (0..traced.data().len()).collect();
    let exacts = evaluate(traced, ChoiceSet::default(), &wanted);
    let (mut squares, mut count) = (0.0, 0);
    for seed in 0..RUNS {
        let values = run(&Adder::new(Order::Shuffled, width, 3000 + seed));
        for (value, exact) in values.iter().zip(&exacts).filter(|(_, exact)| exact.sigma > 0.0) {
            squares += ((f64::from(*value) - exact.value) / exact.sigma).powi(2);
            count += 1;
        }
    }
    assert!(count >= 10_000, "{count} values");
    (squares / count as f64).sqrt()
}

fn assert_about_one(name: &str, ratio: f64) {
    println!("{name}: rms of error / sigma = {ratio:.2}");
    assert!((0.3..3.0).contains(&ratio), "{name}: {ratio}");
}

#[test]
fn products_err_by_their_sigma() {
    for law in Law::ALL {
        for width in [64, 1024, 4096] {
            let linear = Linear::new(law, [8, width, 128], Store::F32, 3100);
            let ratio = ratio(&linear.traced(), width, |adder| linear.by(adder));
            assert_about_one(&format!("linear, {law:?}, {width}"), ratio);
        }
    }
}

#[test]
fn norms_err_by_their_sigma() {
    for law in [Law::Normal, Law::Outliers, Law::Student, Law::Positive] {
        for width in [64, 1024, 4096] {
            let rows = Rows::new(law, [65_536 / width, width], 1.0, Store::F32, 3200);
            let rms = ratio(&rows.traced(), width, |adder| rows.rms(adder, Way::Reciprocal));
            assert_about_one(&format!("RMSNorm, {law:?}, {width}"), rms);
            let layer = Store::F32.traced().layer_norm(&rows.tensor(), &rows.layer());
            let layer = ratio(&layer, width, |adder| rows.layered(adder, false));
            assert_about_one(&format!("LayerNorm, {law:?}, {width}"), layer);
        }
    }
}

#[test]
fn softmax_errs_by_its_sigma() {
    for keys in [64, 1024, 4096] {
        let rows = attention::Rows::new(Law::Normal, [16, keys], Store::F32, 3300);
        let run = |adder: &Adder| rows.softmax(adder, attention::Way::Reciprocal, |_| ());
        assert_about_one(&format!("softmax, {keys}"), ratio(&rows.traced(), keys, run));
    }
}

#[test]
fn scores_and_contexts_err_by_their_sigma() {
    for law in Law::ALL {
        let heads = Heads::new(law, [4, 4, 1024, 128], Store::F32, 3400);
        let weights = heads.weights(3500);
        let scores = ratio(&heads.traced_scores(&Store::F32.traced()), 128, |adder| {
            heads.scores(adder, heads.scale())
        });
        assert_about_one(&format!("scores, {law:?}"), scores);
        let context = ratio(&heads.traced_context(&weights), 1024, |adder| heads.context(&weights, adder));
        assert_about_one(&format!("context, {law:?}"), context);
    }
}
