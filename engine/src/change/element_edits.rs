//! Edits of single elements of a weight: their notation in a change's value, and the numbers that users would type.

use crate::change::rounded_to;

/// Maximum number of wrong elements. A larger number has another cause.
pub(crate) const MOST_ELEMENTS: usize = 4;

/// Parses `5=0.25,77=1`.
pub(crate) fn element_numbers(word: &str) -> Option<Vec<(usize, f32)>> {
    let one = |part: &str| {
        let (at, number) = part.split_once('=')?;
        Some((at.parse().ok()?, number.parse().ok().filter(|number: &f32| number.is_finite())?))
    };
    word.split(',').map(one).collect()
}

/// Returns the number with the fewest digits within `off` of `read`.
pub(crate) fn plainest(read: f64, off: f64) -> f32 {
    let mut rounded = (1..6).map(|digits| rounded_to(digits, read));
    rounded.find(|rounded| (rounded - read).abs() <= off).unwrap_or(read) as f32
}
