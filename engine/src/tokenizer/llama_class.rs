//! Rules of transformers' class `LlamaTokenizer`, which replace the rules in `tokenizer.json` or `tokenizer.model`:
//! how spaces are written, and where a space is added before a text.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::error::Result;
use crate::tokenizer::refuse;
use crate::tokenizer::settings::TokenizerSettings;

/// Replaces the rules of a `tokenizer.json`.
pub(super) fn apply(tokenizer: &mut Value, settings: &TokenizerSettings) {
    let has_prefix = settings.flag("add_prefix_space").unwrap_or(true);
    let scheme = match (has_prefix, settings.flag("legacy")) {
        (false, _) => "never",
        (true, Some(true)) => "always",
        (true, _) => "first",
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if has_prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    tokenizer["normalizer"] = Value::Null;
    tokenizer["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    tokenizer["decoder"] = json!({"type": "Sequence", "decoders": decoders});
    for (key, value) in
        [("fuse_unk", json!(true)), ("byte_fallback", json!(true)), ("unk_token", Value::Null)]
    {
        tokenizer["model"][key] = value;
    }
}

/// Returns the `tokenizer.json` that transformers makes of the pieces of a SentencePiece model, with their types.
/// Merges are derived from the pieces: all pairs of pieces that form a piece, in the order of ids.
///
/// # Errors
/// If a piece occurs twice.
pub(super) fn from_pieces(pieces: &[(String, i32)]) -> Result<Value> {
    const CONTROL: i32 = 3;
    const USER_DEFINED: i32 = 4;
    let mut ids = HashMap::with_capacity(pieces.len());
    for (id, (piece, _)) in pieces.iter().enumerate() {
        if let Some(first) = ids.insert(piece.as_str(), id) {
            return Err(refuse(format!("duplicate piece '{piece}': ids {first} and {id}")));
        }
    }
    let mut merges = Vec::new();
    for (piece, _) in pieces {
        let splits = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let pairs = splits.filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right));
        merges.extend(pairs.map(|(left, right)| json!([left, right])));
    }
    let added = pieces.iter().enumerate().filter(|(_, (_, kind))| [CONTROL, USER_DEFINED].contains(kind));
    let added = added.map(|(id, (piece, kind))| {
        json!({"id": id, "content": piece, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": *kind == CONTROL})
    });
    let vocab: serde_json::Map<String, Value> =
        pieces.iter().enumerate().map(|(id, (piece, _))| (piece.clone(), json!(id))).collect();
    Ok(json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }))
}
