//! optimum-quanto: `quanto_qmap.json`, next to `config.json`, lists the quantised modules and the types of their
//! weights. 8-bit weights have one scale for each output. Weights of 2 and 4 bits have a scale and a shift for each
//! group.

use std::collections::HashSet;

use crate::error::Result;
use crate::model::dequantisation::activations::ActivationScheme;
use crate::model::dequantisation::affine::ScaleGroup;
use crate::model::dequantisation::dense_weights::{DenseTensors, DenseWeights};
use crate::model::dequantisation::mlx;
use crate::model::dequantisation::module_filter::{ModuleFilter, ModulePattern};
use crate::model::dequantisation::module_tensors::{FLOATS, ModuleTensors};
use crate::model::dequantisation::weight_matrix::{ElementDecoder, round_to};
use crate::model::dequantisation::{Dequantisation, FormatGroup, WeightFormat, WeightMatrix, WeightReading};
use crate::model::json::Config;
use crate::model::quantisation;
use crate::weight::DType;

/// Name of the file that lists the quantised modules. The loader inserts its content into `config.json` under this key.
pub(super) const FILE: &str = "quanto_qmap.json";

const SCALE: &str = "weight._scale";
const SHIFT: &str = "weight._shift";

const BYTES: DenseTensors = DenseTensors {
    scale: SCALE,
    weight: "weight._data",
    zero_point: SHIFT,
    all: &[SCALE, "weight._data", "input_scale", "output_scale"],
};

/// Group sizes. If a matrix has more than 128 inputs, quanto uses the first of these sizes that divides the number
/// of inputs.
const GROUPS: [usize; 4] = [128, 96, 64, 32];

/// Group size for which quanto uses torch's int4 kernel, if weights are bf16.
const KERNEL_GROUP: usize = 128;

/// Last parts of the names of modules whose outputs are the hidden state.
const TO_HIDDEN: [&str; 8] =
    ["o_proj", "down_proj", "w2", "out_proj", "c_proj", "dense", "fc2", "dense_4h_to_h"];

/// Quantised weights of quanto with one byte each.
struct QuantoBytes {
    codes: DType,
}

impl WeightFormat for QuantoBytes {
    fn tensors(&self) -> &'static [&'static str] {
        BYTES.all
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[WeightReading::InverseScales]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        module.require(BYTES.weight, &[self.codes])?;
        let format = DenseWeights { tensors: BYTES, group: ScaleGroup::Channel, has_exponents: false };
        format.weight(module, reading)
    }
}

/// Weights of 2 or 4 bits. Each row of the tensors is one group. The tensors do not state the shape of the matrix.
struct QuantoGroups {
    bits: usize,
    /// Size of the hidden state, which is the number of inputs or outputs of most modules.
    hidden: Option<usize>,
}

impl WeightFormat for QuantoGroups {
    fn tensors(&self) -> &'static [&'static str] {
        &[SCALE, "weight._data._data", SHIFT, "input_scale", "output_scale"]
    }

    fn readings(&self) -> &'static [WeightReading] {
        &[
            WeightReading::ZeroAbove,
            WeightReading::ZeroBelow,
            WeightReading::OtherOrder,
            WeightReading::InverseScales,
        ]
    }

    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>> {
        let bits = self.bits;
        let (stored, [lines, width]) = module.matrix("weight._data._data", &[DType::U8])?;
        let (scale, [groups, _]) = module.matrix(SCALE, FLOATS)?;
        let dtype = scale.dtype;
        let expected = groups.div_ceil(8 / bits);
        if lines != expected {
            let name = module.name("weight._data._data");
            let problem = format!(
                "'{name}' has {lines} rows, expected {expected} for the {bits}-bit codes of {groups} groups"
            );
            return Err(module.bad(problem));
        }
        let scales = module.numbers(SCALE, &[dtype], &[groups, 1])?;
        let mut shifts = module.numbers(SHIFT, &[dtype], &[groups, 1])?;
        let [rows, cols] = self.shape(module.module, groups, width);
        let has_kernel =
            bits == 4 && dtype == DType::BF16 && width == KERNEL_GROUP && group_of(cols) == Some(width);
        // In place of the shift, the kernel stores the value of code 8, the middle of the range, in bf16. The library
        // decodes with a shift that it computes from this value.
        let middles: Vec<f32> =
            scales.iter().zip(&shifts).map(|(scale, shift)| round_to(dtype, 8.0 * scale - shift)).collect();
        if has_kernel {
            let exact =
                scales.iter().zip(&middles).map(|(scale, middle)| round_to(dtype, 8.0 * scale - middle));
            shifts = exact.collect();
        }
        let (codes, last): (&[u8], usize) = (&stored.data, 8 / bits - 1);
        // The code and the group of an element.
        let code = move |row: usize, col: usize| {
            let at = row * cols + col;
            let (group, at) = (at / width, at % width);
            let field = group / lines;
            let field = if reading == WeightReading::OtherOrder { last - field } else { field };
            let code = codes[group % lines * width + at] >> (bits * field) & ((1 << bits) - 1);
            (f32::from(code) - reading.zero(), group)
        };
        let of_kernels = {
            let scales = scales.clone();
            move |row: usize, col: usize| {
                let (code, group) = code(row, col);
                (code - 8.0) * scales[group] + middles[group]
            }
        };
        let value = move |row: usize, col: usize| {
            let (code, group) = code(row, col);
            let scale =
                if reading == WeightReading::InverseScales { 1.0 / scales[group] } else { scales[group] };
            round_to(dtype, round_to(dtype, code * scale) - shifts[group])
        };
        let of_kernels: Option<ElementDecoder> = has_kernel.then(|| Box::new(of_kernels) as ElementDecoder);
        Ok(WeightMatrix::new(dtype, [rows, cols], value).with_kernels(of_kernels))
    }
}

impl QuantoGroups {
    /// Returns the numbers of outputs and inputs of a matrix that has this many groups of `width` codes. The order of
    /// the elements is the same for every shape, and the loader checks the shape.
    fn shape(&self, module: &str, groups: usize, width: usize) -> [usize; 2] {
        let elements = groups.saturating_mul(width);
        let fits = |&[_, cols]: &[usize; 2]| match group_of(cols) {
            Some(group) => group == width,
            None => cols == width,
        };
        let hidden = self.hidden.filter(|&hidden| hidden > 0 && elements.is_multiple_of(hidden));
        let last = module.rsplit('.').next().unwrap_or(module);
        let shapes = hidden.map(|hidden| {
            let [from, to] = [[elements / hidden, hidden], [hidden, elements / hidden]];
            if TO_HIDDEN.contains(&last) { [to, from] } else { [from, to] }
        });
        shapes.into_iter().flatten().find(fits).unwrap_or([groups, width])
    }
}

/// Returns the number of inputs that share a scale; `None` for all.
fn group_of(inputs: usize) -> Option<usize> {
    GROUPS.into_iter().find(|&group| inputs > GROUPS[0] && inputs.is_multiple_of(group))
}

/// Reads the map of quantised modules.
///
/// # Errors
/// If a type is not supported, or `config.json` states another quantisation.
pub(super) fn read(config: &Config, map: &Config) -> Result<Dequantisation> {
    let text = config.object("text_config")?.unwrap_or(config.clone());
    for place in [config, &text] {
        for key in [quantisation::KEY, mlx::KEY] {
            place.only(key, &[], &format!("absent; remove {FILE} if it is of another model"))?;
        }
    }
    let hidden = text.optional_usize("hidden_size")?;
    let mut names: Vec<(&str, HashSet<String>)> = Vec::new();
    let mut unsupported = None;
    for module in map.keys() {
        let expected = || map.bad_key(module, "null", "an object with \"weights\" and \"activations\"");
        let settings = map.object(module)?.ok_or_else(expected)?;
        settings.only_keys(&["weights", "activations"])?;
        match settings.optional_str("activations")?.unwrap_or("none") {
            "none" => (),
            other => {
                let expected = "\"none\" (quantised activations of quanto are not supported; quantise the model again \
                                with activations=None)";
                let scheme = || {
                    ActivationScheme::unsupported_for(
                        &settings,
                        "activations",
                        format!("{other:?}"),
                        expected,
                    )
                };
                unsupported.get_or_insert_with(scheme);
            }
        }
        let weights = settings.require_str("weights")?;
        match names.iter_mut().find(|(known, _)| *known == weights) {
            _ if weights == "none" => (),
            Some((_, modules)) => _ = modules.insert(module.to_owned()),
            None => {
                format_of(&settings, weights, hidden)?;
                names.push((weights, HashSet::from([module.to_owned()])));
            }
        }
    }
    let kinds: Vec<&str> = names.iter().map(|(weights, _)| *weights).collect();
    if kinds.is_empty() {
        return Err(config.bad_key(
            FILE,
            "without quantised weights",
            "a map of modules to types of weights",
        ));
    }
    let groups = kinds.iter().map(|weights| {
        let format = format_of(map, weights, hidden)?;
        Ok(FormatGroup { format, activations: unsupported.clone(), may_have_input_factors: false })
    });
    let groups = groups.collect::<Result<Vec<_>>>()?;
    let name = format!("quanto, {}", kinds.join(", "));
    let mut filter = ModuleFilter { key_path: FILE.to_owned(), ..ModuleFilter::all(FILE) };
    filter.groups = names.into_iter().map(|(_, modules)| vec![ModulePattern::Names(modules)]).collect();
    Ok(Dequantisation { name, groups, filter, may_have_float_cache: false, other_names: None })
}

fn format_of(settings: &Config, weights: &str, hidden: Option<usize>) -> Result<Box<dyn WeightFormat>> {
    Ok(match weights {
        "qint2" => Box::new(QuantoGroups { bits: 2, hidden }),
        "qint4" => Box::new(QuantoGroups { bits: 4, hidden }),
        "qint8" => Box::new(QuantoBytes { codes: DType::I8 }),
        "qfloat8_e4m3fn" => Box::new(QuantoBytes { codes: DType::F8_E4M3 }),
        "qfloat8_e5m2" => Box::new(QuantoBytes { codes: DType::F8_E5M2 }),
        other => {
            let known = "\"qint2\", \"qint4\", \"qint8\", \"qfloat8_e4m3fn\" or \"qfloat8_e5m2\"";
            return Err(settings.bad_key("weights", format!("{other:?}"), known));
        }
    })
}
