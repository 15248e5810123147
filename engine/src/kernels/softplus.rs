//! Softplus, `ln(1 + eˣ)`, in two forms that differ in rounding.

/// Argument above which engines return the argument itself as softplus.
const LINEAR: f32 = 20.0;

/// Computes softplus without loss of small values, as torch does.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > LINEAR { x } else { x.exp().ln_1p() }
}

/// Computes softplus as ggml does: loses small values in the sum 1 + eˣ.
pub(crate) fn ggml_softplus(x: f32) -> f32 {
    if x > LINEAR { x } else { (1.0 + x.exp()).ln() }
}
