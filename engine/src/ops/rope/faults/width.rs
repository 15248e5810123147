//! Faults in the part of a head that rotates, in the syntax of `--suppose rope_width`: a number of first values
//! (`32`) or last values (`last:32`), or first values with the frequencies of the whole head (`32:whole`).

use crate::change::{ChangeValue, SiteContext};
use crate::numerics::Numerics;
use crate::ops::rope::exact::Rotary;
use crate::ops::rope::faults::by_factors;
use crate::ops::rope::{Rope, RopeScaling};
use crate::tensor::Tensor;

/// Part of a head that rotates.
struct RotatedPart {
    width: usize,
    is_last: bool,
    /// True if pair `i` has the same frequency as when the whole head rotates.
    has_whole_frequencies: bool,
}

impl RotatedPart {
    fn of(value: &ChangeValue) -> Option<Self> {
        let text = value.to_string();
        let (text, has_whole_frequencies) =
            text.strip_suffix(":whole").map_or((text.as_str(), false), |text| (text, true));
        let (text, is_last) = text.strip_prefix("last:").map_or((text, false), |text| (text, true));
        let width = text.parse().ok().filter(|width: &usize| *width >= 2 && width.is_multiple_of(2))?;
        Some(Self { width, is_last, has_whole_frequencies })
    }

    fn rope(&self, rope: &Rope) -> Option<Rope> {
        let width = self.width;
        if self.has_whole_frequencies {
            let plain = Rope { scaling: RopeScaling::None, width, ..rope.clone() };
            let factor = |pair| (plain.exact_frequency(pair) / rope.exact_frequency(pair)) as f32;
            let factors = (width <= rope.width).then(|| (0..width / 2).map(factor).collect())?;
            return Some(Rope { width, scaling: by_factors(rope, factors), ..rope.clone() });
        }
        let first = |factors: &[f32]| factors.get(..width / 2).map(<[f32]>::to_vec);
        let scaling = match &rope.scaling {
            RopeScaling::Factors(factors) => RopeScaling::Factors(first(factors)?),
            RopeScaling::Stretched { factors, magnitude } => {
                RopeScaling::Stretched { factors: first(factors)?, magnitude: *magnitude }
            }
            other => other.clone(),
        };
        Some(Rope { width, scaling, ..rope.clone() })
    }
}

/// Rotates another part of each head; the other values stay unchanged.
pub(super) fn changed(at: &SiteContext, value: &ChangeValue) -> Option<Tensor> {
    let Rotary { x, rope, positions } = at.stage()?;
    let (part, head_dim) = (RotatedPart::of(value)?, x.shape()[2]);
    let rope = (part.width <= head_dim).then(|| part.rope(rope))??;
    let table = at.n.rope_table(&rope, positions.clone());
    if !part.is_last {
        return Some(at.n.rotate(x, &table));
    }
    // The last values are moved to the front for the rotation, and back.
    let turned = |x: &Tensor, by: usize| {
        at.n.gathered(&[x], x.shape(), |flat| (0, flat / head_dim * head_dim + (flat + by) % head_dim))
    };
    let rest = head_dim - part.width;
    (rest > 0).then(|| turned(&at.n.rotate(&turned(x, rest), &table), head_dim - rest))
}

/// Returns the parts to try: the whole head, a half, a quarter and three quarters, at either end.
pub(super) fn usual(at: &SiteContext) -> Vec<ChangeValue> {
    let Some(Rotary { x, rope, .. }) = at.stage() else { return Vec::new() };
    let (head_dim, width) = (x.shape()[2], rope.width);
    let numbers = [head_dim, width / 2, width / 4, width / 4 * 3];
    let of =
        |form: fn(usize) -> String| numbers[1..].iter().map(move |&width| ChangeValue::Word(form(width)));
    numbers
        .map(|width| ChangeValue::Number(width as f64))
        .into_iter()
        .chain(of(|width| format!("{width}:whole")))
        .chain(of(|width| format!("last:{width}")))
        .chain(of(|width| format!("last:{width}:whole")))
        .collect()
}
