//! Linear least squares with several unknowns, for estimating the values of changes.

/// Share of the unknowns' mean squared features that is added to the diagonal, so that unknowns without influence
/// stay near 0.
const RIDGE: f64 = 1e-9;

/// Normal equations `AᵀA · x = Aᵀy`, collected one equation at a time.
pub(crate) struct LeastSquares {
    unknowns: usize,
    /// `AᵀA`, row-major.
    squares: Vec<f64>,
    /// `Aᵀy`.
    products: Vec<f64>,
    pub(crate) equations: usize,
}

impl LeastSquares {
    /// Creates a system without equations.
    pub(crate) fn new(unknowns: usize) -> Self {
        Self {
            unknowns,
            squares: vec![0.0; unknowns * unknowns],
            products: vec![0.0; unknowns],
            equations: 0,
        }
    }

    /// Adds the equation `features · x = y`, unless one of its numbers is NaN.
    pub(crate) fn add(&mut self, features: &[f64], y: f64) {
        if !y.is_finite() || features.iter().any(|x| !x.is_finite()) {
            return;
        }
        self.equations += 1;
        for (row, &one) in features.iter().enumerate().filter(|(_, x)| **x != 0.0) {
            self.products[row] += one * y;
            let squares = &mut self.squares[row * self.unknowns..][..=row];
            squares.iter_mut().zip(features).for_each(|(sum, other)| *sum += one * other);
        }
    }

    /// Returns the solution by Cholesky's decomposition; `None` if the equations do not determine it.
    pub(crate) fn solution(mut self) -> Option<Vec<f64>> {
        let n = self.unknowns;
        let trace: f64 = (0..n).map(|at| self.squares[at * n + at]).sum();
        (0..n).for_each(|at| self.squares[at * n + at] += RIDGE * trace / n as f64);
        for row in 0..n {
            for column in 0..=row {
                let (one, other) =
                    (&self.squares[row * n..][..column], &self.squares[column * n..][..column]);
                let sum: f64 = one.iter().zip(other).map(|(a, b)| a * b).sum();
                let rest = self.squares[row * n + column] - sum;
                self.squares[row * n + column] = match row == column {
                    true => Some(rest.sqrt()).filter(|root| *root > 0.0)?,
                    false => rest / self.squares[column * n + column],
                };
            }
        }
        let (lower, mut x) = (self.squares, self.products);
        for row in 0..n {
            let sum: f64 = (0..row).map(|column| lower[row * n + column] * x[column]).sum();
            x[row] = (x[row] - sum) / lower[row * n + row];
        }
        for row in (0..n).rev() {
            let sum: f64 = (row + 1..n).map(|below| lower[below * n + row] * x[below]).sum();
            x[row] = (x[row] - sum) / lower[row * n + row];
        }
        x.iter().all(|x| x.is_finite()).then_some(x)
    }
}

/// Largest distance of an estimated gain from the number that it is rounded to.
const NEAR: f64 = 0.1;

/// Returns the small integer or simple fraction near an estimate. Such numbers state how often something is added.
pub(crate) fn plain_gain(estimate: f64) -> Option<f64> {
    let whole = estimate.round();
    let plain = [whole, 0.5].into_iter().filter(|plain| plain.abs() <= 8.0);
    plain.into_iter().find(|plain| (estimate - plain).abs() < NEAR)
}
