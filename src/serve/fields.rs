//! Fields of a request. Each field is read once. Fields that are not read are rejected, unless they have no effect.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::serve::error_response::ErrorResponse;

/// A JSON object whose fields are taken out one by one.
pub(crate) struct Fields(Map<String, Value>);

/// Fields that never affect the answer.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_salt",
    "request_id",
    "priority",
    "parallel_tool_calls",
];

/// Fields that would affect the answer, each with the value that has no effect.
const NEUTRAL: &[(&str, &str)] = &[
    ("n", "1"),
    ("best_of", "1"),
    ("suffix", "\"\""),
    ("presence_penalty", "0"),
    ("frequency_penalty", "0"),
    ("repetition_penalty", "1"),
    ("length_penalty", "1"),
    ("min_tokens", "0"),
    ("logit_bias", "{}"),
    ("tools", "[]"),
    ("functions", "[]"),
    ("tool_choice", "\"none\""),
    ("function_call", "\"none\""),
    ("response_format", "{\"type\": \"text\"}"),
    ("modalities", "[\"text\"]"),
    ("use_beam_search", "false"),
    ("skip_special_tokens", "true"),
    ("spaces_between_special_tokens", "true"),
    ("include_stop_str_in_output", "false"),
];

impl Fields {
    /// Parses the fields of a body.
    ///
    /// # Errors
    /// If the body is not a JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ErrorResponse> {
        let refuse = |problem: String| {
            ErrorResponse::invalid(None, format!("the body is not a JSON object: {problem}"))
        };
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(other) => Err(refuse(format!("found {}", shown(&other)))),
            Err(problem) => Err(refuse(problem.to_string())),
        }
    }

    /// Takes a field; `None` if it is missing or null.
    ///
    /// # Errors
    /// If the value is not of the `expected` kind.
    pub(crate) fn take<T: DeserializeOwned>(
        &mut self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, ErrorResponse> {
        let Some(value) = self.0.remove(name).filter(|value| !value.is_null()) else { return Ok(None) };
        let found = shown(&value);
        let refuse =
            |_| ErrorResponse::invalid(Some(name), format!("{name} is {found}, expected {expected}"));
        serde_json::from_value(value).map(Some).map_err(refuse)
    }

    /// Takes a boolean field. Returns false if it is missing.
    ///
    /// # Errors
    /// If it is not a boolean.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ErrorResponse> {
        Ok(self.take(name, "true or false")?.unwrap_or(false))
    }

    /// Checks that no remaining field would affect the answer.
    ///
    /// # Errors
    /// If a field is unknown, or would affect the answer.
    pub(crate) fn finish(self) -> Result<(), ErrorResponse> {
        let asked =
            self.0.into_iter().filter(|(name, value)| !value.is_null() && !HARMLESS.contains(&name.as_str()));
        for (name, value) in asked {
            let Some((_, neutral)) = NEUTRAL.iter().find(|(known, _)| *known == name) else {
                let message = format!("unknown field {name}, which might change the answer; remove it");
                return Err(ErrorResponse::invalid(Some(&name), message)
                    .about(Some(&name), Some("unknown_parameter")));
            };
            if !is_same(&value, &serde_json::from_str(neutral).expect("the table holds JSON")) {
                let message =
                    format!("{name} is {}, expected {neutral}: no other value is supported", shown(&value));
                return Err(ErrorResponse::invalid(Some(&name), message)
                    .about(Some(&name), Some("unsupported_parameter")));
            }
        }
        Ok(())
    }
}

/// Returns true if two values are equal, as 1 and 1.0 are.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// Formats a value for a message; long values are cut.
fn shown(value: &Value) -> String {
    const SHOWN: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
