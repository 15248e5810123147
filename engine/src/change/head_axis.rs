//! The heads of a value: a separate axis, or parts of a row.

use crate::change::SiteContext;
use crate::checkpoint::TapAxis;
use crate::ops::attention::exact::AttentionContext;

/// The heads of a value.
pub struct HeadAxis {
    /// Number of heads.
    pub heads: usize,
    /// Number of consecutive values of one head.
    inner: usize,
}

impl HeadAxis {
    /// Returns the heads of the value at a site; `None` if it has none.
    pub fn of(at: &SiteContext) -> Option<Self> {
        let (shape, axes) = (at.value.shape(), at.site.point.axes());
        if let Some(axis) = axes.iter().position(|axis| is_of_heads(*axis)) {
            let inner = shape.get(axis + 1..)?.iter().product();
            return Some(Self { heads: shape[axis], inner });
        }
        let AttentionContext { weights, .. } = at.stage()?;
        let (heads, width) = (*weights.shape().first()?, at.value.row_len());
        (heads > 0 && width.is_multiple_of(heads)).then(|| Self { heads, inner: width / heads })
    }

    /// Returns the head of a value.
    pub fn head(&self, flat: usize) -> usize {
        flat / self.inner % self.heads
    }
}

fn is_of_heads(axis: TapAxis) -> bool {
    matches!(axis, TapAxis::Head | TapAxis::KvHead)
}
