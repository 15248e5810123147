//! Serialisation of the figures of a measurement in `report.json`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::measure::{
    Agreement, Errors, Measurement, NonfiniteCounts, PositionAgreement, Tops, WorstElement,
};

/// The results of one comparison.
#[derive(Serialize, Deserialize)]
pub struct MeasurementRow {
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

impl From<&Measurement> for MeasurementRow {
    fn from(found: &Measurement) -> Self {
        Self {
            figures: ErrorFigures::from(found.errors),
            elements: found.elements,
            identical: found.identical,
            nonfinite: found.nonfinite.into(),
            zero: ZeroRow { candidate: found.candidate_all_zero, reference: found.reference_all_zero },
            element: ElementRow::new(Some(found)),
            agreement: found.agreement.as_ref().map(AgreementRow::from),
            tops: found.tops.as_deref().map(TopsRow::from),
        }
    }
}

impl From<MeasurementRow> for Measurement {
    fn from(row: MeasurementRow) -> Self {
        Self {
            errors: row.figures.into(),
            elements: row.elements,
            identical: row.identical,
            nonfinite: row.nonfinite.into(),
            candidate_all_zero: row.zero.candidate,
            reference_all_zero: row.zero.reference,
            worst: row.element.into(),
            spread: None,
            agreement: row.agreement.map(Agreement::from),
            tops: row.tops.map(|tops| Box::new(tops.into())),
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
    #[serde(alias = "beyond")]
    over: Vec<Option<bool>>,
}

impl From<&Agreement> for AgreementRow {
    fn from(agreement: &Agreement) -> Self {
        let Agreement { places } = agreement;
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
    fn from(found: AgreementRow) -> Self {
        let number = |list: &[JsonNumber], at: usize| list.get(at).map_or(f64::NAN, |number| number.0);
        let told = |list: &[Option<bool>], at: usize| list.get(at).copied().flatten();
        let place = |(at, &row)| PositionAgreement {
            row,
            delta: number(&found.max_delta, at),
            divergence: number(&found.kl, at),
            covered: number(&found.covered, at),
            same_top: told(&found.top, at),
            is_over: told(&found.over, at),
        };
        Self { places: found.rows.iter().enumerate().map(place).collect() }
    }
}

/// Top tokens of both sides.
#[derive(Serialize, Deserialize)]
struct TopsRow {
    kl: JsonNumber,
    candidate: Vec<LikelyRow>,
    reference: Vec<LikelyRow>,
}

#[derive(Serialize, Deserialize)]
struct LikelyRow {
    token: u32,
    probability: JsonNumber,
}

impl From<&Tops> for TopsRow {
    fn from(tops: &Tops) -> Self {
        let rows = |side: &[(u32, f64)]| {
            side.iter().map(|&(token, p)| LikelyRow { token, probability: JsonNumber(p) }).collect()
        };
        Self {
            kl: JsonNumber(tops.divergence),
            candidate: rows(&tops.candidate),
            reference: rows(&tops.reference),
        }
    }
}

impl From<TopsRow> for Tops {
    fn from(row: TopsRow) -> Self {
        let side =
            |rows: Vec<LikelyRow>| rows.into_iter().map(|row| (row.token, row.probability.0)).collect();
        Self { candidate: side(row.candidate), reference: side(row.reference), divergence: row.kl.0 }
    }
}

/// Number of NaN or infinite values.
#[derive(Serialize, Deserialize)]
struct NonfiniteRow {
    candidate: usize,
    reference: usize,
    shared: usize,
}

impl From<NonfiniteCounts> for NonfiniteRow {
    fn from(NonfiniteCounts { candidate, reference, shared }: NonfiniteCounts) -> Self {
        Self { candidate, reference, shared }
    }
}

impl From<NonfiniteRow> for NonfiniteCounts {
    fn from(NonfiniteRow { candidate, reference, shared }: NonfiniteRow) -> Self {
        Self { candidate, reference, shared }
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
pub struct ElementRow {
    worst_index: Option<Vec<usize>>,
    candidate: Option<JsonNumber>,
    reference: Option<JsonNumber>,
}

impl ElementRow {
    pub fn new(found: Option<&Measurement>) -> Self {
        let worst: Option<&WorstElement> = found.and_then(|found| found.worst.as_ref());
        Self {
            worst_index: worst.map(|worst| worst.index.clone()),
            candidate: worst.map(|worst| JsonNumber(worst.candidate)),
            reference: worst.map(|worst| JsonNumber(worst.reference)),
        }
    }
}

impl From<ElementRow> for Option<WorstElement> {
    fn from(row: ElementRow) -> Self {
        Some(WorstElement {
            index: row.worst_index?,
            candidate: row.candidate?.0,
            reference: row.reference?.0,
        })
    }
}

/// Error figures, flattened into the fields of a row.
#[derive(Serialize, Deserialize)]
pub struct ErrorFigures {
    max_abs: JsonNumber,
    mean_abs: JsonNumber,
    cosine: JsonNumber,
    rel_l2: JsonNumber,
    max_rel_rms: JsonNumber,
    max_scaled: JsonNumber,
    past_neighbour: JsonNumber,
}

impl From<Errors> for ErrorFigures {
    fn from(errors: Errors) -> Self {
        Self {
            max_abs: JsonNumber(errors.max_abs),
            mean_abs: JsonNumber(errors.mean_abs),
            cosine: JsonNumber(errors.cosine),
            rel_l2: JsonNumber(errors.rel_l2),
            max_rel_rms: JsonNumber(errors.max_rel_rms),
            max_scaled: JsonNumber(errors.max_scaled),
            past_neighbour: JsonNumber(errors.past_neighbour),
        }
    }
}

impl From<ErrorFigures> for Errors {
    fn from(row: ErrorFigures) -> Self {
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

/// A number in JSON. NaN and infinities become the strings "nan", "inf" and "-inf".
#[derive(Clone, Copy)]
pub struct JsonNumber(pub f64);

impl Serialize for JsonNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            number if number.is_nan() => serializer.serialize_str("nan"),
            f64::INFINITY => serializer.serialize_str("inf"),
            f64::NEG_INFINITY => serializer.serialize_str("-inf"),
            number => serializer.serialize_f64(number),
        }
    }
}

impl<'de> Deserialize<'de> for JsonNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum JsonValue {
            Finite(f64),
            Word(String),
        }
        match JsonValue::deserialize(deserializer)? {
            JsonValue::Finite(number) => Ok(Self(number)),
            JsonValue::Word(word) => match word.as_str() {
                "nan" => Ok(Self(f64::NAN)),
                "inf" => Ok(Self(f64::INFINITY)),
                "-inf" => Ok(Self(f64::NEG_INFINITY)),
                _ => Err(D::Error::custom(format!(
                    "invalid number '{word}', expected a number, nan, inf or \
                    -inf"
                ))),
            },
        }
    }
}
