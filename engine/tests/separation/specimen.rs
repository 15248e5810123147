//! What an engine has made of an operation, and what is said of it.

use half::{bf16, f16};
use xcheck_engine::exact::{EngineErrors, OperationVerdict, Profile, ResultPair, judge};
use xcheck_engine::numerics::{F32, Numerics, Transformers};
use xcheck_engine::tensor::Tensor;
use xcheck_engine::tracing::TracedNumerics;
use xcheck_engine::view::View;

/// What results are rounded to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Store {
    F32,
    Bf16,
    F16,
}

impl Store {
    pub const SHORT: [Store; 2] = [Store::Bf16, Store::F16];

    pub fn round(self, x: f32) -> f32 {
        match self {
            Store::F32 => x,
            Store::Bf16 => bf16::from_f32(x).to_f32(),
            Store::F16 => f16::from_f32(x).to_f32(),
        }
    }

    pub fn rounded(self, x: &[f32]) -> Vec<f32> {
        x.iter().map(|&x| self.round(x)).collect()
    }

    fn numerics(self) -> &'static dyn Numerics {
        match self {
            Store::F32 => &F32,
            Store::Bf16 => &Transformers::Bf16,
            Store::F16 => &Transformers::F16,
        }
    }

    /// How the engine that is compared with rounds.
    pub fn profile(self) -> Profile {
        Profile::of(self.numerics())
    }

    /// The engine that is compared with: `f32`, or transformers.
    pub fn traced(self) -> TracedNumerics<'static> {
        self.traced_by(self.profile())
    }

    /// The same, judged by another declaration than its own.
    pub fn traced_by(self, profile: Profile) -> TracedNumerics<'static> {
        TracedNumerics::new(self.numerics(), profile).rounding_by(profile)
    }

    /// Declared to round its results and nothing on the way.
    pub fn traced_as_fused(self) -> TracedNumerics<'static> {
        let name = match self {
            Store::F32 => "f32",
            Store::Bf16 => "bf16-fused",
            Store::F16 => "f16-fused",
        };
        self.traced_by(Profile::named(name).expect("it ships"))
    }
}

/// A number rounded to the 11 bits that NVIDIA's matrix units keep of an `f32`.
pub fn to_tf32(x: f32) -> f32 {
    let half = 0xFFF + (x.to_bits() >> 13 & 1);
    f32::from_bits((x.to_bits() + half) & !0x1FFF)
}

/// The same numbers, `by` times as large, rounded to `f32`.
pub fn times(x: &[f32], by: f64) -> Vec<f32> {
    x.iter().map(|&x| (f64::from(x) * by) as f32).collect()
}

/// Two engines' results of one operation on the same inputs.
pub struct Specimen {
    pub name: String,
    /// How it was computed.
    pub traced: Tensor,
    /// What is judged.
    pub own: Vec<f32>,
    /// What an honest engine made.
    pub other: Vec<f32>,
}

impl Specimen {
    pub fn new(name: impl Into<String>, traced: Tensor, own: Vec<f32>) -> Self {
        let other = traced.data().to_vec();
        Self { name: name.into(), traced, own, other }
    }

    /// Beside another honest engine than the traced one.
    pub fn beside(self, other: Vec<f32>) -> Self {
        Self { other, ..self }
    }

    pub fn judged(&self) -> OperationVerdict {
        self.judged_beside(&doubles(&self.other))
    }

    fn judged_beside(&self, other: &[f64]) -> OperationVerdict {
        let (shape, own) = (self.traced.shape(), doubles(&self.own));
        let compared = ResultPair {
            traced: &self.traced,
            sides: [&View::of(shape, &own), &View::of(shape, other)],
            stored: None,
            is_double: false,
            sees: &|_| 0..usize::MAX,
        };
        judge(&compared, false).expect("one operation lies between")
    }

    /// Every one of its values, however many the other engine has made alike. (What differs nowhere is not evaluated: the
    /// other side is one that differs everywhere.)
    pub fn every_value(&self) -> EngineErrors {
        let other = vec![f64::NAN; self.own.len()];
        let judged = self.judged_beside(&other);
        assert_eq!(judged.evaluated, self.own.len(), "{}: all are evaluated", self.name);
        judged.dump
    }

    /// Rounding explains each value, and their mean. The number of values.
    pub fn assert_honest(&self) -> usize {
        let side = self.every_value();
        assert!(side.over == 0 && side.bound_ratio < 1.0, "{}: {}", self.name, told(&side));
        assert!(side.is_explained(), "{}: {}", self.name, told(&side));
        self.own.len()
    }

    /// Rounding does not explain it, and the engine beside is not the one that is blamed.
    pub fn assert_caught(&self) -> EngineErrors {
        let judged = self.judged();
        assert!(!judged.dump.is_explained(), "{}: {}", self.name, told(&judged.dump));
        assert!(judged.engine.is_explained(), "{}, beside: {}", self.name, told(&judged.engine));
        judged.dump
    }
}

/// For a person.
pub fn told(side: &EngineErrors) -> String {
    let bias = side.bias.map_or(0.0, |bias| bias.z);
    format!(
        "{} over, bound_ratio {:.3}, bias {bias:.1} sigma, worst {:?}",
        side.over, side.bound_ratio, side.worst
    )
}

fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}
