//! The figures of a measurement in `report.json`.

use serde::{Deserialize, Serialize};

use crate::json_number::JsonNumber;
use crate::measure::{
    Agreement, Errors, Measurement, NonfiniteCounts, PositionAgreement, Tops, WorstElement,
};

/// The results of one comparison.
#[derive(Serialize, Deserialize)]
pub(crate) struct MeasurementRow {
    #[serde(flatten)]
    errors: Errors,
    elements: usize,
    identical: usize,
    nonfinite: NonfiniteCounts,
    zero: ZeroRow,
    #[serde(flatten)]
    element: ElementRow,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agreement: Option<AgreementRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tops: Option<Box<Tops>>,
}

impl From<&Measurement> for MeasurementRow {
    fn from(found: &Measurement) -> Self {
        Self {
            element: ElementRow::new(Some(found)),
            errors: found.errors,
            elements: found.elements,
            identical: found.identical,
            nonfinite: found.nonfinite,
            zero: ZeroRow { candidate: found.candidate_all_zero, reference: found.reference_all_zero },
            agreement: found.agreement.as_ref().map(AgreementRow::from),
            tops: found.tops.clone(),
        }
    }
}

impl From<MeasurementRow> for Measurement {
    fn from(row: MeasurementRow) -> Self {
        Self {
            errors: row.errors,
            elements: row.elements,
            identical: row.identical,
            nonfinite: row.nonfinite,
            candidate_all_zero: row.zero.candidate,
            reference_all_zero: row.zero.reference,
            worst: row.element.worst(),
            spread: None,
            agreement: row.agreement.map(Agreement::from),
            tops: row.tops,
        }
    }
}

/// Comparison of the predictions of both sides; each list has one entry per position.
#[derive(Serialize, Deserialize)]
struct AgreementRow {
    kl_mean: JsonNumber,
    kl_max: JsonNumber,
    same_top: Option<usize>,
    rows: Vec<usize>,
    max_delta: Vec<JsonNumber>,
    kl: Vec<JsonNumber>,
    covered: Vec<JsonNumber>,
    top: Vec<Option<bool>>,
    over: Vec<Option<bool>>,
}

impl From<&Agreement> for AgreementRow {
    fn from(agreement: &Agreement) -> Self {
        let places = &agreement.places;
        let numbers =
            |of: fn(&PositionAgreement) -> f64| places.iter().map(|place| JsonNumber(of(place))).collect();
        let [kl_mean, kl_max] = agreement.divergence().map(JsonNumber);
        Self {
            kl_mean,
            kl_max,
            same_top: agreement.same_top(),
            rows: places.iter().map(|place| place.row).collect(),
            max_delta: numbers(|place| place.delta),
            kl: numbers(|place| place.divergence),
            covered: numbers(|place| place.covered),
            top: places.iter().map(|place| place.same_top).collect(),
            over: places.iter().map(|place| place.is_over).collect(),
        }
    }
}

impl From<AgreementRow> for Agreement {
    fn from(lists: AgreementRow) -> Self {
        let number = |list: &[JsonNumber], at: usize| list.get(at).map_or(f64::NAN, |number| number.0);
        let told = |list: &[Option<bool>], at: usize| list.get(at).copied().flatten();
        let place = |(at, &row)| PositionAgreement {
            row,
            delta: number(&lists.max_delta, at),
            divergence: number(&lists.kl, at),
            covered: number(&lists.covered, at),
            same_top: told(&lists.top, at),
            is_over: told(&lists.over, at),
        };
        Self { places: lists.rows.iter().enumerate().map(place).collect() }
    }
}

/// True for each side whose compared values are all zero.
#[derive(Serialize, Deserialize)]
struct ZeroRow {
    candidate: bool,
    reference: bool,
}

/// The value with the largest error.
#[derive(Serialize, Deserialize)]
pub(crate) struct ElementRow {
    worst_index: Option<Vec<usize>>,
    candidate: Option<JsonNumber>,
    reference: Option<JsonNumber>,
}

impl ElementRow {
    pub(crate) fn new(found: Option<&Measurement>) -> Self {
        let worst: Option<&WorstElement> = found.and_then(|found| found.worst.as_ref());
        Self {
            worst_index: worst.map(|worst| worst.index.clone()),
            candidate: worst.map(|worst| JsonNumber(worst.candidate)),
            reference: worst.map(|worst| JsonNumber(worst.reference)),
        }
    }

    fn worst(self) -> Option<WorstElement> {
        Some(WorstElement {
            index: self.worst_index?,
            candidate: self.candidate?.0,
            reference: self.reference?.0,
        })
    }
}
