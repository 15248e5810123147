//! The manifest, when everything is known.

use serde_json::{json, Map, Value};

use crate::meta::{Decode, Meta, Sequence};

/// What a sequence reads; `generated` beside it is the manifest's, or of several sequences each one's own.
fn input(sequence: &Sequence) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("tokens".into(), json!(sequence.tokens));
    if !sequence.prompt.is_empty() {
        fields.insert("prompt".into(), json!(sequence.prompt));
    }
    let decode = if sequence.decode == Decode::Forced { "forced" } else { "greedy" };
    fields.insert("decode".into(), json!(decode));
    fields
}

/// The sequences, each with its name and its continuation.
fn sequences(sequences: &[Sequence], generated: &[Option<Vec<u32>>]) -> Value {
    let one = |(sequence, generated): (&Sequence, &Option<Vec<u32>>)| {
        let mut fields = input(sequence);
        fields.extend(sequence.name.iter().map(|name| ("name".to_owned(), json!(name))));
        fields.extend(generated.iter().map(|tokens| ("generated".to_owned(), json!(tokens))));
        Value::Object(fields)
    };
    json!({ "sequences": sequences.iter().zip(generated).map(one).collect::<Vec<_>>() })
}

/// The whole of it. `passes` and `rows` are lists in JSON already: there may be many.
pub(crate) fn manifest(
    meta: &Meta,
    is_several: bool,
    version: u32,
    read: &[Sequence],
    generated: &[Option<Vec<u32>>],
    passes: &str,
    rows: &str,
) -> String {
    let settings: Map<String, Value> =
        meta.settings.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    let mut model = json!({"name": meta.model, "architecture": meta.architecture});
    if let Some(sha256) = &meta.sha256 {
        model["sha256"] = json!(sha256);
    }
    let mut fields = json!({
        "format": "xcheck-dump",
        "version": version,
        "producer": {"name": meta.producer, "version": meta.version, "settings": settings},
        "model": model,
        "layout": {},
        "input": if is_several { sequences(read, generated) } else { Value::Object(input(&read[0])) },
    });
    if let Some(pairing) = meta.rope_pairing {
        fields["layout"]["rope_pairing"] = json!(pairing.to_string());
    }
    if let Some(tokens) = generated.first().and_then(Option::as_ref).filter(|_| !is_several) {
        fields["generated"] = json!(tokens);
    }
    let text = fields.to_string();
    let open = text.strip_suffix('}').unwrap_or(&text);
    format!("{open},\n\"passes\":{passes},\n\"tensors\":[{rows}]}}\n")
}
