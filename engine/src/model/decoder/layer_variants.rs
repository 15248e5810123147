//! Variants of layers: heads, keys and feed-forward sizes that differ between layers, and per-layer embeddings
//! (Gemma 4).

use serde_json::Value;

use crate::error::{Error, Result};
use crate::model::decoder::config_gguf::check_agrees;
use crate::model::decoder::layer_sizes::GgufLayers;
use crate::model::decoder::names::DecoderNames;
use crate::model::decoder::rope_json::{FULL, rope};
use crate::model::decoder::{DecoderConfig, Family, LayerWeights};
use crate::model::json::Config;
use crate::model::size;
use crate::ops::scaling::Multiplier;

/// Differences between the layers of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerVariants {
    /// Size of a head, and number of key-value heads, in layers with full attention.
    pub(crate) full_heads: [usize; 2],
    /// True if layers with full attention use the matrix of keys for values too.
    pub(crate) has_keys_as_values: bool,
    /// Number of layers at the end of the model that reuse the keys and values of earlier layers.
    pub(crate) n_sharing: usize,
    /// Feed-forward size of the layers that reuse the keys and values of earlier layers.
    pub(crate) sharing_ffn_size: usize,
    /// Width of the per-layer embeddings, P; 0 if the model has none.
    pub(crate) embedding_width: usize,
    /// Number of tokens that have per-layer embeddings.
    pub(crate) embedding_rows: usize,
    /// Factor of the projected embeddings, and factor of their sum with the token's per-layer embeddings.
    pub(crate) scales: [Multiplier; 2],
}

impl LayerVariants {
    /// Reads the keys of a `config.json`.
    pub(super) fn in_json(file: &Config, c: &mut DecoderConfig, family: &Family) -> Result<Self> {
        let has_keys_as_values = file.optional_bool("attention_k_eq_v")?.unwrap_or(false);
        let full_heads = match family.has_streams {
            true => [c.head_dim, c.n_kv_heads],
            false => full_heads(file, c, has_keys_as_values)?,
        };
        c.rope = rope(file, family, FULL, (family.rope.old_keys[0], 1e6), full_heads[0])?;
        let embedding_width = file.require_usize("hidden_size_per_layer_input")?;
        let rows = file.require_usize("vocab_size_per_layer_input")?;
        if embedding_width > 0 && rows != c.vocab_size && !family.has_streams {
            let expected = format!("{}, the size of the vocabulary", c.vocab_size);
            return Err(file.bad_key("vocab_size_per_layer_input", rows, expected));
        }
        if embedding_width > 0 && !(1..=size::MAX_SIZE).contains(&rows) {
            return Err(file.bad_key("vocab_size_per_layer_input", rows, format!("1 to {}", size::MAX_SIZE)));
        }
        let is_wide = file.optional_bool("use_double_wide_mlp")?.unwrap_or(false);
        if is_wide && c.experts.is_some() {
            let expected =
                "false in a model with experts (other feed-forward sizes next to experts are not supported)";
            return Err(file.bad_key("use_double_wide_mlp", true, expected));
        }
        let variants = Self {
            full_heads,
            has_keys_as_values,
            n_sharing: file.optional_usize("num_kv_shared_layers")?.unwrap_or(0),
            sharing_ffn_size: if is_wide { c.ffn_size.saturating_mul(2) } else { c.ffn_size },
            embedding_width,
            embedding_rows: rows,
            scales: scales(family, (1.0 / (c.hidden_size as f64).sqrt()) as f32),
        };
        match variants.fault(c) {
            None => Ok(variants),
            Some(([key, _], found, expected)) => Err(file.bad_key(key, found, expected)),
        }
    }

    /// Reads the keys of a GGUF file. The head size of the file is that of layers with full attention.
    pub(super) fn in_gguf(layers: &GgufLayers, c: &mut DecoderConfig, family: &Family) -> Result<Self> {
        let (file, path) = (layers.file, layers.file.tensors.path());
        let key = |name: &str| layers.key(name);
        let kv_heads = layers.sizes("attention.head_count_kv")?;
        let sizes = layers.sizes("feed_forward_length")?;
        let n_sharing = file.optional(&key("attention.shared_kv_layers"))?.unwrap_or(0);
        let slides: Vec<bool> = (0..c.n_layers).map(|layer| c.slides(layer)).collect();
        let of_kind = |wanted: bool, all: &[usize], what: &str| -> Result<Option<usize>> {
            let mut found =
                all.iter().zip(&slides).filter(|(_, slides)| **slides == wanted).map(|(size, _)| *size);
            let first = found.next();
            match found.find(|size| Some(*size) != first) {
                None => Ok(first),
                Some(other) => {
                    Err(Error::bad_key(path, &key(what), other, "one number for all layers of a kind"))
                }
            }
        };
        let heads = [true, false].map(|wanted| of_kind(wanted, &kv_heads, "attention.head_count_kv"));
        let [of_sliding, of_full] = heads;
        let full = c.head_dim;
        c.head_dim = match family.has_streams {
            true => full,
            false => file.require(&key("attention.key_length_swa"))?,
        };
        let what = "the head size of the keys";
        check_agrees(file, &key("attention.value_length_swa"), c.head_dim, what)?;
        c.n_kv_heads = of_sliding?.unwrap_or(c.n_kv_heads);
        if let Some(sliding) = &mut c.sliding {
            sliding.rope.width = c.head_dim;
        }
        let own = c.n_layers.saturating_sub(n_sharing);
        let is_even = |sizes: &[usize]| sizes.windows(2).all(|pair| pair[0] == pair[1]);
        if !is_even(&sizes[..own]) || !is_even(&sizes[own..]) {
            let expected = "one number for layers with keys of their own, and one for the others";
            return Err(Error::bad_key(path, &key("feed_forward_length"), format!("{sizes:?}"), expected));
        }
        if c.experts.is_none() {
            c.ffn_size = sizes.first().copied().unwrap_or(c.ffn_size);
        }
        let variants = Self {
            full_heads: [full, of_full?.unwrap_or(c.n_kv_heads)],
            has_keys_as_values: false,
            n_sharing,
            sharing_ffn_size: sizes.last().copied().unwrap_or(c.ffn_size),
            embedding_width: file.require(&key("embedding_length_per_layer_input"))?,
            embedding_rows: c.vocab_size,
            scales: scales(family, 1.0 / (c.hidden_size as f32).sqrt()),
        };
        match variants.fault(c) {
            None => Ok(variants),
            Some(([_, name], found, expected)) => Err(Error::bad_key(path, &key(name), found, expected)),
        }
    }

    /// Returns true if a layer reuses the keys and values of an earlier layer.
    pub(crate) fn shares(&self, c: &DecoderConfig, layer: usize) -> bool {
        layer + self.n_sharing >= c.n_layers
    }

    /// Returns true if later layers reuse the keys and values of this layer, because it is the last layer of its kind
    /// that computes keys.
    pub(crate) fn is_shared(&self, c: &DecoderConfig, layer: usize) -> bool {
        let own = c.n_layers - self.n_sharing;
        layer < own && (layer + 1..own).all(|later| c.slides(later) != c.slides(layer))
    }

    /// Returns the first invalid setting: its keys in `config.json` and in GGUF files, its value, and the expected
    /// value.
    fn fault(&self, c: &DecoderConfig) -> Option<([&'static str; 2], usize, String)> {
        let [head_dim, kv_heads] = self.full_heads;
        let is_size = |number: usize| (1..=size::MAX_SIZE).contains(&number);
        let at_most = || format!("at most {}", size::MAX_SIZE);
        if !is_size(head_dim) || !head_dim.is_multiple_of(2) {
            let expected = format!("an even number, {}", at_most());
            return Some((["global_head_dim", "attention.key_length"], head_dim, expected));
        }
        if kv_heads == 0 || !c.n_heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {} query heads", c.n_heads);
            return Some((["num_global_key_value_heads", "attention.head_count_kv"], kv_heads, expected));
        }
        if !is_size(self.sharing_ffn_size) {
            let keys = ["intermediate_size", "feed_forward_length"];
            return Some((keys, self.sharing_ffn_size, format!("1 or more, and {}", at_most())));
        }
        if self.embedding_width > size::MAX_SIZE {
            let keys = ["hidden_size_per_layer_input", "embedding_length_per_layer_input"];
            return Some((keys, self.embedding_width, at_most()));
        }
        let own = c.n_layers.saturating_sub(self.n_sharing);
        let has = |slides: bool, layers: std::ops::Range<usize>| {
            layers.into_iter().any(|layer| c.slides(layer) == slides)
        };
        let has_source = |slides: bool| !has(slides, own..c.n_layers) || has(slides, 0..own);
        let is_sound = self.n_sharing < c.n_layers && has_source(true) && has_source(false);
        (!is_sound).then(|| {
            let expected = "a smaller number: each kind of layer that shares keys needs an earlier layer with keys of its own";
            let keys = ["num_kv_shared_layers", "attention.shared_kv_layers"];
            (keys, self.n_sharing, expected.to_owned())
        })
    }
}

impl LayerWeights<'_, '_> {
    /// Returns the layer's index.
    pub(crate) fn layer(&self) -> usize {
        self.layer
    }

    /// Returns the size of a head and the number of key-value heads.
    pub(crate) fn head_sizes(&self) -> [usize; 2] {
        self.config.head_sizes(self.layer)
    }

    /// Returns true if the layer reuses the keys and values of an earlier layer.
    pub(crate) fn shares_keys(&self) -> bool {
        self.config.variants.as_ref().is_some_and(|variants| variants.shares(self.config, self.layer))
    }

    /// Returns true if later layers reuse the layer's keys and values.
    pub(crate) fn has_shared_keys(&self) -> bool {
        self.config.variants.as_ref().is_some_and(|variants| variants.is_shared(self.config, self.layer))
    }

    /// Returns true if the matrix of keys also computes values. GGUF files then have no matrix of values.
    pub(crate) fn has_keys_as_values(&self) -> bool {
        match self.names {
            DecoderNames::Gguf { .. } => !self.has_in_gguf("attn_v"),
            DecoderNames::HuggingFace { .. } => {
                let stated =
                    self.config.variants.as_ref().is_some_and(|variants| variants.has_keys_as_values);
                stated && !self.config.slides(self.layer)
            }
        }
    }

    /// Returns the width of the layer's per-layer embeddings; 0 without them.
    pub(crate) fn embedding_width(&self) -> usize {
        self.config.variants.as_ref().map_or(0, |variants| variants.embedding_width)
    }

    /// Loads a tensor of one number by its GGUF name, if the file has it.
    ///
    /// # Errors
    /// If it has another shape, or is not a finite number.
    pub(crate) fn optional_number(&mut self, name: &str) -> Result<Option<f32>> {
        let tensor = self.names.of_layer(name, self.layer);
        self.weights.has(&tensor).then(|| self.weights.factor(&tensor)).transpose()
    }
}

/// Returns the factor of projected embeddings, and the factor of their sum with the token's per-layer embeddings. Gemma
/// 4 multiplies by constants, Gemma 3n by elements of tensors.
fn scales(family: &Family, of_projected: f32) -> [Multiplier; 2] {
    let kind = if family.has_streams { Multiplier::Element } else { Multiplier::Number };
    [of_projected, std::f32::consts::FRAC_1_SQRT_2].map(kind)
}

/// Reads the head size and the number of key-value heads of layers with full attention: from `per_layer_config`,
/// which transformers 5 writes, or from separate keys.
fn full_heads(file: &Config, c: &DecoderConfig, has_keys_as_values: bool) -> Result<[usize; 2]> {
    const KEY: &str = "per_layer_config";
    let Some(layers) = file.get(KEY).and_then(Value::as_object) else {
        let head_dim = file.optional_usize("global_head_dim")?.unwrap_or(512);
        let kv_heads = file.optional_usize("num_global_key_value_heads")?.filter(|_| has_keys_as_values);
        return Ok([head_dim, kv_heads.unwrap_or(c.n_kv_heads)]);
    };
    let full: Vec<usize> = (0..c.n_layers).filter(|&layer| !c.slides(layer)).collect();
    let expected = "head_dim and num_key_value_heads of each layer with full attention, the same in all";
    let refuse = || file.bad_key(KEY, "other settings", expected);
    let listed: Option<Vec<usize>> = layers.keys().map(|layer| layer.parse().ok()).collect();
    let mut listed = listed.ok_or_else(refuse)?;
    listed.sort_unstable();
    let Some(first) =
        layers.values().next().filter(|first| listed == full && layers.values().all(|all| all == *first))
    else {
        return Err(refuse());
    };
    let settings = first.as_object().ok_or_else(refuse)?;
    let is_known = settings.keys().all(|key| matches!(key.as_str(), "head_dim" | "num_key_value_heads"));
    let number = |key: &str| {
        settings.get(key).map(|value| value.as_u64().and_then(|number| usize::try_from(number).ok()))
    };
    match (
        is_known,
        number("head_dim").unwrap_or(Some(c.head_dim)),
        number("num_key_value_heads").unwrap_or(Some(c.n_kv_heads)),
    ) {
        (true, Some(head_dim), Some(kv_heads)) => Ok([head_dim, kv_heads]),
        _ => Err(refuse()),
    }
}
