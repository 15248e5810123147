//! A manifest row, which describes one array.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checkpoint::{ModulePath, Point, Site, TapAxis, TapScope, ValueKind};
use crate::dump::dtype_names::dtype_named;
use crate::dump::sequence_part::SequencePart;
use crate::dump::sketch;
use crate::measure::sketch::WIDTH;
use crate::view::View;
use crate::weight::DType;

/// Coarsest accepted decimal step of log-probabilities. Half a step changes a probability by 2.5 %. A step of
/// 0.1 could not distinguish models.
pub const COARSEST: f64 = 0.05;

/// One array of a dump, as listed in the manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TensorRow {
    /// The name of the tap. Empty for the output of a module.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tap: String,
    /// The path of a torch model's module, in place of a tap: the array is the module's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) module: Option<String>,
    /// The number of the module's call in the pass, from 0.
    #[serde(default, skip_serializing_if = "is_first")]
    pub(crate) call: usize,
    /// The pass. Absent only for `generated`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<usize>,
    /// The layer, for taps inside a layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// Element type.
    pub dtype: String,
    /// Length of each axis, outermost first.
    pub shape: Vec<usize>,
    /// Path of the array's file inside the dump.
    pub file: String,
    /// True if the file contains a sketch of the array.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) sketch: bool,
    /// Axes of the array, if they differ from the tap's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axes: Option<Vec<String>>,
    /// SHA-256 of the elements as stored: little-endian, in C order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Recorded rows of the pass, in ascending order, if not all (version 2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<usize>>,
    /// The part of the stored array that belongs to this row, if not all (version 2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<ArrayPart>,
    /// Type to which the values were rounded before they were stored in a larger type (version 2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) computed: Option<String>,
    /// Scale of each 8-bit element (version 2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scale: Option<ElementScale>,
    /// Decimal step of log-probabilities that were rounded to decimals (version 2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// True if the values of a row are multiples of the step plus an offset of the row. False if the offset is zero.
    #[serde(skip)]
    pub(super) is_shifted: bool,
    /// The sequence's part of the array, in a dump of several sequences.
    #[serde(skip)]
    pub(super) share: Option<Arc<SequencePart>>,
}

/// The scale of 8-bit elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, or the path of an f32 array")]
pub(crate) enum ElementScale {
    /// One number for all elements. It is rounded to `f32`.
    Number(f64),
    /// The path inside the dump of an `f32` array with the scales. Its shape is broadcast to the row's shape
    /// by NumPy's rules.
    File(String),
}

/// The part of a stored array that contains a tap's values: a range along each axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayPart {
    /// The shape in which the stored array is indexed. It must have as many elements as the stored array.
    pub shape: Vec<usize>,
    /// First index of the part along each axis. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<usize>>,
    /// End index of the part along each axis, exclusive. Default: the length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Vec<usize>>,
}

impl ArrayPart {
    /// Returns the range along each axis.
    ///
    /// # Errors
    /// A message, if the part is outside the shape.
    pub(crate) fn ranges(&self) -> Result<Vec<Range<usize>>, String> {
        let zeros = vec![0; self.shape.len()];
        let (start, end) = (self.start.as_ref().unwrap_or(&zeros), self.end.as_ref().unwrap_or(&self.shape));
        let fits = [start, end].iter().all(|ends| ends.len() == self.shape.len());
        let ranges: Vec<Range<usize>> = start.iter().zip(end).map(|(&start, &end)| start..end).collect();
        let is_inside =
            |(range, length): (&Range<usize>, &usize)| range.start < range.end && range.end <= *length;
        if fits && ranges.iter().zip(&self.shape).all(is_inside) {
            return Ok(ranges);
        }
        Err(format!("invalid \"of\": {start:?} to {end:?} is outside shape {:?}", self.shape))
    }
}

impl TensorRow {
    /// Makes a row for a whole array with the tap's own axes. `key` is the file or key of the array.
    pub fn new(site: Site, dtype: DType, shape: &[usize], key: &str) -> Self {
        Self {
            tap: site.point.name().to_owned(),
            module: None,
            call: 0,
            pass: site.pass,
            layer: site.layer,
            dtype: dtype.name().to_owned(),
            shape: shape.to_vec(),
            file: key.to_owned(),
            sketch: false,
            axes: None,
            sha256: None,
            rows: None,
            of: None,
            computed: None,
            scale: None,
            step: None,
            is_shifted: false,
            share: None,
        }
    }

    /// Returns the tap of the array.
    ///
    /// # Errors
    /// If the row names no tap and no module.
    pub(crate) fn point(&self) -> Result<Point, String> {
        match &self.module {
            Some(path) => Ok(Point::Module(ModulePath::in_model(path, self.call)?.0)),
            None => self.tap.parse(),
        }
    }

    /// Returns the site of the output of a module.
    fn site_of_module(&self, path: &str) -> Result<Site, String> {
        let (module, layer) = ModulePath::in_model(path, self.call)?;
        let is_other = self.layer.is_some_and(|stated| layer != Some(stated));
        if !self.tap.is_empty() || is_other || self.pass.is_none() {
            return Err(format!(
                "module '{path}': add \"pass\", remove \"tap\", and remove \"layer\" or state the layer of the path"
            ));
        }
        Ok(Site { point: Point::Module(module), layer, pass: self.pass })
    }

    /// Returns the site of the array, or an error if the row has none.
    pub fn site(&self) -> Result<Site, String> {
        if let Some(path) = &self.module {
            return self.site_of_module(path);
        }
        let point = self.point()?;
        if point == Point::Tokens {
            return Err(
                "tap 'tokens' cannot be an array of a dump; write the prompt's tokens to input.tokens".into(),
            );
        }
        let (layer, pass) = match point.scope() {
            TapScope::Layer => (true, true),
            TapScope::Pass => (false, true),
            TapScope::Run => (false, false),
        };
        if layer != self.layer.is_some() || pass != self.pass.is_some() {
            let wants = |wanted| if wanted { "one" } else { "no" };
            return Err(format!(
                "tap '{point}' needs {} layer and {} pass number",
                wants(layer),
                wants(pass)
            ));
        }
        Ok(Site { point, layer: self.layer, pass: self.pass })
    }

    /// Returns the element type, which must be one of the eight supported types. Token ids may have any
    /// integer type.
    pub fn dtype(&self) -> Result<DType, String> {
        use DType::*;
        let known = [F32, F64, F16, BF16, U32, I32, F8_E4M3, F8_E5M2];
        let is_known = |dtype: &DType| known.contains(dtype) || self.holds_tokens() && is_integer(*dtype);
        dtype_named(&self.dtype).filter(is_known).ok_or_else(|| {
            format!(
                "unknown dtype '{}', expected one of f32, f64, f16, bf16, u32, i32, f8_e4m3, f8_e5m2 (for \
                    token ids, any integer type)",
                self.dtype
            )
        })
    }

    /// Sets the recorded rows of the pass.
    pub(crate) fn of_rows(self, rows: &[usize]) -> Self {
        Self { rows: Some(rows.to_vec()), ..self }
    }

    /// Sets the decimal step: each log-probability may be off by half a step.
    pub(crate) fn known_to(self, step: f64) -> Self {
        Self { step: Some(step), is_shifted: true, ..self }
    }

    /// Changes the layer of the row.
    pub fn of_layer(self, layer: Option<usize>) -> Self {
        Self { layer, ..self }
    }

    /// Changes the tap of the row.
    pub fn named(self, tap: String) -> Self {
        Self { tap, ..self }
    }

    /// Checks the fields of version 2.
    pub(super) fn check_parts(&self) -> Result<(), String> {
        let point = self.point()?;
        if self.rows.is_some() && (self.sketch || !point.axes().contains(&TapAxis::Token)) {
            return Err("\"rows\" can only be used with a full array (no sketch) that has a token axis; omit \"rows\"".into());
        }
        if self.rows.is_some() && point.scope() == TapScope::Run {
            return Err(format!("\"rows\" cannot be used with {point}, which belongs to no pass; omit it"));
        }
        if let Some(computed) = &self.computed {
            let dtype = self.dtype()?;
            let is_short = |short: &DType| matches!(short, DType::F32 | DType::F16 | DType::BF16);
            let is_own = |short: &DType| dtype.is_f8() && *short == dtype;
            dtype_named(computed).filter(|short| is_short(short) || is_own(short)).ok_or_else(|| {
                format!(
                    "invalid \"computed\" '{computed}', expected f32, f16 or bf16, or for 8-bit values \
                    their own type"
                )
            })?;
        }
        if let Some(step) = self.step {
            let is_of_logarithms = matches!(point, Point::TokenLogprobs | Point::TopLogprobs);
            if !(step > 0.0 && step <= COARSEST && is_of_logarithms) {
                return Err(format!(
                    "invalid \"step\" {step}, expected a positive number of at most {COARSEST} on an array \
                     of log-probabilities"
                ));
            }
        }
        self.check_scale()?;
        let Some(of) = &self.of else { return Ok(()) };
        let cut: Vec<usize> = of.ranges()?.into_iter().map(|range| range.len()).collect();
        match (self.sketch, together(&cut, &self.shape)) {
            (false, Some(_)) => Ok(()),
            (true, _) => Err("\"sketch\" cannot be used with \"of\"".into()),
            _ => Err(format!("\"of\" selects shape {cut:?}, but \"shape\" is {:?}", self.shape)),
        }
    }

    /// Checks the scale. Only 8-bit types may have one, and a number must be positive and finite.
    fn check_scale(&self) -> Result<(), String> {
        let dtype = self.dtype()?;
        if self.sketch && dtype.is_f8() {
            return Err(format!("\"sketch\" cannot be used with values of type {dtype}"));
        }
        match &self.scale {
            Some(_) if !dtype.is_f8() => Err(format!(
                "\"scale\" needs f8_e4m3 or f8_e5m2 values, but these are {dtype}; multiply the \
                    values by the scale instead"
            )),
            Some(ElementScale::Number(number)) => check_scale(f64::from(*number as f32)),
            _ => Ok(()),
        }
    }

    /// Returns the type to which the values were last rounded, by the engine or when they were stored.
    pub fn rounded_to(&self) -> Option<DType> {
        let dtype = self.dtype().ok();
        // For values stored in 8 bits, rounding to that type came last.
        let shortest = dtype.filter(|dtype| dtype.is_f8());
        shortest.or_else(|| self.computed.as_deref().and_then(dtype_named)).or(dtype)
    }

    /// Returns true if the values are stored in 8 bits and the engine computed with the stored values.
    pub(crate) fn is_computed_with(&self) -> bool {
        let dtype = self.dtype().ok().filter(|dtype| dtype.is_f8());
        dtype.is_some() && self.computed.as_deref().and_then(dtype_named) == dtype
    }

    /// Makes a row for the array of scales, if the row has one.
    pub(super) fn of_scale(&self) -> Option<Self> {
        let Some(ElementScale::File(file)) = &self.scale else { return None };
        let (file, dtype) = (file.clone(), DType::F32.name().to_owned());
        let (of, rows, computed, scale, sha256) = Default::default();
        Some(Self { file, dtype, of, rows, computed, scale, sha256, ..self.clone() })
    }

    /// Returns the file, and the key of the array if the file is a `.safetensors` part.
    pub(super) fn place(&self) -> (&str, Option<&str>) {
        let parts = self.file.split_once('#').filter(|(file, _)| file.ends_with(".safetensors"));
        parts.map_or((&self.file, None), |(file, key)| (file, Some(key)))
    }

    /// Returns the shape of the array in the file.
    pub(crate) fn stored_shape(&self, point: Point) -> Vec<usize> {
        if self.sketch { vec![sketch::rows(point, &self.shape), WIDTH] } else { self.shape.clone() }
    }

    /// Returns true if an array of type `stored` matches the row. Token ids may have another integer type,
    /// since `numpy.argmax` returns `i64`.
    pub(super) fn is_of(&self, stored: DType) -> bool {
        if self.sketch {
            return stored == DType::F64;
        }
        let tokens = self.holds_tokens() && is_integer(stored);
        self.dtype().is_ok_and(|dtype| stored == dtype || tokens && is_integer(dtype))
    }

    /// Returns the maximum size of the elements in bytes. `None` on overflow.
    pub fn size(&self) -> Option<u64> {
        if self.sketch {
            let point = self.point().ok()?;
            return (sketch::rows(point, &self.shape) as u64).checked_mul((WIDTH * size_of::<f64>()) as u64);
        }
        let widest = DType::I64.block_bytes();
        let width = self.dtype().map_or(widest, |dtype| match self.holds_tokens() {
            true => widest,
            false => dtype.block_bytes(),
        });
        let shape = self.share.as_ref().map_or(&self.shape, |share| &share.whole.shape);
        let shape = self.of.as_ref().map_or(shape, |of| &of.shape);
        shape.iter().try_fold(width as u64, |size, &length| size.checked_mul(length as u64))
    }

    /// Returns the axes: those stated in the row, else the tap's own. An extra leading axis of length 1 is a
    /// batch axis.
    pub(crate) fn axes(&self) -> Result<Vec<TapAxis>, String> {
        let Some(names) = &self.axes else {
            let own = self.point()?.axes();
            let is_batch = self.shape.len() == own.len() + 1 && self.shape[0] == 1;
            return Ok([TapAxis::Batch].iter().filter(|_| is_batch).chain(own).copied().collect());
        };
        let mut axes = Vec::new();
        for name in names {
            let axis = name.parse().map_err(|()| format!("unknown axis '{name}'"))?;
            if axes.contains(&axis) {
                return Err(format!("duplicate axis '{name}' in \"axes\""));
            }
            axes.push(axis);
        }
        Ok(axes)
    }

    /// Checks the elements against the hash in the manifest, if stated.
    pub(super) fn check_content(&self, elements: &[u8]) -> Result<(), String> {
        let Some(stated) = &self.sha256 else { return Ok(()) };
        match hex::encode(Sha256::digest(elements)) {
            found if found == *stated => Ok(()),
            found => Err(format!("damaged data: SHA-256 is {found}, but the manifest states {stated}")),
        }
    }

    /// Checks stored values. Ids of top tokens must be unique per row. Values with a step must be multiples
    /// of it, within the precision of their type.
    pub(super) fn check_values(&self, point: Point, view: &View) -> Result<(), String> {
        if let Some(step) = self.step.filter(|_| !self.is_shifted) {
            let relative = match self.dtype()? {
                DType::F16 => 1.0 / 1024.0,
                DType::BF16 => 1.0 / 128.0,
                _ => f64::from(f32::EPSILON),
            };
            let is_off =
                |value: &&f64| (**value - (**value / step).round() * step).abs() > relative * value.abs();
            if let Some(value) = view.to_vec().iter().find(is_off) {
                return Err(format!("{value} is not a multiple of \"step\" {step}"));
            }
        }
        if point.kind() == ValueKind::Token {
            let what = if point == Point::Experts { "expert number" } else { "token id" };
            view.to_vec().into_iter().try_for_each(|value| check_id(value, what))?;
        }
        match point {
            Point::TopIds => self.check_ids(view, TapAxis::Rank, "top_ids", "id"),
            Point::Experts => self.check_ids(view, TapAxis::Chosen, "experts", "number"),
            _ => Ok(()),
        }
    }

    fn check_ids(&self, view: &View, along: TapAxis, tap: &str, what: &str) -> Result<(), String> {
        let Some(rank) = self.axes()?.iter().position(|axis| *axis == along) else { return Ok(()) };
        let inside: usize = view.shape()[rank + 1..].iter().product();
        let row_of = |flat: usize| (flat / (inside * view.shape()[rank]), flat % inside);
        let ids = view.to_vec().into_iter().enumerate();
        let mut placed: Vec<_> = ids.map(|(flat, id)| (row_of(flat), id.to_bits())).collect();
        placed.sort_unstable();
        match placed.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => {
                let ((outer, inner), id) = (pair[0].0, f64::from_bits(pair[0].1));
                Err(format!("{tap}, row {}: duplicate {what} {id}", outer * inside + inner))
            }
        }
    }

    fn holds_tokens(&self) -> bool {
        self.point().is_ok_and(|point| point.kind() == ValueKind::Token)
    }
}

/// Checks that a value is a valid id: a non-negative integer of at most 32 bits.
fn check_id(value: f64, what: &str) -> Result<(), String> {
    match value as f32 {
        _ if f64::from(value as u32) == value => Ok(()),
        // Prints the value with as few digits as identify it in `f32`.
        short if f64::from(short) == value && value.fract() != 0.0 => Err(format!("invalid {what} {short}")),
        _ => Err(format!("invalid {what} {value}")),
    }
}

/// Checks that a scale is a finite positive number.
pub(super) fn check_scale(scale: f64) -> Result<(), String> {
    match scale.is_finite() && scale > 0.0 {
        true => Ok(()),
        false => Err(format!("invalid scale {scale}, expected a positive number")),
    }
}

fn is_first(call: &usize) -> bool {
    *call == 0
}

fn is_integer(dtype: DType) -> bool {
    use DType::*;
    matches!(dtype, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
}

/// Groups neighbouring axes of `found` so that each group forms one axis of `wanted`, in row-major order.
/// Returns the sizes of the groups. `None` if impossible.
pub(super) fn together(found: &[usize], wanted: &[usize]) -> Option<Vec<usize>> {
    let (mut counts, mut rest) = (Vec::new(), found);
    for &length in wanted {
        let mut product = 1usize;
        let is_done = |length_so_far: &usize| *length_so_far == length;
        let mut count = 0;
        while count == 0 || !is_done(&product) {
            product = product.checked_mul(*rest.get(count)?)?;
            count += 1;
        }
        counts.push(count);
        rest = &rest[count..];
    }
    // The remaining axes must have length 1.
    *counts.last_mut()? += rest.len();
    rest.iter().all(|&length| length == 1).then_some(counts)
}
