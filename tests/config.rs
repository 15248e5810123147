//! Reading `config.json`: what the released models state, in the words of transformers 4.x and 5.x.

use std::path::Path;

use serde_json::{Value, json};
use xcheck::error::Result;
use xcheck::model::decoder::{BiasFlags, DecoderConfig, Family};
use xcheck::model::{Config, gemma3, llama, qwen3};
use xcheck::ops::attention::AttentionScale;
use xcheck::ops::norm::Gain;
use xcheck::ops::rope::RopeScaling;
use xcheck::ops::rope::yarn::Yarn;
use xcheck::ops::scaling::Multiplier;

fn read(json: &Value, family: &Family) -> Result<DecoderConfig> {
    DecoderConfig::from_hugging_face(&Config::new(Path::new("config.json"), json), family)
}

fn edited(mut json: Value, key: &str, value: Value) -> Value {
    json[key] = value;
    json
}

/// meta-llama/Llama-3.2-1B-Instruct
fn llama_3_2_1b() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": null, "hidden_act": "silu",
        "eos_token_id": [128_001, 128_008, 128_009],
    })
}

/// Qwen/Qwen3-1.7B
fn qwen3_1_7b() -> Value {
    json!({
        "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
        "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "rope_scaling": null,
        "use_sliding_window": false, "sliding_window": null, "tie_word_embeddings": true, "hidden_act": "silu",
    })
}

/// google/gemma-3-1b-it
fn gemma_3_1b() -> Value {
    json!({
        "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262_144,
        "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000,
        "rope_local_base_freq": 10_000, "rope_scaling": null, "query_pre_attn_scalar": 256, "sliding_window": 512,
        "sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": null,
        "final_logit_softcapping": null,
    })
}

/// google/gemma-3-4b-it, which leaves most to the defaults.
fn gemma_3_4b() -> Value {
    json!({
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    })
}

#[test]
fn llama_3_has_rope_scaling_and_a_tied_lm_head() {
    let c = read(&llama_3_2_1b(), &llama::FAMILY).expect("it is supported");
    assert_eq!((c.head_dim, c.n_kv_heads, c.rope.theta, c.tied_output), (64, 8, 500_000.0, true));
    let scaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192.0,
    };
    assert_eq!((c.rope.scaling, c.sliding, c.embed_scale), (scaling, None, None));
}

/// Qwen 3's documented way to longer texts, in the words of transformers 4.
#[test]
fn yarn_is_read_with_the_defaults_of_transformers() {
    let scaled = |scaling: Value| match read(&edited(qwen3_1_7b(), "rope_scaling", scaling), &qwen3::FAMILY) {
        Ok(config) => match config.rope.scaling {
            RopeScaling::Yarn(yarn) => yarn,
            other => panic!("{other:?}"),
        },
        Err(error) => panic!("{error}"),
    };
    let stated = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768});
    let yarn = scaled(stated);
    assert_eq!(yarn, Yarn::new(4.0, 32_768.0));
    assert_eq!(yarn.magnitude(), 1.138_629_4);
    let unstated = scaled(json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 0, "mscale": 0.7}));
    assert_eq!(unstated, Yarn::new(4.0, 40_960.0), "0 is no number of turns, and one weight of two is none");
    let derived = json!({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 10_240});
    assert_eq!(scaled(derived).factor, 4.0);
    let weights = scaled(json!({"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}));
    assert_eq!(weights.magnitude(), 1.0);
}

/// transformers' class default is taken if a file is silent; the parity specification has another.
#[test]
fn a_missing_rms_norm_eps_is_the_default_of_transformers() {
    let mut silent = llama_3_2_1b();
    silent.as_object_mut().expect("an object").remove("rms_norm_eps");
    for json in [silent, edited(llama_3_2_1b(), "rms_norm_eps", Value::Null)] {
        assert_eq!(read(&json, &llama::FAMILY).expect("it is supported").norm_eps, 1e-6);
    }
    assert_eq!(read(&llama_3_2_1b(), &llama::FAMILY).expect("it is supported").norm_eps, 1e-5);
}

#[test]
fn biases_are_read_where_an_architecture_has_them() {
    let biased = |key: &str| edited(llama_3_2_1b(), key, json!(true));
    let of = |json: &Value| read(json, &llama::FAMILY).expect("it is supported").biases;
    assert_eq!(of(&llama_3_2_1b()), BiasFlags::default());
    assert_eq!(of(&biased("attention_bias")), BiasFlags { qkv: true, output: true, mlp: false });
    assert_eq!(of(&biased("mlp_bias")), BiasFlags { qkv: false, output: false, mlp: true });
    let qwen =
        read(&edited(qwen3_1_7b(), "attention_bias", json!(true)), &qwen3::FAMILY).expect("it is supported");
    assert!(qwen.biases.qkv && qwen.biases.output);
    let refused =
        read(&edited(qwen3_1_7b(), "mlp_bias", json!(true)), &qwen3::FAMILY).expect_err("no such layers");
    assert!(refused.to_string().contains("biases of this architecture are not supported"), "{refused}");
}

#[test]
fn a_model_may_have_several_eos_tokens() {
    let ids = |value| {
        let json = edited(llama_3_2_1b(), "eos_token_id", value);
        Config::new(Path::new("config.json"), &json)
            .token_ids("eos_token_id")
            .map_err(|error| error.to_string())
    };
    let stated = llama_3_2_1b()["eos_token_id"].take();
    assert_eq!(ids(stated), Ok(vec![128_001, 128_008, 128_009]));
    assert_eq!(ids(json!(2)), Ok(vec![2]));
    assert_eq!(ids(Value::Null), Ok(vec![]));
    assert!(ids(json!([1, -1])).expect_err("no id is negative").contains("'eos_token_id' is [1,-1]"));
}

#[test]
fn a_missing_head_dim_follows_from_the_hidden_size() {
    let c = read(&edited(llama_3_2_1b(), "head_dim", Value::Null), &llama::FAMILY).expect("it is supported");
    assert_eq!(c.head_dim, 2048 / 32);
}

#[test]
fn qwen_3_has_its_own_head_dim() {
    let c = read(&edited(qwen3_1_7b(), "num_attention_heads", json!(8)), &qwen3::FAMILY)
        .expect("it is supported");
    assert_eq!((c.head_dim, c.hidden_size / c.n_heads, c.rope.theta), (128, 256, 1e6));
    assert_eq!(c.attn_scale, AttentionScale::Products(1.0 / 128f32.sqrt()));
}

#[test]
fn gemma_3_has_a_sliding_window_in_all_layers_but_every_sixth() {
    let c = read(&gemma_3_1b(), &gemma3::FAMILY).expect("it is supported");
    let global: Vec<usize> = (0..26).filter(|&layer| !c.slides(layer)).collect();
    assert_eq!(global, [5, 11, 17, 23]);
    let sliding = c.sliding.expect("it slides");
    assert_eq!((sliding.window, sliding.rope.theta, c.rope.theta), (512, 1e4, 1e6));
    assert_eq!(
        (c.attn_scale, c.embed_scale),
        (AttentionScale::Queries(1.0 / 16.0), Some(Multiplier::Element(1152f32.sqrt())))
    );
    assert_eq!((c.norm_gain, c.tied_output, c.head_dim * c.n_heads), (Gain::OnePlusWeight, true, 1024));
}

#[test]
fn the_text_part_of_a_model_that_also_sees_is_read_with_its_defaults() {
    let c = read(&gemma_3_4b(), &gemma3::FAMILY).expect("it is supported");
    assert_eq!((c.hidden_size, c.n_heads, c.n_kv_heads, c.head_dim), (2560, 8, 4, 256));
    assert_eq!((c.vocab_size, c.context_length, c.norm_eps), (262_208, 131_072, 1e-6));
    let sliding = c.sliding.expect("it slides");
    assert_eq!((c.rope.scaling, c.rope.theta), (RopeScaling::Linear(8.0), 1e6));
    assert_eq!((sliding.rope.scaling, sliding.rope.theta, sliding.window), (RopeScaling::None, 1e4, 1024));
}

#[test]
fn the_words_of_transformers_4_and_5_say_the_same() {
    let mut new = gemma_3_1b();
    for key in ["rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"] {
        new.as_object_mut().expect("it is one").remove(key);
    }
    let kinds: Vec<&str> =
        (1..=26).map(|layer| if layer % 6 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    new["layer_types"] = json!(kinds);
    new["rope_parameters"] = json!({
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    });
    assert_eq!(read(&new, &gemma3::FAMILY).expect("new"), read(&gemma_3_1b(), &gemma3::FAMILY).expect("old"));

    let mut new = llama_3_2_1b();
    let mut parameters = new["rope_scaling"].take();
    parameters["rope_theta"] = new["rope_theta"].take();
    new["rope_parameters"] = parameters;
    assert_eq!(read(&new, &llama::FAMILY).expect("new"), read(&llama_3_2_1b(), &llama::FAMILY).expect("old"));
}

#[track_caller]
fn assert_refused(family: &Family, json: Value, key: &str, value: Value, expected: &str) {
    let message = read(&edited(json, key, value), family).expect_err("it is refused").to_string();
    assert!(message.contains(expected), "{message}");
}

#[test]
fn what_gemma_3_may_ask_for_and_is_not_done_is_refused() {
    let refused = |key, value, expected| assert_refused(&gemma3::FAMILY, gemma_3_1b(), key, value, expected);
    refused("final_logit_softcapping", json!(30.0), "softcapping is not supported");
    refused("use_bidirectional_attention", json!(true), "'use_bidirectional_attention' is true");
    refused("hidden_activation", json!("gelu"), "expected \"gelu_pytorch_tanh\"");
    refused("sliding_window", json!(0), "'sliding window' is 0");
    refused("sliding_window_pattern", json!(0), "'sliding_window_pattern' is 0");
    refused("layer_types", json!(["full_attention"]), "1 entries, expected one for each of 26 layers");
    refused("layer_types", json!(vec!["mamba"; 26]), "'layer_types' is \"mamba\"");
    refused("query_pre_attn_scalar", json!(0), "'query_pre_attn_scalar' is 0");
    refused("rope_local_base_freq", json!(-1), "'RoPE theta' is -1");
    refused("text_config", json!(7), "'text_config' is 7, expected an object");
}

#[test]
fn a_sliding_window_in_an_architecture_without_one_is_refused() {
    let kinds = vec!["sliding_attention"; 28];
    assert_refused(&qwen3::FAMILY, qwen3_1_7b(), "layer_types", json!(kinds), "full_attention throughout");
    let on = edited(edited(qwen3_1_7b(), "use_sliding_window", json!(true)), "sliding_window", json!(4096));
    assert_refused(&qwen3::FAMILY, on, "max_window_layers", json!(27), "sliding windows");
}
