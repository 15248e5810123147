//! Outliers of LLM.int8(), which are not quantised.

use xcheck_engine::quant::ActivationCodes;

/// bitsandbytes compares values of `f16` with the threshold.
#[test]
fn outliers_are_found_after_rounding_to_f16() {
    let codes = ActivationCodes::with_outliers(6.0);
    let found = [5.999, -5.999, 5.997, f32::MAX, f32::NAN, 0.0].map(|value| codes.is_outlier(value));
    assert_eq!(found, [true, true, false, true, false, false]);
}
