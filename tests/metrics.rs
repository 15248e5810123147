//! The figures themselves, and what a verdict makes of them.

use bytes::Bytes;
use half::{bf16, f16};
use xcheck::check::{ArrayComparison, Gate, Tolerance};
use xcheck::checkpoint::{Point, Site};
use xcheck::dump::ArrayValues;
use xcheck::error_map::ErrorMap;
use xcheck::measure::{
    ColumnSelection, Errors, Measurement, NO_TOKEN, NonfiniteCounts, ValuePrecision, WorstElement, measure,
    measure_tokens,
};
use xcheck::noise::NoiseFloor;
use xcheck::verdict::{Doubt, SiteResult, Verdict};
use xcheck::view::View;
use xcheck::weight::DType;

fn values(data: &[f64]) -> ArrayValues {
    ArrayValues { shape: vec![data.len()], data: data.to_vec() }
}

fn compare(candidate: &[f64], reference: &[f64]) -> Measurement {
    measure(&values(candidate), &values(reference), ValuePrecision::F32, |_| ColumnSelection::All)
}

fn judge(measurement: Measurement, max_abs: f64, mean_abs: Option<f64>) -> Verdict {
    row(None, measurement, max_abs, mean_abs).verdict
}

fn row(
    accumulated: Option<Measurement>,
    local: Measurement,
    max_abs: f64,
    mean_abs: Option<f64>,
) -> SiteResult {
    row_by(Gate::Tolerance, accumulated, local, max_abs, mean_abs)
}

fn row_by(
    gate: Gate,
    accumulated: Option<Measurement>,
    local: Measurement,
    max_abs: f64,
    mean_abs: Option<f64>,
) -> SiteResult {
    let site = Site { point: Point::FfnOut, layer: Some(0), pass: Some(0) };
    let tolerance =
        Tolerance { max_abs, mean_abs, min_cosine: None, source: "this test".into(), is_asked: false };
    let [accumulated, local] = [accumulated, Some(local)].map(|found| found.map(ArrayComparison::Measured));
    let row = SiteResult::new(site, 0..1, tolerance);
    SiteResult { gate, is_single_operation: true, ..row }.judge(accumulated, local)
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
    let masked = measure(&values(&[1.0, 2.0]), &values(&[1.0, 9.0]), ValuePrecision::F32, |_| {
        ColumnSelection::Range(0..1)
    });
    assert!(masked.is_identical(), "what is not compared does not count");
}

#[test]
fn the_worst_element_is_named_along_every_axis() {
    let at = |changed: usize| ArrayValues {
        shape: vec![2, 3, 4],
        data: (0..24).map(|flat| if flat == changed { 99.0 } else { 1.0 }).collect(),
    };
    let found = measure(&at(17), &at(24), ValuePrecision::F32, |_| ColumnSelection::All);
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
    let (accumulated, local) = (compare(&[f64::NAN], &[1.0]), compare(&[1.0], &[1.0]));
    assert_eq!(row(Some(accumulated), local, 1.0, None).verdict, Verdict::Fail);
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
    let masked =
        measure(&values(&[1.0]), &values(&[1.0]), ValuePrecision::F32, |_| ColumnSelection::Range(0..0));
    assert_eq!((masked.elements, judge(masked, 1.0, None)), (0, Verdict::Inconclusive));
}

#[test]
fn all_zero_values_on_one_side_fail_at_any_tolerance_and_on_both_are_inconclusive() {
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
    let precision = ValuePrecision {
        computed: DType::F32,
        candidate: None,
        reference: Some(DType::F16),
        steps: [0.0; 2],
    };
    let error = |candidate: f64| {
        measure(&values(&[candidate]), &values(&[stored]), precision, |_| ColumnSelection::All).errors.max_abs
    };
    assert_eq!(error(0.1), 0.0);
    assert!(error(stored + 2f64.powi(-14)) > 2f64.powi(-16), "a step further is an error");
    assert!(error(f64::NAN).is_nan());
}

#[test]
fn what_rounding_may_explain_is_doubtful_and_what_it_cannot_explain_fails() {
    let judged = |rounding: f64| {
        let mut row = row(None, compare(&[1.001, 2.0], &[1.0, 2.0]), 1e-4, None);
        assert!(row.is_in_doubt());
        row.weigh(NoiseFloor { max_scaled: rounding, rel_l2: rounding, max_abs: rounding }, None);
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
        row.weigh(NoiseFloor { max_scaled: rounding, rel_l2: rounding, max_abs: rounding }, None);
        row.verdict
    };
    assert_eq!(judged(1e-3), Verdict::Fail);
    assert_eq!(judged(0.2), Verdict::Pass);
}

#[test]
fn a_floor_that_would_explain_zeros_explains_nothing() {
    let judged = |rounding: f64| {
        let measured = compare(&[1.001, 2.0], &[1.0, 2.0]);
        let row = row_by(Gate::Rounding, None, measured, 1e-4, None);
        let mut row = SiteResult { doubt: Doubt::Exceeds, ..row };
        row.weigh(NoiseFloor { max_scaled: rounding, rel_l2: rounding, max_abs: rounding }, None);
        (row.verdict, row.reason.unwrap_or_default())
    };
    assert_eq!(judged(0.49).0, Verdict::Pass);
    let (verdict, reason) = judged(0.5);
    assert_eq!(verdict, Verdict::Inconclusive);
    assert!(reason.ends_with("so all zeros would pass too"), "{reason}");
}

#[test]
fn a_noise_floor_of_logprobs_explains_nothing_if_it_is_a_nat() {
    let judged = |rounding: f64| {
        let mut row = row_by(Gate::Rounding, None, compare(&[-3.1e-6], &[-3e-6]), 1e-8, None);
        row.site = Site { point: Point::TokenLogprobs, layer: None, pass: Some(0) };
        let mut row = SiteResult { doubt: Doubt::Exceeds, ..row };
        row.weigh(NoiseFloor { max_scaled: 1.3, rel_l2: 1.3, max_abs: rounding }, None);
        row.verdict
    };
    assert_eq!(judged(4e-6), Verdict::Pass);
    assert_eq!(judged(0.49), Verdict::Pass);
    assert_eq!(judged(0.5), Verdict::Inconclusive);
}

#[test]
fn a_tolerance_is_met_at_its_bound_and_not_beyond() {
    assert_eq!(judge(compare(&[1.5], &[1.0]), 0.5, None), Verdict::Pass);
    assert_eq!(judge(compare(&[1.5000001], &[1.0]), 0.5, None), Verdict::Fail);
    assert_eq!(judge(compare(&[1.25, 1.25], &[1.0, 1.0]), 0.5, Some(0.25)), Verdict::Pass);
    assert_eq!(judge(compare(&[1.26, 1.25], &[1.0, 1.0]), 0.5, Some(0.25)), Verdict::Fail);
}

#[test]
fn a_cosine_below_its_bound_fails() {
    let found = compare(&[1.0, 2.0, 5.0], &[1.0, 2.5, 4.0]);
    let by = |min_cosine: f64| {
        let tolerance = Tolerance {
            max_abs: 10.0,
            mean_abs: None,
            min_cosine: Some(min_cosine),
            source: "this test".into(),
            is_asked: true,
        };
        let site = Site { point: Point::FfnOut, layer: Some(0), pass: Some(0) };
        let row = SiteResult::new(site, 0..1, tolerance);
        row.judge(None, Some(ArrayComparison::Measured(found.clone()))).verdict
    };
    let cosine = found.errors.cosine;
    assert_eq!((by(cosine), by(cosine + 1e-9)), (Verdict::Pass, Verdict::Fail));
}

#[test]
fn of_no_verdicts_nothing_is_concluded_and_a_failure_outweighs_doubt() {
    assert_eq!(Verdict::over([]), Verdict::Inconclusive);
    assert_eq!(Verdict::over([Verdict::Pass, Verdict::Tie]), Verdict::Pass);
    assert_eq!(Verdict::over([Verdict::Pass, Verdict::Inconclusive]), Verdict::Inconclusive);
    assert_eq!(Verdict::over([Verdict::Inconclusive, Verdict::Fail]), Verdict::Fail);
}

/// The figures by their formulas, element by element.
fn plainly(candidate: &[f64], reference: &[f64], width: usize, kept: impl Fn(usize) -> bool) -> Measurement {
    plainly_past(candidate, reference, width, ValuePrecision::F32, kept)
}

fn plainly_past(
    candidate: &[f64],
    reference: &[f64],
    width: usize,
    precision: ValuePrecision,
    kept: impl Fn(usize) -> bool,
) -> Measurement {
    let all: Vec<usize> = (0..reference.len()).filter(|&flat| kept(flat)).collect();
    let (c, r) = (|flat: usize| candidate[flat], |flat: usize| reference[flat]);
    let sum = |of: &dyn Fn(usize) -> f64| all.iter().map(|&flat| of(flat)).sum::<f64>();
    let slack = |flat: usize| precision.slack([c(flat), r(flat)], [1.0; 2]);
    let error = |flat: usize| ((c(flat) - r(flat)).abs() - slack(flat)).max(0.0);
    let squares: Vec<f64> = (0..reference.len() / width)
        .map(|row| {
            let kept = (row * width..(row + 1) * width).filter(|&flat| kept(flat));
            let (count, sum) =
                kept.fold((0.0, 0.0), |(count, sum), flat| (count + 1.0, sum + r(flat) * r(flat)));
            sum / count
        })
        .collect();
    let largest = |of: &dyn Fn(usize) -> f64| all.iter().map(|&flat| of(flat)).fold(0.0, f64::max);
    let max_abs = largest(&error);
    let first = *all.iter().find(|&&flat| error(flat) == max_abs).expect("there are some");
    let (cc, rr) = (sum(&|flat| c(flat) * c(flat)), sum(&|flat| r(flat) * r(flat)));
    let count = all.len() as f64;
    let errors = Errors {
        max_abs,
        mean_abs: sum(&error) / count,
        cosine: sum(&|flat| c(flat) * r(flat)) / (cc * rr).sqrt(),
        rel_l2: (sum(&|flat| error(flat).powi(2)) / rr).sqrt(),
        max_rel_rms: max_abs / (rr / count).sqrt(),
        max_scaled: largest(&|flat| error(flat) / (r(flat) * r(flat) + squares[flat / width]).sqrt()),
        past_neighbour: largest(&|flat| {
            if error(flat) <= precision.step(r(flat)) { 0.0 } else { error(flat) }
        }),
    };
    let index = vec![first / width, first % width];
    let mut spread = ErrorMap::new(&[reference.len() / width, width]);
    all.iter().for_each(|&flat| spread.add(flat, error(flat)));
    Measurement {
        errors,
        elements: all.len(),
        identical: all.iter().filter(|&&flat| c(flat).to_bits() == r(flat).to_bits()).count(),
        nonfinite: NonfiniteCounts::default(),
        candidate_all_zero: cc == 0.0,
        reference_all_zero: rr == 0.0,
        agreement: None,
        tops: None,
        worst: Some(WorstElement { index, candidate: c(first), reference: r(first) }),
        spread: (max_abs > 0.0).then(|| Box::new(spread)),
    }
}

fn is_as_plainly(found: &Measurement, plain: &Measurement) {
    let (one, other) = (found.errors, plain.errors);
    assert_eq!((one.max_abs, one.past_neighbour), (other.max_abs, other.past_neighbour));
    let figures = |errors: Errors| {
        [errors.mean_abs, errors.cosine, errors.rel_l2, errors.max_rel_rms, errors.max_scaled]
    };
    for (one, other) in figures(one).into_iter().zip(figures(other)) {
        approx::assert_relative_eq!(one, other, max_relative = 1e-12);
    }
    let map = |found: &Measurement| found.spread.as_ref().map(|spread| spread.largest.clone());
    assert_eq!(map(found), map(plain));
    let rest = |found: &Measurement| Measurement { errors: plain.errors, spread: None, ..found.clone() };
    assert_eq!(rest(found), rest(plain));
}

/// Numbers without a pattern between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn figures_added_up_in_lanes_are_those_of_the_formulas_whatever_the_width() {
    for (width, rows) in [(1, 40), (7, 33), (64, 70), (1024, 3), (1025, 4), (5000, 2)] {
        let reference = numbers(width * rows, 1);
        let mut candidate = reference.clone();
        // Most chunks differ, some are the same bits.
        for (flat, noise) in numbers(width * rows, 2).into_iter().enumerate() {
            candidate[flat] += if flat / 300 % 3 == 0 { 0.0 } else { noise * 1e-6 };
        }
        candidate[width * rows / 2] += 1e-3;
        let view = |data| View::of(&[rows, width], data);
        let all = measure(view(&candidate), view(&reference), ValuePrecision::F32, |_| ColumnSelection::All);
        is_as_plainly(&all, &plainly(&candidate, &reference, width, |_| true));
        if width > 4 {
            let some = |row: usize| ColumnSelection::Range(row % 3..width - 1);
            let kept = |flat: usize| (flat / width % 3..width - 1).contains(&(flat % width));
            let part = measure(view(&candidate), view(&reference), ValuePrecision::F32, some);
            is_as_plainly(&part, &plainly(&candidate, &reference, width, kept));
            let odd = |_| ColumnSelection::These((0..width).filter(|column| column % 2 == 1).collect());
            let scattered = measure(view(&candidate), view(&reference), ValuePrecision::F32, odd);
            is_as_plainly(&scattered, &plainly(&candidate, &reference, width, |flat| flat % width % 2 == 1));
        }
    }
}

/// Numbers as a file holds them, and what they are then.
fn stored(dtype: DType, shape: &[usize], numbers: &[f64]) -> (View<'static>, Vec<f64>) {
    let one = |x: f64| match dtype {
        DType::F64 => (x.to_le_bytes().to_vec(), x),
        DType::F32 => ((x as f32).to_le_bytes().to_vec(), (x as f32).into()),
        DType::F16 => (f16::from_f64(x).to_le_bytes().to_vec(), f16::from_f64(x).to_f64()),
        _ => (bf16::from_f64(x).to_le_bytes().to_vec(), bf16::from_f64(x).to_f64()),
    };
    let (bytes, values): (Vec<_>, Vec<_>) = numbers.iter().map(|&x| one(x)).unzip();
    let view = View::stored(shape, dtype, Bytes::from(bytes.concat())).expect("as many as the shape has");
    (view, values)
}

#[test]
fn figures_are_those_of_the_formulas_in_whatever_types_both_sides_are_stored() {
    let types = [DType::F64, DType::F32, DType::F16, DType::BF16];
    for (one, other) in types.into_iter().flat_map(|one| types.map(|other| (one, other))) {
        for (width, rows) in [(7, 33), (64, 12), (1030, 2)] {
            let noise = numbers(width * rows, 2).into_iter().map(|noise| noise * 1e-3);
            let own = numbers(width * rows, 1);
            let (reference, of_reference) = stored(other, &[rows, width], &own);
            let noisy: Vec<f64> = own.iter().zip(noise).map(|(x, noise)| x + noise).collect();
            let (candidate, of_candidate) = stored(one, &[rows, width], &noisy);
            let coarser =
                ValuePrecision { candidate: Some(one), reference: Some(other), ..ValuePrecision::F32 };
            for precision in [ValuePrecision::F32, coarser] {
                let found =
                    measure(candidate.clone(), reference.clone(), precision, |_| ColumnSelection::All);
                is_as_plainly(
                    &found,
                    &plainly_past(&of_candidate, &of_reference, width, precision, |_| true),
                );
            }
        }
    }
}

#[test]
fn zeros_of_another_sign_are_not_identical_in_whatever_type_they_are_stored() {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let (plus, _) = stored(dtype, &[9], &[1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0, 0.0]);
        let (minus, _) = stored(dtype, &[9], &[1.0, -0.0, 2.0, 0.0, 3.0, 0.0, 4.0, 0.0, -0.0]);
        let found = measure(plus, minus, ValuePrecision::F32, |_| ColumnSelection::All);
        assert_eq!((found.identical, found.errors.max_abs), (7, 0.0), "{dtype:?}");
    }
}

#[test]
fn what_is_too_small_or_too_large_for_squares_has_its_figures_too() {
    for scale in [1e-170, 1e-80, 1e80, 1e170] {
        let reference: Vec<f64> = numbers(100, 1).iter().map(|x| x * scale).collect();
        let candidate: Vec<f64> = reference.iter().map(|x| x * 1.5).collect();
        let found = compare(&candidate, &reference);
        let largest = reference.iter().fold(0.0, |most: f64, x| most.max((x * 0.5).abs()));
        approx::assert_relative_eq!(found.errors.max_abs, largest, max_relative = 1e-12);
        approx::assert_relative_eq!(
            found.errors.mean_abs * 100.0,
            reference.iter().map(|x| x.abs() * 0.5).sum::<f64>(),
            max_relative = 1e-12
        );
    }
}

#[test]
fn one_nan_among_many_numbers_is_found_and_counted() {
    let reference = numbers(1 << 20, 1);
    let mut candidate = reference.clone();
    candidate[777_777] = f64::NAN;
    candidate[888_888] = f64::INFINITY;
    let view = |data| View::of(&[1 << 10, 1 << 10], data);
    let found = measure(view(&candidate), view(&reference), ValuePrecision::F32, |_| ColumnSelection::All);
    assert!(found.errors.max_abs.is_nan() && found.errors.mean_abs.is_nan());
    assert_eq!(found.worst.expect("named").index, [777_777 >> 10, 777_777 & 1023]);
    let counted = NonfiniteCounts { candidate: 2, reference: 0, shared: 0 };
    assert_eq!((found.nonfinite, found.identical), (counted, (1 << 20) - 2));
}
