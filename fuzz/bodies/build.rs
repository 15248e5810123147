//! Files that are nearly right, from arbitrary bytes: chance alone would not come past their first lines.

use std::io::{Cursor, Write};

use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A number as hostile files have them, or a small one.
pub fn number(u: &mut Unstructured) -> Result<u64> {
    const TELLING: [u64; 10] =
        [0, 1, 31, 255, 1 << 16, u32::MAX as u64, 1 << 40, 1 << 62, i64::MAX as u64, u64::MAX];
    match u.int_in_range(0..=3)? {
        0 => Ok(*u.choose(&TELLING)?),
        1 => u.arbitrary(),
        _ => Ok(u.int_in_range(0..=8)?),
    }
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// A GGUF file.
pub fn gguf(u: &mut Unstructured) -> Result<Vec<u8>> {
    const KEYS: [&str; 12] = [
        "general.architecture",
        "general.alignment",
        "llama.block_count",
        "llama.embedding_length",
        "llama.context_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores",
        "odd",
    ];
    const TENSORS: [&str; 4] = ["token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight", "odd"];
    let (keys, tensors) = (u.int_in_range(0..=12)?, u.int_in_range(0..=4)?);
    let mut file = b"GGUF".to_vec();
    file.extend(if u.ratio(9, 10)? { 3u32 } else { u.arbitrary()? }.to_le_bytes());
    let count = |u: &mut Unstructured, real: u64| if u.ratio(9, 10)? { Ok(real) } else { number(u) };
    file.extend(count(u, tensors)?.to_le_bytes());
    file.extend(count(u, keys)?.to_le_bytes());
    for index in 0..keys {
        file.extend(string(KEYS[index as usize % KEYS.len()].as_bytes()));
        value(u, &mut file, 0)?;
    }
    for index in 0..tensors {
        file.extend(string(TENSORS[index as usize % TENSORS.len()].as_bytes()));
        let axes = u.int_in_range(0..=5u32)?;
        file.extend(axes.to_le_bytes());
        for _ in 0..axes {
            file.extend(number(u)?.to_le_bytes());
        }
        file.extend(u.int_in_range(0..=41u32)?.to_le_bytes());
        file.extend(number(u)?.to_le_bytes());
    }
    file.resize(file.len().next_multiple_of(32), 0);
    let rest = u.len().min(256);
    file.extend(u.bytes(rest)?);
    Ok(file)
}

fn value(u: &mut Unstructured, file: &mut Vec<u8>, depth: usize) -> Result<()> {
    let kind = u.int_in_range(0..=13u32)?;
    file.extend(kind.to_le_bytes());
    let of = |u: &mut Unstructured, kind: u32| -> Result<Vec<u8>> {
        Ok(match kind {
            0 | 1 | 7 => vec![u.arbitrary()?],
            2 | 3 => u.arbitrary::<u16>()?.to_le_bytes().into(),
            4..=6 => (number(u)? as u32).to_le_bytes().into(),
            8 => {
                let words: [&[u8]; 5] = [b"llama", b"gpt2", b"\xff\x1b[2J", b"", b"qwen3"];
                string(u.choose(&words)?)
            }
            _ => number(u)?.to_le_bytes().into(),
        })
    };
    if kind != 9 || depth > 2 {
        let bytes = of(u, kind)?;
        file.extend(bytes);
        return Ok(());
    }
    let (inner, count) = (u.int_in_range(0..=13u32)?, u.int_in_range(0..=6u64)?);
    file.extend(inner.to_le_bytes());
    file.extend(if u.ratio(9, 10)? { count } else { number(u)? }.to_le_bytes());
    for _ in 0..count {
        let bytes = of(u, inner)?;
        file.extend(bytes);
    }
    Ok(())
}

/// A manifest of a dump.
pub fn manifest(u: &mut Unstructured) -> Result<Value> {
    const TAPS: [&str; 8] =
        ["embed", "attn_norm", "q", "attn_scores", "k_cache", "logits", "argmax", "generated"];
    const TYPES: [&str; 6] = ["f32", "bf16", "u32", "f16", "f8_e4m3", "odd"];
    const AXES: [&str; 5] = ["token", "head", "key", "hidden", "sequence"];
    let small = |u: &mut Unstructured| -> Result<Value> {
        Ok(if u.ratio(9, 10)? { json!(u.int_in_range(0..=4u64)?) } else { json!(number(u)?) })
    };
    let passes = (0..u.int_in_range(0..=3)?).map(|_| {
        let tokens = (0..u.int_in_range(0..=3)?).map(|_| small(u)).collect::<Result<Vec<_>>>()?;
        Ok(json!({"position": small(u)?, "tokens": tokens}))
    });
    let passes = passes.collect::<Result<Vec<_>>>()?;
    let mut tensors = Vec::new();
    for _ in 0..u.int_in_range(0..=4)? {
        let shape = (0..u.int_in_range(0..=4)?).map(|_| small(u)).collect::<Result<Vec<_>>>()?;
        let mut row = json!({
            "tap": u.choose(&TAPS)?, "dtype": u.choose(&TYPES)?, "shape": shape, "file": u.choose(&["a.npy", "b.npy", "../c.npy"])?,
        });
        for (key, often) in [("layer", 6), ("pass", 8)] {
            if u.ratio(often, 10)? {
                row[key] = small(u)?;
            }
        }
        if u.ratio(2, 10)? {
            let names = (0..u.int_in_range(0..=4)?).map(|_| u.choose(&AXES)).collect::<Result<Vec<_>>>()?;
            row["axes"] = json!(names);
        }
        if u.ratio(2, 10)? {
            row["scale"] = if u.arbitrary()? { json!("a.npy") } else { small(u)? };
        }
        if u.ratio(2, 10)? {
            row["of"] =
                json!({"shape": [small(u)?, small(u)?], "start": [small(u)?], "end": [small(u)?, small(u)?]});
        }
        tensors.push(row);
    }
    Ok(json!({
        "format": "xcheck-dump", "version": u.int_in_range(1..=3)?, "producer": {"name": "fuzz"},
        "model": {"architecture": u.choose(&["llama", "gpt2", "odd"])?},
        "layout": {"rope_pairing": u.choose(&["half", "interleaved", "odd"])?},
        "input": {"tokens": passes.first().map_or(json!([]), |pass: &Value| pass["tokens"].clone())},
        "passes": passes, "tensors": tensors,
    }))
}

/// An `.npy` file.
pub fn npy(u: &mut Unstructured) -> Result<Vec<u8>> {
    let shape: Vec<String> =
        (0..u.int_in_range(0..=3)?).map(|_| Ok(number(u)?.to_string())).collect::<Result<_>>()?;
    let descr = u.choose(&["<f4", "<f2", "<u4", "|u1", ">f4", "|O"])?;
    let most = u.len().min(64);
    let len = u.int_in_range(0..=most)?;
    Ok(npy_of(descr, &shape, u.bytes(len)?))
}

fn npy_of(descr: &str, shape: &[String], data: &[u8]) -> Vec<u8> {
    let shape: String = shape.iter().map(|length| format!("{length},")).collect();
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    [b"\x93NUMPY\x01\x00".as_slice(), &(text.len() as u16).to_le_bytes(), text.as_bytes(), data].concat()
}

/// The array of that name as a manifest has it, all of ones: chance alone would not make one that fits.
fn fitting(manifest: &Value, name: &str) -> Option<Vec<u8>> {
    let row = manifest["tensors"].as_array()?.iter().find(|row| row["file"] == name)?;
    let shape: Vec<u64> = row["shape"].as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
    let count = shape.iter().try_fold(1u64, |count, &length| count.checked_mul(length))?;
    let descr = match row["dtype"].as_str()? {
        "f32" => "<f4",
        "u32" => "<u4",
        _ => return None,
    };
    let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
    (count <= 1024).then(|| npy_of(descr, &shape, &1u32.to_le_bytes().repeat(count as usize)))
}

/// A zip archive of a manifest and arrays.
pub fn npz(u: &mut Unstructured) -> Result<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let manifest = manifest(u)?;
    let mut members = vec![("manifest.json", manifest.to_string().into_bytes())];
    for name in ["a.npy", "b.npy"] {
        let fits = if u.ratio(1, 2)? { fitting(&manifest, name) } else { None };
        members.push((name, fits.map_or_else(|| npy(u), Ok)?));
    }
    for (name, bytes) in members {
        let method = if u.arbitrary()? { CompressionMethod::Deflated } else { CompressionMethod::Stored };
        let options = SimpleFileOptions::default().compression_method(method);
        let written = zip.start_file(name, options).is_ok() && zip.write_all(&bytes).is_ok();
        assert!(written, "memory takes it");
    }
    let mut bytes = zip.finish().expect("memory takes it").into_inner();
    for _ in 0..u.int_in_range(0..=3)? {
        let at = u.choose_index(bytes.len())?;
        bytes[at] = u.arbitrary()?;
    }
    Ok(bytes)
}
