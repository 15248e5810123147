//! Caches of TransformerLens whose weights were processed: their hooks record other values than the model's.

use crate::format::{Arrays, EscapedText};
use crate::view::View;
use crate::weight::StoredTensor;

/// Name of the map that reads the caches of TransformerLens.
pub(super) const TRANSFORMER_LENS: &str = "transformer-lens";

/// Largest mean of a row that counts as zero, in relation to the row's root mean square.
const ZERO: f64 = 1e-5;

/// Refuses a cache if its values show that norms are folded or weights are centred.
///
/// # Errors
/// If the weights were processed; the message tells how to avoid that.
pub(super) fn check(arrays: &Arrays) -> Result<(), String> {
    let remedy = "record it without processing: TransformerBridge.boot_transformers(...) without \
                  enable_compatibility_mode, or HookedTransformer.from_pretrained_no_processing(...)";
    let mut folded = arrays.tensors.iter().filter(|(name, stored)| is_folded(arrays, name, stored));
    if let Some((name, _)) = folded.next() {
        return Err(format!(
            "'{}' equals hook_normalized, so the gains of the norms are folded into other weights; {remedy}",
            EscapedText(name)
        ));
    }
    let mut streams = arrays.tensors.iter().filter(|(name, _)| name.ends_with(".hook_resid_post")).peekable();
    let is_there = streams.peek().is_some();
    match is_there && streams.all(|(_, stored)| is_centred(stored)) {
        true => Err(format!(
            "each row of the residual stream has mean 0, so the weights that write to it are centred; {remedy}"
        )),
        false => Ok(()),
    }
}

/// Returns true if the output of a norm is its value before the gain.
fn is_folded(arrays: &Arrays, name: &str, stored: &StoredTensor) -> bool {
    let of_norm = name.strip_suffix(".hook_out").filter(|norm| {
        norm.rsplit('.').next().is_some_and(|module| ["ln1", "ln2", "ln_final"].contains(&module))
    });
    let normalized = of_norm.and_then(|norm| arrays.tensors.get(&format!("{norm}.hook_normalized")));
    normalized.is_some_and(|normalized| {
        normalized.dtype == stored.dtype && normalized.data[..] == stored.data[..] && !stored.data.is_empty()
    })
}

/// Returns true if each row has mean 0.
fn is_centred(stored: &StoredTensor) -> bool {
    let width = stored.shape.last().copied().unwrap_or(0);
    let view = View::stored(&stored.shape, stored.dtype, stored.data.clone());
    let Some(values) = view.filter(|_| width > 1).map(|view| view.to_vec()) else { return false };
    let is_zero = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / width as f64;
        let square = row.iter().map(|value| value * value).sum::<f64>() / width as f64;
        mean.abs() <= ZERO * square.sqrt()
    };
    !values.is_empty() && values.chunks(width).all(is_zero)
}
