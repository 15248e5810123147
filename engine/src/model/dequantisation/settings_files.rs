//! Files whose content is settings of the quantisation: `config.json`, and files of some libraries beside it.

use serde_json::{Value, json};

use crate::error::Result;
use crate::format::{FileBytes, pytorch};
use crate::model::dequantisation::{modelopt, quanto};
use crate::model::json::json_of;
use crate::model::quantisation;

/// Files beside `config.json` with settings of the quantisation. The first existing one is read.
pub(crate) const FILES: [&str; 2] = [modelopt::FILE, quanto::FILE];

/// Parses `config.json`, with the content of another settings file under its name. hqq's own weight file needs no settings, so
/// the method is added for it.
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
    if weights.iter().any(pytorch::is_modules_file) && !keys.contains_key(quantisation::KEY) {
        keys.insert(quantisation::KEY.to_owned(), json!({"quant_method": "hqq"}));
    }
    Ok(json)
}
