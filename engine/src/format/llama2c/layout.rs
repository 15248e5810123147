//! Order of the tensors in a llama2.c file.

use super::Llama2cHeader;
use crate::error::Result;
use crate::format::FileBytes;
use crate::weight::DType;

/// Layout of a tensor, or of a tensor's scales.
pub(super) struct TensorLayout {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
}

impl TensorLayout {
    pub(super) fn bytes(&self) -> usize {
        self.dtype.block_bytes() * self.shape.iter().product::<usize>()
    }
}

/// Checks that a file has exactly the length that its header requires, before the header is used.
pub(super) fn check_length(source: &FileBytes, h: &Llama2cHeader) -> Result<()> {
    let start = h.bytes();
    let needed = weight_bytes(h);
    let Some(held) = source.data.len().checked_sub(start) else {
        return Err(source.truncated("the header", 0, start as u64));
    };
    let sizes = format!(
        "dim {}, hidden_dim {}, {} layers, {} and {} heads, vocabulary {} ({}), seq_len {}",
        h.dim,
        h.hidden_dim,
        h.n_layers,
        h.n_heads,
        h.n_kv_heads,
        h.vocab_size,
        if h.shared_classifier { "classifier shared" } else { "separate classifier" },
        h.seq_len
    );
    if needed > held as u128 {
        let what =
            format!("the weights of a llama2.c model of version {} ({sizes}{})", h.version, hint(h, held));
        return Err(source.truncated(what, start, u64::try_from(needed).unwrap_or(u64::MAX)));
    }
    let end = start + needed as usize; // lossless: no more than the file holds
    if end < source.data.len() {
        let found = format!("followed by {} more bytes", source.data.len() - end);
        return Err(source.bad(
            end,
            format!("the end of the weights ({sizes})"),
            found,
            "the end of the file",
        ));
    }
    Ok(())
}

/// Returns a hint for the error message: files without the unused RoPE tables have the wrong layout for `run.c`.
fn hint(h: &Llama2cHeader, held: usize) -> &'static str {
    let without = weight_bytes(h) - 4 * table_elements(h);
    match h.version {
        0 if without == held as u128 => {
            "; its length is that of a file without the two RoPE tables, which run.c skips"
        }
        _ => "",
    }
}

/// Returns the number of bytes after the header. Sizes are at most 2^24, so nothing overflows.
fn weight_bytes(h: &Llama2cHeader) -> u128 {
    let [d, f, layers, vocabulary] = [h.dim, h.hidden_dim, h.n_layers, h.vocab_size].map(|size| size as u128);
    let kv = (h.n_kv_heads * h.head_dim()) as u128;
    let matrices = layers * (2 * d * d + 2 * kv * d + 3 * f * d) + vocabulary * d;
    let matrices = if h.shared_classifier { matrices } else { matrices + vocabulary * d };
    let norms = 4 * (2 * layers + 1) * d;
    match (h.version, h.group_size) {
        (_, Some(group)) => norms + matrices + 4 * (matrices / group as u128),
        (0, None) => norms + 4 * matrices + 4 * table_elements(h),
        (_, None) => norms + 4 * matrices,
    }
}

/// Returns the number of elements in the tables of cosines and sines.
fn table_elements(h: &Llama2cHeader) -> u128 {
    if h.version == 0 { h.seq_len as u128 * h.head_dim() as u128 } else { 0 }
}

/// Returns all tensors, in the order of the file.
pub(super) fn parts(h: &Llama2cHeader) -> Vec<TensorLayout> {
    let mut parts = Vec::new();
    match h.version {
        0 => {
            parts.extend(matrix(h, "token_embd", h.vocab_size, h.dim));
            parts.extend(norms(h, "attn_norm"));
            parts.extend(attention(h));
            parts.extend(norms(h, "ffn_norm"));
            parts.extend(feed_forward(h));
            parts.push(plain("output_norm.weight".into(), &[h.dim]));
            let table = |name: &str| plain(name.into(), &[h.seq_len, h.head_dim() / 2]);
            parts.extend(["rope_cos", "rope_sin"].map(table));
        }
        _ => {
            parts.extend(norms(h, "attn_norm"));
            parts.extend(norms(h, "ffn_norm"));
            parts.push(plain("output_norm.weight".into(), &[h.dim]));
            parts.extend(matrix(h, "token_embd", h.vocab_size, h.dim));
            parts.extend(attention(h));
            parts.extend(feed_forward(h));
        }
    }
    if !h.shared_classifier {
        parts.extend(matrix(h, "output", h.vocab_size, h.dim));
    }
    parts
}

fn attention(h: &Llama2cHeader) -> Vec<TensorLayout> {
    let kv = h.n_kv_heads * h.head_dim();
    let matrices = [("attn_q", h.dim), ("attn_k", kv), ("attn_v", kv), ("attn_output", h.dim)];
    matrices.into_iter().flat_map(|(name, rows)| in_layers(h, name, rows, h.dim)).collect()
}

/// Returns the layout of w1, w2 and w3.
fn feed_forward(h: &Llama2cHeader) -> Vec<TensorLayout> {
    let (d, f) = (h.dim, h.hidden_dim);
    let matrices = [("ffn_gate", f, d), ("ffn_down", d, f), ("ffn_up", f, d)];
    matrices.into_iter().flat_map(|(name, rows, cols)| in_layers(h, name, rows, cols)).collect()
}

fn norms(h: &Llama2cHeader, name: &str) -> Vec<TensorLayout> {
    (0..h.n_layers).map(|layer| plain(format!("blk.{layer}.{name}.weight"), &[h.dim])).collect()
}

fn in_layers(h: &Llama2cHeader, name: &str, rows: usize, cols: usize) -> Vec<TensorLayout> {
    (0..h.n_layers).flat_map(|layer| matrix(h, &format!("blk.{layer}.{name}"), rows, cols)).collect()
}

fn matrix(h: &Llama2cHeader, name: &str, rows: usize, cols: usize) -> Vec<TensorLayout> {
    let weight = format!("{name}.weight");
    match h.group_size {
        None => vec![plain(weight, &[rows, cols])],
        Some(group) => vec![
            TensorLayout { name: weight, dtype: DType::INT8_GROUPS, shape: vec![rows, cols] },
            plain(format!("{name}.scales"), &[rows, cols / group]),
        ],
    }
}

fn plain(name: String, shape: &[usize]) -> TensorLayout {
    TensorLayout { name, dtype: DType::F32, shape: shape.to_vec() }
}
