//! An [`ErrorMap`] in `report.json`: one letter per cell, one count per error size.

use serde::{Deserialize, Serialize};

use crate::error_map::{ErrorMagnitude, ErrorMap};

/// Letters for the error sizes of a map: no error, each power of two from the smallest to the largest, not
/// finite.
const LETTERS: &[u8; 66] = b".ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-!";

/// Positions of errors, and the number of errors by size.
#[derive(Serialize, Deserialize)]
pub(crate) struct ErrorMapRow {
    /// Axes of the map, if they are not the two outermost.
    #[serde(default = "outermost", skip_serializing_if = "are_outermost")]
    axes: [usize; 2],
    lengths: [usize; 2],
    cells: [usize; 2],
    largest: String,
    /// Exponent of the power of two of the first count.
    least: i16,
    counts: Vec<u64>,
    zero: u64,
    nonfinite: u64,
    /// Sampling step: one of this many values was counted.
    step: usize,
}

fn outermost() -> [usize; 2] {
    [0, 1]
}

fn are_outermost(axes: &[usize; 2]) -> bool {
    *axes == outermost()
}

impl ErrorMapRow {
    /// Makes the row of an error map; `None` if there is no error.
    pub(crate) fn new(spread: &ErrorMap) -> Option<Self> {
        let letter =
            |size: ErrorMagnitude| ErrorMagnitude::all().zip(LETTERS).find(|(known, _)| *known == size);
        let letters =
            spread.largest.iter().filter_map(|&size| letter(size)).map(|(_, &letter)| letter as char);
        let count_of =
            |wanted| spread.counts().find(|(size, _)| *size == wanted).map_or(0, |(_, count)| count);
        let met: Vec<i16> = spread.counts().filter_map(|(size, _)| size.exponent()).collect();
        let (least, most) = (met.first().copied().unwrap_or(0), met.last().copied().unwrap_or(-1));
        spread.has_errors().then(|| Self {
            axes: spread.axes,
            lengths: spread.lengths,
            cells: spread.cells(),
            largest: letters.collect(),
            least,
            counts: (least..=most).filter_map(ErrorMagnitude::of_exponent).map(count_of).collect(),
            zero: count_of(ErrorMagnitude::NONE),
            nonfinite: count_of(ErrorMagnitude::NONFINITE),
            step: spread.counted(),
        })
    }

    /// Returns the error map; `None` if the fields are inconsistent.
    pub(crate) fn read(self) -> Option<ErrorMap> {
        let size = |letter: u8| ErrorMagnitude::all().zip(LETTERS).find(|(_, known)| **known == letter);
        let largest = self.largest.bytes().map(|letter| Some(size(letter)?.0)).collect::<Option<_>>()?;
        let exponents = (0..).map(|at| ErrorMagnitude::of_exponent(self.least.checked_add(at)?));
        let sizes = exponents.zip(self.counts).map(|(size, count)| Some((size?, count)));
        let ends =
            [Some((ErrorMagnitude::NONE, self.zero)), Some((ErrorMagnitude::NONFINITE, self.nonfinite))];
        let counts = sizes.chain(ends).collect::<Option<Vec<_>>>()?;
        ErrorMap::from_parts(self.axes, self.lengths, largest, &counts, self.step)
    }
}
