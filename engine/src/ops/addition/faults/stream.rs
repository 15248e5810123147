//! Faults of the residual stream in tensor parallelism: each device adds the residual, so the sum contains a
//! multiple of it.

use crate::change::{CatalogueEntry, CauseKind, ChangeValue, LeastSquares, SiteContext, plain_gain};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::addition::exact::Addition;
use crate::ops::scaling::Multiplier;
use crate::tensor::Tensor;

pub(crate) static ENTRIES: &[CatalogueEntry] = &[CatalogueEntry {
    kind: CauseKind::ResidualScale,
    at: &[Point::AttnResidual, Point::BlockOut],
    takes: "stream:2|stream:2,branch:2",
    compute: |at, value| {
        let [stream, branch] = factors(value.as_word()?)?;
        let Addition { a, b } = at.stage()?;
        let times = |x: &Tensor, by: f32| match by {
            1.0 => x.clone(),
            by => at.n.scale(x, Multiplier::Number(by)),
        };
        Some(at.n.add(&times(a, stream), &times(b, branch)))
    },
    read: read_factors,
    usual: Some(|at| match at.stage::<Addition>() {
        Some(_) => ["stream:2", "stream:4"].map(ChangeValue::word).into(),
        None => Vec::new(),
    }),
    ..CatalogueEntry::PLAIN
}];

/// Parses the factors of the stream and of the branch. A factor of 0 is a missing residual, which has its own entry.
fn factors(word: &str) -> Option<[f32; 2]> {
    let (stream, branch) = word.split_once(',').unwrap_or((word, "branch:1"));
    let stream = stream.strip_prefix("stream:")?.parse().ok()?;
    let branch = branch.trim().strip_prefix("branch:")?.parse().ok()?;
    let is_one = |factor: &f32| factor.is_finite() && *factor != 0.0;
    ([stream, branch].iter().all(is_one) && stream != 1.0).then_some([stream, branch])
}

/// Estimates both factors by least squares.
fn read_factors(at: &SiteContext, theirs: &[f64]) -> Vec<ChangeValue> {
    let Some(Addition { a, b }) = at.stage() else { return Vec::new() };
    let mut system = LeastSquares::new(2);
    for ((&a, &b), &theirs) in a.data().iter().zip(b.data()).zip(theirs) {
        system.add(&[a.into(), b.into()], theirs);
    }
    let plain = |factors: Vec<f64>| factors.into_iter().map(plain_gain).collect::<Option<Vec<f64>>>();
    match system.solution().and_then(plain).as_deref() {
        Some([stream, 1.0]) => vec![ChangeValue::Word(format!("stream:{stream}"))],
        Some([stream, branch]) => vec![ChangeValue::Word(format!("stream:{stream},branch:{branch}"))],
        _ => Vec::new(),
    }
}
