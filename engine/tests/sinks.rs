//! Softmax with a sink of each head, and the clamped GLU, at the ends of their ranges.

use xcheck_engine::exact::{Profile, ResultPair, judge};
use xcheck_engine::numerics::{F32, Numerics, Transformers};
use xcheck_engine::ops::activation::ClampedGlu;
use xcheck_engine::ops::attention::Mask;
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::view::View;

/// Judges softmax weights of a 16-bit engine; `change` alters them first.
fn is_explained(sink: f32, change: impl Fn(&mut [f64])) -> bool {
    let numerics = &Transformers::Bf16;
    let profile = Profile::of(numerics);
    let traced = TracedNumerics::new(numerics, profile).rounding_by(profile);
    let scores = Tensor::new(&[1, 3, 3], vec![0.5, 9.0, 9.0, 1.0, -2.0, 9.0, 0.25, 3.0, -1.0]);
    let weights =
        traced.softmax_with_sinks(&scores, Mask { position: 0, window: None, chunks: None }, &[sink]);
    let right: Vec<f64> = weights.data().iter().map(|&weight| weight.into()).collect();
    let mut own = right.clone();
    change(&mut own);
    let compared = ResultPair {
        traced: &weights,
        sides: [&View::of(weights.shape(), &own), &View::of(weights.shape(), &right)],
        stored: None,
        is_double: false,
        sees: &|_| 0..usize::MAX,
    };
    judge(&compared, true).is_some_and(|judged| judged.dump.is_explained())
}

#[test]
fn a_wrong_weight_is_found_whatever_the_sink_is() {
    for sink in [0.7, -30.0, -1e30, f32::MIN, f32::NEG_INFINITY, 30.0] {
        assert!(is_explained(sink, |_| ()), "{sink}");
        // The last query sees three keys; the second is its largest.
        assert!(!is_explained(sink, |weights| weights[7] *= 1.5), "{sink}");
    }
}

#[test]
fn a_clamped_glu_keeps_nan() {
    let glu = ClampedGlu { alpha: 1.702, limit: 7.0 };
    let (gate, up) =
        (Tensor::new(&[1, 3], vec![f32::NAN, 9.0, -9.0]), Tensor::new(&[1, 3], vec![1.0, f32::NAN, 9.0]));
    for numerics in [&F32 as &dyn Numerics, &Transformers::Bf16] {
        let result = numerics.clamped_glu(&gate, &up, glu);
        let is_nan: Vec<bool> = result.data().iter().map(|value| value.is_nan()).collect();
        assert_eq!(is_nan, [true, true, false], "{}", numerics.name());
    }
}
