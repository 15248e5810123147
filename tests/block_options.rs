//! Architectures that are settings of one block: all their formats pass against every dump that real engines made of them, and
//! mistakes of ports are named where they happen.

use crate::common::architecture;
use crate::common::terminal::Terminal;
use crate::families::{Mistake, assert_formats_pass, assert_mistakes_named};

/// GGUF files of a model that llama.cpp reads.
const BOTH: &[&str] = &["f32", "q8_0"];

/// A model, its GGUF files, and the number of taps in a dump of transformers.
const MODELS: &[(&str, &[&str], usize)] = &[
    ("tiny-gemma", BOTH, 177),
    ("tiny-seed-oss", BOTH, 177),
    ("tiny-olmo3", BOTH, 193),
    ("tiny-ernie45", BOTH, 177),
    ("tiny-exaone4", BOTH, 193),
    ("tiny-exaone4-window", &[], 193),
    ("tiny-glm4", BOTH, 193),
    ("tiny-glm", BOTH, 177),
    ("tiny-helium", &[], 177),
    ("tiny-arcee", BOTH, 169),
    ("tiny-olmoe", BOTH, 225),
    ("tiny-granitemoe", BOTH, 209),
    ("tiny-starcoder2", BOTH, 169),
    ("tiny-gptneox", BOTH, 161),
    ("tiny-stablelm", BOTH, 177),
    ("tiny-gptneox-sequential", BOTH, 169),
    ("tiny-stablelm-parallel", BOTH, 161),
    ("tiny-cohere", BOTH, 161),
    ("tiny-cohere2", BOTH, 297),
    ("tiny-olmo", BOTH, 177),
    ("tiny-ministral", &[], 177),
    ("tiny-ministral3", BOTH, 185),
    ("tiny-jais2", BOTH, 169),
    ("tiny-nemotron", BOTH, 169),
    ("tiny-phi2", BOTH, 153),
    ("tiny-falcon", BOTH, 153),
    ("tiny-falcon-new", BOTH, 161),
    ("tiny-falcon-sequential", &[], 169),
    ("tiny-opt", &[], 169),
    ("tiny-bloom", BOTH, 169),
    ("tiny-bloom-6", &[], 169),
    ("tiny-starcoder", BOTH, 169),
    ("tiny-gptj", &[], 153),
    ("tiny-hunyuan", BOTH, 193),
    ("tiny-qwen3next", BOTH, 293),
    ("tiny-qwen35", BOTH, 205),
    ("tiny-qwen35moe", BOTH, 293),
    ("tiny-gptoss", &["f32", "q8_0", "mxfp4"], 209),
    ("tiny-glm4moe", BOTH, 233),
    ("tiny-dots1", BOTH, 357),
    ("tiny-minimaxm2", BOTH, 233),
    ("tiny-ernie45moe", BOTH, 217),
    ("tiny-qwen3moe-dense", &[], 209),
    ("tiny-deepseekv2", BOTH, 381),
    ("tiny-deepseekv3", BOTH, 249),
    ("tiny-glm47flash", BOTH, 249),
    ("tiny-gemma3n", BOTH, 385),
    ("tiny-gemma3n-shared", &[], 669),
    ("tiny-gemma4", BOTH, 465),
    ("tiny-gemma4moe", BOTH, 321),
    ("tiny-llama4", BOTH, 437),
    ("tiny-llama4-chunks", &[], 229),
    ("tiny-lfm2", BOTH, 213),
    ("tiny-lfm2moe", BOTH, 253),
    ("tiny-granitehybrid", BOTH, 237),
    ("tiny-granitehybridmoe", BOTH, 241),
    ("tiny-nemotronh", BOTH, 185),
    ("tiny-nemotronhmoe", BOTH, 233),
    ("tiny-nemotronhlatent", BOTH, 185),
    ("tiny-falconh1", BOTH, 249),
];

/// Mistakes of AltUp, the low-rank residual and sparse gates.
const GEMMA3N: &[Mistake] = &[
    ("altup_router@predict_router=unbounded", "altup_router", "predict_router"),
    ("altup_router@correct_router=unscaled", "altup_router", "correct_router"),
    ("altup_router@predict_router=unnormed", "altup_router", "predict_router"),
    ("altup_prediction=transposed", "altup_prediction", "altup_predicted"),
    ("altup_prediction=alone", "altup_prediction", "altup_predicted"),
    ("altup_correction=without-one", "altup_correction", "altup_corrected"),
    ("altup_correction=absolute", "altup_correction", "altup_corrected"),
    ("altup_scale=none", "altup_scale", "altup_active"),
    ("altup_magnitude@altup_streams=none", "altup_magnitude", "altup_streams"),
    ("altup_magnitude@altup_mean=first", "altup_magnitude", "altup_mean"),
    ("layer_streams=all", "layer_streams", "block_out"),
    ("low_rank_residual@laurel_out=alone", "low_rank_residual", "laurel_out"),
    ("low_rank_residual=unscaled", "low_rank_residual", "laurel_residual"),
    ("low_rank_residual=missing", "low_rank_residual", "laurel_residual"),
    ("activation_sparsity=none", "activation_sparsity", "ffn_sparse"),
    ("activation_sparsity=sample", "activation_sparsity", "ffn_sparse"),
    ("activation_sparsity=kept", "activation_sparsity", "ffn_sparse"),
    ("activation_sparsity=0.93", "activation_sparsity", "ffn_sparse"),
];

/// Mistakes of streams of which the second is active, and of layers that share keys.
const GEMMA3N_SHARED: &[Mistake] = &[
    ("altup_prediction=none", "altup_prediction", "altup_predicted"),
    ("altup_correction=none", "altup_correction", "altup_corrected"),
    ("altup_magnitude@altup_streams=copies", "altup_magnitude", "altup_streams"),
    ("altup_magnitude@altup_mean=sum", "altup_magnitude", "altup_mean"),
    ("layer_streams=none", "layer_streams", "block_out"),
    ("low_rank_residual=halved", "low_rank_residual", "laurel_residual"),
    ("activation_sparsity=relu", "activation_sparsity", "ffn_sparse"),
    ("norm_missing@laurel_norm", "norm_missing", "laurel_norm"),
    ("attn_scale=0.25", "attn_scale", "attn_scores"),
];

/// llama.cpp computes Gemma 3n's sparse gates with the standard deviation of a sample.
#[test]
fn the_sample_deviation_of_llama_cpp_in_sparse_gates_of_gemma_3n_is_named_against_the_hugging_face_model() {
    let folder = architecture("tiny-gemma3n");
    let dump = folder.join("dumps/llama.cpp-f32.safetensors");
    let check = |model: &str, more: &[&str]| {
        let (model, dump) = (folder.join(model), dump.to_str().expect("a plain path"));
        let model = model.to_str().expect("a plain path");
        Terminal::new()
            .json(&[&["check", "--model", model, "--candidate", dump, "--no-report"][..], more].concat())
    };
    let (code, report) = check("hf", &[]);
    let findings = report["references"][0]["findings"].as_array().expect("findings");
    let kinds: Vec<_> = findings.iter().map(|finding| finding["kind"].as_str()).collect();
    assert_eq!((code, kinds), (1, vec![Some("activation_sparsity")]));
    assert_eq!(check("hf", &["--suppose", "activation_sparsity=sample"]).0, 0);
    assert_eq!(check("tiny-gemma3n-f32.gguf", &[]).0, 0);
}

#[test]
fn architectures_with_options_pass_against_transformers_and_llama_cpp() {
    assert_formats_pass(MODELS);
}

#[test]
fn a_wrong_norm_bias_rope_window_or_residual_of_an_architecture_with_options_is_named_at_its_tap() {
    let of_models: &[(&str, &[Mistake])] = &[
        (
            "tiny-gemma",
            &[
                ("embed_scale=1", "embed_scale", "embed"),
                ("activation=silu", "activation", "ffn_act"),
                ("norm_missing@attn_norm", "norm_missing", "attn_norm"),
            ],
        ),
        (
            "tiny-seed-oss",
            &[
                ("bias_missing=none", "bias_missing", "q"),
                ("rope_theta=1000000", "rope_theta", "q_rope"),
                ("bias_scale=2", "bias_scale", "q"),
            ],
        ),
        (
            "tiny-olmo3",
            &[
                ("norm_scope=each-head", "norm_scope", "q_norm"),
                ("mask_window=6", "mask_window", "attn_weights"),
                ("rope_scaling=none", "rope_scaling", "q_rope"),
            ],
        ),
        (
            "tiny-ernie45",
            &[
                ("rope_pairing=half", "rope_pairing", "q_rope"),
                ("rope_theta=1000000", "rope_theta", "q_rope"),
                ("rope_direction", "rope_direction", "q_rope"),
            ],
        ),
        (
            "tiny-exaone4",
            &[
                ("norm_missing@attn_post_norm", "norm_missing", "attn_post_norm"),
                ("norm_missing@q_norm", "norm_missing", "q_norm"),
                ("norm_order=after-rope", "norm_order", "q_rope"),
            ],
        ),
        (
            "tiny-exaone4-window",
            &[
                ("rope_layers", "rope_layers", "q_rope"),
                ("mask_window=6", "mask_window", "attn_weights"),
                ("mask_window=none", "mask_window", "attn_weights"),
            ],
        ),
        (
            "tiny-glm4",
            &[
                ("rope_width=16", "rope_width", "q_rope"),
                ("fused_order@ffn_up=concatenated", "fused_order", "ffn_up"),
                ("gate_up_swap=operands", "gate_up_swap", "ffn_act"),
                ("norm_missing@attn_post_norm", "norm_missing", "attn_post_norm"),
            ],
        ),
        (
            "tiny-glm",
            &[
                ("rope_width=8", "rope_width", "q_rope"),
                ("gate_up_swap=operands", "gate_up_swap", "ffn_act"),
                ("bias_missing=none", "bias_missing", "q"),
            ],
        ),
        (
            "tiny-helium",
            &[
                ("rope_pairing=half", "rope_pairing", "q_rope"),
                ("rope_theta=1000000", "rope_theta", "q_rope"),
                ("rope_direction", "rope_direction", "q_rope"),
            ],
        ),
        (
            "tiny-arcee",
            &[
                ("activation=relu", "activation", "ffn_act"),
                ("activation=silu", "activation", "ffn_act"),
                ("attn_scale=0.25", "attn_scale", "attn_scores"),
            ],
        ),
        (
            "tiny-olmoe",
            &[
                ("norm_scope=each-head", "norm_scope", "q_norm"),
                ("expert_weights=chosen", "expert_weights", "expert_weights"),
                ("expert_order@expert_out=next", "expert_order", "expert_out"),
            ],
        ),
        (
            "tiny-granitemoe",
            &[
                ("embed_scale=1", "embed_scale", "embed"),
                ("residual_scale=1", "residual_scale", "attn_residual"),
                ("expert_order@expert_out=next", "expert_order", "expert_out"),
                ("logit_scale=1", "logit_scale", "logits"),
            ],
        ),
        (
            "tiny-starcoder2",
            &[
                ("norm_kind=rms", "norm_kind", "attn_norm"),
                ("activation=silu", "activation", "ffn_act"),
                ("bias_missing@ffn_out=none", "bias_missing", "ffn_out"),
            ],
        ),
        (
            "tiny-gptneox",
            &[
                ("rope_width=8", "rope_width", "q_rope"),
                ("residual_missing@block_out=stream", "residual_missing", "block_out"),
                ("fused_order@q=concatenated", "fused_order", "q"),
            ],
        ),
        (
            "tiny-stablelm",
            &[
                ("rope_width=8", "rope_width", "q_rope"),
                ("bias_missing=none", "bias_missing", "q"),
                ("norm_kind=rms", "norm_kind", "attn_norm"),
            ],
        ),
        (
            "tiny-cohere",
            &[
                ("logit_scale=1", "logit_scale", "logits"),
                ("rope_pairing=half", "rope_pairing", "q_rope"),
                ("residual_missing@block_out=branch", "residual_missing", "block_out"),
            ],
        ),
        (
            "tiny-cohere2",
            &[
                ("rope_layers", "rope_layers", "q_rope"),
                ("mask_window=none", "mask_window", "attn_weights"),
                ("norm_kind=rms", "norm_kind", "attn_norm"),
            ],
        ),
        (
            "tiny-olmo",
            &[
                ("rope_theta=500000", "rope_theta", "q_rope"),
                ("norm_kind=rms", "norm_kind", "attn_norm"),
                ("attn_scale=0.25", "attn_scale", "attn_scores"),
            ],
        ),
        (
            "tiny-ministral",
            &[
                ("mask_window=6", "mask_window", "attn_weights"),
                ("rope_theta=1000000", "rope_theta", "q_rope"),
                ("attn_scale=0.5", "attn_scale", "attn_scores"),
            ],
        ),
        (
            "tiny-ministral3",
            &[
                ("query_temperature=none", "query_temperature", "q_scaled"),
                ("query_temperature=from-one", "query_temperature", "q_scaled"),
                ("query_temperature=half-floor", "query_temperature", "q_scaled"),
                ("rope_scaling=none", "rope_scaling", "q_rope"),
            ],
        ),
        (
            "tiny-jais2",
            &[
                ("activation=relu", "activation", "ffn_act"),
                ("bias_missing@ffn_out=none", "bias_missing", "ffn_out"),
                ("norm_kind=rms", "norm_kind", "attn_norm"),
            ],
        ),
        (
            "tiny-nemotron",
            &[
                ("rope_width=8", "rope_width", "q_rope"),
                ("activation=relu", "activation", "ffn_act"),
                ("norm_kind=rms", "norm_kind", "attn_norm"),
            ],
        ),
        (
            "tiny-phi2",
            &[
                ("rope_width=8", "rope_width", "q_rope"),
                ("bias_missing@logits=none", "bias_missing", "logits"),
                ("residual_missing@block_out=branch", "residual_missing", "block_out"),
                ("norm_kind=rms", "norm_kind", "attn_norm"),
            ],
        ),
        (
            "tiny-falcon",
            &[
                ("rope_theta=100", "rope_theta", "q_rope"),
                ("activation=silu", "activation", "ffn_act"),
                ("residual_missing@block_out=stream", "residual_missing", "block_out"),
            ],
        ),
        (
            "tiny-falcon-new",
            &[
                ("fused_order@q=concatenated", "fused_order", "q"),
                ("norm_missing@ffn_norm", "norm_missing", "ffn_norm"),
                ("norm_kind=rms", "norm_kind", "attn_norm"),
            ],
        ),
        (
            "tiny-falcon-sequential",
            &[
                ("fused_order@q=concatenated", "fused_order", "q"),
                ("rope_pairing=interleaved", "rope_pairing", "q_rope"),
                ("norm_missing@ffn_norm", "norm_missing", "ffn_norm"),
            ],
        ),
        (
            "tiny-opt",
            &[
                ("position_embedding=-2", "position_embedding", "embed"),
                ("position_embedding=none", "position_embedding", "embed"),
                ("activation=gelu", "activation", "ffn_act"),
                ("bias_missing@ffn_out=none", "bias_missing", "ffn_out"),
                ("attn_scale=0.25", "attn_scale", "attn_scores"),
            ],
        ),
        (
            "tiny-bloom",
            &[
                ("alibi=none", "alibi", "attn_weights"),
                ("alibi=reversed", "alibi", "attn_weights"),
                ("alibi=1.1", "alibi", "attn_weights"),
                ("norm_missing@embed", "norm_missing", "embed"),
                ("tokens_prompt=each+1", "tokens_prompt", "embed"),
                ("fused_order@q=concatenated", "fused_order", "q"),
            ],
        ),
        (
            "tiny-bloom-6",
            &[("alibi=geometric", "alibi", "attn_weights"), ("alibi=2", "alibi", "attn_weights")],
        ),
        (
            "tiny-starcoder",
            &[
                ("position_embedding=1", "position_embedding", "embed"),
                ("activation=relu", "activation", "ffn_act"),
                ("bias_missing=none", "bias_missing", "q"),
                ("norm_kind=rms", "norm_kind", "attn_norm"),
            ],
        ),
        (
            "tiny-gptj",
            &[
                ("rope_pairing=half", "rope_pairing", "q_rope"),
                ("rope_width=8", "rope_width", "q_rope"),
                ("bias_missing@logits=none", "bias_missing", "logits"),
            ],
        ),
        (
            "tiny-hunyuan",
            &[
                ("norm_order=before-rope", "norm_order", "q_rope"),
                ("norm_missing@q_rope_norm", "norm_missing", "q_rope_norm"),
                ("norm_kind@k_rope_norm=l2", "norm_kind", "k_rope_norm"),
                ("rope_theta=100", "rope_theta", "q_rope"),
                ("rope_pairing=interleaved", "rope_pairing", "q_rope"),
            ],
        ),
        (
            "tiny-qwen3next",
            &[
                ("norm_weight_offset=-1", "norm_weight_offset", "attn_norm"),
                ("norm_missing@q_unit", "norm_missing", "q_unit"),
                ("linear_beta=one", "linear_beta", "beta"),
                ("linear_decay=growing", "linear_decay", "decay"),
                ("linear_decay=unbiased", "linear_decay", "decay"),
                ("delta_rule=tiled-heads", "delta_rule", "recurrent_state"),
                ("delta_rule=undecayed", "delta_rule", "recurrent_state"),
                ("state_kept=none", "state_kept", "recurrent_state"),
                ("conv_state=none", "conv_state", "conv_out"),
                ("fused_order@beta_logit=concatenated", "fused_order", "beta_logit"),
                ("weight_precision@conv_in=f8_e4m3", "weight_precision", "conv_in"),
                ("weight_precision@mixer_gate=f8_e4m3", "weight_precision", "mixer_gate"),
                ("weight_precision@attn_gate=f8_e4m3", "weight_precision", "attn_gate"),
                ("fused_order@q=concatenated", "fused_order", "q"),
                ("attn_gate@attn_gated=none", "attn_gate", "attn_gated"),
                ("gated_norm=sigmoid", "gated_norm", "recurrent_norm"),
                ("gated_norm=before", "gated_norm", "recurrent_norm"),
                ("shared_expert=unweighted", "shared_expert", "ffn_out"),
                ("rope_width=16", "rope_width", "q_rope"),
            ],
        ),
        (
            "tiny-qwen35",
            &[
                ("delta_rule=tiled-heads", "delta_rule", "recurrent_state"),
                ("linear_decay=unbiased", "linear_decay", "decay"),
                ("attn_gate@attn_gated=none", "attn_gate", "attn_gated"),
                ("norm_weight_offset=-1", "norm_weight_offset", "attn_norm"),
            ],
        ),
        (
            "tiny-qwen35moe",
            &[
                ("linear_beta=one", "linear_beta", "beta"),
                ("expert_order@expert_out=next", "expert_order", "expert_out"),
                ("shared_expert=unweighted", "shared_expert", "ffn_out"),
                ("rope_width=16", "rope_width", "q_rope"),
            ],
        ),
        (
            "tiny-gptoss",
            &[
                ("softmax_sum=none", "softmax_sum", "attn_weights"),
                ("softmax_sum=sink:0", "softmax_sum", "attn_weights"),
                ("bias_missing@router_logits=none", "bias_missing", "router_logits"),
                ("expert_weights=all", "expert_weights", "expert_weights"),
                ("mask_window=6", "mask_window", "attn_weights"),
                ("rope_scaling=none", "rope_scaling", "q_rope"),
            ],
        ),
        (
            "tiny-glm4moe",
            &[
                ("expert_scores=softmax", "expert_scores", "expert_scores"),
                ("expert_weights=biased", "expert_weights", "expert_weights"),
                ("expert_weights=unscaled", "expert_weights", "expert_weights"),
                ("shared_expert=none", "shared_expert", "ffn_out"),
            ],
        ),
        (
            "tiny-dots1",
            &[
                ("expert_groups=largest", "expert_groups", "experts"),
                ("expert_groups=none", "expert_groups", "experts"),
                ("expert_weights=chosen", "expert_weights", "expert_weights"),
                ("expert_scores=subtracted", "expert_scores", "expert_scores"),
            ],
        ),
        (
            "tiny-minimaxm2",
            &[
                ("expert_scores=unbiased", "expert_scores", "expert_scores"),
                ("expert_weights=softmax", "expert_weights", "expert_weights"),
                ("norm_scope=each-head", "norm_scope", "q_norm"),
            ],
        ),
        (
            "tiny-ernie45moe",
            &[
                ("expert_scores=sigmoid", "expert_scores", "expert_scores"),
                ("expert_weights=biased", "expert_weights", "expert_weights"),
                ("rope_pairing=half", "rope_pairing", "q_rope"),
            ],
        ),
        (
            "tiny-deepseekv2",
            &[
                ("expert_groups=none", "expert_groups", "experts"),
                ("expert_weights=chosen", "expert_weights", "expert_weights"),
                ("norm_missing@kv_latent_norm", "norm_missing", "kv_latent_norm"),
            ],
        ),
        (
            "tiny-deepseekv3",
            &[
                ("rope_pairing=half", "rope_pairing", "q_rope"),
                ("rope_scaling=none", "rope_scaling", "q_rope"),
                ("attn_scale=0.1178511301977579", "attn_scale", "attn_scores"),
                ("norm_missing@kv_latent_norm", "norm_missing", "kv_latent_norm"),
                ("norm_missing@q_latent_norm", "norm_missing", "q_latent_norm"),
                ("expert_groups=largest", "expert_groups", "experts"),
            ],
        ),
        (
            "tiny-glm47flash",
            &[
                ("rope_pairing=half", "rope_pairing", "q_rope"),
                ("norm_missing@kv_latent_norm", "norm_missing", "kv_latent_norm"),
                ("expert_weights=biased", "expert_weights", "expert_weights"),
                ("shared_expert=none", "shared_expert", "ffn_out"),
            ],
        ),
        (
            "tiny-lfm2",
            &[
                ("conv_kernel=reversed", "conv_kernel", "conv_out"),
                ("conv_state=none", "conv_state", "conv_out"),
                ("conv_gate@conv_in=swapped", "conv_gate", "conv_in"),
                ("conv_gate@conv_gated=none", "conv_gate", "conv_gated"),
                ("norm_missing@q_norm", "norm_missing", "q_norm"),
            ],
        ),
        (
            "tiny-lfm2moe",
            &[
                ("expert_scores=unbiased", "expert_scores", "expert_scores"),
                ("expert_scores=softmax", "expert_scores", "expert_scores"),
                ("expert_weights=biased", "expert_weights", "expert_weights"),
                ("expert_weights=all", "expert_weights", "expert_weights"),
                ("expert_order@expert_out=next", "expert_order", "expert_out"),
                ("conv_kernel=reversed", "conv_kernel", "conv_out"),
            ],
        ),
        (
            "tiny-granitehybrid",
            &[
                ("conv_kernel=reversed", "conv_kernel", "conv_out"),
                ("conv_bias=none", "conv_bias", "conv_out"),
                ("activation@conv_act=none", "activation", "conv_act"),
                ("step_size=unbiased", "step_size", "step_size"),
                ("state_decay=growing", "state_decay", "recurrent_state"),
                ("state_skip=none", "state_skip", "recurrent_out"),
                ("state_kept=none", "state_kept", "recurrent_state"),
                ("gated_norm=after", "gated_norm", "recurrent_norm"),
                ("residual_scale=1", "residual_scale", "attn_residual"),
            ],
        ),
        ("tiny-gemma3n", GEMMA3N),
        ("tiny-gemma3n-shared", GEMMA3N_SHARED),
        (
            "tiny-gemma4",
            &[
                ("norm_missing@v_norm", "norm_missing", "v_norm"),
                ("attn_scale=0.25", "attn_scale", "attn_scores"),
                ("layer_scale@block_out=twice", "layer_scale", "block_out"),
                ("layer_scale@block_out=none", "layer_scale", "block_out"),
                ("activation@layer_act=silu", "activation", "layer_act"),
                ("rope_theta@q_rope=1000", "rope_theta", "q_rope"),
            ],
        ),
        (
            "tiny-gemma4moe",
            &[
                ("norm_missing@router_norm", "norm_missing", "router_norm"),
                ("router_scale=none", "router_scale", "router_norm"),
                ("norm_weights@router_norm=none", "norm_weights", "router_norm"),
                ("norm_missing@expert_norm", "norm_missing", "expert_norm"),
                ("norm_missing@routed_post_norm", "norm_missing", "routed_post_norm"),
                ("expert_weights=unscaled", "expert_weights", "expert_weights"),
                ("shared_expert=none", "shared_expert", "ffn_out"),
            ],
        ),
        (
            "tiny-llama4",
            &[
                ("norm_missing@q_rope_norm", "norm_missing", "q_rope_norm"),
                ("norm_kind@k_rope_norm=l2", "norm_kind", "k_rope_norm"),
                ("rope_pairing=half", "rope_pairing", "q_rope"),
                ("expert_weights=unweighted", "expert_weights", "expert_in"),
                ("expert_weights=softmax", "expert_weights", "expert_weights"),
                ("shared_expert=none", "shared_expert", "ffn_out"),
            ],
        ),
        (
            "tiny-llama4-chunks",
            &[
                ("mask_window=5", "mask_window", "attn_weights"),
                ("mask_window=chunks:4", "mask_window", "attn_weights"),
                ("mask_window=none", "mask_window", "attn_weights"),
                ("query_temperature=none", "query_temperature", "q_scaled"),
                ("query_temperature=from-zero", "query_temperature", "q_scaled"),
                ("query_temperature=half-floor", "query_temperature", "q_scaled"),
            ],
        ),
        (
            "tiny-granitehybridmoe",
            &[
                ("state_groups=first", "state_groups", "recurrent_state"),
                ("state_groups=alternating", "state_groups", "recurrent_state"),
                ("gated_norm=ungrouped", "gated_norm", "recurrent_norm"),
                ("step_size=unlimited", "step_size", "step_size"),
                ("shared_expert=none", "shared_expert", "ffn_out"),
                ("expert_order@expert_out=next", "expert_order", "expert_out"),
            ],
        ),
        (
            "tiny-nemotronh",
            &[
                ("state_groups=first", "state_groups", "recurrent_state"),
                ("activation@ffn_act=relu", "activation", "ffn_act"),
                ("attn_scale=0.25", "attn_scale", "attn_scores"),
                ("norm_missing@ffn_norm", "norm_missing", "ffn_norm"),
                ("conv_bias=none", "conv_bias", "conv_out"),
                ("residual_missing@block_out=branch", "residual_missing", "block_out"),
            ],
        ),
        (
            "tiny-nemotronhmoe",
            &[
                ("expert_scores=unbiased", "expert_scores", "expert_scores"),
                ("expert_groups=none", "expert_groups", "experts"),
                ("expert_weights=unscaled", "expert_weights", "expert_weights"),
                ("activation@expert_act=relu", "activation", "expert_act"),
                ("activation@shared_act=relu", "activation", "shared_act"),
                ("shared_expert=none", "shared_expert", "ffn_out"),
            ],
        ),
        (
            "tiny-nemotronhlatent",
            &[
                ("expert_weights@routed_latent=unweighted", "expert_weights", "routed_latent"),
                ("expert_weights@expert_weights=all", "expert_weights", "expert_weights"),
                ("expert_order@expert_out=next", "expert_order", "expert_out"),
            ],
        ),
        (
            "tiny-falconh1",
            &[
                ("state_groups=first", "state_groups", "recurrent_state"),
                ("state_skip=none", "state_skip", "recurrent_out"),
                ("rope_theta=1000000", "rope_theta", "q_rope"),
                ("embed_scale=1", "embed_scale", "embed"),
                ("step_size=unbiased", "step_size", "step_size"),
                ("logit_scale=1", "logit_scale", "logits"),
            ],
        ),
    ];
    assert_mistakes_named(of_models);
}
