//! Weights of quantised Hugging Face checkpoints: `quantization_config`, and the decoding of each format to
//! numbers.
//!
//! A quantised module stores several tensors, such as `qweight`, `qzeros` and `scales`. Decoding replaces them by
//! one tensor `weight`, so that the rest of the program reads an ordinary checkpoint. The decoded numbers equal
//! those of the library that writes the format. A product rounds them to the model's type, as that library does.

mod activations;
mod affine;
mod awq;
mod bitsandbytes;
mod cache_scales;
mod codes;
mod compressed_tensors;
mod dense_weights;
mod float4;
mod float4_weights;
mod float8;
mod gptq;
mod hqq;
mod input_factors;
mod mlx;
mod modelopt;
mod module_filter;
mod module_tensors;
mod mxfp4_experts;
mod paired_rows;
mod quanto;
mod settings;
pub(crate) mod settings_files;
mod torchao;
mod verification;
mod weight_matrix;
mod weight_reading;

pub(crate) use activations::ActivationScheme;
pub(crate) use input_factors::tensor_of_input_factors;
pub use verification::{WeightFinding, WeightFit};
pub(crate) use weight_matrix::WeightMatrix;
pub(crate) use weight_reading::WeightReading;

use std::collections::{BTreeMap, HashSet};

use crate::error::Result;
use crate::format::TensorFile;
use crate::memory;
use crate::model::json::Config;
use crate::weight::{InputScale, Matrix, StoredTensor};
use module_filter::{Conversion, ModuleFilter};
use module_tensors::ModuleTensors;

/// A storage format of a module's weight.
trait WeightFormat: Send + Sync {
    /// Returns the names of the tensors that hold the weight, after the module's name. The first one exists in every
    /// quantised module and in no other.
    fn tensors(&self) -> &'static [&'static str];

    /// Returns the separator between the module's name and the tensor's name: `.`, or another one for quantised
    /// parameters without a module of their own.
    fn joint(&self) -> char {
        '.'
    }

    /// Returns true if a code has fewer than 8 bits.
    fn has_few_bits(&self) -> bool {
        false
    }

    /// Returns true if even a correctly quantised weight may differ strongly from the original.
    fn is_coarse(&self, _module: &ModuleTensors) -> bool {
        false
    }

    /// Returns the alternative readings of the tensors that known converter faults would require.
    fn readings(&self) -> &'static [WeightReading];

    /// Returns the decoder of a module's weight, under one of [`WeightFormat::readings`] or as the format specifies.
    ///
    /// # Errors
    /// If a tensor is missing, has another type or shape than the format, or a scale is not a number.
    fn weight<'f>(&self, module: &ModuleTensors<'f>, reading: WeightReading) -> Result<WeightMatrix<'f>>;
}

/// Quantisation of a checkpoint, as its configuration states it.
pub struct Dequantisation {
    /// Name for messages, such as `AWQ, 4 bits, groups of 128`.
    name: String,
    groups: Vec<FormatGroup>,
    filter: ModuleFilter,
    /// True if engines with a KV cache of 8-bit floats use the stored scales: the configuration states such a cache, or
    /// states no cache.
    may_have_float_cache: bool,
    /// The same settings with the tensor names of another library.
    other_names: Option<Box<Self>>,
}

/// Modules that share a format.
struct FormatGroup {
    format: Box<dyn WeightFormat>,
    activations: Option<ActivationScheme>,
    /// True if the file may store factors for the modules' inputs.
    may_have_input_factors: bool,
}

impl FormatGroup {
    /// Creates a group of modules whose inputs have no factors.
    fn new(format: impl WeightFormat + 'static, activations: Option<ActivationScheme>) -> Self {
        Self { format: Box::new(format), activations, may_have_input_factors: false }
    }
}

impl Dequantisation {
    /// Reads `quantization_config`, or MLX's `quantization`; `None` for unquantised checkpoints and for BitNet, whose
    /// layers have their own arithmetic.
    ///
    /// # Errors
    /// If the method is unknown, or a key asks for something that is not supported.
    pub(crate) fn read(config: &Config) -> Result<Option<Self>> {
        settings::read(config)
    }

    /// Adds the tensor names of another library, for files that use them.
    fn or_named_as(self, other: Self) -> Self {
        Self { other_names: Some(Box::new(other)), ..self }
    }

    /// Returns the settings with the tensor names that a file has.
    fn for_file(&self, file: &TensorFile) -> &Self {
        let is_named_by = |this: &Self| {
            let ends = |group: &FormatGroup| {
                let ending = format!("{}{}", group.format.joint(), group.format.tensors()[0]);
                file.iter().any(|(name, _)| name.ends_with(&ending))
            };
            this.groups.iter().any(ends)
        };
        let other = self.other_names.as_deref().filter(|other| !is_named_by(self) && is_named_by(other));
        other.unwrap_or(self)
    }

    /// Returns the format's name, for notes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks that the quantisation of activations is supported.
    ///
    /// # Errors
    /// Names the key that asks for another quantisation.
    pub(crate) fn check_activations(&self) -> Result<()> {
        self.groups
            .iter()
            .filter_map(|group| group.activations.as_ref())
            .try_for_each(ActivationScheme::check)
    }

    /// Returns true if engines may quantise activations before products with quantised weights.
    pub(crate) fn quantises_activations(&self) -> bool {
        self.groups.iter().any(|group| group.activations.is_some())
    }

    /// Returns true if the file stores the scales of activations.
    pub(crate) fn stores_input_scales(&self) -> bool {
        let is_static =
            |group: &FormatGroup| matches!(group.activations, Some(ActivationScheme::Static { .. }));
        self.groups.iter().any(is_static)
    }

    /// Returns the decoders of all quantised weights, by module.
    ///
    /// # Errors
    /// If the tensors of a module contradict the configuration or each other.
    pub(crate) fn weights<'f>(&self, file: &'f TensorFile) -> Result<BTreeMap<&'f str, WeightMatrix<'f>>> {
        let this = self.for_file(file);
        let mut weights = BTreeMap::new();
        for (index, group) in this.groups.iter().enumerate() {
            let (joint, main) = (group.format.joint(), group.format.tensors()[0]);
            let ending = format!("{joint}{main}");
            for module in file.iter().filter_map(|(name, _)| name.strip_suffix(ending.as_str())) {
                let tensors = ModuleTensors { file, module, joint, main };
                match this.filter.conversion(module) {
                    Conversion::Group(wanted) | Conversion::Either(wanted) if wanted != index => {}
                    Conversion::Excluded(why) => return Err(tensors.bad(excluded(&why))),
                    Conversion::Group(_) | Conversion::Either(_) => {
                        let weight = group.format.weight(&tensors, WeightReading::Stated)?;
                        let name = weight.name(module);
                        if file.get(&name).is_some() && !this.consumed(module).contains(&name) {
                            let problem = format!(
                                "'{name}' is stored, too, expected one of the two; remove the wrong one"
                            );
                            return Err(tensors.bad(problem));
                        }
                        weights.insert(module, weight);
                    }
                }
            }
        }
        this.check_rest(file, &weights)?;
        Ok(weights)
    }

    /// Decodes all quantised weights of a file.
    ///
    /// # Errors
    /// See `Dequantisation::weights`; also if there is not enough memory.
    pub fn decoded(&self, file: &TensorFile) -> Result<TensorFile> {
        let this = self.for_file(file);
        let weights = this.weights(file)?;
        let bytes = weights.values().map(|weight| weight.bytes() as u128).sum();
        this.check_input_factors(file, &weights)?;
        memory::check(format!("the decoded weights of {}", file.path().display()), bytes)?;
        let consumed: HashSet<String> = weights.keys().flat_map(|module| this.consumed(module)).collect();
        let whole = file.iter().filter(|(name, _)| !consumed.contains(*name) && !cache_scales::is_one(name));
        let name_of = |name: &str| {
            input_factors::module_of(name).map_or_else(|| name.to_owned(), tensor_of_input_factors)
        };
        let whole = whole.map(|(name, tensor)| (name_of(name), tensor.clone()));
        let decoded = weights.iter().map(|(module, weight)| (weight.name(module), weight.decoded()));
        let by_kernels = weights.iter().flat_map(|(module, weight)| {
            let named = |values: StoredTensor| (Matrix::tensor_of_kernels(module, values.dtype), values);
            weight.decoded_by_kernels().map(named)
        });
        let scales = this.input_scales(file, weights.keys().copied())?;
        let of_cache = if this.may_have_float_cache { cache_scales::of_modules(file)? } else { Vec::new() };
        file.with_tensors(whole.chain(decoded).chain(by_kernels).chain(scales).chain(of_cache).collect())
    }

    /// Returns tensors that state the quantisation of activations: the step and the zero point, or the threshold of
    /// outliers.
    fn input_scales<'f>(
        &self,
        file: &'f TensorFile,
        modules: impl Iterator<Item = &'f str>,
    ) -> Result<Vec<(String, StoredTensor)>> {
        let mut scales = Vec::new();
        for module in modules {
            let Some(FormatGroup { format, activations: Some(scheme), .. }) = self.group_of(module) else {
                continue;
            };
            let tensors = ModuleTensors { file, module, joint: format.joint(), main: format.tensors()[0] };
            if let ActivationScheme::Outliers(threshold) = scheme {
                scales.push((Matrix::tensor_of_outliers(module), StoredTensor::vector(&[*threshold])));
            }
            if let Some(InputScale { codes, number, zero }) = scheme.stored(&tensors)? {
                scales.push((InputScale::tensor(module, codes), StoredTensor::vector(&[number, zero])));
            }
        }
        Ok(scales)
    }

    /// Returns the group of a quantised module.
    fn group_of(&self, module: &str) -> Option<&FormatGroup> {
        match self.filter.conversion(module) {
            Conversion::Group(group) | Conversion::Either(group) => Some(&self.groups[group]),
            Conversion::Excluded(_) => None,
        }
    }

    /// Returns the names of the tensors that hold a module's weight.
    fn consumed(&self, module: &str) -> Vec<String> {
        let Some(group) = self.group_of(module) else { return Vec::new() };
        let joint = group.format.joint();
        group.format.tensors().iter().map(|tensor| format!("{module}{joint}{tensor}")).collect()
    }

    /// Checks that modules without a quantised weight may be unquantised.
    fn check_rest(&self, file: &TensorFile, weights: &BTreeMap<&str, WeightMatrix>) -> Result<()> {
        for (name, tensor) in file.iter().filter(|(_, tensor)| tensor.shape.len() == 2) {
            let Some(module) = name.strip_suffix(".weight").filter(|module| !weights.contains_key(module))
            else {
                continue;
            };
            if let Conversion::Group(group) = self.filter.conversion(module) {
                let format = &self.groups[group].format;
                let (joint, wanted) = (format.joint(), format.tensors()[0]);
                let problem = format!(
                    "the module is not quantised: '{module}{joint}{wanted}' is missing, although the configuration \
                     quantises the module; correct {} if it is meant to be unquantised",
                    self.filter.key_path
                );
                return Err(module_tensors::unpackable(file, name, tensor.dtype, problem));
            }
        }
        Ok(())
    }
}

fn excluded(why: &str) -> String {
    format!("the module is quantised, but {why}; correct the configuration or the weights")
}

/// Creates the quantisation of a checkpoint whose quantised modules share one format.
fn one_group(
    name: String,
    format: impl WeightFormat + 'static,
    activations: Option<ActivationScheme>,
    filter: ModuleFilter,
) -> Dequantisation {
    let groups = vec![FormatGroup::new(format, activations)];
    Dequantisation { name, groups, filter, may_have_float_cache: false, other_names: None }
}
