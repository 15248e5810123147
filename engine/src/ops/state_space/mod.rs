//! Recurrence of Mamba-2 (state-space duality; Dao and Gu, 2024). Each head keeps a matrix S, `[P, N]`. A token decays and
//! extends it, and reads it: `S = exp(Δ · A) · S + Δ · x · Bᵀ`, `y = S · C + D · x`. The step Δ = softplus(dt + bias) is
//! one number for each head and token. x of all heads, B and C are the parts of one tensor, `[T, H·P + 2·N]`; all heads
//! share B and C.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::parallel;
use crate::tensor::Tensor;

/// Sizes and weights of a recurrence.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpace {
    /// Number of values in one head, P.
    pub head_dim: usize,
    /// Columns of the matrix of a head, N.
    pub columns: usize,
    /// A of each head, which is negative: `[H]`.
    pub decay: Vec<f32>,
    /// D of each head: `[H]`.
    pub skip: Vec<f32>,
}

/// Numbers of one head and token.
pub(crate) struct HeadToken<'t> {
    /// Δ
    pub(crate) step: f32,
    /// `[P]`
    pub(crate) x: &'t [f32],
    /// `[N]`
    pub(crate) b: &'t [f32],
    /// `[N]`
    pub(crate) c: &'t [f32],
}

impl StateSpace {
    /// Number of heads, H.
    pub(crate) fn heads(&self) -> usize {
        self.decay.len()
    }

    /// Returns the numbers of a head and token.
    pub(crate) fn token<'t>(&self, x: &'t Tensor, steps: &Tensor, token: usize, head: usize) -> HeadToken<'t> {
        let (row, inner, columns) = (x.row(token), self.heads() * self.head_dim, self.columns);
        HeadToken {
            step: steps.row(token)[head],
            x: &row[head * self.head_dim..][..self.head_dim],
            b: &row[inner..][..columns],
            c: &row[inner + columns..][..columns],
        }
    }

    /// Runs the recurrence over the tokens of a pass: `[T, H·P + 2·N]`, `[T, H]` and the matrices before it, `[H, P, N]`,
    /// to the outputs, `[T, H·P]`, and the matrices after it. `advance` updates the row of a matrix and returns its
    /// product with C: it gets the row, exp(Δ · A), Δ · x, B and C.
    pub(crate) fn run(
        &self,
        x: &Tensor,
        steps: &Tensor,
        before: &Tensor,
        advance: impl Fn(&mut [f32], f32, f32, &[f32], &[f32]) -> f32 + Sync,
    ) -> [Tensor; 2] {
        let (tokens, heads, size) = (x.rows(), self.heads(), self.head_dim);
        let of_head = |head: usize| {
            let (mut matrix, mut out) = (before.row(head).to_vec(), Vec::with_capacity(tokens * size));
            for token in 0..tokens {
                let HeadToken { step, x, b, c } = self.token(x, steps, token, head);
                let decay = (step * self.decay[head]).exp();
                for (row, &x) in matrix.chunks_exact_mut(self.columns).zip(x) {
                    let read = advance(row, decay, x * step, b, c);
                    out.push(read + x * self.skip[head]);
                }
            }
            (out, matrix)
        };
        let all = parallel::map(heads, 4 * tokens * size * self.columns, of_head);
        let row = |at: usize| &all[at % heads].0[at / heads * size..][..size];
        let out = (0..tokens * heads).flat_map(row).copied().collect();
        let after = all.iter().flat_map(|(_, matrix)| matrix).copied().collect();
        [Tensor::new(&[tokens, heads * size], out), Tensor::new(before.shape(), after)]
    }
}

/// Number of sums of a product with C.
const SUMS: usize = 32;

/// Advances the row of a matrix in ggml's order: 32 sums for groups of columns, added by halves, then the remaining columns.
pub(crate) fn advance(row: &mut [f32], decay: f32, x: f32, b: &[f32], c: &[f32]) -> f32 {
    let mut sums = [0.0f32; SUMS];
    let whole = row.len() / SUMS * SUMS;
    for (at, state) in row.iter_mut().enumerate() {
        *state = b[at].mul_add(x, *state * decay);
        if at < whole {
            sums[at % SUMS] = state.mul_add(c[at], sums[at % SUMS]);
        }
    }
    for width in [16, 8, 4] {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    let sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    row[whole..].iter().zip(&c[whole..]).fold(sum, |sum, (state, c)| state.mul_add(*c, sum))
}

/// Computes softplus, `ln(1 + eˣ)`, as ggml does.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { (1.0 + x.exp()).ln() }
}
