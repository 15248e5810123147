//! The scale of a row of integer weights is found in what it decodes to.

use xcheck_engine::exact::Float;
use xcheck_engine::ops::linear::exact::scales_of_row;

#[test]
fn the_int8_scale_of_a_row_of_codes_is_found_and_other_rows_have_none() {
    let scale = Float::Bf16.round(0.0123);
    let row = |scale: f64| {
        (0..96).map(|at| Float::Bf16.round(f64::from((at * 37 % 255) - 127) * scale)).collect::<Vec<_>>()
    };
    assert!(scales_of_row(&row(scale), Float::Bf16, Float::Bf16).contains(&scale));
    let waves: Vec<f64> = (0..96).map(|at| Float::Bf16.round(f64::from(at).sin() * 0.7)).collect();
    assert_eq!(scales_of_row(&waves, Float::Bf16, Float::Bf16), [0.0; 0]);
    assert_eq!(scales_of_row(&[0.0; 96], Float::Bf16, Float::Bf16), [0.0; 0]);
}
