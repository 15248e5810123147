//! What others ask of two results, each as its authors state it.

/// One result beside another, honest one.
pub struct Pair<'p> {
    pub own: &'p [f32],
    pub other: &'p [f32],
}

/// What a criterion asks depends on these.
#[derive(Clone, Copy)]
pub struct Kind {
    pub is_short: bool,
    /// ggml's bound for the operation.
    pub nmse: f64,
    /// Of `judge/tolerances.toml`, in `f32`.
    pub absolute: f64,
}

impl Pair<'_> {
    fn pairs(&self) -> impl Iterator<Item = (f64, f64)> {
        self.own.iter().zip(self.other).map(|(&a, &b)| (a.into(), b.into()))
    }

    fn sum(&self, f: impl Fn(f64, f64) -> f64) -> f64 {
        self.pairs().map(|(a, b)| f(a, b)).sum()
    }

    /// A habit: more than 0.99999.
    pub fn cosine(&self) -> bool {
        let size = (self.sum(|a, _| a * a) * self.sum(|_, b| b * b)).sqrt();
        self.sum(|a, b| a * b) / size > 0.99999
    }

    /// ggml's test-backend-ops: the mean square of errors over that of results.
    pub fn nmse(&self, kind: Kind) -> bool {
        self.sum(|a, b| (a - b).powi(2)) / self.sum(|_, b| b * b) <= kind.nmse
    }

    /// torch.testing.assert_close, with its defaults for a type.
    pub fn close(&self, kind: Kind) -> bool {
        let relative = if kind.is_short { 1.6e-2 } else { 1.3e-6 };
        self.pairs().all(|(a, b)| (a - b).abs() <= 1e-5 + relative * b.abs())
    }

    /// An absolute tolerance; in bf16 of the mean, too.
    pub fn absolute(&self, kind: Kind) -> bool {
        let (most, mean) = if kind.is_short { (1e-2, 1e-3) } else { (kind.absolute, kind.absolute) };
        let errors = self.sum(|a, b| (a - b).abs()) / self.own.len() as f64;
        errors <= mean && self.pairs().all(|(a, b)| (a - b).abs() <= most)
    }
}
