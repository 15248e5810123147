//! Factors of the inputs of quantised weights, which files of Model Optimizer store.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::format::TensorFile;
use crate::model::dequantisation::WeightMatrix;
use crate::model::dequantisation::module_tensors::{self, FLOATS, ModuleTensors};

/// Name of the factors of a module's inputs, after the module's name: Model Optimizer's AWQ and SmoothQuant multiply inputs by
/// them before the inputs are quantised.
pub(crate) const INPUT_FACTORS: &str = "pre_quant_scale";

/// Returns the factors of a module's inputs; `None` if the file has none.
///
/// # Errors
/// If they are not one positive number for each input.
pub(super) fn of_module(module: &ModuleTensors, weight: &WeightMatrix) -> Result<Option<Vec<f32>>> {
    let Some(stored) = module.get(INPUT_FACTORS) else { return Ok(None) };
    let factors = module.numbers(INPUT_FACTORS, FLOATS, &[weight.cols])?;
    match factors.iter().find(|factor| **factor <= 0.0) {
        None => Ok(Some(factors)),
        Some(factor) => {
            let problem = format!("it has the value {factor}, expected more than 0; the file is damaged");
            Err(module_tensors::unpackable(module.file, &module.name(INPUT_FACTORS), stored.dtype, problem))
        }
    }
}

/// Checks the factors of all inputs.
pub(super) fn check(file: &TensorFile, weights: &BTreeMap<&str, WeightMatrix>) -> Result<()> {
    for (name, tensor) in file.iter() {
        let Some(module) = name.strip_suffix(INPUT_FACTORS).and_then(|name| name.strip_suffix('.')) else {
            continue;
        };
        let Some(weight) = weights.get(module) else {
            let problem = "its module is not quantised; remove the tensor, or quantise the module".to_owned();
            return Err(module_tensors::unpackable(file, name, tensor.dtype, problem));
        };
        of_module(&ModuleTensors { file, module, joint: '.', main: INPUT_FACTORS }, weight)?;
    }
    Ok(())
}
