//! The figures of `report.json`: how a measurement is written down.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::compare::{Errors, Measurement, Nonfinite, Worst};

/// What one comparison found.
#[derive(Serialize, Deserialize)]
pub struct Figured {
    #[serde(flatten)]
    figures: Figures,
    elements: usize,
    identical: usize,
    nonfinite: NonfiniteRow,
    zero: Zero,
    #[serde(flatten)]
    element: Element,
}

impl From<&Measurement> for Figured {
    fn from(found: &Measurement) -> Self {
        Self {
            figures: Figures::from(found.errors),
            elements: found.elements,
            identical: found.identical,
            nonfinite: found.nonfinite.into(),
            zero: Zero { candidate: found.candidate_all_zero, reference: found.reference_all_zero },
            element: Element::new(Some(found)),
        }
    }
}

impl From<Figured> for Measurement {
    fn from(row: Figured) -> Self {
        Self {
            errors: row.figures.into(),
            elements: row.elements,
            identical: row.identical,
            nonfinite: row.nonfinite.into(),
            candidate_all_zero: row.zero.candidate,
            reference_all_zero: row.zero.reference,
            worst: row.element.into(),
            spread: None,
        }
    }
}

/// How many elements are NaN or infinite.
#[derive(Serialize, Deserialize)]
struct NonfiniteRow {
    candidate: usize,
    reference: usize,
    shared: usize,
}

impl From<Nonfinite> for NonfiniteRow {
    fn from(Nonfinite { candidate, reference, shared }: Nonfinite) -> Self {
        Self { candidate, reference, shared }
    }
}

impl From<NonfiniteRow> for Nonfinite {
    fn from(NonfiniteRow { candidate, reference, shared }: NonfiniteRow) -> Self {
        Self { candidate, reference, shared }
    }
}

/// Whether every compared element of a side is zero.
#[derive(Serialize, Deserialize)]
struct Zero {
    candidate: bool,
    reference: bool,
}

/// The element that is furthest off.
#[derive(Serialize, Deserialize)]
pub struct Element {
    worst_index: Option<Vec<usize>>,
    candidate: Option<Number>,
    reference: Option<Number>,
}

impl Element {
    pub fn new(found: Option<&Measurement>) -> Self {
        let worst: Option<&Worst> = found.and_then(|found| found.worst.as_ref());
        Self {
            worst_index: worst.map(|worst| worst.index.clone()),
            candidate: worst.map(|worst| Number(worst.candidate)),
            reference: worst.map(|worst| Number(worst.reference)),
        }
    }
}

impl From<Element> for Option<Worst> {
    fn from(row: Element) -> Self {
        Some(Worst { index: row.worst_index?, candidate: row.candidate?.0, reference: row.reference?.0 })
    }
}

/// The error figures: they stand among a row's other fields.
#[derive(Serialize, Deserialize)]
pub struct Figures {
    max_abs: Number,
    mean_abs: Number,
    cosine: Number,
    rel_l2: Number,
    max_rel_rms: Number,
    max_scaled: Number,
    past_neighbour: Number,
}

impl From<Errors> for Figures {
    fn from(errors: Errors) -> Self {
        Self {
            max_abs: Number(errors.max_abs),
            mean_abs: Number(errors.mean_abs),
            cosine: Number(errors.cosine),
            rel_l2: Number(errors.rel_l2),
            max_rel_rms: Number(errors.max_rel_rms),
            max_scaled: Number(errors.max_scaled),
            past_neighbour: Number(errors.past_neighbour),
        }
    }
}

impl From<Figures> for Errors {
    fn from(row: Figures) -> Self {
        Self {
            max_abs: row.max_abs.0,
            mean_abs: row.mean_abs.0,
            cosine: row.cosine.0,
            rel_l2: row.rel_l2.0,
            max_rel_rms: row.max_rel_rms.0,
            max_scaled: row.max_scaled.0,
            past_neighbour: row.past_neighbour.0,
        }
    }
}

/// A number; JSON has no NaN and no infinity, so these are the strings "nan", "inf" and "-inf".
#[derive(Clone, Copy)]
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

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Finite(f64),
            Word(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Finite(number) => Ok(Self(number)),
            Written::Word(word) => match word.as_str() {
                "nan" => Ok(Self(f64::NAN)),
                "inf" => Ok(Self(f64::INFINITY)),
                "-inf" => Ok(Self(f64::NEG_INFINITY)),
                _ => Err(D::Error::custom(format!("'{word}' is no number, nor nan, inf or -inf"))),
            },
        }
    }
}
