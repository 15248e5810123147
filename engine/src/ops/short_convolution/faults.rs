//! Changes of a short convolution: its kernel, its bias, and the inputs that a layer keeps between passes.

use crate::change::{CatalogueEntry, CauseKind, SiteContext};
use crate::checkpoint::Point;
use crate::numerics::Numerics;
use crate::ops::short_convolution::ShortConvolution;
use crate::ops::short_convolution::exact::Convolution;
use crate::tensor::Tensor;

const CONVOLVED: &[Point] = &[Point::ConvOut];

pub(crate) static ENTRIES: &[CatalogueEntry] = &[
    CatalogueEntry {
        kind: CauseKind::ConvKernel,
        at: CONVOLVED,
        takes: "reversed|next|previous",
        compute: |at, value| {
            let Convolution { x, conv } = at.stage()?;
            let kernel = conv.kernel;
            let from: fn(usize, usize) -> usize = match value.as_word()? {
                "reversed" => |at, kernel| kernel - 1 - at,
                // A window that is one token off.
                "next" => |at, kernel| (at + 1) % kernel,
                "previous" => |at, kernel| (at + kernel - 1) % kernel,
                _ => return None,
            };
            let weights = conv.weight.chunks_exact(kernel);
            let weight = weights.flat_map(|row| (0..kernel).map(|at| row[from(at, kernel)])).collect();
            Some(at.n.short_convolution(x, &ShortConvolution { weight, ..conv.clone() }))
        },
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ConvState,
        at: CONVOLVED,
        takes: "none|old|reversed",
        compute: |at, value| with_kept(at, value.as_word()?),
        ..CatalogueEntry::PLAIN
    },
    CatalogueEntry {
        kind: CauseKind::ConvBias,
        at: CONVOLVED,
        takes: "none|twice",
        compute: |at, value| {
            let Convolution { x, conv } = at.stage()?;
            let bias = conv.bias.as_ref()?;
            let bias = match value.as_word()? {
                "none" => None,
                "twice" => Some(bias.iter().map(|bias| bias + bias).collect()),
                _ => return None,
            };
            Some(at.n.short_convolution(x, &ShortConvolution { bias, ..conv.clone() }))
        },
        ..CatalogueEntry::PLAIN
    },
];

/// Computes a pass with a wrong cache of the `kernel - 1` inputs before the pass: with zeros, without the latest
/// input, or with the inputs in reverse order.
fn with_kept(at: &SiteContext, word: &str) -> Option<Tensor> {
    let Convolution { x, conv } = at.stage()?;
    let (kept, channels, zero) = (conv.kernel - 1, x.row_len(), Tensor::new(&[1], vec![0.0]));
    let row: fn(usize, usize) -> Option<usize> = match word {
        "none" => |_, _| None,
        "old" => |row, _| row.checked_sub(1),
        "reversed" => |row, kept| Some(kept - 1 - row),
        _ => return None,
    };
    let from = |flat: usize| {
        let own = flat / channels;
        let row = if own < kept { row(own, kept) } else { Some(own) };
        row.map_or((1, 0), |row| (0, row * channels + flat % channels))
    };
    Some(at.n.short_convolution(&at.n.gathered(&[x, &zero], x.shape(), from), conv))
}
