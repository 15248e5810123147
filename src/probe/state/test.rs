//! Sequential test between states of an endpoint.
//!
//! Each state predicts log-odds `y` of some tokens; a server answers `o`. For a true state, the residual `r = o − y`
//! is noise: symmetric about 0, with a second moment below a bound. For another state with the prediction `y'` the
//! residual is nearer to `d = y' − y`. Two kinds of bets are made against a state. Each multiplies its capital by a
//! number whose expectation is at most 1 if the state is true:
//!
//! - **direction**: `exp(λψ) / (1 + (cosh(3λσ) − 1) / 9)`, where ψ is the component of `r` along `d`, clipped to ±3σ,
//!   and σ² bounds its second moment. cosh is convex in ψ², so the mean of exp(λψ) = cosh(λψ) is at most the
//!   denominator, for every symmetric distribution.
//! - **size**: `½ + ½·|r|² / (mσ²)` for m tokens, which needs no symmetry. It detects states that are not in the list.
//!
//! The mean of the capitals of all bets is at most 1 in expectation, too, so a true state is rejected at 1/α with a
//! probability of at most α at any time (Ville's inequality). No number is fitted to the answers.

/// Limit at which a residual's component is clipped, in units of its bound.
const CLIP: f64 = 3.0;
/// Largest 3λσ of a bet. A larger one brings no advantage.
const BOLDEST: f64 = 40.0;
/// Factor on the second moment of the noise: another implementation may round twice as often as our numerics.
const SPARE: f64 = 2.0;
/// Number of standard errors of a measured second moment that are added to its bound.
const ERRORS: f64 = 3.0;
/// Number of requests above which a difference counts as hidden by rounding. It is ten times the default of
/// `--requests`, and does not depend on that option, so that a smaller number of requests never hides a state.
const HIDDEN: f64 = 2000.0;
/// Size of the error that must be detected before a state passes, in second moments of the bound: twice the noise.
const DETECTED: f64 = 4.0;

/// Log-odds of a token, as far as the server's answer shows them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ToldOdds {
    /// The server returned this value.
    Known(f64),
    /// The token is not in the server's list. This is the smallest value in the list.
    AtMost(f64),
    /// The token may be in the server's list, but the list names tokens without their ids.
    Unknown,
}

/// An answer with the predictions of all states.
#[derive(Clone, Debug, PartialEq)]
pub struct OddsAnswer {
    /// Log-odds of each token.
    pub told: Vec<ToldOdds>,
    /// Largest rounding error of a log-probability in the answer, from its number of decimals or its type.
    pub step: f64,
    /// Predicted log-odds of each state and token. NaN for a rejected state, towards which no bet is made.
    pub predicted: Vec<Vec<f64>>,
}

/// Noise of the arithmetics of each state, measured with our engine.
#[derive(Clone, Debug, Default)]
pub struct NoiseBounds {
    /// Predictions of all states for a prompt, `[states][tokens]`.
    predicted: Vec<Vec<Vec<f64>>>,
    /// Noise for the same prompts: `[prompts][states][numerics][tokens]`.
    noise: Vec<Vec<Vec<Vec<f64>>>>,
}

impl NoiseBounds {
    /// Adds a prompt: the predictions of all states, and the noise of each state's numerics.
    pub fn add(&mut self, predicted: Vec<Vec<f64>>, noise: Vec<Vec<Vec<f64>>>) {
        self.predicted.push(predicted);
        self.noise.push(noise);
    }

    /// Returns a bound of the second moment of a state's noise in a projection: the largest one over its numerics, plus
    /// its standard error, because there are few prompts.
    fn largest(&self, state: usize, square: impl Fn(usize, &[f64]) -> f64) -> f64 {
        let numerics = self.noise.first().map_or(0, |noise| noise[state].len());
        let bound = |kind: usize| {
            let of = |(at, noise): (usize, &Vec<Vec<Vec<f64>>>)| square(at, &noise[state][kind]);
            upper_mean(&self.noise.iter().enumerate().map(of).collect::<Vec<f64>>())
        };
        SPARE * (0..numerics).map(bound).fold(0.0, f64::max)
    }

    /// Returns the bound of the second moment of one token's noise.
    fn size(&self, state: usize) -> f64 {
        self.largest(state, |_, noise| squares(noise) / noise.len().max(1) as f64)
    }

    /// Returns the bound of the second moment of the noise along the difference of two states.
    fn along(&self, state: usize, other: usize) -> f64 {
        self.largest(state, |at, noise| {
            let d = difference(&self.predicted[at][other], &self.predicted[at][state]);
            component(noise, &d).powi(2)
        })
    }
}

/// Capital of the bets against one state, as logarithms.
#[derive(Clone, Debug)]
struct StateBets {
    /// Capital of the bets in the direction of each other state.
    directions: Vec<f64>,
    size: f64,
    /// Bounds of the second moments of the noise.
    along: Vec<f64>,
    noise: f64,
    /// Number of the request after which the state was rejected; `None` if not rejected.
    rejected: Option<usize>,
    /// Sum of squares of the residuals, and their number.
    residuals: (f64, usize),
    /// Sum of squares of the errors that the rounding of the server's decimals can cause.
    steps: f64,
}

/// Sequential test; the first state is the claimed one.
#[derive(Clone, Debug)]
pub struct StateTest {
    alpha: f64,
    states: Vec<StateBets>,
    /// Number of requests after which each state is expected to be rejected, if the first state is the true one.
    expected: Vec<Option<usize>>,
    /// Number of answers.
    pub answers: usize,
}

impl StateTest {
    /// Starts a test in which a true state is rejected with a probability of at most `alpha`.
    pub fn new(alpha: f64, bounds: &NoiseBounds) -> Self {
        let count = bounds.predicted.first().map_or(0, Vec::len);
        let bets = |state: usize| StateBets {
            directions: vec![0.0; count],
            size: 0.0,
            along: (0..count).map(|other| bounds.along(state, other)).collect(),
            noise: bounds.size(state),
            rejected: None,
            residuals: (0.0, 0),
            steps: 0.0,
        };
        let states: Vec<StateBets> = (0..count).map(bets).collect();
        let mut test = Self { alpha, states, expected: Vec::new(), answers: 0 };
        test.expected = (0..count).map(|state| test.expected_requests(state, bounds)).collect();
        test
    }

    /// Adds the log-odds of one answer to the test.
    pub fn add(&mut self, answer: &OddsAnswer) {
        self.answers += 1;
        let threshold = -self.alpha.ln();
        let open = self.states.iter_mut().enumerate().filter(|(_, bets)| bets.rejected.is_none());
        for (state, bets) in open {
            let predicted = &answer.predicted;
            let r = residual(&answer.told, &predicted[state]);
            let steps: Vec<f64> =
                predicted[state].iter().map(|odds| answer.step * (1.0 + odds.exp())).collect();
            for (other, capital) in
                bets.directions.iter_mut().enumerate().filter(|(other, _)| *other != state)
            {
                let d = difference(&predicted[other], &predicted[state]);
                let length = squares(&d).sqrt();
                let bound = bets.along[other] + squares_along(&steps, &d);
                *capital += direction_gain(component(&r, &d), length, bound);
            }
            let count = r.len().max(1) as f64;
            bets.size += size_gain(squares(&r) / count, bets.noise + squares(&steps) / count);
            bets.steps += squares(&steps);
            bets.residuals = (bets.residuals.0 + squares(&r), bets.residuals.1 + r.len());
            if bets.evidence(state) >= threshold {
                bets.rejected = Some(self.answers);
            }
        }
    }

    /// Returns the request after which a state was rejected.
    pub fn rejected(&self, state: usize) -> Option<usize> {
        self.states[state].rejected
    }

    /// Returns the logarithm of the evidence against a state.
    pub fn evidence(&self, state: usize) -> f64 {
        self.states[state].evidence(state)
    }

    /// Returns the root mean square of a state's residuals, and the bound that rounding implies.
    pub(crate) fn residual(&self, state: usize) -> (f64, f64) {
        let bets = &self.states[state];
        let count = bets.residuals.1.max(1) as f64;
        ((bets.residuals.0 / count).sqrt(), (bets.noise + bets.steps / count).sqrt())
    }

    /// Returns the expected number of requests until the state is rejected if the first state is true; `None` if
    /// rounding hides the difference.
    pub fn expected(&self, state: usize) -> Option<usize> {
        self.expected[state]
    }

    /// Returns the states that are not rejected.
    pub fn remaining(&self) -> Vec<usize> {
        (0..self.states.len()).filter(|&state| self.rejected(state).is_none()).collect()
    }

    /// Returns the number of answers after which an unlisted state would have been rejected, if its error is twice the
    /// noise.
    pub fn least_answers(&self) -> usize {
        (self.threshold() / size_gain(DETECTED, 1.0)).ceil() as usize
    }

    /// Returns true if the answers agree with a state: their residual is within the bound, and there are enough answers
    /// to reject an unlisted state.
    pub(crate) fn agrees(&self, state: usize) -> bool {
        let (residual, bound) = self.residual(state);
        self.rejected(state).is_none() && self.answers >= self.least_answers() && residual <= bound
    }

    /// Returns true if no more answers are needed. There are three cases: the answers agree with the first state, and
    /// every state that can be distinguished from it is rejected; they agree with the only state that is not rejected;
    /// or all states are rejected.
    pub fn is_decided(&self) -> bool {
        match self.remaining().as_slice() {
            [] => true,
            [0, others @ ..] => self.agrees(0) && others.iter().all(|&state| self.expected(state).is_none()),
            [one] => self.agrees(*one),
            _ => false,
        }
    }

    /// Returns the logarithm of the capital that one bet needs to reject a state alone.
    fn threshold(&self) -> f64 {
        (self.states.len() as f64 / self.alpha).ln()
    }

    /// Returns the number of answers after which the bet against a state rejects it, if the first state is true and
    /// there is no noise. The bet is in the direction of the first state. `None` above [`HIDDEN`] answers.
    fn expected_requests(&self, state: usize, bounds: &NoiseBounds) -> Option<usize> {
        let gain = |predicted: &Vec<Vec<f64>>| {
            let length = squares(&difference(&predicted[0], &predicted[state])).sqrt();
            direction_gain(length, length, self.states[state].along[0])
        };
        let gains = bounds.predicted.iter().map(gain).sum::<f64>() / bounds.predicted.len().max(1) as f64;
        let requests = (self.threshold() / gains).ceil();
        (state > 0 && gains > 0.0 && requests <= HIDDEN).then_some(requests as usize)
    }
}

impl StateBets {
    /// Returns the logarithm of the mean capital of all bets against the state.
    fn evidence(&self, own: usize) -> f64 {
        let directions = self.directions.iter().enumerate().filter(|(other, _)| *other != own);
        let all: Vec<f64> = directions.map(|(_, capital)| *capital).chain([self.size]).collect();
        let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if most.is_infinite() {
            return most;
        }
        most + (all.iter().map(|capital| (capital - most).exp()).sum::<f64>() / all.len() as f64).ln()
    }
}

/// Returns the mean of measured values plus its standard errors.
fn upper_mean(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    mean + ERRORS * (variance / count).sqrt()
}

/// Returns the logarithm of a bet's factor for the component `along` of a residual, if the states differ by `length`.
fn direction_gain(along: f64, length: f64, bound: f64) -> f64 {
    let sigma = bound.sqrt();
    if !(length > 0.0 && sigma > 0.0) {
        return 0.0;
    }
    let reach = (CLIP * length / sigma).min(BOLDEST);
    let clipped = (along / sigma).clamp(-CLIP, CLIP);
    reach * clipped / CLIP - (1.0 + (reach.cosh() - 1.0) / CLIP.powi(2)).ln()
}

/// Returns the logarithm of the bet's factor on the size of a residual.
fn size_gain(mean_square: f64, bound: f64) -> f64 {
    if bound > 0.0 { (0.5 + 0.5 * mean_square / bound).ln() } else { 0.0 }
}

/// Returns the observed minus the predicted log-odds of each token; 0 if the log-odds are unknown. A token that is
/// missing from the answer has only an upper bound: the result is 0 unless the prediction exceeds this bound.
fn residual(told: &[ToldOdds], predicted: &[f64]) -> Vec<f64> {
    let one = |(told, predicted): (&ToldOdds, &f64)| match told {
        ToldOdds::Known(told) => told - predicted,
        ToldOdds::AtMost(most) => (most - predicted).min(0.0),
        ToldOdds::Unknown => 0.0,
    };
    told.iter().zip(predicted).map(one).collect()
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn squares(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum()
}

/// Returns the second moment along `d` of independent errors; 0 if `d` is 0.
fn squares_along(errors: &[f64], d: &[f64]) -> f64 {
    let along = errors.iter().zip(d).map(|(error, d)| (error * d).powi(2)).sum::<f64>();
    if squares(d) > 0.0 { along / squares(d) } else { 0.0 }
}

/// Returns the component of `r` along `d`; 0 if `d` is 0.
fn component(r: &[f64], d: &[f64]) -> f64 {
    let length = squares(d).sqrt();
    if length > 0.0 { r.iter().zip(d).map(|(r, d)| r * d).sum::<f64>() / length } else { 0.0 }
}
