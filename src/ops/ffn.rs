//! Activations of the feed-forward block.

use crate::tensor::Tensor;

/// `silu(gate) · up` with `silu(x) = x / (1 + e^-x)`: SwiGLU without its projections (Shazeer, 2020).
///
/// # Panics
/// If the shapes differ.
pub fn silu_gate(gate: &Tensor, up: &Tensor) -> Tensor {
    assert_eq!(gate.shape(), up.shape(), "the gate and what it gates have one shape");
    let gated = gate.data().iter().zip(up.data()).map(|(&gate, &up)| silu(gate) * up).collect();
    Tensor::new(gate.shape(), gated)
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}
