//! HQQ: codes of 1 to 8 bits in groups of inputs or outputs. Each group has a scale and a zero point, both floats.
//! Each module states its own format in small tensors, as hqq's `state_dict` and transformers write them. `qmodel.pt` of
//! hqq has the same values as Python objects.

use std::sync::Arc;

use serde_json::Value;

use crate::error::Result;
use crate::model::dequantisation::affine::{ScaleGrid, ScaleGroup};
use crate::model::dequantisation::codes::word_at;
use crate::model::dequantisation::module_filter::{ModuleFilter, ModulePattern};
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::weight_matrix::{ElementDecoder, round_to};
use crate::model::dequantisation::{Dequantisation, FormatGroup, WeightFormat, WeightMatrix, WeightReading};
use crate::model::json::Config;
use crate::weight::DType;

/// Key of the list of unquantised modules.
const SKIPPED: &str = "skip_modules";

/// Key of the settings of all modules, or of each kind of module.
const SETTINGS: &str = "quant_config";

/// Key of the settings of weights.
const WEIGHT: &str = "weight_quant_params";

/// Settings of a module in `config.json`. The module's own tensors state them, too.
#[derive(Clone, Copy, Default)]
struct ModuleSettings {
    bits: Option<usize>,
    group: Option<usize>,
    axis: Option<usize>,
}

/// Codes of HQQ.
struct Hqq {
    stated: ModuleSettings,
}

/// Packing of codes in words. The codes of a word come from one column, and from rows that are as far apart as
/// possible. The code of the first row has the highest bits.
#[derive(Clone, Copy)]
struct CodePacking {
    bits: usize,
    /// Number of bytes of a word.
    bytes: usize,
    /// Number of codes in a word.
    codes: usize,
}

impl CodePacking {
    fn of(name: &[u8]) -> Option<Self> {
        let (bits, bytes, codes) = match name {
            b"8bit_u8" => (8, 1, 1),
            b"4bit_u8" => (4, 1, 2),
            b"3bit_32" => (3, 4, 10),
            b"2bit_u8" => (2, 1, 4),
            b"1bit_u8" => (1, 1, 8),
            _ => return None,
        };
        Some(Self { bits, bytes, codes })
    }

    /// Returns true if codes of `bits` bits may be packed in this way. A byte may store one code of 5 or 6 bits.
    fn holds(self, bits: usize) -> bool {
        bits == self.bits || self.bits == 8 && [5, 6].contains(&bits)
    }

    /// Returns the code at a row and a column of the matrix of groups. The matrix's words are stored in `lines` rows of
    /// `width`.
    fn code(
        self,
        bytes: &[u8],
        [lines, width]: [usize; 2],
        [row, col]: [usize; 2],
        is_lowest_first: bool,
    ) -> u32 {
        let (at, field) = (row % lines * width + col, row / lines);
        let field = if is_lowest_first { field } else { self.codes - 1 - field };
        let word = if self.bytes == 4 { word_at(bytes, at) } else { u32::from(bytes[at]) };
        word >> (self.bits * field) & ((1 << self.bits) - 1)
    }
}

impl WeightFormat for Hqq {
    fn tensors(&self) -> &'static [&'static str] {
        &[
            "W_q",
            "scale",
            "zero",
            "nbits",
            "group_size",
            "axis",
            "shape",
            "packing",
            "view_as_float",
            "unpack_view_dtype",
            "compute_dtype",
            "quant_scale",
            "quant_zero",
            "offload_meta",
            "encoded_state_dict",
            "stores_quant_config",
            "channel_wise",
            "optimize",
            "round_zero",
        ]
    }

    fn is_coarse(&self, module: &ModuleTensors) -> bool {
        number(module, "nbits").is_ok_and(|bits| bits <= 2)
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[
            WeightReading::ZeroAbove,
            WeightReading::ZeroBelow,
            WeightReading::OtherOrder,
            WeightReading::InverseScales,
            WeightReading::TransposedScales,
        ]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let layout = GroupLayout::read(module, self.stated)?;
        let GroupLayout { packing, rows, cols, group, by_inputs } = layout;
        let groups = rows * cols / group;
        let [height, width] = if by_inputs { [groups, group] } else { [group, groups] };
        let lines = height.div_ceil(packing.codes);
        let words = if packing.bytes == 4 { DType::I32 } else { DType::U8 };
        // The same bytes may be stored as floats.
        let types = [words, DType::F32, DType::F16, DType::BF16];
        let is_viewed = module.get("view_as_float").is_some() && number(module, "view_as_float")? != 0;
        let stored = module.require("W_q", if is_viewed { &types } else { &types[..1] })?;
        let line = width.checked_mul(packing.bytes);
        let is_line = |&length: &usize| length.checked_mul(stored.dtype.block_bytes()) == line;
        if !matches!(stored.shape.as_slice(), [found, length] if *found == lines && is_line(length)) {
            let (found, dtype) = (&stored.shape, stored.dtype);
            let problem = format!(
                "its shape is {found:?} in {dtype}, expected {lines} rows of {width} {words} words for {rows} x {cols} weights \
                 in groups of {group}"
            );
            return Err(module.bad(problem));
        }
        let shape = if by_inputs { [groups, 1] } else { [1, groups] };
        let dtype = module.require("scale", FLOATS)?.dtype;
        let scales = Arc::<[f32]>::from(module.numbers("scale", FLOATS, &shape)?);
        let zeros = Arc::<[f32]>::from(module.numbers("zero", &[dtype], &shape)?);
        let (grid, codes): (_, &[u8]) = (layout.grid(), &stored.data);
        let is_lowest_first = reading == WeightReading::OtherOrder;
        let value_in = move |dtype: DType, row: usize, col: usize| {
            let at = row * cols + col;
            let place = [at / width, at % width];
            let group = if by_inputs { place[0] } else { place[1] };
            let code = packing.code(codes, [lines, width], place, is_lowest_first);
            let zero = round_to(dtype, zeros[group] + reading.zero());
            let distance = round_to(dtype, code as f32 - zero);
            round_to(dtype, distance * round_to(dtype, grid.scale(&scales, group, reading)))
        };
        let decoder = |dtype: DType| {
            let value_in = value_in.clone();
            move |row: usize, col: usize| value_in(dtype, row, col)
        };
        // hqq rounds the scales to its compute_dtype, whatever type they are stored in.
        let others = [DType::F16, DType::BF16].into_iter().filter(|&other| other != dtype);
        let of_kernels = others.map(|other| (other, Box::new(decoder(other)) as ElementDecoder)).collect();
        Ok(WeightMatrix { of_kernels, ..WeightMatrix::new(dtype, [rows, cols], decoder(dtype)) })
    }
}

/// Format of a module, as its tensors state it.
struct GroupLayout {
    packing: CodePacking,
    rows: usize,
    cols: usize,
    group: usize,
    /// True if a group consists of neighbouring inputs (axis 1). False if its elements are as far apart as possible
    /// (axis 0).
    by_inputs: bool,
}

impl GroupLayout {
    fn read(module: &ModuleTensors, stated: ModuleSettings) -> Result<Self> {
        check_supported(module)?;
        let bits = positive(module, "nbits")?;
        let name = &module.require("packing", &[DType::U8])?.data;
        let packing = CodePacking::of(name).filter(|packing| packing.holds(bits)).ok_or_else(|| {
            let (name, found) =
                (module.name("packing"), String::from_utf8_lossy(&name[..name.len().min(16)]));
            let known = "8bit_u8, 4bit_u8, 3bit_32, 2bit_u8 and 1bit_u8";
            module.bad(format!("'{name}' is {found:?} for {bits} bits; known packings: {known}"))
        })?;
        let (axis, group) = (number(module, "axis")?, positive(module, "group_size")?);
        let sizes = integers(module, "shape")?;
        let sized = match (axis, sizes.as_slice()) {
            (0 | 1, &[rows, cols]) if rows > 0 && cols > 0 => {
                usize::try_from(rows).ok().zip(usize::try_from(cols).ok())
            }
            _ => None,
        };
        let Some((rows, cols)) = sized else {
            let [shape, name] = ["shape", "axis"].map(|name| module.name(name));
            let problem =
                format!("'{shape}' is {sizes:?} and '{name}' is {axis}, expected two sizes, and 0 or 1");
            return Err(module.bad(problem));
        };
        if !rows.checked_mul(cols).is_some_and(|elements| elements.is_multiple_of(group)) {
            return Err(
                module.bad(format!("{rows} x {cols} weights cannot be divided into groups of {group}"))
            );
        }
        let found = [
            ("nbits", bits, stated.bits),
            ("group_size", group, stated.group),
            ("axis", axis as usize, stated.axis),
        ];
        for (name, found, stated) in found {
            if let Some(stated) = stated
                && stated != found
            {
                let name = module.name(name);
                return Err(module.bad(format!("'{name}' is {found}, but quantization_config.{SETTINGS} states {stated}; correct one of them")));
            }
        }
        Ok(Self { packing, rows, cols, group, by_inputs: axis == 1 })
    }

    /// Returns the grid of scales: groups of inputs of one output, or of outputs of one input.
    fn grid(&self) -> ScaleGrid {
        let &Self { rows, cols, group, .. } = self;
        match self.by_inputs {
            true if cols.is_multiple_of(group) => ScaleGroup::Inputs(group).grid(rows, cols),
            false if rows.is_multiple_of(group) => ScaleGroup::Block([group, 1]).grid(rows, cols),
            // A group that spans several outputs (axis 1) or inputs (axis 0): the scales are a plain list.
            _ => ScaleGroup::Inputs(group).grid(1, rows * cols),
        }
    }
}

/// Checks that a module has no unsupported layout of scales, zero points or settings.
fn check_supported(module: &ModuleTensors) -> Result<()> {
    let others = [("meta.shape", "written by hqq before 0.2"), ("zero_scale", "written with offload_meta")];
    for (name, why) in others {
        if module.get(name).is_some() {
            let name = module.name(name);
            return Err(module.bad(format!(
                "'{name}' is not supported ({why}); quantise the model again with hqq 0.2 or newer, without offload_meta"
            )));
        }
    }
    for name in ["quant_scale", "quant_zero"] {
        if number(module, name)? != 0 {
            let name = module.name(name);
            return Err(module.bad(format!(
                "'{name}' is true, expected false (quantised scales and zero points are not supported)"
            )));
        }
    }
    Ok(())
}

/// Returns the integers that a tensor stores.
fn integers(module: &ModuleTensors, tensor: &str) -> Result<Vec<i64>> {
    if module.get(tensor).is_none() {
        // Settings of other types in `qmodel.pt`, such as 1.58 bits, do not become tensors.
        return Err(module.bad(format!(
            "'{}' is missing or not a whole number; quantise the model again with hqq 0.2 or newer, and a whole number of \
             bits",
            module.name(tensor)
        )));
    }
    let stored = module.require(tensor, &[DType::U8, DType::I32, DType::I64])?;
    let bytes: &[u8] = &stored.data;
    Ok(match stored.dtype {
        DType::U8 => bytes.iter().map(|&byte| byte.into()).collect(),
        DType::I32 => bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes).into()).collect(),
        _ => bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
    })
}

fn number(module: &ModuleTensors, tensor: &str) -> Result<i64> {
    match integers(module, tensor)?.as_slice() {
        &[number] => Ok(number),
        numbers => {
            Err(module.bad(format!("'{}' has {} values, expected 1", module.name(tensor), numbers.len())))
        }
    }
}

fn positive(module: &ModuleTensors, tensor: &str) -> Result<usize> {
    let number = number(module, tensor)?;
    let found = usize::try_from(number).ok().filter(|&found| found > 0);
    found.ok_or_else(|| module.bad(format!("'{}' is {number}, expected 1 or more", module.name(tensor))))
}

/// Reads the settings of transformers' `HqqConfig`.
///
/// # Errors
/// If a key asks for something that is not supported.
pub(super) fn read(settings: &Config) -> Result<Dequantisation> {
    settings.only_keys(&["quant_method", SETTINGS, SKIPPED])?;
    let mut filter = ModuleFilter::all(SKIPPED);
    for text in settings.texts(SKIPPED)? {
        // transformers skips modules whose names contain the text.
        filter.excluded.push((text.to_owned(), ModulePattern::Part(text.to_owned())));
    }
    let group = |stated: ModuleSettings| FormatGroup::new(Hqq { stated }, None);
    let Some(shared) = settings.object(SETTINGS)? else {
        // Files of hqq itself: each module's tensors state if and how it is quantised.
        filter.follows_file = true;
        return Ok(whole("HQQ".to_owned(), vec![group(ModuleSettings::default())], filter));
    };
    if shared.get(WEIGHT).is_some() {
        let stated = ModuleSettings::read(&shared)?;
        let name = match (stated.bits, stated.group) {
            (Some(bits), Some(group)) => format!("HQQ, {bits} bits, groups of {group}"),
            _ => "HQQ".to_owned(),
        };
        return Ok(whole(name, vec![group(stated)], filter));
    }
    let mut groups = Vec::new();
    filter.groups = Vec::new();
    for kind in shared.keys() {
        let own = shared
            .object(kind)?
            .ok_or_else(|| shared.bad_key(kind, "null", format!("an object with {WEIGHT:?}")))?;
        groups.push(group(ModuleSettings::read(&own)?));
        filter
            .groups
            .push(vec![ModulePattern::Name(kind.to_owned()), ModulePattern::Suffix(format!(".{kind}"))]);
    }
    Ok(whole("HQQ, settings of single modules".to_owned(), groups, filter))
}

fn whole(name: String, groups: Vec<FormatGroup>, filter: ModuleFilter) -> Dequantisation {
    Dequantisation { name, groups, filter, may_have_float_cache: false, other_names: None }
}

impl ModuleSettings {
    fn read(settings: &Config) -> Result<Self> {
        settings.only_keys(&[WEIGHT, "scale_quant_params", "zero_quant_params", "offload_meta"])?;
        for key in ["scale_quant_params", "zero_quant_params"] {
            settings.only(key, &[], "absent (quantised scales and zero points are not supported)")?;
        }
        let weight = settings.object(WEIGHT)?;
        let weight = weight.ok_or_else(|| settings.bad_key(WEIGHT, "absent", "an object with \"nbits\""))?;
        weight.only_keys(&[
            "nbits",
            "group_size",
            "axis",
            "channel_wise",
            "optimize",
            "round_zero",
            "view_as_float",
        ])?;
        weight.only(
            "channel_wise",
            &[Value::Bool(true)],
            "true (one scale for a matrix is not supported)",
        )?;
        let size = |key: &str| weight.optional_usize(key);
        Ok(Self { bits: size("nbits")?, group: size("group_size")?, axis: size("axis")? })
    }
}
