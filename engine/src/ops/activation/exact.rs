//! Exact evaluation of nonlinearities, alone and multiplied by the up projection.

use multiversion::multiversion;

use crate::exact::input::InputTensor;
use crate::exact::operation::{per_row, rows_around};
use crate::exact::value::{K, U, both};
use crate::exact::{Choice, ExactValue, Float, Operation, Profile};
use crate::exponential::exp;
use crate::ops::activation::{Activation, CUBIC, ClampedGlu, QUICK, SQRT_2_OVER_PI};
use crate::tensor::Tensor;

/// A nonlinearity: `activation(x)`, or `activation(x) · up`.
pub(crate) struct Nonlinearity {
    /// Input of the nonlinearity: the gate, if there is one.
    pub(crate) x: Tensor,
    /// Up projection that the result is multiplied by.
    pub(crate) up: Option<Tensor>,
    /// The nonlinearity.
    pub(crate) activation: Activation,
}

impl Operation for Nonlinearity {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let part = rows_around(wanted, 1);
        let x = InputTensor::read(&self.x, profile, part.clone());
        let up = self.up.as_ref().map(|up| InputTensor::of_part(up, profile, part));
        if let (Some(x), Some(up)) = (x.given(), up.as_ref().and_then(InputTensor::given))
            && self.is_plain_silu(profile)
        {
            return per_row(wanted, x.len(), |flats, exacts| {
                let gathered = |of: &[f32]| flats.iter().map(|&flat| of[flat]).collect::<Vec<_>>();
                let first = exacts.len();
                exacts.resize(first + flats.len(), ExactValue::default());
                silus(&gathered(x), &gathered(up), profile.library_ulps, &mut exacts[first..]);
            });
        }
        let one = |&flat: &usize| {
            let activated = activated(x.get(flat), self.activation, profile);
            let Some(up) = &up else { return activated };
            activated.rounded(profile.activated).times(up.get(flat))
        };
        per_row(wanted, 256, |flats, exacts| exacts.extend(flats.iter().map(one)))
    }

    /// Returns true only for tanh, the nonlinearity of a soft cap: a kernel may fuse the operations of a soft cap.
    fn is_fused(&self) -> bool {
        self.activation == Activation::Tanh
    }

    fn inputs(&self) -> Vec<&Tensor> {
        [&self.x].into_iter().chain(&self.up).collect()
    }

    fn choices(&self) -> &'static [Choice] {
        match (self.activation, &self.up) {
            (Activation::GeluTanh | Activation::GeluNew | Activation::GeluFactored, Some(_)) => {
                &[Choice::Activated, Choice::GeluTable, Choice::ActivationChain, Choice::Constants]
            }
            (Activation::GeluTanh | Activation::GeluNew | Activation::GeluFactored, None) => {
                &[Choice::GeluTable, Choice::ActivationChain, Choice::Constants]
            }
            (Activation::Silu | Activation::QuickGelu, Some(_)) => {
                &[Choice::Activated, Choice::ActivationChain, Choice::AbsoluteSigmoid]
            }
            (Activation::QuickGelu, None) => &[Choice::ActivationChain, Choice::AbsoluteSigmoid],
            (Activation::GeluErf, Some(_)) => &[Choice::Activated, Choice::AbsoluteErf],
            (Activation::GeluErf, None) => &[Choice::AbsoluteErf],
            (Activation::Sigmoid, None) => &[Choice::AbsoluteSigmoid],
            (_, Some(_)) => &[Choice::Activated],
            (_, None) => &[],
        }
    }
}

impl Nonlinearity {
    fn is_plain_silu(&self, profile: &Profile) -> bool {
        let is_chain = profile.results != Float::F32 && profile.activation_chain;
        let is_plain = !is_chain && !profile.absolute_sigmoid && profile.activated == Float::F32;
        self.activation == Activation::Silu && is_plain
    }
}

/// A clamped GLU, evaluated from recorded or computed projections.
pub(crate) struct ClampedGating {
    /// Gate projection.
    pub(crate) gate: Tensor,
    /// Up projection.
    pub(crate) up: Tensor,
    /// Factor and limit.
    pub(crate) glu: ClampedGlu,
}

impl Operation for ClampedGating {
    fn at(&self, profile: &Profile, wanted: &[usize]) -> Vec<ExactValue> {
        let [gate, up] =
            [&self.gate, &self.up].map(|x| InputTensor::of_part(x, profile, rows_around(wanted, 1)));
        let (alpha, limit) = (f64::from(self.glu.alpha), f64::from(self.glu.limit));
        // The experts' biases stay f32 in autocast, so both projections and the steps between them do too. Transformers
        // computes the steps one by one, and compilers fuse them.
        let results = if profile.activation_chain { Float::F32 } else { profile.stream() };
        let profile = &Profile { results, ..*profile };
        let once = |exact: ExactValue| {
            exact.moved(K * U * exact.value.abs(), U * exact.value.abs()).rounded(profile.results)
        };
        let one = |&flat: &usize| {
            let (gate, up) = (gate.get(flat), up.get(flat));
            let gate = ExactValue { value: if gate.value > limit { limit } else { gate.value }, ..gate };
            let up = ExactValue { value: up.value.clamp(-limit, limit), ..up };
            let inner = once(gate.through(gate.value * alpha, alpha));
            let weighted = once(logistic_chain(gate, inner, profile));
            let plus = once(up.through(up.value + 1.0, 1.0));
            weighted.times(plus)
        };
        per_row(wanted, 256, |flats, exacts| exacts.extend(flats.iter().map(one)))
    }

    fn choices(&self) -> &'static [Choice] {
        &[Choice::ActivationChain]
    }

    fn inputs(&self) -> Vec<&Tensor> {
        vec![&self.gate, &self.up]
    }
}

/// Evaluates x / (1 + e^-x) · up for many recorded inputs. Equals [`silu`] followed by the product.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl+avx512bw", "x86_64+avx2+fma"))]
fn silus(x: &[f32], up: &[f32], p: f64, exacts: &mut [ExactValue]) {
    for ((exact, &x), &up) in exacts.iter_mut().zip(x).zip(up) {
        let (x, up) = (f64::from(x), f64::from(up));
        let e = exp(-x);
        let (value, bound) = silu_within(x, e, p);
        let (value, bound) = (value * up, bound * up.abs());
        *exact = ExactValue::bounded(value, bound).moved(K * U * value.abs(), U * value.abs());
    }
}

fn activated(x: ExactValue, activation: Activation, profile: &Profile) -> ExactValue {
    let p = profile.library_ulps;
    // transformers computes gelu_new and BLOOM's GELU as chains of operations by default.
    let is_stepwise = matches!(activation, Activation::GeluNew | Activation::GeluFactored);
    let is_chain = profile.results != Float::F32 && profile.activation_chain != is_stepwise;
    match activation {
        Activation::Silu if is_chain => logistic_chain(x, x, profile),
        Activation::Silu => absolute(silu(x, p), x, profile.absolute_sigmoid.then_some(SIGMOID)),
        Activation::Tanh => tanh(x, p),
        Activation::Sigmoid if profile.absolute_sigmoid => sigmoid(x, p).moved(SIGMOID / 2.0, SIGMOID),
        Activation::Sigmoid => sigmoid(x, p),
        Activation::Relu => ExactValue { value: x.value.max(0.0), ..x },
        Activation::QuickGelu if is_chain => {
            let inner = x.through(f64::from(QUICK) * x.value, QUICK.into());
            let inner = inner.moved(K * U * inner.value.abs(), U * inner.value.abs());
            logistic_chain(x, inner.rounded(profile.results), profile)
        }
        Activation::QuickGelu => absolute(quick_gelu(x, p), x, profile.absolute_sigmoid.then_some(SIGMOID)),
        Activation::SquaredRelu => {
            let positive = x.value.max(0.0);
            let value = positive * positive;
            let radius = 2.0 * positive * x.radius + x.radius * x.radius;
            ExactValue { value, sigma: 2.0 * positive * x.sigma, radius }.moved(K * U * value, U * value)
        }
        Activation::GeluErf => absolute(gelu_erf(x, p), x, profile.absolute_erf.then_some(NORMAL)),
        Activation::GeluNew | Activation::GeluTanh if is_chain => gelu_chain(x, profile),
        Activation::GeluFactored if is_chain => factored_gelu_chain(x, profile),
        _ if profile.gelu_table => gelu_table(x, p),
        _ => gelu_tanh(x, p),
    }
}

/// Evaluates the hyperbolic tangent, with the error of a library function.
fn tanh(x: ExactValue, p: f64) -> ExactValue {
    let value = x.value.tanh();
    // The slope is largest at zero, and changes by less than the argument does.
    let steep = (1.0 - value * value + x.radius).min(1.0);
    ExactValue::bounded(value, 2.0 * p * U * value.abs()).moved(x.sigma * steep, x.radius * steep)
}

/// Evaluates the logistic function, 1 / (1 + e^-x). llama.cpp computes it as silu(x) / x, with two more roundings.
pub(crate) fn sigmoid(x: ExactValue, p: f64) -> ExactValue {
    let e = exp(-x.value);
    let value = 1.0 / (1.0 + e);
    let part = if overflows(e) { 1.0 + 16.0 * U } else { U * (5.0 + 2.0 * p * e * value) };
    let steep = value * (1.0 - value) + 0.1 * x.radius.min(1.0);
    ExactValue::bounded(value, value * part).moved(x.sigma * steep, x.radius * steep)
}

/// Evaluates SiLU, x / (1 + e^-x). Its slope is at most 1.1.
fn silu(x: ExactValue, p: f64) -> ExactValue {
    let e = exp(-x.value);
    let sigmoid = 1.0 / (1.0 + e);
    let (value, bound) = silu_within(x.value, e, p);
    let slope = sigmoid * (1.0 + x.value * (1.0 - sigmoid));
    let own = ExactValue::bounded(value, bound);
    let steep = slope.abs() + 0.5 * x.radius.min(1.0);
    own.moved(x.sigma * steep, x.radius * steep)
}

/// Evaluates the function and its rounding error, where `e` is e^-x.
#[inline(always)]
fn silu_within(x: f64, e: f64, p: f64) -> (f64, f64) {
    let sigmoid = 1.0 / (1.0 + e);
    let value = x * sigmoid;
    let part = if overflows(e) { 1.0 + 16.0 * U } else { U * (3.0 + 2.0 * p * e * sigmoid) };
    (value, value.abs() * part)
}

/// Largest absolute error of a logistic function, for implementations without a relative error bound. Measured in
/// ONNX Runtime, roundings included.
const SIGMOID: f64 = 1.7e-7;

/// Largest absolute error of the normal distribution function (1 + erf(x / √2)) / 2 in torch's GELU on the CPU.
/// Measured: 3.382e-7 at -2.985, the largest among 1 200 000 arguments from -9 to 9.
const NORMAL: f64 = 3.4e-7;

/// Returns `x` times a function with an absolute error `off`. The product is rounded once.
fn absolute(y: ExactValue, x: ExactValue, off: Option<f64>) -> ExactValue {
    let Some(off) = off else { return y };
    let radius = off * x.value.abs() + U * y.value.abs();
    // For uncertain `x`, `y` already contains the error from `x`.
    let (sigma, radius) = if x.radius == 0.0 { (radius / 2.0, radius) } else { (y.sigma, y.radius + radius) };
    ExactValue { sigma, radius, ..y }
}

/// Returns true if the exponential may be infinite in `f32`. A quotient by it is then zero.
#[inline(always)]
fn overflows(e: f64) -> bool {
    e * (1.0 + 16.0 * U) >= f64::from(f32::MAX)
}

/// Evaluates x / (1 + e^-ax). The product ax is rounded, and the exponential amplifies that error.
fn quick_gelu(x: ExactValue, p: f64) -> ExactValue {
    let inner = f64::from(QUICK) * x.value;
    let e = (-inner).exp();
    let sigmoid = 1.0 / (1.0 + e);
    let value = x.value * sigmoid;
    let slope = sigmoid * (1.0 + inner * (1.0 - sigmoid));
    let share = if e.is_finite() { e / (1.0 + e) } else { 1.0 };
    let bound = match overflows(e) {
        true => value.abs() * (1.0 + 16.0 * U),
        false => value.abs() * U * (3.0 + (2.0 * p + inner.abs()) * share),
    };
    // The slope changes up to twice as fast as that of SiLU.
    let steep = slope.abs() + x.radius.min(1.0);
    ExactValue::bounded(value, bound).moved(x.sigma * steep, x.radius * steep)
}

/// Evaluates x times the logistic function of `inner`, rounded after each operation, as compilers compute it in a
/// short type.
fn logistic_chain(x: ExactValue, inner: ExactValue, profile: &Profile) -> ExactValue {
    let e = (-inner.value).exp();
    let sigmoid = 1.0 / (1.0 + e);
    let slope = sigmoid * (1.0 - sigmoid);
    // An exponential in a short type is one of the two neighbouring numbers, not always the nearer one.
    let library = if overflows(e) { 1.0 } else { profile.results.unit() * e / (1.0 + e) };
    let sigmoid = ExactValue::bounded(sigmoid, sigmoid * (library + 4.0 * U))
        .moved(inner.sigma * slope, inner.radius * (slope + 0.1 * inner.radius.min(1.0)));
    sigmoid.rounded(profile.results).times(x)
}

/// Evaluates GELU's tanh form: x(1 + t)/2, t = tanh a, a = c(x + 0.044715 x³).
fn gelu_tanh(x: ExactValue, p: f64) -> ExactValue {
    let (c, cubic) = (f64::from(SQRT_2_OVER_PI), f64::from(CUBIC));
    let v = x.value;
    let t = (c * (v + cubic * v * v * v)).tanh();
    let value = v * (1.0 + t) / 2.0;
    let inside = (1.0 - t * t) * 5.0 * U * c * (v.abs() + cubic * v.abs().powi(3));
    let bound =
        v.abs() / 2.0 * (inside + 2.0 * p * U * t.abs() + U * (1.0 + t).abs()) + 2.0 * U * value.abs();
    let slope = (1.0 + t) / 2.0 + v / 2.0 * (1.0 - t * t) * c * (1.0 + 3.0 * cubic * v * v);
    let steep = slope.abs() + x.radius.min(1.0);
    ExactValue::bounded(value, bound).moved(x.sigma * steep, x.radius * steep)
}

/// Evaluates GELU: x(1 + erf(x/√2))/2.
fn gelu_erf(x: ExactValue, p: f64) -> ExactValue {
    let v = x.value;
    let a = v * std::f64::consts::FRAC_1_SQRT_2;
    let erf = libm::erf(a);
    let value = v * (1.0 + erf) / 2.0;
    let inside = 2.0 * U * std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp() * a.abs();
    let bound =
        v.abs() / 2.0 * (inside + 2.0 * p * U * erf.abs() + U * (1.0 + erf).abs()) + 2.0 * U * value.abs();
    let density = (-v * v / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let steep = ((1.0 + erf) / 2.0 + v * density).abs() + x.radius.min(1.0);
    ExactValue::bounded(value, bound).moved(x.sigma * steep, x.radius * steep)
}

/// Evaluates GELU from ggml's table: argument and result are rounded to `f16`, except far from zero.
fn gelu_table(x: ExactValue, p: f64) -> ExactValue {
    if x.value + x.radius <= -10.0 {
        return ExactValue::default();
    }
    if x.value - x.radius >= 10.0 {
        return x;
    }
    gelu_tanh(x.rounded(Float::F16), p).rounded(Float::F16)
}

/// Evaluates GELU as a chain of operations, each of which rounds its result.
fn gelu_chain(x: ExactValue, profile: &Profile) -> ExactValue {
    let short = profile.results;
    let once =
        |exact: ExactValue| exact.moved(K * U * exact.value.abs(), U * exact.value.abs()).rounded(short);
    let times = |x: ExactValue, factor: f64| once(x.through(x.value * factor, factor));
    let square = x.through(x.value * x.value, 2.0 * x.value);
    // torch rounds the square in bf16, and on GPUs in f16. Other engines do not, so both results are allowed.
    let unrounded = short.unit() * square.value;
    let square = square.moved(unrounded / 2.0, unrounded);
    let cube = once(square.times(x));
    let sum = {
        let cubic = times(cube, profile.constants.round(CUBIC.into()));
        once(ExactValue {
            value: x.value + cubic.value,
            sigma: both(x.sigma, cubic.sigma),
            radius: x.radius + cubic.radius,
        })
    };
    weighted(x, times(sum, profile.constants.round(SQRT_2_OVER_PI.into())), profile)
}

/// Evaluates BLOOM's order of this chain: `c·x · (1 + 0.044715·x·x)` inside of tanh.
fn factored_gelu_chain(x: ExactValue, profile: &Profile) -> ExactValue {
    let once = |exact: ExactValue| {
        exact.moved(K * U * exact.value.abs(), U * exact.value.abs()).rounded(profile.results)
    };
    let times = |factor: f32| {
        let factor = profile.constants.round(factor.into());
        once(x.through(x.value * factor, factor))
    };
    let square = once(times(CUBIC).times(x));
    let factor = once(ExactValue { value: 1.0 + square.value, ..square });
    weighted(x, once(times(SQRT_2_OVER_PI).times(factor)), profile)
}

/// Evaluates x(1 + tanh(inner))/2 step by step.
fn weighted(x: ExactValue, inner: ExactValue, profile: &Profile) -> ExactValue {
    let short = profile.results;
    let once =
        |exact: ExactValue| exact.moved(K * U * exact.value.abs(), U * exact.value.abs()).rounded(short);
    let t = inner.value.tanh();
    let tanh = inner.through(t, 1.0 - t * t + inner.radius.min(1.0));
    let tanh = tanh.moved(0.0, profile.library_ulps * 2.0 * U * t.abs()).rounded(short);
    let plus = once(ExactValue { value: 1.0 + tanh.value, ..tanh });
    once(x.through(x.value * 0.5, 0.5)).times(plus)
}
