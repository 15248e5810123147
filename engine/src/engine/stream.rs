//! Passes that go through the layers together, so that a layer's weights are read once for all passes.

use std::ops::Range;

use crate::checkpoint::{Point, Site};
use crate::engine::GreedyToken;
use crate::error::Result;
use crate::model::{LayerState, Model, ModelPass};
use crate::numerics::Numerics;
use crate::ops::sampling::argmax;
use crate::tap::{Probe, Tap};
use crate::tensor::Tensor;

/// Number of tokens whose logits are computed at once: 64 rows of a vocabulary of 256 000 take 66 MB.
const ROWS: usize = 64;

/// A tap that reads every value and changes none.
struct IdentityTap;

impl Tap for IdentityTap {
    fn tap(&mut self, _: Site, value: Tensor) -> Tensor {
        value
    }
}

/// A pass between two layers.
pub(super) struct Stream<'m> {
    pub(crate) numerics: &'m dyn Numerics,
    pub(crate) pass: Box<dyn ModelPass + 'm>,
    /// Index of the pass.
    pub(crate) index: usize,
    /// Position after the pass's last token.
    pub(crate) end: usize,
    /// True if the tap sees this pass.
    pub(crate) tapped: bool,
    /// True if the pass reads earlier tokens again, into an empty cache.
    pub(crate) anew: bool,
    /// The residual stream, `[T, d]`.
    pub(crate) x: Tensor,
}

/// Runs passes through layers, each layer with its state. If no pass follows, releases each layer's state and the
/// memory of its weights.
pub(super) fn through(
    model: &dyn Model,
    layers: Range<usize>,
    streams: &mut [Stream],
    states: &mut [LayerState],
    tap: &mut dyn Tap,
    is_last: bool,
) {
    for (layer, state) in layers.clone().zip(states) {
        if let Some(first) = streams.first() {
            // Announce the next layer too, but no layer beyond the range.
            first.pass.expect(layer..layers.end.min(layer + 2));
        }
        for stream in &mut *streams {
            let Stream { pass, index, tapped, anew, x, .. } = stream;
            if *anew {
                state.clear();
            }
            *x = probed(tap, *tapped, *index, |t| pass.layer(layer, x, t, state));
        }
        if is_last {
            *state = model.layer_state(layer);
            model.layer_matrices(layer).into_iter().for_each(|(_, matrix)| matrix.release());
        }
    }
}

impl Stream<'_> {
    /// Computes the head; returns the logits after the last token, `[V]`.
    pub(crate) fn last_logits(self, tap: &mut dyn Tap) -> Tensor {
        let Self { numerics, pass, index, tapped, x, .. } = self;
        probed(tap, tapped, index, |t| {
            let logits = pass.head(x, t);
            t.tap(Point::LastLogits, numerics.last_row(&logits).reshaped(&[logits.row_len()]))
        })
    }

    /// Computes the head some rows at a time, with the same bits as for all rows at once. Returns the logits after the
    /// last token, `[V]`.
    pub(crate) fn all_logits(self, seen: &mut dyn FnMut(usize, &Tensor) -> Result<()>) -> Result<Tensor> {
        let Self { numerics, pass, index, x, .. } = self;
        let mut first = 0;
        loop {
            let last = x.rows().min(first + ROWS);
            let mut looking = IdentityTap;
            let width = x.row_len();
            let rows = Tensor::new(&[last - first, width], x.data()[first * width..last * width].to_vec());
            let logits = pass.head(rows, &mut Probe::new(&mut looking, index));
            seen(first, &logits)?;
            if last == x.rows() {
                return Ok(numerics.last_row(&logits).reshaped(&[logits.row_len()]));
            }
            first = last;
        }
    }

    /// Computes the last logits and the greedy choice.
    pub(crate) fn choice(self, temperature: f32, tap: &mut dyn Tap) -> GreedyToken {
        let (numerics, index, tapped) = (self.numerics, self.index, self.tapped);
        let last = self.last_logits(tap);
        probed(tap, tapped, index, |t| {
            let choice = t.tap(Point::Argmax, Tensor::scalar(argmax(last.data()) as f32));
            if t.wants(Point::Probs) {
                t.tap(Point::Probs, numerics.probabilities(&last, temperature));
            }
            GreedyToken::new(choice.data()[0] as u32, last.data())
        })
    }
}

/// Calls `compute` with a probe of the tap, or with a probe without a tap if the pass is not tapped.
pub(super) fn probed<R>(
    tap: &mut dyn Tap,
    tapped: bool,
    pass: usize,
    compute: impl FnOnce(&mut Probe) -> R,
) -> R {
    match tapped {
        true => compute(&mut Probe::new(tap, pass)),
        false => compute(&mut Probe::new(&mut (), pass)),
    }
}
