//! A gated short convolution in place of attention (LFM2; Liquid AI, 2025): `output(C · conv(B · x))`. One projection
//! computes the gates B and C, and x.

use crate::checkpoint::Point::*;
use crate::error::Result;
use crate::model::cache::RecurrentLayer;
use crate::model::decoder::columns::columns;
use crate::model::decoder::{DecoderConfig, LayerWeights, Projection};
use crate::numerics::Numerics;
use crate::ops::short_convolution::ShortConvolution;
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Weights of a gated short convolution.
#[derive(Clone, Debug)]
pub(crate) struct GatedConvolution {
    /// `[3·d, d]`: B, C and x.
    pub(crate) input: Projection,
    pub(crate) conv: ShortConvolution,
    /// `[d, d]`
    pub(crate) output: Projection,
}

impl GatedConvolution {
    /// Loads the weights of a layer.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(crate) fn load(
        c: &DecoderConfig,
        (kernel, has_bias): (usize, bool),
        w: &mut LayerWeights,
    ) -> Result<Self> {
        let d = c.hidden_size;
        Ok(Self {
            input: w.projection("shortconv.in_proj", has_bias, 3 * d, d)?,
            conv: w.convolution("shortconv.conv", has_bias, d, kernel)?,
            output: w.projection("shortconv.out_proj", has_bias, d, d)?,
        })
    }

    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        vec![("shortconv.in_proj", &self.input.weight), ("shortconv.out_proj", &self.output.weight)]
    }

    /// Computes the convolution of normed tokens, `[T, d]`, with its output projection.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        n: &dyn Numerics,
        t: &mut Probe,
        state: &mut RecurrentLayer,
    ) -> Tensor {
        let d = x.row_len();
        let projected = t.tap(MixerIn, self.input.of(n, x));
        let input = t.tap(ConvIn, n.gated_by_part(&projected, 0, &columns(n, &projected, 2 * d, d)));
        let mixed = t.tap(ConvOut, n.short_convolution(&state.extended(&input), &self.conv));
        let gated = t.tap(ConvGated, n.gated_by_part(&projected, 1, &mixed));
        t.tap(AttnOut, self.output.of(n, &gated))
    }
}
