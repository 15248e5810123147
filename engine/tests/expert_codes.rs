//! Activations of experts in LLM.int8(): only experts with a threshold quantise them, and outliers keep their digits.

use xcheck_engine::exact::{Profile, ResultPair, judge};
use xcheck_engine::numerics::{ActivationQuantisation, F32, Numerics, Transformers};
use xcheck_engine::quant::{ActivationCodes, CodeGroup};
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::view::View;
use xcheck_engine::weight::{DType, Matrix, StoredTensor};

const TOKENS: usize = 6;
const WIDTH: usize = 64;
const OUTPUTS: usize = 32;
const THRESHOLD: f32 = 4.0;
/// Experts of each token: every token chooses the first, which has no threshold.
const CHOSEN: [f32; 2 * TOKENS] = [0.0, 1.0, 0.0, 1.0, 0.0, 2.0, 0.0, 1.0, 0.0, 2.0, 0.0, 1.0];

fn wave(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * step).sin()).collect()
}

fn expert(step: f32, outliers: Option<f32>) -> Matrix {
    let data: Vec<u8> = wave(OUTPUTS * WIDTH, step).iter().flat_map(|w| w.to_le_bytes()).collect();
    let stored = StoredTensor { dtype: DType::F32, shape: vec![OUTPUTS, WIDTH], data: data.into() };
    Matrix::from_stored(&stored).expect("a matrix").with_outliers(outliers)
}

/// A plain expert, and two with a threshold.
fn experts() -> [Matrix; 3] {
    [expert(0.7, None), expert(1.3, Some(THRESHOLD)), expert(1.9, Some(THRESHOLD))]
}

/// Two tokens have an outlier each: one of the second expert's, one of the third's.
fn activations() -> Tensor {
    let mut x = wave(TOKENS * WIDTH, 0.37);
    x[WIDTH + 5] = 7.3;
    x[2 * WIDTH + 40] = -9.1;
    Tensor::new(&[TOKENS, WIDTH], x)
}

fn inner(is_short: bool) -> Box<dyn Numerics> {
    if is_short { Box::new(Transformers::Bf16) } else { Box::new(F32) }
}

fn with_codes(is_short: bool, codes: Option<ActivationCodes>) -> Box<dyn Numerics> {
    match codes {
        Some(codes) => Box::new(ActivationQuantisation::over(inner(is_short), codes)),
        None => inner(is_short),
    }
}

/// Judges the products of experts, which quantise activations by the first codes, as an engine with the second codes would
/// compute them.
fn is_explained(
    is_short: bool,
    experts: [&[Matrix]; 2],
    [right, made]: [Option<ActivationCodes>; 2],
) -> bool {
    let (x, chosen) = (activations(), Tensor::new(&[TOKENS, 2], CHOSEN.to_vec()));
    let right = with_codes(is_short, right);
    let profile = Profile::of(&*right);
    let traced = TracedNumerics::new(&*right, profile).rounding_by(profile).routed(&x, experts[0], &chosen);
    let engine = with_codes(is_short, made);
    let made: Vec<f64> = engine.routed(&x, experts[1], &chosen).data().iter().map(|&x| x.into()).collect();
    is_near(&traced, &made)
}

fn is_near(traced: &Tensor, made: &[f64]) -> bool {
    is_explained_by(traced, made, true)
}

/// Judges values that an engine has computed, with or without other rounding choices.
fn is_explained_by(traced: &Tensor, made: &[f64], may_differ: bool) -> bool {
    // The other side differs everywhere, so that all values are evaluated.
    let nowhere = vec![f64::NAN; made.len()];
    let sides = [&View::of(traced.shape(), made), &View::of(traced.shape(), &nowhere)];
    let compared = ResultPair { traced, sides, stored: None, is_double: false, sees: &|_| 0..usize::MAX };
    judge(&compared, may_differ).expect("one operation").dump.is_explained()
}

#[test]
fn experts_without_a_threshold_are_not_quantised_and_outliers_of_others_keep_their_digits() {
    let (right, every_value) =
        (ActivationCodes::with_outliers(THRESHOLD), ActivationCodes::with_outliers(1e6));
    let (own, all_coded) = (experts(), experts().map(|expert| expert.with_outliers(Some(THRESHOLD))));
    for is_short in [false, true] {
        let explained = |experts, codes| is_explained(is_short, [&own, experts], [Some(right), codes]);
        assert!(explained(&own, Some(right)), "bf16: {is_short}");
        assert!(!explained(&all_coded, Some(right)), "bf16: {is_short}, every expert quantises");
        assert!(!explained(&own, Some(every_value)), "bf16: {is_short}, coded outliers");
        assert!(!explained(&own, None), "bf16: {is_short}, nothing quantised");
    }
}

#[test]
fn a_scale_of_a_pass_is_that_of_the_expert_s_tokens() {
    let of = |group| Some(ActivationCodes { group, ..ActivationCodes::default() });
    let experts = experts();
    for is_short in [false, true] {
        let explained = |made| is_explained(is_short, [&experts, &experts], [of(CodeGroup::Pass), made]);
        assert!(explained(of(CodeGroup::Pass)), "bf16: {is_short}");
        assert!(!explained(of(CodeGroup::Token)), "bf16: {is_short}, a scale for each token");
        assert!(!explained(None), "bf16: {is_short}, nothing quantised");
    }
}

/// Parts of a sum would leave out the columns with outliers, which are a product of their own.
#[test]
fn outliers_are_no_part_of_a_device_s_sum() {
    let w = expert(1.3, Some(THRESHOLD));
    for is_short in [false, true] {
        let right = with_codes(is_short, Some(ActivationCodes::with_outliers(THRESHOLD)));
        let profile = Profile { parts: 2, ..Profile::of(&*right) };
        let traced = TracedNumerics::new(&*right, profile).rounding_by(profile).linear(&activations(), &w);
        let values = |threshold: f32| {
            let numerics = with_codes(is_short, Some(ActivationCodes::with_outliers(threshold)));
            numerics.linear(&activations(), &w).data().iter().map(|&x| f64::from(x)).collect::<Vec<_>>()
        };
        assert!(is_near(&traced, &values(THRESHOLD)), "bf16: {is_short}");
        assert!(!is_near(&traced, &values(1e6)), "bf16: {is_short}, coded outliers");
    }
}

/// Codes that may round either way move all results of a token alike. Results without codes have no such error.
#[test]
fn results_without_codes_have_no_common_error() {
    let codes = Some(ActivationCodes::with_outliers(THRESHOLD));
    let right = with_codes(false, codes);
    let profile = Profile::of(&*right);
    let traced = TracedNumerics::new(&*right, profile).rounding_by(profile);
    let (x, plain) = (activations(), expert(0.7, None));
    let own = traced.linear(&x, &plain);
    let times = |factor: f64| own.data().iter().map(|&y| f64::from(y) * factor).collect::<Vec<_>>();
    assert!(is_explained_by(&own, &times(1.0), false));
    assert!(!is_explained_by(&own, &times(1.0 + 1e-6), false));
}

/// An eighth of the codes are ties, which another engine rounds up.
#[test]
fn ties_of_codes_of_experts_may_all_round_up() {
    let positive = |w: f32| 0.5 + w.abs();
    let matrix = |outliers| {
        let w: Vec<u8> = wave(OUTPUTS * WIDTH, 0.7).iter().flat_map(|&w| positive(w).to_le_bytes()).collect();
        let stored = StoredTensor { dtype: DType::F32, shape: vec![OUTPUTS, WIDTH], data: w.into() };
        Matrix::from_stored(&stored).expect("a matrix").with_outliers(outliers)
    };
    let experts = [matrix(Some(1e3))];
    let halves = |up: f32| {
        let value = |at: usize| match at % 8 {
            0 if at.is_multiple_of(WIDTH) => 127.0,
            1 => (2 * (at % 20)) as f32 + up,
            _ => (at % 20) as f32,
        };
        Tensor::new(&[TOKENS, WIDTH], (0..TOKENS * WIDTH).map(value).collect())
    };
    let chosen = Tensor::new(&[TOKENS, 1], vec![0.0; TOKENS]);
    let right = with_codes(false, Some(ActivationCodes::with_outliers(1e3)));
    let profile = Profile::of(&*right);
    let traced =
        TracedNumerics::new(&*right, profile).rounding_by(profile).routed(&halves(0.5), &experts, &chosen);
    let values = |x: &Tensor| {
        F32.routed(x, &experts, &chosen).data().iter().map(|&y| f64::from(y)).collect::<Vec<_>>()
    };
    assert!(is_near(&traced, &values(&halves(0.0))), "ties to even");
    assert!(is_near(&traced, &values(&halves(1.0))), "ties up");
    assert!(!is_near(&traced, &values(&halves(-1.0))), "codes off by one");
}

#[test]
fn the_arithmetic_of_an_expert_without_a_threshold_is_that_without_codes() {
    let (x, codes) = (activations(), ActivationCodes::with_outliers(THRESHOLD));
    let coded = ActivationQuantisation::over(Box::new(F32), codes);
    let [plain, with_codes] = [None, Some(THRESHOLD)].map(|outliers| expert(0.7, outliers));
    assert_eq!(coded.linear_of_expert(&x, &plain).data(), F32.linear_of_expert(&x, &plain).data());
    assert_eq!(coded.linear_of_expert(&x, &with_codes).data(), coded.linear(&x, &with_codes).data());
    assert_ne!(coded.linear(&x, &with_codes).data(), F32.linear(&x, &with_codes).data());
    let unless_head = ActivationCodes { whole_for: OUTPUTS, ..codes };
    let coded = ActivationQuantisation::over(Box::new(F32), unless_head);
    assert_eq!(coded.linear(&x, &with_codes).data(), F32.linear(&x, &with_codes).data());
}
