//! The figures of a measurement in `report.json`.

use serde::{Deserialize, Serialize};

use crate::measure::{
    Agreement, Errors, Measurement, NonfiniteCounts, PositionAgreement, Tops, WorstElement,
};
use crate::report::schema::form::{JsonForm, JsonNumber, forms};

/// The results of one comparison.
#[derive(Serialize, Deserialize)]
pub(crate) struct MeasurementRow {
    #[serde(flatten)]
    figures: ErrorFigures,
    elements: usize,
    identical: usize,
    nonfinite: NonfiniteRow,
    zero: ZeroRow,
    #[serde(flatten)]
    element: ElementRow,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agreement: Option<AgreementRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tops: Option<TopsRow>,
}

impl JsonForm for MeasurementRow {
    type Value = Measurement;

    fn of(found: Measurement) -> Self {
        Self {
            element: ElementRow::new(Some(&found)),
            figures: JsonForm::of(found.errors),
            elements: found.elements,
            identical: found.identical,
            nonfinite: JsonForm::of(found.nonfinite),
            zero: ZeroRow { candidate: found.candidate_all_zero, reference: found.reference_all_zero },
            agreement: JsonForm::of(found.agreement),
            tops: JsonForm::of(found.tops.map(|tops| *tops)),
        }
    }

    fn value(self) -> Measurement {
        Measurement {
            errors: self.figures.value(),
            elements: self.elements,
            identical: self.identical,
            nonfinite: self.nonfinite.value(),
            candidate_all_zero: self.zero.candidate,
            reference_all_zero: self.zero.reference,
            worst: self.element.worst(),
            spread: None,
            agreement: self.agreement.value(),
            tops: self.tops.value().map(Box::new),
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

impl JsonForm for AgreementRow {
    type Value = Agreement;

    fn of(agreement: Agreement) -> Self {
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

    fn value(self) -> Agreement {
        let number = |list: &[JsonNumber], at: usize| list.get(at).map_or(f64::NAN, |number| number.0);
        let told = |list: &[Option<bool>], at: usize| list.get(at).copied().flatten();
        let place = |(at, &row)| PositionAgreement {
            row,
            delta: number(&self.max_delta, at),
            divergence: number(&self.kl, at),
            covered: number(&self.covered, at),
            same_top: told(&self.top, at),
            is_over: told(&self.over, at),
        };
        Agreement { places: self.rows.iter().enumerate().map(place).collect() }
    }
}

#[derive(Serialize, Deserialize)]
struct LikelyRow {
    token: u32,
    probability: JsonNumber,
}

impl JsonForm for LikelyRow {
    type Value = (u32, f64);

    fn of((token, probability): (u32, f64)) -> Self {
        Self { token, probability: JsonNumber(probability) }
    }

    fn value(self) -> (u32, f64) {
        (self.token, self.probability.0)
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

forms! {
    /// Top tokens of both sides.
    TopsRow of Tops {
        #[serde(rename = "kl")]
        divergence: JsonNumber,
        candidate: Vec<LikelyRow>,
        reference: Vec<LikelyRow>,
    }

    /// Number of NaN or infinite values.
    NonfiniteRow of NonfiniteCounts {
        candidate: usize,
        reference: usize,
        shared: usize,
    }

    /// Error figures, flattened into the fields of a row.
    ErrorFigures of Errors {
        max_abs: JsonNumber,
        mean_abs: JsonNumber,
        cosine: JsonNumber,
        rel_l2: JsonNumber,
        max_rel_rms: JsonNumber,
        max_scaled: JsonNumber,
        past_neighbour: JsonNumber,
    }
}
