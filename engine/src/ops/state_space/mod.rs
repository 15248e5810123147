//! Recurrence of Mamba-2 (state-space duality; Dao and Gu, 2024). Each head has a recurrent state S, `[P, N]`. A token
//! updates and reads it: `S = exp(Δ · A) · S + Δ · x · Bᵀ`, `y = S · C + D · x`. Each head and token has one step size,
//! Δ = softplus(dt + bias), which may be limited. One tensor contains x of all heads, B and C, `[T, H·P + 2·G·N]`; the
//! heads of each of G groups share B and C.

pub(crate) mod exact;
pub(crate) mod faults;

use crate::parallel;
use crate::tensor::Tensor;

/// Bias of step sizes, and their limits.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRule {
    /// `[H]`
    pub(crate) bias: Vec<f32>,
    /// Limits of the step size Δ, if there are any.
    pub(crate) limits: Option<StepLimits>,
}

/// Limits of step sizes. transformers does not apply them in single-token decode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepLimits {
    /// Smallest and largest step size Δ.
    pub(crate) range: [f32; 2],
    /// True if only transformers applies the limits.
    pub(crate) is_optional: bool,
}

impl StepRule {
    /// Returns the step size after the limits are applied.
    pub(crate) fn limited(&self, step: f32) -> f32 {
        // Not `clamp`, which panics for limits in the wrong order.
        self.limits.map_or(step, |StepLimits { range: [least, most], .. }| step.max(least).min(most))
    }
}

/// Sizes and weights of a recurrence.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpace {
    /// Number of values in one head, P.
    pub head_dim: usize,
    /// Number of columns of a head's state, N.
    pub columns: usize,
    /// Number of groups of heads that share B and C, G.
    pub groups: usize,
    /// A of each head, which is negative, or the logarithm of -A: `[H]`.
    pub decay: Vec<f32>,
    /// True if `decay` is the logarithm of -A.
    pub is_log: bool,
    /// D of each head: `[H]`.
    pub skip: Vec<f32>,
}

/// Inputs of one head and token.
pub(crate) struct HeadToken<'t> {
    /// Step size, Δ.
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

    /// Returns the first column of a head's B (0) or C (1) in the row of a token.
    pub(crate) fn first_shared(&self, head: usize, part: usize) -> usize {
        let group = head * self.groups / self.heads();
        self.heads() * self.head_dim + (part * self.groups + group) * self.columns
    }

    /// Returns A of each head. `round` is applied to its logarithm.
    pub(crate) fn rates(&self, round: impl Fn(f32) -> f32) -> Vec<f32> {
        let rate = |&decay: &f32| if self.is_log { -round(decay).exp() } else { decay };
        self.decay.iter().map(rate).collect()
    }

    /// Returns the inputs of a head and token.
    pub(crate) fn token<'t>(
        &self,
        x: &'t Tensor,
        steps: &Tensor,
        token: usize,
        head: usize,
    ) -> HeadToken<'t> {
        let row = x.row(token);
        let shared = |part| &row[self.first_shared(head, part)..][..self.columns];
        HeadToken {
            step: steps.row(token)[head],
            x: &row[head * self.head_dim..][..self.head_dim],
            b: shared(0),
            c: shared(1),
        }
    }

    /// Runs the recurrence over the tokens of a pass. Takes x, B and C, `[T, H·P + 2·G·N]`, the step sizes, `[T, H]`, and the
    /// state before the pass, `[H, P, N]`. Returns the outputs, `[T, H·P]`, and the state after the pass. `advance` gets a
    /// row of the state, exp(Δ · A), Δ · x, B and C; it updates the row and returns its product with C.
    pub(crate) fn run(
        &self,
        x: &Tensor,
        steps: &Tensor,
        before: &Tensor,
        advance: impl Fn(&mut [f32], f32, f32, &[f32], &[f32]) -> f32 + Sync,
    ) -> [Tensor; 2] {
        let (tokens, heads, size) = (x.rows(), self.heads(), self.head_dim);
        let rates = self.rates(|log| log);
        let of_head = |head: usize| {
            let (mut state, mut out) = (before.row(head).to_vec(), Vec::with_capacity(tokens * size));
            for token in 0..tokens {
                let HeadToken { step, x, b, c } = self.token(x, steps, token, head);
                let decay = (step * rates[head]).exp();
                for (row, &x) in state.chunks_exact_mut(self.columns).zip(x) {
                    let read = advance(row, decay, x * step, b, c);
                    out.push(read + x * self.skip[head]);
                }
            }
            (out, state)
        };
        let all = parallel::map(heads, 4 * tokens * size * self.columns, of_head);
        let row = |at: usize| &all[at % heads].0[at / heads * size..][..size];
        let out = (0..tokens * heads).flat_map(row).copied().collect();
        let after = all.iter().flat_map(|(_, state)| state).copied().collect();
        [Tensor::new(&[tokens, heads * size], out), Tensor::new(before.shape(), after)]
    }
}

impl StateSpace {
    /// Runs the recurrence over a single token as transformers does in single-token decode. Rounds Δ · B, its product
    /// with x, the state when it is read, the product with C, D · x and the output. The state itself stays `f32`.
    pub(crate) fn run_single(
        &self,
        x: &Tensor,
        steps: &Tensor,
        before: &Tensor,
        round: impl Fn(f32) -> f32 + Sync,
    ) -> [Tensor; 2] {
        let (mut after, mut out, rates) = (before.data().to_vec(), Vec::new(), self.rates(|log| log));
        for (at, row) in after.chunks_exact_mut(self.columns).enumerate() {
            let (head, inside) = (at / self.head_dim, at % self.head_dim);
            let HeadToken { step, x, b, c } = self.token(x, steps, 0, head);
            let decay = (step * rates[head]).exp();
            for (state, b) in row.iter_mut().zip(b) {
                *state = *state * decay + round(round(step * b) * x[inside]);
            }
            let read: f32 = row.iter().zip(c).map(|(state, c)| round(*state) * c).sum();
            out.push(round(round(read) + round(x[inside] * self.skip[head])));
        }
        [Tensor::new(&[1, self.heads() * self.head_dim], out), Tensor::new(before.shape(), after)]
    }

    /// Returns the number of terms in each head's state after a pass, weighted by the square of their decay.
    pub(crate) fn remembered(&self, steps: &Tensor) -> Vec<f64> {
        let terms = |(head, rate): (usize, f32)| {
            let kept = |token: usize| (2.0 * f64::from(steps.row(token)[head] * rate)).exp();
            (0..steps.rows()).fold(1.0, |terms, token| terms * kept(token) + 1.0)
        };
        self.rates(|log| log).into_iter().enumerate().map(terms).collect()
    }
}

/// Number of partial sums in a product with C.
const SUMS: usize = 32;

/// Updates a row of the state and multiplies it by C in ggml's order: 32 partial sums for groups of columns, added by
/// halves, then the remaining columns.
pub(crate) fn advance(row: &mut [f32], decay: f32, x: f32, b: &[f32], c: &[f32]) -> f32 {
    let mut sums = [0.0f32; SUMS];
    let whole = row.len() / SUMS * SUMS;
    for (at, state) in row.iter_mut().enumerate() {
        *state = state.mul_add(decay, b[at] * x);
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
