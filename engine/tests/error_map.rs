//! Where errors are and of what size, held to the definition.

use proptest::prelude::*;
use xcheck_engine::error_map::{ErrorMagnitude, ErrorMap};

/// Cell by cell, value by value.
fn plainly(shape: &[usize], errors: &[f64]) -> Vec<ErrorMagnitude> {
    let lengths = match shape {
        [only] => [1, *only],
        [outer, next, ..] => [*outer, *next],
        [] => [1, 1],
    };
    let inner = errors.len() / (lengths[0] * lengths[1]);
    let cells = lengths.map(|length| length.min(24));
    let mut map = vec![ErrorMagnitude::NONE; cells[0] * cells[1]];
    for (flat, &error) in errors.iter().enumerate() {
        let [row, column] = [flat / inner / lengths[1], flat / inner % lengths[1]];
        let cell = row * cells[0] / lengths[0] * cells[1] + column * cells[1] / lengths[1];
        map[cell] = map[cell].max(ErrorMagnitude::of(error));
    }
    map
}

/// In pieces, each with a bound of its own.
fn add_run(spread: &mut ErrorMap, first: usize, errors: &[f64]) {
    let larger = |a: f64, b: f64| if b.is_nan() || b > a { b } else { a };
    for (piece, errors) in errors.chunks(7).enumerate() {
        let largest = |part: std::ops::Range<usize>| errors[part].iter().copied().fold(0.0, larger);
        let start = first + 7 * piece;
        spread.add_run(start..start + errors.len(), largest(0..errors.len()), |at| errors[at], largest);
    }
}

fn array() -> impl Strategy<Value = (Vec<usize>, Vec<f64>)> {
    let shape = prop::collection::vec(1usize..60, 0..4);
    let error = prop_oneof![4 => Just(0.0), 4 => 0.0..1e6f64, 1 => 0.0..1e-9f64, 1 => Just(f64::NAN)];
    (shape, prop::collection::vec(error, 1..50)).prop_map(|(shape, errors)| {
        let count = shape.iter().product();
        (shape, errors.into_iter().cycle().take(count).collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn runs_and_parts_come_to_what_values_come_to((shape, errors) in array(), cut in 0.0..1.0f64) {
        let cut = (cut * errors.len() as f64) as usize;
        let mut whole = ErrorMap::new(&shape);
        add_run(&mut whole, 0, &errors);
        let mut parts = [ErrorMap::new(&shape), ErrorMap::new(&shape)];
        errors[..cut].iter().enumerate().for_each(|(flat, &error)| parts[0].add(flat, error));
        add_run(&mut parts[1], cut, &errors[cut..]);
        let [one, other] = parts;
        let joined = one.followed_by(&other);
        prop_assert_eq!(&whole.largest, &plainly(&shape, &errors));
        prop_assert_eq!(&joined.largest, &whole.largest);
        if errors.len() <= 1 << 16 {
            prop_assert_eq!(joined.counts().collect::<Vec<_>>(), whole.counts().collect::<Vec<_>>());
        }
        prop_assert_eq!(whole.counts().map(|(_, count)| count).sum::<u64>(), errors.len() as u64);
        let nonfinite = errors.iter().filter(|error| !error.is_finite()).count() as u64;
        prop_assert_eq!(whole.counts().find(|(size, _)| *size == ErrorMagnitude::NONFINITE).map_or(0, |found| found.1), nonfinite);
        let counts: Vec<_> = whole.counts().collect();
        let again = ErrorMap::from_parts([0, 1], whole.lengths, whole.largest.clone(), &counts, whole.counted());
        prop_assert_eq!(again.as_ref().map(ErrorMap::counted), Some(whole.counted()));
        prop_assert_eq!(again.map(|again| again.largest), Some(whole.largest));
    }
}

proptest! {
    /// Entries of the innermost axis that are wrong everywhere, in runs that end anywhere.
    #[test]
    fn runs_of_any_length_come_to_the_same_map_over_the_innermost_axis(
        [outer, next, inner] in [1usize..30, 2usize..9, 2usize..200],
        wrong in prop::collection::vec((0.0..1.0f64, 1.0..1e6f64), 1..3),
        length in 1usize..400,
    ) {
        let wrong: Vec<(usize, f64)> =
            wrong.into_iter().map(|(at, error)| ((at * inner as f64) as usize, error)).collect();
        let error = |flat: usize| wrong.iter().find(|(at, _)| *at == flat % inner).map_or(0.0, |found| found.1);
        let errors: Vec<f64> = (0..outer * next * inner).map(error).collect();
        let mut spread = ErrorMap::with_innermost(&[outer, next, inner]);
        for (piece, errors) in errors.chunks(length).enumerate() {
            let largest = |part: std::ops::Range<usize>| errors[part].iter().copied().fold(0.0, f64::max);
            let run = piece * length..piece * length + errors.len();
            spread.add_run(run.clone(), largest(0..errors.len()), |at| errors[at], largest);
            spread.meet_innermost(run, errors, largest(0..errors.len()));
        }
        let spread = spread.settled();
        let [rows, columns] = spread.cells();
        let mut expected = vec![ErrorMagnitude::NONE; rows * columns];
        for (flat, &error) in errors.iter().enumerate() {
            let cell = flat / inner / next * rows / outer * columns + flat % inner * columns / inner;
            expected[cell] = expected[cell].max(ErrorMagnitude::of(error));
        }
        let has_right_columns = (0..inner).map(|at| at * columns / inner).any(|column| {
            wrong.iter().all(|(at, _)| at * columns / inner != column)
        });
        prop_assert_eq!(spread.axes, if has_right_columns { [0, 2] } else { [0, 1] });
        if has_right_columns {
            prop_assert_eq!(spread.largest, expected);
        }
    }
}

#[test]
fn a_size_is_the_power_of_two_below() {
    let exponents = |error: f64| ErrorMagnitude::of(error).exponent();
    assert_eq!([1.0, 1.99, 2.0, 0.75].map(exponents), [Some(0), Some(0), Some(1), Some(-1)]);
    assert_eq!([1e-300, 1e300].map(exponents), [Some(ErrorMagnitude::LEAST), Some(ErrorMagnitude::MOST)]);
    assert_eq!(ErrorMagnitude::of(0.0), ErrorMagnitude::NONE);
    assert!(
        ErrorMagnitude::of(f64::NAN) > ErrorMagnitude::of(1e300)
            && ErrorMagnitude::of(f64::INFINITY) == ErrorMagnitude::NONFINITE
    );
    assert_eq!(
        ErrorMagnitude::all().filter_map(|size| ErrorMagnitude::of_exponent(size.exponent()?)).count(),
        64
    );
}

#[test]
fn a_map_that_does_not_fit_its_lengths_is_none() {
    assert!(ErrorMap::from_parts([0, 1], [3, 40], vec![ErrorMagnitude::NONE; 3 * 24], &[], 1).is_some());
    assert!(ErrorMap::from_parts([0, 1], [3, 40], vec![ErrorMagnitude::NONE; 3 * 40], &[], 1).is_none());
    assert!(ErrorMap::from_parts([0, 1], [usize::MAX, usize::MAX], Vec::new(), &[], 1).is_none());
    assert!(ErrorMap::from_parts([0, 1], [3, 40], vec![ErrorMagnitude::NONE; 3 * 24], &[], 0).is_none());
}

#[test]
fn what_is_counted_of_a_large_array_stands_for_what_is_not() {
    let mut errors = vec![0.5; 1 << 17];
    errors[1000..1005].fill(f64::NAN);
    let mut spread = ErrorMap::new(&[1 << 7, 1 << 10]);
    spread.add_identical(1 << 16);
    add_run(&mut spread, 1 << 16, &errors[1 << 16..]);
    let count = |spread: &ErrorMap, wanted| {
        spread.counts().find(|(size, _)| *size == wanted).map_or(0, |found| found.1)
    };
    assert_eq!(spread.counted(), 127);
    assert_eq!(
        [ErrorMagnitude::NONE, ErrorMagnitude::of(0.5)].map(|size| count(&spread, size)),
        [1 << 16, 1 << 16]
    );
    let mut each = ErrorMap::new(&[1 << 7, 1 << 10]);
    add_run(&mut each, 0, &errors);
    assert_eq!(count(&each, ErrorMagnitude::NONFINITE), 5, "none is left out, whichever are counted");
    let mut alone = ErrorMap::new(&[1 << 7, 1 << 10]);
    alone.add(17, 0.5);
    assert_eq!(alone.counted(), 1, "each that is added by itself is counted");
}

/// Two wrong entries of each head are two columns over the innermost axis, and everything over the two outermost.
#[test]
fn a_map_is_over_the_axes_that_hide_least() {
    let shape = [9, 4, 32];
    let error = |flat: usize| if [1, 9].contains(&(flat % 32)) { 1e3 } else { 0.25 };
    let errors: Vec<f64> = (0..9 * 4 * 32).map(error).collect();
    let settled = |errors: &[f64]| {
        let mut spread = ErrorMap::with_innermost(&shape);
        for (row, errors) in errors.chunks(128).enumerate() {
            let largest = |part: std::ops::Range<usize>| errors[part].iter().copied().fold(0.0, f64::max);
            let run = 128 * row..128 * row + 128;
            spread.add_run(run.clone(), largest(0..128), |at| errors[at], largest);
            spread.meet_innermost(run, errors, largest(0..128));
        }
        spread.settled()
    };
    let stripes = settled(&errors);
    assert_eq!((stripes.axes, stripes.lengths, stripes.cells()), ([0, 2], [9, 32], [9, 32]));
    let large = |column: usize| {
        stripes.largest.iter().skip(column).step_by(32).all(|size| *size >= ErrorMagnitude::of(1.0))
    };
    assert_eq!((0..32).filter(|&column| large(column)).collect::<Vec<_>>(), [1, 9]);
    let heads: Vec<f64> = (0..9 * 4 * 32).map(|flat| if flat / 32 % 4 == 2 { 1e3 } else { 0.25 }).collect();
    let of_a_head = settled(&heads);
    assert_eq!((of_a_head.axes, of_a_head.lengths), ([0, 1], [9, 4]));
}
