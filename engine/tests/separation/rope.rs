//! RoPE as engines compute it.

use xcheck_engine::numerics::{LlamaCpp, Numerics};
use xcheck_engine::ops::rope::{Rope, RopeRounding, RopeScaling};
use xcheck_engine::tensor::{RopePairing, Tensor};

use super::dice::Law;
use super::specimen::{Specimen, Store};

/// Heads to be turned, one token at each of some positions.
pub struct Turned {
    pub x: Vec<f32>,
    pub heads: usize,
    pub rope: Rope,
    pub first: usize,
    pub store: Store,
}

/// How cosines, sines and products come about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// The standard library's functions.
    Library,
    /// libm's.
    Libm,
    /// The table in f64, and rounded.
    Double,
    /// One of the two products without a rounding.
    Fused,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Library, Way::Libm, Way::Double, Way::Fused];
}

impl Turned {
    pub fn new(law: Law, [tokens, heads, dim]: [usize; 3], first: usize, store: Store, seed: u64) -> Self {
        let rope = Rope {
            theta: 1e4,
            width: dim,
            pairing: RopePairing::Half,
            scaling: RopeScaling::None,
            rounding: RopeRounding::Each,
        };
        Self { x: store.rounded(&law.numbers(tokens * heads, dim, seed)), heads, rope, first, store }
    }

    fn tokens(&self) -> usize {
        self.x.len() / self.heads / self.rope.width
    }

    pub fn traced_by(&self, numerics: &impl Numerics) -> Tensor {
        let x = Tensor::new(&[self.tokens(), self.heads, self.rope.width], self.x.clone());
        let table = numerics.rope_table(&self.rope, self.first..self.first + self.tokens());
        numerics.rotate(&x, &table)
    }

    pub fn specimen(&self, name: impl Into<String>, own: Vec<f32>) -> Specimen {
        Specimen::new(name, self.traced_by(&self.store.traced()), own)
    }

    pub fn frequency(&self, pair: usize) -> f32 {
        1.0 / self.rope.theta.powf((2 * pair) as f32 / self.rope.width as f32)
    }

    fn cos_sin(&self, way: Way, position: usize, pair: usize) -> [f32; 2] {
        let exponent = (2 * pair) as f32 / self.rope.width as f32;
        match way {
            Way::Library | Way::Fused => {
                let angle = position as f32 * self.frequency(pair);
                [angle.cos(), angle.sin()]
            }
            Way::Libm => {
                let angle = position as f32 * libm::powf(self.rope.theta, -exponent);
                [libm::cosf(angle), libm::sinf(angle)]
            }
            Way::Double => {
                let angle = position as f64 / f64::from(self.rope.theta).powf(exponent.into());
                [angle.cos() as f32, angle.sin() as f32]
            }
        }
    }

    pub fn by(&self, way: Way) -> Vec<f32> {
        self.turned(way, |position, pair| self.cos_sin(way, position, pair))
    }

    /// With another frequency of each pair.
    pub fn with_frequencies(&self, frequency: impl Fn(usize) -> f32) -> Vec<f32> {
        self.turned(Way::Library, |position, pair| {
            let angle = position as f32 * frequency(pair);
            [angle.cos(), angle.sin()]
        })
    }

    /// Angles by repeated multiplication, as ggml has them.
    pub fn iterated(&self) -> Vec<f32> {
        let step = self.rope.theta.powf(-2.0 / self.rope.width as f32);
        self.turned(Way::Library, |position, pair| {
            let angle = (0..pair).fold(position as f32, |angle, _| angle * step);
            [angle.cos(), angle.sin()]
        })
    }

    pub fn traced_by_ggml(&self, numerics: &LlamaCpp) -> Tensor {
        self.traced_by(&xcheck_engine::tracing::TracedNumerics::new(
            numerics,
            xcheck_engine::exact::Profile::of(numerics),
        ))
    }

    fn turned(&self, way: Way, cos_sin: impl Fn(usize, usize) -> [f32; 2]) -> Vec<f32> {
        let (dim, round) = (self.rope.width, |x| self.store.round(x));
        let mut out = self.x.clone();
        for (token, x) in out.chunks_mut(self.heads * dim).enumerate() {
            for pair in 0..dim / 2 {
                let [cos, sin] = cos_sin(self.first + token, pair).map(round);
                let (first, second) = self.rope.pairing.members(pair, dim);
                for head in x.chunks_mut(dim) {
                    let [a, b] = [head[first], head[second]];
                    [head[first], head[second]] = match way {
                        Way::Fused => [a.mul_add(cos, -(b * sin)), a.mul_add(sin, b * cos)],
                        _ => [round(a * cos) - round(b * sin), round(a * sin) + round(b * cos)],
                    }
                    .map(round);
                }
            }
        }
        out
    }
}
