//! compressed-tensors, as llm-compressor writes it.

mod packed_weights;
mod scheme;

pub(super) use scheme::read;

/// Tensors of static activation scales, which are read together with a module's weight.
macro_rules! with_inputs {
    ($($tensor:literal),*) => {
        &[$($tensor,)* "input_scale", "input_zero_point", "input_global_scale"]
    };
}
use with_inputs;
