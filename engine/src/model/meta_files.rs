//! Meta's original files of Llama: `params.json`, and `consolidated.*.pth`, one for each part of a parallel model.
//!
//! The tensors get the names and the row order of transformers. Meta rotates neighbouring elements of a head, while
//! transformers rotates elements half a head apart, so the rows of `wq` and `wk` are reordered.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::json::{Config, json_of};
use super::size;
use crate::error::{Error, Result};
use crate::format::{EscapedText, FileBytes, FileStore, TensorFile};
use crate::weight::StoredTensor;

/// Configuration of Meta's files.
pub(super) const PARAMS: &str = "params.json";
/// Keys of `params.json`. The shapes of tensors state the feed-forward size, so its factors are not read.
const KEYS: &[&str] = &[
    "dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    VOCABULARY,
    "multiple_of",
    "ffn_dim_multiplier",
    "norm_eps",
    "rope_theta",
    "use_scaled_rope",
    "max_batch_size",
    "max_seq_len",
];
/// Key of the size of the vocabulary.
const VOCABULARY: &str = "vocab_size";
/// Maximum number of parts.
const MOST_PARTS: usize = 64;

/// Meta's names of matrices in a layer, transformers' names, and the axis along which parts divide the matrix.
const MATRICES: [(&str, &str, usize); 7] = [
    ("attention.wq", "self_attn.q_proj", 0),
    ("attention.wk", "self_attn.k_proj", 0),
    ("attention.wv", "self_attn.v_proj", 0),
    ("attention.wo", "self_attn.o_proj", 1),
    ("feed_forward.w1", "mlp.gate_proj", 0),
    ("feed_forward.w2", "mlp.down_proj", 1),
    ("feed_forward.w3", "mlp.up_proj", 0),
];
/// Meta's names of norms in a layer, and transformers' names. Every part contains the whole norm.
const NORMS: [(&str, &str); 2] =
    [("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")];

/// A model in Meta's files.
#[derive(Clone, Debug)]
pub struct MetaFiles {
    /// `params.json`.
    pub(super) params: FileBytes,
    /// Sizes and constants in `params.json`.
    settings: MetaSettings,
    /// `consolidated.00.pth` and so on.
    pub(super) parts: Vec<FileBytes>,
}

impl MetaFiles {
    /// Finds the files in a folder; `None` without `params.json`.
    ///
    /// # Errors
    /// If there are no weights, a file cannot be opened, or `params.json` states something that is not supported.
    pub(super) fn find(place: &dyn FileStore, folder: &Path) -> Result<Option<Self>> {
        let Some(params) = place.find(&folder.join(PARAMS))? else { return Ok(None) };
        let mut parts = Vec::new();
        while let Some(part) = place.find(&folder.join(format!("consolidated.{:02}.pth", parts.len())))? {
            parts.push(part);
            if parts.len() > MOST_PARTS {
                return Err(Error::dump(folder, format!("more than {MOST_PARTS} files consolidated.*.pth")));
            }
        }
        match parts.is_empty() {
            true => Err(Error::dump(
                folder,
                "params.json without consolidated.00.pth; get the weights, or name a Hugging Face directory",
            )),
            false => Ok(Some(Self { settings: MetaSettings::read(&params)?, params, parts })),
        }
    }

    /// Returns the tensors under transformers' names.
    ///
    /// # Errors
    /// If a part is damaged, or parts contradict each other or the configuration.
    pub(super) fn tensors(&self) -> Result<TensorFile> {
        let mut pieces: BTreeMap<String, Vec<StoredTensor>> = BTreeMap::new();
        for part in &self.parts {
            for (name, stored) in TensorFile::read(part)?.iter().filter(|(name, _)| *name != "rope.freqs") {
                pieces.entry(name.to_owned()).or_default().push(stored.clone());
            }
        }
        let each = |(name, pieces): (String, Vec<StoredTensor>)| {
            let problem = |found: String| {
                let name = EscapedText(&name);
                Error::dump(&self.parts[0].path, format!("tensor '{name}': {found}"))
            };
            if pieces.len() != self.parts.len() {
                let (found, parts) = (pieces.len(), self.parts.len());
                return Err(problem(format!("in {found} of {parts} files; a file of another model?")));
            }
            let unknown = || problem("unknown, expected a tensor of Llama 2 or 3 in Meta's files".to_owned());
            let (own, axis) = own_name(&name, &pieces, self.settings.hidden).ok_or_else(unknown)?;
            let whole = match axis {
                Some(axis) => joined(&pieces, axis),
                None => {
                    pieces.first().filter(|first| pieces.iter().all(|piece| are_same(first, piece))).cloned()
                }
            };
            let mut whole =
                whole.ok_or_else(|| problem("empty, or parts of different shapes or values".to_owned()))?;
            let heads = match name.rsplit('.').nth(1) {
                Some("wq") => Some(self.settings.heads),
                Some("wk") => Some(self.settings.kv_heads),
                _ => None,
            };
            if let Some(heads) = heads {
                whole = halves(&whole, heads)
                    .ok_or_else(|| problem(format!("shape {:?}, expected {heads} heads", whole.shape)))?;
            }
            Ok((own, whole))
        };
        let entries = pieces.into_iter().map(each).collect::<Result<_>>()?;
        TensorFile::joined(&FileBytes::embedded(&self.params.path, &[]), entries)
    }

    /// Returns the configuration as transformers' `config.json` states it.
    ///
    /// # Errors
    /// If `params.json` and the embeddings disagree on the size of the vocabulary.
    pub(super) fn config(&self, tensors: &TensorFile) -> Result<FileBytes> {
        let MetaSettings { hidden, layers, heads, kv_heads, vocabulary, eps, theta, is_scaled } =
            self.settings;
        let rows = |name: &str| tensors.get(name).and_then(|stored| stored.shape.first().copied());
        let words = rows("model.embed_tokens.weight");
        if let (Some(stated), Some(words)) = (vocabulary, words)
            && stated != words
        {
            let expected =
                format!("{words}, the number of embeddings; are all consolidated.*.pth parts there?");
            return Err(Error::bad_key(&self.params.path, VOCABULARY, stated, expected));
        }
        let mut config = json!({
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "intermediate_size": rows("model.layers.0.mlp.gate_proj.weight"),
            "vocab_size": words,
            "rms_norm_eps": eps,
            "rope_theta": theta,
            "hidden_act": "silu",
            "tie_word_embeddings": false,
            // Llama 3.1 and later; Llama 2; Llama 3.
            "max_position_embeddings": if is_scaled { 131_072 } else if theta < 5e5 { 4096 } else { 8192 },
        });
        if is_scaled {
            // The constants of llama-models 0.3.0, whatever the model.
            config["rope_scaling"] = json!({
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            });
        }
        Ok(FileBytes { path: self.params.path.clone(), data: config.to_string().into_bytes().into() })
    }
}

/// Sizes and constants in `params.json`.
#[derive(Clone, Copy, Debug)]
struct MetaSettings {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    vocabulary: Option<usize>,
    eps: f32,
    theta: f32,
    is_scaled: bool,
}

impl MetaSettings {
    /// Reads `params.json`.
    ///
    /// # Errors
    /// If it lacks a size, or states something that is not supported.
    fn read(params: &FileBytes) -> Result<Self> {
        let json = json_of(params)?;
        let file = Config::new(&params.path, &json);
        for key in ["quantization_args", "lora_args", "vision_model", "moe", "moe_args"] {
            if file.states(key) {
                let expected = "a dense text model without quantisation; use its Hugging Face directory";
                return Err(file.bad_key(key, "present", expected));
            }
        }
        file.only_keys(KEYS)?;
        let [hidden, layers, heads] = ["dim", "n_layers", "n_heads"].map(|key| file.require_usize(key));
        let (hidden, layers, heads) = (hidden?, layers?, heads?);
        let kv_heads = file.optional_usize("n_kv_heads")?.unwrap_or(heads);
        let sizes = [("dim", hidden), ("n_layers", layers), ("n_heads", heads), ("n_kv_heads", kv_heads)];
        size::check(&params.path, &sizes)?;
        // Llama 2 states -1: its tokenizer decides.
        let vocabulary = match file.get(VOCABULARY) {
            Some(stated) if *stated == json!(-1) => None,
            _ => file.optional_usize(VOCABULARY)?,
        };
        Ok(Self {
            hidden,
            layers,
            heads,
            kv_heads,
            vocabulary,
            eps: file.optional_positive("norm_eps")?.unwrap_or(1e-5),
            theta: file.optional_positive("rope_theta")?.unwrap_or(10000.0),
            is_scaled: file.optional_bool("use_scaled_rope")?.unwrap_or(false),
        })
    }
}

/// Returns transformers' name of a tensor, and the axis along which parts divide it; `None` if all have the whole
/// tensor.
fn own_name(name: &str, pieces: &[StoredTensor], hidden: usize) -> Option<(String, Option<usize>)> {
    match name {
        "norm.weight" => return Some(("model.norm.weight".to_owned(), None)),
        "output.weight" => return Some(("lm_head.weight".to_owned(), Some(0))),
        // Llama 2 divides the hidden size, Llama 3 the vocabulary.
        "tok_embeddings.weight" => {
            let axis = usize::from(pieces.first()?.shape.get(1) != Some(&hidden));
            return Some(("model.embed_tokens.weight".to_owned(), Some(axis)));
        }
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    let rest = rest.strip_suffix(".weight")?;
    let layer: usize = layer.parse().ok()?;
    let matrix = MATRICES.iter().find(|(own, ..)| *own == rest).map(|&(_, name, axis)| (name, Some(axis)));
    let norm = NORMS.iter().find(|(own, _)| *own == rest).map(|&(_, name)| (name, None));
    matrix.or(norm).map(|(name, axis)| (format!("model.layers.{layer}.{name}.weight"), axis))
}

fn are_same(one: &StoredTensor, other: &StoredTensor) -> bool {
    (one.dtype, &one.shape) == (other.dtype, &other.shape) && *one.data == *other.data
}

/// Joins parts of a matrix along an axis; `None` if the matrix is empty, or its parts' shapes or types differ.
fn joined(pieces: &[StoredTensor], axis: usize) -> Option<StoredTensor> {
    let [first, others @ ..] = pieces else { return None };
    let &[rows, columns] = first.shape.as_slice() else { return None };
    if rows == 0
        || columns == 0
        || !others.iter().all(|piece| (piece.dtype, &piece.shape) == (first.dtype, &first.shape))
    {
        return None;
    }
    if others.is_empty() {
        return Some(first.clone());
    }
    let width = first.dtype.bytes_for(columns)?;
    let mut data = Vec::with_capacity(first.data.len().checked_mul(pieces.len())?);
    if axis == 0 {
        pieces.iter().for_each(|piece| data.extend_from_slice(&piece.data));
    } else {
        for row in 0..rows {
            pieces
                .iter()
                .for_each(|piece| data.extend_from_slice(piece.data.at(row * width..(row + 1) * width)));
        }
    }
    let mut shape = vec![rows, columns];
    shape[axis] = shape[axis].checked_mul(pieces.len())?;
    Some(StoredTensor { dtype: first.dtype, shape, data: data.into() })
}

/// Reorders the rows of each head from neighbouring pairs to pairs that are half a head apart. `None` if the number
/// of rows does not fit the number of heads.
fn halves(stored: &StoredTensor, heads: usize) -> Option<StoredTensor> {
    let &[rows, columns] = stored.shape.as_slice() else { return None };
    let (head, width) = (rows / heads, stored.dtype.bytes_for(columns)?);
    if head == 0
        || head * heads != rows
        || !head.is_multiple_of(2)
        || Some(stored.data.len()) != rows.checked_mul(width)
    {
        return None;
    }
    let mut data = Vec::with_capacity(stored.data.len());
    for start in (0..rows).step_by(head) {
        for at in 0..head {
            let row = start + 2 * (at % (head / 2)) + at / (head / 2);
            data.extend_from_slice(stored.data.at(row * width..(row + 1) * width));
        }
    }
    Some(StoredTensor { data: data.into(), ..stored.clone() })
}
