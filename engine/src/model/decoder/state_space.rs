//! A Mamba-2 layer in place of attention (Dao and Gu, 2024). A projection computes a gate, x with B and C, and step
//! sizes; a short convolution mixes x, B and C. Then follow the recurrence, a norm of its gated output, and the
//! output projection.

use crate::checkpoint::Point::{self, *};
use crate::error::Result;
use crate::model::cache::{RecurrentLayer, RecurrentSizes};
use crate::model::decoder::columns::{columns, joined};
use crate::model::decoder::{DecoderConfig, ForwardContext, LayerWeights, Projection};
use crate::ops::activation::Activation;
use crate::ops::norm::RmsNorm;
use crate::ops::scaling::Multiplier;
use crate::ops::short_convolution::ShortConvolution;
use crate::ops::state_space::{StateSpace, StepLimits, StepRule};
use crate::tap::Probe;
use crate::tensor::Tensor;
use crate::weight::Matrix;

/// Sizes of a layer of Mamba-2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StateSpaceSizes {
    /// Number of groups, G. The heads of a group share B and C, and the mean square of the norm.
    pub(crate) groups: usize,
    /// Limits of step sizes, if there are any.
    pub(crate) limits: Option<StepLimits>,
    /// Number of heads, H.
    pub(crate) heads: usize,
    /// Number of values in one head, P.
    pub(crate) head_dim: usize,
    /// Number of columns in the state matrix of a head, N.
    pub(crate) columns: usize,
    /// Number of weights of a channel of the convolution, k.
    pub(crate) kernel: usize,
    /// True if the convolution has a bias.
    pub(crate) has_conv_bias: bool,
    /// True if the input projection has a bias.
    pub(crate) has_bias: bool,
    /// True if the output projection has a bias.
    pub(crate) has_output_bias: bool,
    /// True if a norm follows the gate.
    pub(crate) has_norm: bool,
}

impl StateSpaceSizes {
    /// Returns the number of values of all heads.
    pub(crate) fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the number of channels of the convolution: those of x, and those of B and C of each group.
    pub(crate) fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.columns
    }

    /// Returns the sizes of a layer's state.
    pub(crate) fn state(&self) -> RecurrentSizes {
        let matrices = [self.heads, self.head_dim, self.columns];
        let limits = self.limits.is_some();
        RecurrentSizes { channels: self.channels(), kept: self.kernel - 1, matrices, has_limits: limits }
    }
}

/// Weights of a layer of Mamba-2.
#[derive(Clone, Debug)]
pub(crate) struct StateSpaceLayer {
    /// `[H·P + channels + H, d]`: the gate, x with B and C, and steps.
    pub(crate) input: Projection,
    pub(crate) conv: ShortConvolution,
    pub(crate) steps: StepRule,
    pub(crate) space: StateSpace,
    /// `[H·P]`
    pub(crate) norm: Option<RmsNorm>,
    /// `[d, H·P]`
    pub(crate) output: Projection,
}

impl StateSpaceLayer {
    /// Loads the weights of a layer.
    ///
    /// # Errors
    /// If one is missing, has another shape, or has an unsupported type.
    pub(crate) fn load(c: &DecoderConfig, sizes: StateSpaceSizes, w: &mut LayerWeights) -> Result<Self> {
        let StateSpaceSizes { heads, head_dim, columns, groups, kernel, limits, .. } = sizes;
        let (d, inner, channels) = (c.hidden_size, sizes.inner(), sizes.channels());
        Ok(Self {
            input: w.projection("ssm_in", sizes.has_bias, inner + channels + heads, d)?,
            conv: w.convolution("ssm_conv1d", sizes.has_conv_bias, channels, kernel)?,
            steps: StepRule { bias: w.vector("ssm_dt", heads)?, limits },
            space: StateSpace {
                head_dim,
                columns,
                groups,
                decay: w.flat("ssm_a", heads)?,
                is_log: !w.is_gguf(),
                skip: w.flat("ssm_d", heads)?,
            },
            norm: match sizes.has_norm {
                true => Some(RmsNorm { groups, ..c.rms_norm(w.grouped("ssm_norm", groups, inner)?) }),
                false => None,
            },
            output: w.projection("ssm_out", sizes.has_output_bias, d, inner)?,
        })
    }

    /// Returns the matrices, with names for messages.
    pub(crate) fn matrices(&self) -> Vec<(&'static str, &Matrix)> {
        vec![("ssm_in", &self.input.weight), ("ssm_out", &self.output.weight)]
    }

    /// Computes the layer for normed tokens, `[T, d]`, with its output projection, which is the tap `output`.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        p: &ForwardContext,
        t: &mut Probe,
        state: &mut RecurrentLayer,
        output: Point,
    ) -> Tensor {
        let (n, space) = (p.n, &self.space);
        let (heads, inner, shared) =
            (space.heads(), space.heads() * space.head_dim, space.groups * space.columns);
        let is_single = x.rows() == 1 && !state.is_empty();
        let scaled = p.times(x, |by| by.recurrence_in);
        let projected = t.tap(MixerIn, self.input.of(n, scaled.as_ref().unwrap_or(x)));
        // Gate, x, B, C and steps, each with a factor if the model has factors.
        let widths = [inner, inner, shared, shared, heads];
        let part = |index: usize| {
            let part = columns(n, &projected, widths[..index].iter().sum(), widths[index]);
            match p.c.multipliers {
                Some(by) => n.scale(&part, Multiplier::Element(by.projected[index])),
                None => part,
            }
        };
        let input = match p.c.multipliers {
            Some(_) => joined(n, &[part(1), part(2), part(3)]),
            None => columns(n, &projected, inner, inner + 2 * shared),
        };
        let input = t.tap(ConvIn, input);
        let mixed = t.tap(ConvOut, n.short_convolution(&state.extended(&input), &self.conv));
        let mixed = t.tap(ConvAct, n.activation(&mixed, Activation::Silu));
        let steps = t.tap(StepSize, n.step_sizes(&part(4), &self.steps, is_single));
        let [out, after] = n.recurrence(&mixed, &steps, &state.matrices(), space, is_single);
        state.keep(t.tap(RecurrentState, after));
        let out = t.tap(RecurrentOut, out);
        let gate = part(0);
        let normed = match &self.norm {
            Some(norm) => n.gated_norm(&gate, &out, norm, is_single),
            None => n.gated(&gate, &out, Activation::Silu),
        };
        let normed = t.tap(RecurrentNorm, normed);
        t.tap(output, self.output.of(n, &normed))
    }
}
