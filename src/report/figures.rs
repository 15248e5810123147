//! The figures of `report.json`: how a measurement is written down.

use serde::{Serialize, Serializer};

use crate::compare::{Errors, Measurement, Worst};

/// How many elements are NaN or infinite.
#[derive(Serialize)]
pub struct Nonfinite {
    candidate: usize,
    reference: usize,
}

impl From<Option<&Measurement>> for Nonfinite {
    fn from(found: Option<&Measurement>) -> Self {
        let counts = found.map(|found| found.nonfinite).unwrap_or_default();
        Self { candidate: counts.candidate, reference: counts.reference }
    }
}

/// The element that is furthest off.
#[derive(Serialize)]
pub struct Element<'r> {
    worst_index: Option<&'r [usize]>,
    candidate: Option<Number>,
    reference: Option<Number>,
}

impl<'r> Element<'r> {
    pub fn new(found: Option<&'r Measurement>) -> Self {
        let worst: Option<&Worst> = found.and_then(|found| found.worst.as_ref());
        Self {
            worst_index: worst.map(|worst| worst.index.as_slice()),
            candidate: worst.map(|worst| Number(worst.candidate)),
            reference: worst.map(|worst| Number(worst.reference)),
        }
    }
}

/// The error figures, each null where they were not measured: they stand among a row's other fields.
#[derive(Serialize)]
pub struct Figures {
    max_abs: Option<Number>,
    mean_abs: Option<Number>,
    cosine: Option<Number>,
    rel_l2: Option<Number>,
    max_rel_rms: Option<Number>,
    max_scaled: Option<Number>,
}

impl Figures {
    pub fn new(errors: Option<&Errors>) -> Self {
        let figure = |field: fn(&Errors) -> f64| errors.map(field).map(Number);
        Self {
            max_abs: figure(|errors| errors.max_abs),
            mean_abs: figure(|errors| errors.mean_abs),
            cosine: figure(|errors| errors.cosine),
            rel_l2: figure(|errors| errors.rel_l2),
            max_rel_rms: figure(|errors| errors.max_rel_rms),
            max_scaled: figure(|errors| errors.max_scaled),
        }
    }
}

/// A number; JSON has no NaN and no infinity, so these are the strings "nan", "inf" and "-inf".
pub struct Number(pub f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            number if number.is_nan() => serializer.serialize_str("nan"),
            f64::INFINITY => serializer.serialize_str("inf"),
            f64::NEG_INFINITY => serializer.serialize_str("-inf"),
            number => serializer.serialize_f64(number),
        }
    }
}
