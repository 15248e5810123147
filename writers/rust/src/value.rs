//! One value of a pass: what may be said of it, and whether it can be right.

use crate::axes::{axes_of, Axis};
use crate::error::{refuse, Result};
use crate::passes::Pass;
use crate::taps::{Scope, Tap};
use crate::values::Values;

/// What may be said of a value besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'o> {
    /// What the axes are, where they are not the tap's. Several may stand for one: `KvHead`, `Group` for `Head` (version 2).
    pub axes: Option<&'o [Axis]>,
    /// The rows of the pass that the array holds, in ascending order, if not all (version 2).
    pub rows: Option<&'o [usize]>,
    /// The type that values were rounded to before they were stored in a longer one: f32, f16 or bf16 (version 2).
    pub computed: Option<&'o str>,
    /// What log-probabilities are multiples of, where they were written with few decimals (version 2).
    pub step: Option<f64>,
}

/// A tap that is a part of an array.
#[derive(Clone, Copy, Debug)]
pub struct Part<'p> {
    /// The tap.
    pub tap: &'p str,
    /// The shape by which the array is cut: of as many elements.
    pub of: &'p [usize],
    /// Where the part begins along each axis.
    pub start: &'p [usize],
    /// Where it ends, the end not included.
    pub end: &'p [usize],
    /// What may be said besides.
    pub options: Options<'p>,
}

impl<'p> Part<'p> {
    /// The part from `start` to before `end` of the array, seen as of shape `of`.
    pub fn new(tap: &'p str, of: &'p [usize], start: &'p [usize], end: &'p [usize]) -> Self {
        Self { tap, of, start, end, options: Options::default() }
    }

    /// The shape that is left.
    pub(crate) fn cut(&self, elements: usize, key: &str) -> Result<Vec<usize>> {
        let tap = self.tap;
        if count(self.of) != Some(elements) {
            let of = self.of;
            return refuse(format!(
                "tap '{tap}': {key} has {elements} elements, which cannot be seen as {of:?}"
            ));
        }
        let fits = [self.start, self.end].iter().all(|ends| ends.len() == self.of.len());
        let mut ends = self.start.iter().zip(self.end).zip(self.of);
        if !(fits && ends.all(|((start, end), length)| start < end && end <= length)) {
            let (start, end, of) = (self.start, self.end, self.of);
            return refuse(format!(
                "tap '{tap}' is cut from {start:?} to {end:?}, which is no part of {of:?}"
            ));
        }
        Ok(self.start.iter().zip(self.end).map(|(start, end)| end - start).collect())
    }
}

/// How many elements a shape has, if that is a number.
fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, &length| count.checked_mul(length))
}

pub(crate) fn check_count(shape: &[usize], values: Values, key: &str) -> Result<()> {
    if values.is_empty() {
        return refuse(format!("{key}: there are no values"));
    }
    if count(shape) != Some(values.len()) {
        return refuse(format!("{key}: {} values do not have the shape {shape:?}", values.len()));
    }
    Ok(())
}

/// A name that is no tap's becomes a path.
pub(crate) fn check_array_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.len() > 40 || !name.chars().all(is_plain) {
        let name = name.escape_debug();
        return refuse(format!("an array is named '{name}', expected 1 to 40 letters, digits and _"));
    }
    if Tap::named(name).is_ok() {
        return refuse(format!("an array is named '{name}' as a tap is; give it another name"));
    }
    Ok(())
}

/// Its type, axes and lengths, as the pass has them; and the rows of the pass that it holds.
pub(crate) fn check_value(
    tap: &Tap,
    pass: &Pass,
    shape: &[usize],
    values: Values,
    options: Options,
    is_several: bool,
) -> Result<Vec<usize>> {
    if tap.is_tokens() != values.are_integers() {
        let wanted = if tap.is_tokens() {
            "token ids; give u32 or i32"
        } else {
            "activations; give f32, f64, f16 or bf16"
        };
        return refuse(format!("{} is no type for {wanted}", values.names()[0]));
    }
    if let Some(computed) = options.computed.filter(|name| !["f32", "f16", "bf16"].contains(name)) {
        return refuse(format!("Options::computed is '{computed}', expected f32, f16 or bf16"));
    }
    if let Some(step) = options.step {
        check_step(tap, step, values)?;
    }
    let axes = axes_of(tap, shape, options.axes, is_several)?;
    if let Some(empty) = shape.iter().position(|&length| length == 0) {
        return refuse(format!("axis '{}' has length 0", axes[empty].name()));
    }
    let length = |wanted| axes.iter().position(|&axis| axis == wanted).map(|at| shape[at]);
    let (entries, token) = (length(Axis::Batch).unwrap_or(1), length(Axis::Token));
    let mut held = check_rows(pass, options.rows, token.is_some(), entries)?;
    // Nothing may be known to follow the last token: entries of those before it stand for themselves.
    let is_plain = !is_several && options.rows.is_none() && options.axes.is_none();
    let is_one_less = is_plain && token.is_some_and(|found| found + 1 == held.len());
    if tap.name == "token_logprobs" && is_one_less {
        held.pop();
    }
    let rows = held.len();
    if let Some(found) = token.filter(|&found| found.checked_mul(entries) != Some(rows)) {
        let whose = if options.rows.is_some() { "Options::rows" } else { "its pass" };
        let times = if entries > 1 { format!(" in {entries} entries of a batch") } else { String::new() };
        return refuse(format!(
            "axis 'token' has length {found}{times}, expected {rows} rows: those of {whose}"
        ));
    }
    if tap.scope == Scope::Pass && token.is_none() && entries != pass.sequences {
        let expected = pass.sequences;
        return refuse(format!(
            "it has a row for {entries} sequences, expected {expected}: those that its pass reads"
        ));
    }
    Ok(held)
}

/// The coarsest step that readers take: of a coarser one nothing could be told from another model.
const COARSEST: f64 = 0.05;

/// Values with a step are multiples of it, as exactly as `f32` is.
fn check_step(tap: &Tap, step: f64, values: Values) -> Result<()> {
    if !["token_logprobs", "top_logprobs"].contains(&tap.name) {
        return refuse("Options::step is of token_logprobs and top_logprobs alone");
    }
    if !(step > 0.0 && step <= COARSEST) {
        return refuse(format!("Options::step is {step}, expected a positive number of at most {COARSEST}"));
    }
    let numbers: Vec<f64> = match values {
        Values::F32(values) => values.iter().map(|&value| value.into()).collect(),
        Values::F64(values) => values.to_vec(),
        _ => return refuse("values with Options::step are f32 or f64"),
    };
    let is_off = |value: &&f64| {
        let nearest = (**value / step).round() * step;
        (**value - nearest).abs() > f64::from(f32::EPSILON) * value.abs()
    };
    match numbers.iter().find(is_off) {
        Some(value) => refuse(format!("{value} is no multiple of Options::step, {step}")),
        None => Ok(()),
    }
}

/// Which rows an array holds: all of the pass, or those that are listed.
fn check_rows(pass: &Pass, listed: Option<&[usize]>, has_tokens: bool, entries: usize) -> Result<Vec<usize>> {
    let Some(listed) = listed else { return Ok((0..pass.rows).collect()) };
    if !has_tokens {
        return refuse("it has no axis token, so it cannot hold some rows");
    }
    if entries > 1 {
        return refuse("Options::rows counts rows of the pass; leave out the axis batch");
    }
    if !listed.windows(2).all(|two| two[0] < two[1]) || listed.last().is_none_or(|&last| last >= pass.rows) {
        let rows = pass.rows;
        return refuse(format!(
            "Options::rows are {listed:?}, expected some of {rows} rows, in ascending order"
        ));
    }
    Ok(listed.to_vec())
}
