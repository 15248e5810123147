//! Limits on `tokenizer.json`, because a few bytes of it can make the library allocate gigabytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::error::Result;
use crate::tokenizer::refuse;

/// Largest accepted ratio by which the rules may lengthen a text. Real rules make a text up to three times as long;
/// NFKC can turn one character into 33 bytes.
const MOST: f64 = 1024.0;

/// Checks that a tokenizer's rules cannot lengthen a text too much.
///
/// # Errors
/// If the growth exceeds the limit, or the length stated in a table of characters is wrong.
pub(super) fn check(tokenizer: &Value) -> Result<()> {
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        let grown = growth(&tokenizer[part])?;
        if !(grown <= MOST) {
            return Err(refuse(format!(
                "its {part} makes a text up to {grown:.0} times as long, which no real tokenizer does"
            )));
        }
    }
    Ok(())
}

/// Returns the largest ratio by which a rule and its inner rules can lengthen a text. The fields of a rule decide,
/// not its type, because the library also reads rules of unknown types by their fields.
fn growth(rule: &Value) -> Result<f64> {
    let fields = match rule {
        Value::Null => return Ok(1.0),
        Value::Object(fields) => fields,
        _ => return Err(refuse("one of its rules is not an object with a type")),
    };
    let table = fields.get("precompiled_charsmap").map_or(Ok(1.0), longest)?;
    let own = if fields.contains_key("pattern") { table * replaced(rule) } else { table };
    let lists = ["normalizers", "pretokenizers", "decoders"];
    let inner = lists.iter().filter_map(|list| rule[list].as_array()).flatten();
    inner.map(growth).try_fold(own, |product, one| one.map(|one| product * one))
}

/// Returns the ratio by which `Replace` can lengthen a text: the replacement's length over the pattern's. A pattern
/// that may match the empty string inserts the replacement between any two characters. `Split` also has a pattern,
/// but no replacement.
fn replaced(rule: &Value) -> f64 {
    let content = rule["content"].as_str().map_or(0, str::len) as f64;
    match rule["pattern"]["String"].as_str() {
        Some(pattern) if !pattern.is_empty() => (content / pattern.len() as f64).max(1.0),
        _ => content + 1.0,
    }
}

/// Returns the length of the longest text in a table of characters. Such a text may replace a single byte. The
/// table begins with the length of its index.
fn longest(charsmap: &Value) -> Result<f64> {
    let broken = || refuse("its precompiled_charsmap is damaged; get the file again");
    let bytes = STANDARD.decode(charsmap.as_str().unwrap_or_default()).map_err(|_| broken())?;
    let (len, rest) = bytes.split_first_chunk().ok_or_else(broken)?;
    let texts = rest.get(u32::from_le_bytes(*len) as usize..).ok_or_else(broken)?;
    let longest = texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0);
    Ok((longest as f64).max(1.0))
}
