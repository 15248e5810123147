//! Files with settings of the quantisation: `config.json`, and files that some libraries write next to it.

use serde_json::{Value, json};

use crate::error::Result;
use crate::format::{FileBytes, TensorFile, pytorch};
use crate::model::dequantisation::{modelopt, quanto};
use crate::model::json::{Config, json_of};
use crate::model::quantisation;

/// Files next to `config.json` that contain settings of the quantisation. The first existing file is read.
pub(crate) const FILES: [&str; 2] = [modelopt::FILE, quanto::FILE];

/// Parses `config.json`, and inserts the content of another settings file under the name of that file. hqq's
/// `qmodel.pt` needs no settings: the result then states the method `hqq`.
///
/// # Errors
/// If a file is not JSON.
pub(crate) fn config_json(
    config: &FileBytes,
    quantisation: Option<&FileBytes>,
    weights: &[FileBytes],
) -> Result<Value> {
    let mut json = json_of(config)?;
    let Some(keys) = json.as_object_mut() else { return Ok(json) };
    if let Some(file) = quantisation {
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        keys.insert(name.into_owned(), json_of(file)?);
    }
    let states_none = keys.get(quantisation::KEY).is_none_or(Value::is_null);
    if states_none && weights.iter().any(pytorch::is_modules_file) {
        keys.insert(quantisation::KEY.to_owned(), json!({"quant_method": "hqq"}));
    }
    Ok(json)
}

/// Checks that a checkpoint without settings has no tensors of hqq or quanto, whose savers may omit the settings.
///
/// # Errors
/// If the checkpoint has such a tensor. The message states which settings to add.
pub(crate) fn check_unquantised(config: &Config, tensors: &TensorFile) -> Result<()> {
    const METHOD: &str = r#"{"quant_method": "hqq"}"#;
    for (ending, key, expected) in [
        (
            ".W_q",
            quantisation::KEY,
            format!("{METHOD}; hqq's save_to_safetensors does not write this key, so add it"),
        ),
        (".weight._scale", quanto::FILE, "quanto's map of quantised modules beside config.json".to_owned()),
    ] {
        if let Some((name, _)) = tensors.iter().find(|(name, _)| name.ends_with(ending)) {
            return Err(config.bad_key(key, format!("absent, although '{name}' is quantised"), expected));
        }
    }
    Ok(())
}
