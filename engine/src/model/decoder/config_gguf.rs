//! Decoder configuration from the metadata of a GGUF file.

use crate::error::{Error, ModelError, Result};
use crate::format::Gguf;
use crate::model::decoder::config::{DEFAULT_THETA, derive_head_dim};
use crate::model::decoder::latent_files;
use crate::model::decoder::layer_sizes::{GgufLayers, SizeRule, all_but};
use crate::model::decoder::state_space_files::{self, SingleHalf};
use crate::model::decoder::{
    BiasFlags, BiasRule, BiasRules, BlockShape, DecoderConfig, Family, LayerVariants, ParallelHalves, QkNorm,
    SlidingDefaults, SlidingRope, SlidingWindow, StreamSettings, TemperatureFiles, yarn,
};
use crate::model::weights::Weights;
use crate::ops::attention::AttentionScale;
use crate::ops::norm::Gain;
use crate::ops::rope::{Rope, RopeScaling};

impl DecoderConfig {
    /// Reads the metadata of a GGUF file. Its keys begin with the architecture's name in the file.
    pub(super) fn from_gguf(file: &Gguf, family: &Family) -> Result<Self> {
        let architecture = name_in(file, family)?;
        let key = |name: &str| format!("{architecture}.{name}");
        let path = file.tensors.path();
        refuse_extensions(file, architecture, family)?;
        let hidden_size = file.require::<usize>(&key("embedding_length"))?;
        let layers = GgufLayers::new(file, architecture, family)?;
        let n_layers = layers.count;
        let n_heads = layers.size("attention.head_count", SizeRule::Same)?;
        let latent = match family.is_latent {
            true => Some(latent_files::sizes_in_gguf(file, architecture)?),
            false => None,
        };
        let head_dim = match (latent, file.optional(&key("attention.key_length"))?) {
            (Some(latent), _) => latent.plain.saturating_add(latent.rotated),
            (None, Some(head_dim)) => head_dim,
            (None, None) => derive_head_dim(path, &key("attention.head_count"), hidden_size, n_heads)?,
        };
        let theta = file.optional(&key("rope.freq_base"))?.unwrap_or(DEFAULT_THETA);
        let width = match file.optional(&key("rope.dimension_count"))? {
            Some(width) if family.rope.may_be_partial && width <= head_dim => width,
            _ => latent.map_or(head_dim, |latent| latent.rotated),
        };
        let scaling = match (latent, scaling(file, architecture, family, width)?) {
            (Some(_), RopeScaling::Yarn(yarn)) => RopeScaling::Yarn(latent_files::yarn_in_gguf(yarn)),
            (_, scaling) => scaling,
        };
        let experts = match family.experts {
            Some(known) if known.are_in_gguf(file, architecture)? => Some(known),
            _ => None,
        };
        let ffn_key = experts.map_or("feed_forward_length", |experts| experts.ffn_size[1]);
        let ffn_rule = match &experts {
            None if family.has_layer_variants => SizeRule::Free,
            _ if family.shape.has_single_halves => SizeRule::SameOrZero("layers of another kind"),
            _ => SizeRule::Same,
        };
        let heads_rule = match &family.recurrent {
            _ if family.has_layer_variants => SizeRule::Free,
            Some(_) => SizeRule::SameOrZero("layers without attention"),
            None => SizeRule::Same,
        };
        let ffn_size = layers.size(ffn_key, ffn_rule)?;
        let mut config = Self {
            vocab_size: embedding_rows(file, architecture)?,
            hidden_size,
            ffn_size,
            n_layers,
            predicting_layers: layers.predicting,
            n_heads,
            n_kv_heads: match latent {
                Some(_) => n_heads,
                None => layers.optional_size("attention.head_count_kv", heads_rule)?.unwrap_or(n_heads),
            },
            head_dim,
            latent,
            context_length: file.require(&key("context_length"))?,
            norm: family.norm,
            norm_eps: file.require(&key(family.norm.gguf_eps()))?,
            norm_gain: Gain::Weight,
            embed_scale: None,
            residual_scale: None,
            logits_scale: None,
            attn_cap: None,
            logits_cap: None,
            rope: Rope {
                theta,
                width,
                pairing: family.gguf_pairing,
                scaling,
                rounding: family.rope.rounding,
            },
            sliding: None,
            positions: family.positions,
            unrotated: Vec::new(),
            query_temperature: None,
            variants: None,
            streams: None,
            attn_scale: AttentionScale::Products(1.0),
            activation: family.gguf_activation(architecture),
            shape: shape(file, architecture, family)?,
            tied_output: family.gguf_head_is_tied || file.tensors.get("output.weight").is_none(),
            biases: biases(file, family),
            linear_class: None,
            experts: experts.map(|known| known.in_gguf(&layers, ffn_size)).transpose()?,
            dense: None,
            recurrent: None,
            single_halves: None,
            multipliers: None,
            has_adapter: false,
        };
        config.check(path)?;
        config.query_temperature = match family.query_temperature {
            Some(known) => known.in_gguf(file, architecture, &config.rope)?,
            None => None,
        };
        config.dense = match &experts {
            Some(known) => known.dense.in_gguf(file, architecture, n_layers)?,
            None => None,
        };
        if let Some(known) = &family.recurrent {
            let kinds = family
                .shape
                .has_single_halves
                .then(|| state_space_files::kinds_in_gguf(&layers))
                .transpose()?;
            config.recurrent = known.in_gguf(&layers, hidden_size, kinds.as_deref())?;
            config.single_halves = kinds.as_deref().map(SingleHalf::feed_forward);
        }
        let rotates = family.recurrent.map(|known| known.rotates_in_gguf(file, architecture)).transpose()?;
        config.unrotated = match rotates {
            Some(false) => vec![true; n_layers],
            _ => family.unrotated(None, n_layers, None),
        };
        config.embed_scale = (family.embed_scale)(&config);
        config.attn_scale = (family.attn_scale)(&config);
        if latent.is_some() {
            config.attn_scale = latent_files::scale_in_gguf(&config.rope.scaling, head_dim);
        }
        for stated in family.stated {
            let key = key(stated.gguf);
            if let Some(number) = file.optional(&key)?.or(stated.default[1]) {
                stated
                    .put(&mut config, number)
                    .map_err(|expected| Error::bad_key(path, &key, number, expected))?;
            }
        }
        let slides = |defaults: &&SlidingDefaults| !(defaults.is_off_in_gguf)(n_layers);
        if let Some(defaults) = family.sliding.as_ref().filter(slides) {
            config.sliding = config.sliding_window(&layers, defaults)?;
            if defaults.rotates_alone {
                config.unrotated = config.full_layers(config.sliding.is_some());
            }
        }
        config.check(path)?;
        config.check_gguf_agrees(file, architecture)?;
        if family.has_streams {
            config.streams = Some(StreamSettings::in_gguf(&layers)?);
        }
        if family.has_layer_variants {
            config.variants = Some(LayerVariants::in_gguf(&layers, &mut config, family)?);
            config.check(path)?;
        }
        if let Some(sliding) = &config.sliding {
            let what =
                "the head size of layers with a sliding window (other rotated widths are not supported)";
            check_agrees(file, &key("rope.dimension_count_swa"), sliding.rope.width, what)?;
        }
        Ok(config)
    }

    /// Reads the sliding window of a file. Layers with a window use the same RoPE as the others, except that layers
    /// with a base of their own (Gemma 3) are not scaled.
    fn sliding_window(
        &self,
        layers: &GgufLayers,
        defaults: &SlidingDefaults,
    ) -> Result<Option<SlidingWindow>> {
        let (file, window_key) = (layers.file, layers.key("attention.sliding_window"));
        let stated = file.optional(&window_key)?;
        if defaults.chunk.is_some() && stated == Some(0) {
            let expected =
                "another number (llama.cpp then rotates in all layers but the last, which is not supported)";
            return Err(Error::bad_key(file.tensors.path(), &window_key, 0, expected));
        }
        // llama.cpp's chunks have a fixed size.
        let Some(window) = defaults.chunk.or(stated.filter(|window| *window > 0)) else { return Ok(None) };
        let stated = file.optional(&layers.key("rope.freq_base_swa"))?;
        let rope = match defaults.rope {
            SlidingRope::Shared => Rope { theta: stated.unwrap_or(self.rope.theta), ..self.rope.clone() },
            SlidingRope::Unscaled => Rope { scaling: RopeScaling::None, ..self.rope },
            SlidingRope::Own { theta, .. } => {
                Rope { theta: stated.unwrap_or(theta), scaling: RopeScaling::None, ..self.rope }
            }
        };
        let layers = sliding_layers(layers, defaults)?;
        Ok(Some(SlidingWindow { window, is_chunk: defaults.chunk.is_some(), rope, layers }))
    }

    /// Checks that redundant keys agree with the values computed from other keys.
    fn check_gguf_agrees(&self, file: &Gguf, architecture: &str) -> Result<()> {
        let again = [
            ("vocab_size", self.vocab_size, "the number of rows of token_embd.weight"),
            ("rope.dimension_count", self.rope.width, "the head size (partial rotation is not supported)"),
            (
                "attention.value_length",
                self.latent.map_or(self.head_dim, |latent| latent.rank),
                "the head size of the keys, or the rank of the latents",
            ),
        ];
        again.into_iter().try_for_each(|(name, expected, what)| {
            check_agrees(file, &format!("{architecture}.{name}"), expected, what)
        })
    }
}

/// Checks that a redundant key, if present, agrees with the value computed from other keys.
pub(super) fn check_agrees(file: &Gguf, key: &str, expected: usize, what: &str) -> Result<()> {
    match file.optional::<usize>(key)? {
        Some(found) if found != expected => {
            Err(Error::bad_key(file.tensors.path(), key, found, format!("{expected}, {what}")))
        }
        _ => Ok(()),
    }
}

/// Reads the sliding layers: a bool for each layer, or the interval of layers with full attention.
fn sliding_layers(layers: &GgufLayers, defaults: &SlidingDefaults) -> Result<Vec<bool>> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    if let Some(slides) = layers.listed(PATTERN)? {
        return Ok(slides);
    }
    let full_every = layers.optional_interval(PATTERN)?.or(defaults.full_every);
    Ok(all_but(full_every.unwrap_or(0), layers.count))
}

/// Returns the name that the file gives to the architecture.
fn name_in(file: &Gguf, family: &Family) -> Result<&'static str> {
    const KEY: &str = "general.architecture";
    let found: &str = file.require(KEY)?;
    family.gguf_names.iter().find(|name| **name == found).copied().ok_or_else(|| {
        let expected = format!("one of {}", family.gguf_names.join(", "));
        Error::bad_key(file.tensors.path(), KEY, found, expected)
    })
}

/// Returns the vocabulary's size from the embedding table, since the key is often absent.
fn embedding_rows(file: &Gguf, architecture: &'static str) -> Result<usize> {
    let (path, tensor) = (file.tensors.path().to_owned(), "token_embd.weight".to_owned());
    match file.tensors.get(&tensor) {
        Some(table) => Ok(table.shape[0]),
        None => Err(ModelError::MissingTensor { file: path, tensor, architecture }.into()),
    }
}

/// Reads the RoPE scaling. Linear scaling and YaRN are metadata keys; Llama 3's is a tensor of divisors for the pairs'
/// frequencies.
fn scaling(file: &Gguf, architecture: &'static str, family: &Family, width: usize) -> Result<RopeScaling> {
    const FACTORS: &str = "rope_freqs.weight";
    if family.rope.may_be_long && file.tensors.get(LONG_FACTORS[0]).is_some() {
        return long_scaling(file, architecture, width);
    }
    let (kind_key, factor_key) =
        (format!("{architecture}.rope.scaling.type"), format!("{architecture}.rope.scaling.factor"));
    let kind = file.optional::<&str>(&kind_key)?;
    let stretch_key = format!("{architecture}.rope.scaling.attn_factor");
    let stretch = file.optional::<f32>(&stretch_key)?.filter(|factor| *factor != 1.0 && kind != Some("yarn"));
    if let Some(found) = stretch {
        let expected = "1, or YaRN or LongRoPE (other stretched rotations are not supported)";
        return Err(Error::bad_key(file.tensors.path(), &stretch_key, found, expected));
    }
    let has_factors = file.tensors.get(FACTORS).is_some();
    // llama.cpp treats a factor without a type as linear scaling, also reads an older key, and ignores a factor of 0.
    let factor = match file.optional::<f32>(&factor_key)? {
        None => file.optional(&format!("{architecture}.rope.scale_linear"))?,
        found => found,
    };
    match (kind, factor.filter(|factor| ![0.0, 1.0].contains(factor))) {
        (Some("none"), _) | (None | Some("linear"), None) => {}
        (None | Some("linear"), Some(factor)) if !has_factors => return Ok(RopeScaling::Linear(factor)),
        (Some("yarn"), _) if !has_factors => {
            return Ok(RopeScaling::Yarn(yarn::from_gguf(file, architecture)?));
        }
        (found, _) => {
            let expected =
                "none, or linear or yarn without rope_freqs.weight (other RoPE scaling is not supported)";
            return Err(Error::bad_key(file.tensors.path(), &kind_key, found.unwrap_or("linear"), expected));
        }
    }
    if !has_factors {
        return Ok(RopeScaling::None);
    }
    let factors = Weights::new(&file.tensors, architecture).vector(FACTORS, width / 2)?;
    match factors.iter().find(|factor| !(**factor > 0.0 && factor.is_finite())) {
        Some(factor) => Err(Error::bad_key(file.tensors.path(), FACTORS, factor, "positive numbers")),
        None => Ok(RopeScaling::Factors(factors)),
    }
}

/// Tensors of LongRoPE's factors: for passes within the original context, and beyond it.
pub(super) const LONG_FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

fn long_scaling(file: &Gguf, architecture: &'static str, width: usize) -> Result<RopeScaling> {
    let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
    let mut weights = Weights::new(&file.tensors, architecture);
    let [short, long] = LONG_FACTORS.map(|name| weights.vector(name, width / 2));
    Ok(RopeScaling::Long {
        short: short?,
        long: long?,
        original_context: file.require(&key("original_context_length"))?,
        magnitude: file.optional(&key("attn_factor"))?.unwrap_or(1.0),
    })
}

/// Returns an error for GGUF options of these architectures that the forward pass does not support.
fn refuse_extensions(file: &Gguf, architecture: &str, family: &Family) -> Result<()> {
    let causal_key = format!("{architecture}.attention.causal");
    if file.optional(&causal_key)? == Some(false) {
        let expected = "true (only causal attention is supported)";
        return Err(Error::bad_key(file.tensors.path(), &causal_key, false, expected));
    }
    let zero = [
        ("expert_count", "mixtures of experts are not supported"),
        ("final_logit_softcapping", "softcapping is not supported"),
        ("attn_logit_softcapping", "softcapping is not supported"),
        ("embedding_scale", "multipliers are not supported"),
        ("residual_scale", "multipliers are not supported"),
        ("logit_scale", "multipliers are not supported"),
        ("attention.scale", "multipliers are not supported"),
        ("attention.temperature_scale", "attention temperature tuning is not supported"),
    ];
    let is_stated = |name: &str| {
        let is_known = match name {
            "expert_count" => family.experts.is_some(),
            "attention.temperature_scale" => family.query_temperature == Some(TemperatureFiles::Ministral3),
            _ => false,
        };
        is_known || family.stated.iter().any(|stated| stated.gguf == name)
    };
    let windows =
        family.recurrent.map(|_| ("attention.sliding_window", "windows in such models are not supported"));
    for (name, what) in zero.into_iter().chain(windows).filter(|(name, _)| !is_stated(name)) {
        let key = format!("{architecture}.{name}");
        match file.optional::<f32>(&key)? {
            Some(found) if found != 0.0 => {
                return Err(Error::bad_key(file.tensors.path(), &key, found, format!("0 ({what})")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns flags for the biases of a model. If a bias is optional in the architecture, the tensors of layer 0 show
/// whether the file has it.
fn biases(file: &Gguf, family: &Family) -> BiasFlags {
    let has = |rule: BiasRule, matrices: &[&str]| {
        let is_there = |matrix: &&str| file.tensors.get(&format!("blk.0.{matrix}.bias")).is_some();
        match rule {
            BiasRule::Never => false,
            BiasRule::Always => true,
            BiasRule::Stated(_) => matrices.iter().any(is_there),
        }
    };
    let BiasRules { qkv, output, mlp } = family.biases;
    BiasFlags {
        qkv: has(qkv, &["attn_q", "attn_qkv"]),
        output: has(output, &["attn_output"]),
        mlp: has(mlp, &["ffn_up"]),
    }
}

/// Returns the shape of a block. In some architectures, files choose between parallel and sequential halves. The
/// choice is then shown by the norm before the feed-forward block, which only sequential blocks have, or stated by
/// a key. llama.cpp reads the key only in the latter case.
fn shape(file: &Gguf, architecture: &str, family: &Family) -> Result<BlockShape> {
    let qk_norm = match family.shape.qk_norm {
        QkNorm::EachHeadIfStated if file.tensors.get("blk.0.attn_q_norm.weight").is_some() => {
            QkNorm::EachHead
        }
        QkNorm::EachHeadIfStated => QkNorm::Absent,
        // llama.cpp recognises the Llama 4 without norms (Maverick) by its number of experts.
        QkNorm::AfterRope if file.optional(&format!("{architecture}.expert_count"))? == Some(128) => {
            QkNorm::Absent
        }
        known => known,
    };
    let own = BlockShape { qk_norm, ..family.shape };
    let Some(both) = own.parallel else { return Ok(own) };
    let is_parallel = match both.has_ffn_norm {
        _ if both.is_always => true,
        true => file.require(&format!("{architecture}.use_parallel_residual"))?,
        false => file.tensors.get("blk.0.ffn_norm.weight").is_none(),
    };
    let both = ParallelHalves { order: both.gguf_order, ..both };
    Ok(BlockShape { parallel: is_parallel.then_some(both), ..own })
}
