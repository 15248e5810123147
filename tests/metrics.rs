//! The figures themselves, and what a verdict makes of them.

use xcheck::checkpoint::{Point, Site};
use xcheck::compare::{
    Floor, Found, Gate, Grain, Measure, Measurement, NO_TOKEN, Observed, Row, Tolerance, Verdict, measure,
    measure_tokens,
};
use xcheck::dump::Values;
use xcheck::weight::DType;

fn values(data: &[f64]) -> Values {
    Values { shape: vec![data.len()], data: data.to_vec() }
}

fn compare(candidate: &[f64], reference: &[f64]) -> Measurement {
    measure(&values(candidate), &values(reference), Grain::F32, |_| true)
}

fn judge(measurement: Measurement, max_abs: f64, mean_abs: Option<f64>) -> Verdict {
    row(None, measurement, max_abs, mean_abs).verdict
}

fn row(total: Option<Measurement>, introduced: Measurement, max_abs: f64, mean_abs: Option<f64>) -> Row {
    let site = Site { point: Point::FfnOut, layer: Some(0), pass: Some(0) };
    let tolerance = Tolerance { max_abs, mean_abs, source: "this test".into(), is_asked: false };
    let [total, introduced] = [total, Some(introduced)].map(|found| found.map(Found::Measured));
    let found = Observed { total, introduced, ..Observed::default() };
    let measure = Measure {
        tolerance,
        gate: Gate::Tolerance,
        computed: DType::F32,
        is_one_stage: true,
        demanded_of: None,
    };
    Row::judge(site, 0..1, found, measure)
}

#[test]
fn every_figure_is_what_its_formula_says() {
    let found = compare(&[1.0, 2.0, 5.0], &[1.0, 2.5, 4.0]);
    approx::assert_relative_eq!(found.errors.max_abs, 1.0);
    approx::assert_relative_eq!(found.errors.mean_abs, 0.5);
    approx::assert_relative_eq!(found.errors.rel_l2, (1.25f64 / 23.25).sqrt());
    approx::assert_relative_eq!(found.errors.cosine, 26.0 / (30.0f64 * 23.25).sqrt());
    approx::assert_relative_eq!(found.errors.max_rel_rms, 1.0 / (23.25f64 / 3.0).sqrt());
    let worst = found.worst.expect("an element is named");
    assert_eq!((worst.index, worst.candidate, worst.reference), (vec![2], 5.0, 4.0));
}

#[test]
fn of_token_lists_the_first_that_differs_is_named_even_where_one_ends_early() {
    let found = measure_tokens(&values(&[5.0, 7.0, 1.0]), &values(&[5.0, 8.0, 900.0]));
    assert_eq!(
        found.worst.map(|worst| (worst.index, worst.candidate, worst.reference)),
        Some((vec![1], 7.0, 8.0))
    );
    let short = measure_tokens(&values(&[5.0]), &values(&[5.0, 8.0]));
    assert_eq!(short.worst.map(|worst| (worst.index, worst.candidate)), Some((vec![1], NO_TOKEN)));
    assert_eq!(short.errors.max_abs, 9.0);
    assert!(measure_tokens(&values(&[5.0, 8.0]), &values(&[5.0, 8.0])).is_identical());
}

#[test]
fn identical_elements_are_counted_bit_by_bit() {
    let found = compare(
        &[1.0, 0.0, -0.0, f64::NAN, f64::INFINITY, 2.0],
        &[1.0, -0.0, -0.0, f64::NAN, f64::INFINITY, 2.0f64.next_up()],
    );
    assert_eq!((found.elements, found.identical), (6, 3), "1, -0 and infinity are");
    assert!(!found.is_identical() && compare(&[1.5], &[1.5]).is_identical());
    assert!(!compare(&[], &[]).is_identical(), "nothing is not identical to nothing");
    let masked = measure(&values(&[1.0, 2.0]), &values(&[1.0, 9.0]), Grain::F32, |index| index == 0);
    assert!(masked.is_identical(), "what is not compared does not count");
}

#[test]
fn the_worst_element_is_named_along_every_axis() {
    let at = |changed: usize| Values {
        shape: vec![2, 3, 4],
        data: (0..24).map(|flat| if flat == changed { 99.0 } else { 1.0 }).collect(),
    };
    let found = measure(&at(17), &at(24), Grain::F32, |_| true);
    assert_eq!(found.worst.expect("named").index, [1, 1, 1]);
}

#[test]
fn a_permutation_does_not_pass_although_its_mean_is_the_same() {
    assert_eq!(judge(compare(&[2.0, 1.0, 3.0], &[1.0, 2.0, 3.0]), 0.5, None), Verdict::Fail);
}

#[test]
fn twice_the_values_do_not_pass_although_their_cosine_is_one() {
    let found = compare(&[2.0, 4.0], &[1.0, 2.0]);
    approx::assert_relative_eq!(found.errors.cosine, 1.0);
    assert_eq!(judge(found, 0.5, None), Verdict::Fail);
}

#[test]
fn nan_fails_wherever_it_stands_and_whatever_follows() {
    for candidate in [[f64::NAN, 1.0, 9.0], [1.0, f64::NAN, 1.0], [9.0, 1.0, f64::NAN]] {
        let found = compare(&candidate, &[1.0, 1.0, 1.0]);
        assert!(
            found.errors.max_abs.is_nan()
                && found.worst.as_ref().is_some_and(|worst| worst.candidate.is_nan())
        );
        assert_eq!(judge(found, f64::MAX, None), Verdict::Fail);
    }
}

#[test]
fn nan_of_the_total_run_fails_although_the_stage_introduces_nothing() {
    let (total, introduced) = (compare(&[f64::NAN], &[1.0]), compare(&[1.0], &[1.0]));
    assert_eq!(row(Some(total), introduced, 1.0, None).verdict, Verdict::Fail);
}

#[test]
fn infinity_of_one_side_fails_and_of_both_is_inconclusive() {
    assert_eq!(judge(compare(&[f64::INFINITY], &[1.0]), f64::MAX, None), Verdict::Fail);
    assert_eq!(judge(compare(&[1.0], &[f64::INFINITY]), f64::MAX, None), Verdict::Fail);
    assert_eq!(judge(compare(&[f64::INFINITY], &[f64::INFINITY]), f64::MAX, None), Verdict::Inconclusive);
    assert_eq!(judge(compare(&[f64::INFINITY], &[f64::NEG_INFINITY]), f64::MAX, None), Verdict::Fail);
    assert_eq!(judge(compare(&[f64::NAN, 1.0], &[f64::NAN, 1.0]), f64::MAX, None), Verdict::Inconclusive);
}

#[test]
fn nothing_compared_is_inconclusive() {
    assert_eq!(judge(compare(&[], &[]), 1.0, None), Verdict::Inconclusive);
    let masked = measure(&values(&[1.0]), &values(&[1.0]), Grain::F32, |_| false);
    assert_eq!((masked.elements, judge(masked, 1.0, None)), (0, Verdict::Inconclusive));
}

#[test]
fn zeros_on_one_side_fail_however_much_is_allowed_and_on_both_are_inconclusive() {
    assert_eq!(judge(compare(&[0.0, 0.0], &[0.0, 0.0]), 1.0, None), Verdict::Inconclusive);
    assert_eq!(judge(compare(&[1e-3, 0.0], &[0.0, 0.0]), 1.0, None), Verdict::Fail);
    assert_eq!(judge(compare(&[0.0, 0.0], &[1e-3, 0.0]), 1.0, None), Verdict::Fail);
    assert_eq!(judge(compare(&[0.0, 1e-3], &[0.0, 1e-3]), 1.0, None), Verdict::Pass);
}

#[test]
fn a_value_may_round_to_its_neighbour_however_large_it_is_and_no_further() {
    let next = |x: f64, steps: f64| x + steps * 2f64.powi(10 - 23);
    let large = 1129.3405;
    assert_eq!(judge(compare(&[next(large, 1.0), 1.0], &[large, 1.0]), 1e-4, None), Verdict::Pass);
    assert_eq!(judge(compare(&[next(large, 2.0), 1.0], &[large, 1.0]), 1e-4, None), Verdict::Fail);
}

#[test]
fn what_storing_in_a_shorter_type_may_have_changed_is_no_error() {
    let stored = half::f16::from_f64(0.1).to_f64();
    let grain = Grain { computed: DType::F32, candidate: None, reference: Some(DType::F16) };
    let error =
        |candidate: f64| measure(&values(&[candidate]), &values(&[stored]), grain, |_| true).errors.max_abs;
    assert_eq!(error(0.1), 0.0);
    assert!(error(stored + 2f64.powi(-14)) > 2f64.powi(-16), "a step further is an error");
    assert!(error(f64::NAN).is_nan());
}

#[test]
fn what_rounding_may_explain_is_doubtful_and_what_it_cannot_explain_fails() {
    let judged = |rounding: f64| {
        let mut row = row(None, compare(&[1.001, 2.0], &[1.0, 2.0]), 1e-4, None);
        assert!(row.is_in_doubt());
        row.weigh(Floor { max_scaled: rounding, rel_l2: rounding, max_abs: rounding });
        row.verdict
    };
    assert_eq!(judged(0.0), Verdict::Fail);
    assert_eq!(judged(1e-5), Verdict::Fail);
    assert_eq!(judged(1e-3), Verdict::Inconclusive);
}

#[test]
fn an_error_that_is_allowed_and_as_large_as_the_values_must_be_explained_by_rounding() {
    let judged = |rounding: f64| {
        let mut row = row(None, compare(&[1.5e-3, 2e-3], &[1e-3, 2e-3]), 1e-2, None);
        assert!(row.is_in_doubt());
        row.weigh(Floor { max_scaled: rounding, rel_l2: rounding, max_abs: rounding });
        row.verdict
    };
    assert_eq!(judged(1e-3), Verdict::Fail);
    assert_eq!(judged(0.2), Verdict::Pass);
}

#[test]
fn a_tolerance_is_met_at_its_bound_and_not_beyond() {
    assert_eq!(judge(compare(&[1.5], &[1.0]), 0.5, None), Verdict::Pass);
    assert_eq!(judge(compare(&[1.5000001], &[1.0]), 0.5, None), Verdict::Fail);
    assert_eq!(judge(compare(&[1.25, 1.25], &[1.0, 1.0]), 0.5, Some(0.25)), Verdict::Pass);
    assert_eq!(judge(compare(&[1.26, 1.25], &[1.0, 1.0]), 0.5, Some(0.25)), Verdict::Fail);
}

#[test]
fn of_no_verdicts_nothing_is_concluded_and_a_failure_outweighs_doubt() {
    assert_eq!(Verdict::over([]), Verdict::Inconclusive);
    assert_eq!(Verdict::over([Verdict::Pass, Verdict::Tie]), Verdict::Pass);
    assert_eq!(Verdict::over([Verdict::Pass, Verdict::Inconclusive]), Verdict::Inconclusive);
    assert_eq!(Verdict::over([Verdict::Inconclusive, Verdict::Fail]), Verdict::Fail);
}
