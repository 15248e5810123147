//! Decoder configuration from a `config.json` of transformers 4.x or 5.x.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::model::decoder::config::{DEFAULT_THETA, derive_head_dim};
use crate::model::decoder::latent_files as latent_json;
use crate::model::decoder::layer_sizes::all_but;
use crate::model::decoder::rope_json::{CHUNKED, FULL, SLIDING, rope};
use crate::model::decoder::{
    BiasFlags, BiasRule, BlockShape, DecoderConfig, Family, LayerVariants, ParallelHalves, QkNorm,
    RecurrentFiles, SlidingRope, SlidingWindow, StreamSettings, TemperatureFiles,
};
use crate::model::json::Config;
use crate::model::quantisation::{self, LinearClass};
use crate::ops::activation::Activation;
use crate::ops::attention::AttentionScale;

impl DecoderConfig {
    /// Reads a `config.json`; for multimodal models, reads the settings of the text model.
    ///
    /// # Errors
    /// If a key is missing, has an invalid type or value, or asks for something that the forward pass does not support.
    pub fn from_hugging_face(file: &Config, family: &Family) -> Result<Self> {
        let defaults = (family.config_defaults)();
        let file = file.object("text_config")?.unwrap_or(file.clone()).or_defaults(&defaults);
        let file = &file.with_aliases(family.json_aliases);
        refuse_extensions(file, family)?;
        let hidden_size = file.require_usize("hidden_size")?;
        let n_heads = file.require_usize("num_attention_heads")?;
        let latent = if family.is_latent { Some(latent_json::sizes(file)?) } else { None };
        let head_dim = match (latent, file.optional_usize("head_dim")?) {
            (Some(latent), _) => latent.plain.saturating_add(latent.rotated),
            (None, Some(head_dim)) => head_dim,
            (None, None) => derive_head_dim(file.path(), "num_attention_heads", hidden_size, n_heads)?,
        };
        let n_layers = match family.recurrent.map(|known| known.listed_in_json(file)).transpose()?.flatten() {
            Some(listed) => listed,
            None => file.require_usize("num_hidden_layers")?,
        };
        let rotating = latent.map_or(head_dim, |latent| latent.rotated);
        let experts = match family.experts {
            Some(known) if known.are_in_json(file)? => Some(known),
            _ => None,
        };
        let ffn_key = experts.map_or("intermediate_size", |experts| experts.ffn_size[0]);
        let ffn_size = family.ffn_size.map_or_else(|| file.require_usize(ffn_key), |of| of(file))?;
        let mut config = Self {
            vocab_size: file.require_usize("vocab_size")?,
            hidden_size,
            ffn_size,
            n_layers,
            predicting_layers: match family.predicting {
                Some([key, _]) => file.optional_usize(key)?.unwrap_or(0),
                None => 0,
            },
            n_heads,
            n_kv_heads: match family.kv_heads {
                Some(of) => of(file)?,
                None => file.optional_usize("num_key_value_heads")?.unwrap_or(n_heads),
            },
            head_dim,
            latent,
            context_length: file.require_usize("max_position_embeddings")?,
            norm: family.norm,
            norm_eps: file.require_f32(family.json_eps)?,
            norm_gain: family.gain,
            embed_scale: None,
            residual_scale: None,
            logits_scale: None,
            attn_cap: None,
            logits_cap: None,
            rope: rope(file, family, FULL, (family.rope.old_keys[0], DEFAULT_THETA), rotating)?,
            sliding: None,
            positions: family.positions,
            unrotated: Vec::new(),
            query_temperature: None,
            variants: None,
            streams: None,
            attn_scale: AttentionScale::Products(1.0),
            activation: activation(file, family)?,
            shape: shape(file, family)?,
            tied_output: file.optional_bool("tie_word_embeddings")?.unwrap_or(false),
            biases: biases(file, family)?,
            linear_class: linear_class(file, family)?,
            experts: experts.map(|known| known.in_json(file, ffn_size)).transpose()?,
            dense: None,
            recurrent: None,
            single_halves: None,
            multipliers: None,
            has_adapter: false,
        };
        config.check(file.path())?;
        config.query_temperature = TemperatureFiles::in_json(family.query_temperature, file, &config.rope)?;
        config.dense = match &experts {
            Some(known) => known.dense.in_json(file, n_layers)?,
            None => None,
        };
        if let Some(known) = &family.recurrent {
            config.recurrent = known.in_json(file, n_layers)?;
            config.single_halves = known.feed_forward_in_json(file)?;
            config.multipliers = known.multipliers_in_json(file)?;
        }
        config.unrotated = match family.recurrent.map(|known| known.rotates_in_json(file)).transpose()? {
            Some(false) => vec![true; n_layers],
            _ => unrotated(file, n_layers, family)?,
        };
        config.embed_scale = (family.embed_scale)(&config);
        config.attn_scale = match (family.attn_scale)(&config) {
            // Gemma 3n and Gemma 4 ignore `query_pre_attn_scalar`, which old files state.
            default if family.has_layer_variants => default,
            default => attn_scale(file, default)?,
        };
        if latent.is_some() {
            config.attn_scale = latent_json::scale(file, head_dim)?;
        }
        for stated in family.stated {
            // An explicit null disables the option, even if there is a default.
            let default = stated.default[0].filter(|_| !file.is_null(stated.json));
            if let Some(number) = file.optional_f32(stated.json)?.or(default) {
                let refuse = |expected| file.bad_key(stated.json, number, expected);
                stated.put(&mut config, number).map_err(refuse)?;
            }
        }
        config.sliding = sliding_window(file, &config, family)?;
        if family.sliding.as_ref().is_some_and(|sliding| sliding.rotates_alone) {
            config.unrotated = config.full_layers(!file.is_null("sliding_window"));
        }
        if family.has_streams {
            config.streams = Some(StreamSettings::in_json(file, n_layers)?);
        }
        if family.has_layer_variants {
            config.variants = Some(LayerVariants::in_json(file, &mut config, family)?);
        }
        config.check(file.path())?;
        Ok(config)
    }
}

/// Reads the factor of q·k, applied to the operand that the architecture scales.
fn attn_scale(file: &Config, default: AttentionScale) -> Result<AttentionScale> {
    const KEY: &str = "query_pre_attn_scalar";
    let Some(scalar) = file.optional_f32(KEY)? else { return Ok(default) };
    if !(scalar > 0.0 && scalar.is_finite()) {
        return Err(file.bad_key(KEY, scalar, "a positive number"));
    }
    let factor = 1.0 / scalar.sqrt();
    Ok(match default {
        AttentionScale::Products(_) => AttentionScale::Products(factor),
        AttentionScale::Queries(_) => AttentionScale::Queries(factor),
        AttentionScale::RoundedQueries(_) => AttentionScale::RoundedQueries(factor),
    })
}

/// Reads the layers with a sliding window: `layer_types`, or every layer except those of `sliding_window_pattern`.
fn sliding_window(file: &Config, config: &DecoderConfig, family: &Family) -> Result<Option<SlidingWindow>> {
    let listed = layer_types(file, config.n_layers, family)?;
    let Some(defaults) = &family.sliding else {
        let full = listed.is_none_or(|layers| !layers.contains(&true));
        return if full {
            Ok(None)
        } else {
            Err(file.bad_key("layer_types", SLIDING, "full_attention throughout"))
        };
    };
    // If the file decides about a window, null means no window. An absent key means transformers' default.
    if (defaults.full_every.is_none() || defaults.rotates_alone) && file.is_null("sliding_window") {
        return Ok(None);
    }
    let layers = match listed {
        Some(listed) => listed,
        None if defaults.chunk.is_some() => (0..config.n_layers).map(|layer| config.rotates(layer)).collect(),
        None => {
            let full_every = file.optional_interval("sliding_window_pattern")?.or(defaults.full_every);
            all_but(full_every.unwrap_or(0), config.n_layers)
        }
    };
    if !layers.contains(&true) {
        return Ok(None);
    }
    let is_chunk = defaults.chunk.is_some();
    let window = file.require_usize(if is_chunk { "attention_chunk_size" } else { "sliding_window" })?;
    let rope = match defaults.rope {
        SlidingRope::Shared => config.rope.clone(),
        SlidingRope::Unscaled => {
            rope(file, family, SLIDING, ("rope_theta", config.rope.theta), config.head_dim)?
        }
        SlidingRope::Own { key, theta } => rope(file, family, SLIDING, (key, theta), config.head_dim)?,
    };
    Ok(Some(SlidingWindow { window, is_chunk, rope, layers }))
}

/// Reads the sliding layers from `layer_types`, if present.
fn layer_types(file: &Config, n_layers: usize, family: &Family) -> Result<Option<Vec<bool>>> {
    const KEY: &str = "layer_types";
    let Some(value) = file.get(KEY) else { return Ok(None) };
    let kinds = value.as_array().map(Vec::as_slice).unwrap_or_default();
    if kinds.len() != n_layers {
        return Err(file.bad_key(
            KEY,
            format!("{} entries", kinds.len()),
            format!("one for each of {n_layers} layers"),
        ));
    }
    if family.shape.has_single_halves {
        return Ok(None);
    }
    let recurrent = family.recurrent.map_or(&[][..], RecurrentFiles::layer_types);
    let has_chunks = family.sliding.as_ref().is_some_and(|sliding| sliding.chunk.is_some());
    let sliding = if has_chunks { CHUNKED } else { SLIDING };
    let slides = |kind: &Value| match kind.as_str() {
        Some(FULL) => Ok(false),
        Some("attention") if !recurrent.is_empty() => Ok(false),
        Some(kind) if kind == sliding => Ok(true),
        Some(other) if recurrent.contains(&other) => Ok(false),
        _ => {
            let more: String = recurrent.iter().map(|other| format!(" or {other:?}")).collect();
            Err(file.bad_key(KEY, kind, format!("{FULL:?} or {sliding:?}{more}")))
        }
    };
    kinds.iter().map(slides).collect::<Result<_>>().map(Some)
}

/// Reads the layers without RoPE: `no_rope_layers`, which lists the layers with RoPE, or every
/// `no_rope_layer_interval`-th layer.
fn unrotated(file: &Config, n_layers: usize, family: &Family) -> Result<Vec<bool>> {
    const LISTED: &str = "no_rope_layers";
    const EVERY: &str = "no_rope_layer_interval";
    if family.unrotated_every.is_none() {
        for key in [LISTED, EVERY] {
            file.only(key, &[], "absent (layers without RoPE are not supported)")?;
        }
        return Ok(Vec::new());
    }
    let every = file.optional_interval(EVERY)?;
    let is_empty = |value: &&Value| value.as_array().is_some_and(Vec::is_empty);
    let stated = file.get(LISTED).filter(|value| !(family.may_list_no_layers && is_empty(value)));
    let Some(value) = stated else { return Ok(family.unrotated(every, n_layers, None)) };
    let rotates = |value: &Value| match value.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    let listed = value.as_array().and_then(|all| all.iter().map(rotates).collect::<Option<Vec<_>>>());
    match listed.filter(|listed| listed.len() == n_layers) {
        Some(listed) => Ok(family.unrotated(every, n_layers, Some(listed))),
        None => Err(file.bad_key(LISTED, value, format!("a 0 or 1 for each of {n_layers} layers"))),
    }
}

/// Keys of biases in `config.json`. An architecture reads some of them; all others must be false or absent.
const BIASES: [&str; 6] =
    ["attention_bias", "attention_out_bias", "mlp_bias", "qkv_bias", "use_bias", "use_qkv_bias"];

/// Reads the biases of queries, keys and values, of the output projection and of the feed-forward block.
fn biases(file: &Config, family: &Family) -> Result<BiasFlags> {
    let rules = family.biases.all();
    if family.biases.qkv == BiasRule::Always {
        file.only("qkv_bias", &[Value::from(true)], "true (such layers without biases are not supported)")?;
    }
    let is_read = |key: &str| {
        let is_it = |rule: &BiasRule| matches!(rule, BiasRule::Stated(stated) if *stated == key);
        rules.iter().any(is_it) || key == "qkv_bias"
    };
    for key in BIASES.into_iter().filter(|key| !is_read(key)) {
        file.only(key, &[Value::from(false)], "false (biases of this architecture are not supported)")?;
    }
    let stated = |rule: BiasRule| match rule {
        BiasRule::Never => Ok(false),
        BiasRule::Always => Ok(true),
        BiasRule::Stated(key) => Ok::<_, Error>(file.optional_bool(key)?.unwrap_or(false)),
    };
    let [qkv, output, mlp] = rules.map(stated);
    Ok(BiasFlags { qkv: qkv?, output: output?, mlp: mlp? })
}

/// Activation functions by their names in `config.json`.
const ACTIVATIONS: [(&str, Activation); 6] = [
    ("silu", Activation::Silu),
    ("relu", Activation::Relu),
    ("relu2", Activation::SquaredRelu),
    ("gelu", Activation::GeluErf),
    ("gelu_new", Activation::GeluNew),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
];

/// Reads the activation function. It must be one of the names that the architecture allows.
fn activation(file: &Config, family: &Family) -> Result<Activation> {
    let supported: Vec<Value> = family.hidden_acts.iter().map(|name| (*name).into()).collect();
    let expected = family.hidden_acts.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or ");
    let mut found = family.activation;
    for key in ["hidden_act", "hidden_activation"] {
        file.only(key, &supported, &expected)?;
        let stated = file.optional_str(key)?;
        let known = ACTIVATIONS.iter().find(|(name, _)| stated == Some(name));
        found = known.map_or(found, |(_, activation)| *activation);
    }
    Ok(found)
}

/// Key of norms of queries and keys.
const QK_NORM: &str = "use_qk_norm";

/// Reads the shape of a block. In some architectures, the file chooses between parallel and sequential halves.
fn shape(file: &Config, family: &Family) -> Result<BlockShape> {
    const KEY: &str = "use_parallel_residual";
    let is_parallel = match family.shape.parallel {
        Some(ParallelHalves { is_always: true, .. }) => true,
        Some(_) => file.optional_bool(KEY)?.unwrap_or(false),
        None => false,
    };
    let is_normed = file.optional_bool(QK_NORM)?.unwrap_or(false);
    let qk_norm = match family.shape.qk_norm {
        QkNorm::EachHeadIfStated if is_normed => QkNorm::EachHead,
        QkNorm::EachHeadIfStated => QkNorm::Absent,
        QkNorm::AfterRope if !is_normed => QkNorm::Absent,
        known => known,
    };
    Ok(BlockShape { parallel: family.shape.parallel.filter(|_| is_parallel), qk_norm, ..family.shape })
}

/// Reads BitNet's kind of linear layers, for architectures that may have them.
fn linear_class(file: &Config, family: &Family) -> Result<Option<LinearClass>> {
    let method = match file.object(quantisation::KEY)? {
        Some(settings) => settings.optional_str("quant_method")?,
        None => None,
    };
    match method {
        Some("bitnet") if !family.may_be_quantised => {
            let expected = "another method (BitNet's linear layers are not supported in this architecture)";
            Err(file.bad_key("quantization_config.quant_method", "bitnet", expected))
        }
        Some("bitnet") => LinearClass::read(file),
        // Weights of other methods are decoded before they are loaded.
        _ => Ok(None),
    }
}

/// Checks that no layer has a window, in a model whose file has a switch for windows. As in transformers, layers
/// from `max_window_layers` on have one if `layer_types` does not list them.
fn check_sliding_window(file: &Config, family: &Family) -> Result<()> {
    const WINDOW: &str = "sliding_window";
    const SWITCH: &str = "use_sliding_window";
    const FIRST: &str = "max_window_layers";
    const FIRST_BY_DEFAULT: usize = 28;
    let is_listed = file.get("layer_types").is_some();
    let is_off = family.has_window_switch && file.optional_bool(SWITCH)? != Some(true);
    // An explicit null means no window, even if there is a default.
    if is_off || is_listed || file.is_null(WINDOW) || file.get(WINDOW).is_none() {
        return Ok(());
    }
    let n_layers = file.require_usize("num_hidden_layers")?;
    let first = file.optional_usize(FIRST)?.unwrap_or(FIRST_BY_DEFAULT);
    if first >= n_layers {
        return Ok(());
    }
    let expected = format!("{n_layers} or more, so that no layer slides (sliding windows are not supported)");
    Err(file.bad_key(FIRST, first, expected))
}

/// Returns an error for `config.json` options of these architectures that the forward pass does not support.
fn refuse_extensions(file: &Config, family: &Family) -> Result<()> {
    (family.refuse_json)(file)?;
    let no = [Value::from(false)];
    check_sliding_window(file, family)?;
    let causal = [Value::from(false), Value::from("vision")];
    file.only("use_bidirectional_attention", &causal, "false (only causal attention of texts is supported)")?;
    let numbers = [
        ("attn_logit_softcapping", "softcapping is not supported"),
        ("final_logit_softcapping", "softcapping is not supported"),
        ("embedding_multiplier", "multipliers are not supported"),
        ("residual_multiplier", "multipliers are not supported"),
        ("attention_multiplier", "multipliers are not supported"),
        ("logits_scaling", "multipliers are not supported"),
        ("logit_scale", "multipliers are not supported"),
        ("clip_qkv", "clamped projections are not supported"),
    ];
    let is_stated = |key: &str| family.stated.iter().any(|stated| stated.json == key);
    for (key, what) in numbers.into_iter().filter(|(key, _)| !is_stated(key)) {
        file.only(key, &[], &format!("absent ({what})"))?;
    }
    let is_normed = family.shape.qk_norm != QkNorm::Absent;
    for key in ["qk_layernorm", QK_NORM].into_iter().filter(|key| !(is_normed && *key == QK_NORM)) {
        file.only(key, &no, "false (such norms of queries and keys are not supported)")?;
    }
    Ok(())
}
