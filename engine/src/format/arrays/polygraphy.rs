//! Outputs that Polygraphy saved with `--save-outputs`: JSON with `.npy` files in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::super::{EscapedText, FileBytes, npy};
use crate::error::{Error, Result};
use crate::weight::StoredTensor;

#[derive(Deserialize)]
struct RunResultsJson {
    lst: Vec<(String, Vec<IterationJson>)>,
}

#[derive(Deserialize)]
struct IterationJson {
    outputs: serde_json::Map<String, Value>,
}

/// Reads the outputs of a file with one runner and one iteration.
pub(super) fn read(source: &FileBytes) -> Result<Vec<(String, StoredTensor)>> {
    let refuse =
        |problem: String| Error::BadContainer { file: source.path.clone(), format: "Polygraphy", problem };
    let results: RunResultsJson =
        serde_json::from_slice(&source.data[..]).map_err(|error| refuse(error.to_string()))?;
    let runners = results.lst.len();
    let [(_, iterations)] = results.lst.as_slice() else {
        return Err(refuse(format!(
            "{runners} runners, expected one; save the outputs of each in a file of its own"
        )));
    };
    let [iteration] = iterations.as_slice() else {
        let found = iterations.len();
        return Err(refuse(format!("{found} iterations, expected one; run polygraphy with --iterations 1")));
    };
    let array = |(name, value): (&String, &Value)| {
        let text = value.pointer("/values/array").or_else(|| value.get("array")).and_then(Value::as_str);
        let wrong = |problem: String| refuse(format!("output '{}': {problem}", EscapedText(name)));
        let text =
            text.ok_or_else(|| wrong("no array in base64; save outputs as NumPy arrays".to_owned()))?;
        let bytes = STANDARD.decode(text).map_err(|error| wrong(error.to_string()))?;
        let path = source.path.join(EscapedText(name).to_string());
        Ok((name.clone(), npy::read(&FileBytes { path, data: bytes::Bytes::from(bytes).into() }, None)?))
    };
    iteration.outputs.iter().map(array).collect()
}
