//! Sums in the order of a 256-bit register: eight `f32` lanes that are added at the end.
//!
//! ggml's AVX2 kernels sum four products of codes in each of eight integer lanes. They multiply each lane by the
//! scales of both blocks, and add it to the same lane of the sum with one rounding (FMA).

/// Eight `f32` lanes of one register.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneSums(pub(super) [f32; 8]);

impl LaneSums {
    /// Adds `scale · sums` to the lanes, with one rounding per lane.
    pub(super) fn add_scaled(&mut self, scale: f32, sums: [i32; 8]) {
        for (lane, sum) in self.0.iter_mut().zip(sums) {
            *lane = scale.mul_add(sum as f32, *lane);
        }
    }

    /// Adds lane by lane.
    pub(super) fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    /// Adds all lanes: the upper half to the lower half, twice, then the last two lanes.
    pub(super) fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        sum4([a + e, b + f, c + g, d + h])
    }
}

/// Adds the last four lanes, as [`LaneSums::sum`] does.
pub(super) fn sum4([a, b, c, d]: [f32; 4]) -> f32 {
    (a + c) + (b + d)
}

/// Returns the dot product of codes, four per lane, as the instructions for unsigned times signed bytes compute it:
/// the weight's sign is moved to the activation, and the sum of two products is clamped to 16 bits.
///
/// The result differs from an integer dot product only for an activation of −128, which encodes NaN or infinity.
pub(super) fn dot4(weights: &[i8; 32], activations: &[i8; 32]) -> [i32; 8] {
    let pair = |at: usize| {
        let sum = product(weights[at], activations[at]) + product(weights[at + 1], activations[at + 1]);
        sum.clamp(i16::MIN.into(), i16::MAX.into())
    };
    std::array::from_fn(|lane| pair(4 * lane) + pair(4 * lane + 2))
}

fn product(weight: i8, activation: i8) -> i32 {
    let activation = if weight < 0 { activation.wrapping_neg() } else { activation };
    i32::from(weight.unsigned_abs()) * i32::from(activation)
}
