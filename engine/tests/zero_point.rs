//! Activation codes with a stored zero point: engines add it to the quotient in `f32`, which may round to a tie.

use xcheck_engine::exact::{Profile, ResultPair, judge};
use xcheck_engine::numerics::{ActivationQuantisation, F32, Numerics};
use xcheck_engine::quant::ActivationCodes;
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::view::View;
use xcheck_engine::weight::{DType, InputCodes, InputScale, Matrix, StoredTensor};

const WIDTH: usize = 32;
const OUTPUTS: usize = 8;
const STEP: f32 = 1.0 / 64.0;

fn weights() -> Matrix {
    let data = (0..OUTPUTS * WIDTH).flat_map(|at| ((at as f32 * 0.7).sin() + 1.5).to_le_bytes());
    let data: Vec<u8> = data.collect();
    let stored = StoredTensor { dtype: DType::F32, shape: vec![OUTPUTS, WIDTH], data: data.into() };
    Matrix::from_stored(&stored).expect("a matrix")
}

/// Integers, except one quotient that is `below` the tie of 1.5.
fn quotients(below: f32) -> Vec<f32> {
    (0..WIDTH).map(|at| if at == 9 { 1.5 - below } else { (at % 7) as f32 - 3.0 }).collect()
}

/// Judges an engine that gives the quotient near the tie this code.
fn is_explained(zero: f32, below: f32, code: f32) -> bool {
    let input = InputScale { codes: InputCodes::Int8, number: STEP, zero };
    let numerics = ActivationQuantisation::over(Box::new(F32), ActivationCodes::of_matrix(&input));
    let (profile, w) = (Profile::of(&numerics), weights().with_input_scale(Some(input)));
    let row = |quotients: Vec<f32>| Tensor::new(&[1, WIDTH], quotients.iter().map(|x| x * STEP).collect());
    let traced = TracedNumerics::new(&numerics, profile).rounding_by(profile);
    let traced = traced.linear(&row(quotients(below)), &w);
    let mut codes = quotients(0.0);
    codes[9] = code;
    let made: Vec<f64> = F32.linear(&row(codes), &weights()).data().iter().map(|&y| y.into()).collect();
    let nowhere = vec![f64::NAN; made.len()];
    let sides = [&View::of(traced.shape(), &made), &View::of(traced.shape(), &nowhere)];
    let compared =
        ResultPair { traced: &traced, sides, stored: None, is_double: false, sees: &|_| 0..usize::MAX };
    judge(&compared, false).expect("one operation").dump.is_explained()
}

#[test]
fn a_sum_of_quotient_and_zero_point_may_round_to_a_tie_in_f32() {
    for (zero, below) in [(100.0, 2e-6), (-101.0, 2e-6)] {
        // The tie goes to the even one of the codes 1 and 2 from the zero point.
        assert_eq!((1.5 - below) + zero, 1.5 + zero, "the sum is rounded to the tie");
        assert!(is_explained(zero, below, 1.0), "{zero}");
        assert!(is_explained(zero, below, 2.0), "{zero}");
        assert!(!is_explained(zero, below, 0.0), "{zero}");
        assert!(!is_explained(zero, 1e-4, 2.0), "{zero}: far from the tie");
    }
    // Without a zero point, nothing is added.
    assert!(is_explained(0.0, 2e-6, 1.0));
    assert!(!is_explained(0.0, 2e-6, 2.0));
}
