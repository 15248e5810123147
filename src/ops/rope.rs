//! Rotary position embeddings (Su et al., 2021).

use std::ops::Range;

use crate::tensor::{RopePairing, Tensor};

/// What RoPE needs to know of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies: pair `i` turns by `theta^(-2i / head_dim)` radians per position.
    pub theta: f32,
    /// Values of one head; all of them rotate.
    pub head_dim: usize,
    /// Which two values of a head rotate together.
    pub pairing: RopePairing,
}

/// Cosine and sine for every position of a pass and every pair, each `[T, head_dim / 2]`.
#[derive(Clone, Debug)]
pub struct RopeTable {
    pairing: RopePairing,
    cos: Tensor,
    sin: Tensor,
}

impl RopeTable {
    /// Computes the table; `angles(position, out)` writes the angle of each pair in radians.
    pub fn new(rope: &Rope, positions: Range<usize>, angles: impl Fn(usize, &mut [f32]) + Sync) -> Self {
        let pairs = rope.head_dim / 2;
        let angles = Tensor::from_rows(positions.len(), pairs, |row, out| angles(positions.start + row, out));
        Self { pairing: rope.pairing, cos: angles.clone().map(f32::cos), sin: angles.map(f32::sin) }
    }

    /// Rotates each head of `x` (`[T, H, D]`) by its token's angles.
    pub fn rotate(&self, x: &Tensor) -> Tensor {
        let &[tokens, heads, head_dim] = x.shape() else {
            panic!("RoPE takes [T, H, D], not {:?}", x.shape())
        };
        let rotated = Tensor::from_rows(tokens, heads * head_dim, |token, out| {
            let (cos, sin) = (self.cos.row(token), self.sin.row(token));
            let heads = x.row(token).chunks(head_dim).zip(out.chunks_mut(head_dim));
            for (x, out) in heads {
                self.rotate_head(x, cos, sin, out);
            }
        });
        rotated.reshaped(x.shape())
    }

    fn rotate_head(&self, x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
        for pair in 0..x.len() / 2 {
            let (first, second) = self.pairing.members(pair, x.len());
            out[first] = x[first] * cos[pair] - x[second] * sin[pair];
            out[second] = x[first] * sin[pair] + x[second] * cos[pair];
        }
    }
}

/// Angles computed one by one: `position / theta^(2i / head_dim)`, each step in `f32`, as transformers does.
pub fn direct_angles(rope: &Rope, position: usize, out: &mut [f32]) {
    for (pair, angle) in out.iter_mut().enumerate() {
        let inverse_frequency = 1.0 / rope.theta.powf((2 * pair) as f32 / rope.head_dim as f32);
        *angle = position as f32 * inverse_frequency;
    }
}

/// Angles by repeated multiplication with `theta^(-2 / head_dim)` in `f32`, as ggml does.
pub fn iterated_angles(rope: &Rope, position: usize, out: &mut [f32]) {
    let scale = rope.theta.powf(-2.0 / rope.head_dim as f32);
    let mut next = position as f32;
    for angle in out {
        *angle = next;
        next *= scale;
    }
}
