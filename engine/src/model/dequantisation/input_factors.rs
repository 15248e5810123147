//! Factors of the inputs of quantised weights, which files of Model Optimizer store.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::format::TensorFile;
use crate::model::dequantisation::module_tensors::{self, FLOATS, ModuleTensors};
use crate::model::dequantisation::{Dequantisation, WeightMatrix};

/// Name of the tensor with the factors of a module's inputs, after the module's name. With Model Optimizer's AWQ and
/// SmoothQuant, engines multiply inputs by these factors before they quantise the inputs.
pub(super) const INPUT_FACTORS: &str = "pre_quant_scale";

/// Name under which a decoded checkpoint stores the factors of a module's inputs. Other checkpoints have no such
/// tensor.
pub(crate) fn tensor_of_input_factors(module: &str) -> String {
    format!("{module}.{INPUT_FACTORS}.of_inputs")
}

/// Returns the module whose inputs a tensor's factors multiply; `None` for another tensor.
pub(super) fn module_of(name: &str) -> Option<&str> {
    name.strip_suffix(INPUT_FACTORS)?.strip_suffix('.')
}

/// Returns the factors of a module's inputs; `None` if the file has none.
///
/// # Errors
/// If the file does not have one positive factor for each input.
pub(super) fn of_module(module: &ModuleTensors, weight: &WeightMatrix) -> Result<Option<Vec<f32>>> {
    if module.get(INPUT_FACTORS).is_none() {
        return Ok(None);
    }
    let factors = module.numbers(INPUT_FACTORS, FLOATS, &[weight.cols])?;
    module.checked(INPUT_FACTORS, factors, "more than 0", |factor| factor > 0.0).map(Some)
}

impl Dequantisation {
    /// Checks the factors of all inputs.
    pub(super) fn check_input_factors(
        &self,
        file: &TensorFile,
        weights: &BTreeMap<&str, WeightMatrix>,
    ) -> Result<()> {
        for (name, tensor) in file.iter() {
            let Some(module) = module_of(name) else { continue };
            let bad = |problem: String| module_tensors::unpackable(file, name, tensor.dtype, problem);
            let (Some(weight), Some(group)) = (weights.get(module), self.group_of(module)) else {
                return Err(bad(
                    "its module is not quantised; remove the tensor, or quantise the module".into()
                ));
            };
            if !group.may_have_input_factors {
                let method = &self.name;
                return Err(bad(format!(
                    "{method} has no {INPUT_FACTORS}, or the configuration sets {INPUT_FACTORS} to false; remove \
                     the tensor, or correct the configuration"
                )));
            }
            of_module(&ModuleTensors { file, module, joint: '.', main: INPUT_FACTORS }, weight)?;
        }
        Ok(())
    }
}
