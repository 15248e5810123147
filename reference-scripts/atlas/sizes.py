"""Tables that shrink any transformers config: values by key name, and overrides per architecture."""

from __future__ import annotations

from typing import Any

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS, VOCAB, EXPERTS, TOKENS = 64, 4, 2, 16, 80, 4, 100, 8, 128

_GROUPS: list[tuple[float, str]] = [
    (
        HIDDEN,
        "hidden_size d_model n_embd embedding_dim embedding_size word_embed_proj_dim emb_dim input_embedding_size "
        "output_embedding_size lru_width dim_model_base mamba_d_ssm",
    ),
    (
        HEADS,
        "num_attention_heads n_head n_heads attention_heads num_heads decoder_attention_heads encoder_attention_heads "
        "linear_num_value_heads linear_num_heads index_n_heads swa_num_attention_heads n_mamba_heads "
        "num_decoder_attention_heads num_encoder_attention_heads mamba_n_heads mamba_num_heads",
    ),
    (KV_HEADS, "num_key_value_heads num_kv_heads linear_num_key_heads swa_num_key_value_heads num_query_groups"),
    (
        HEAD_DIM,
        "head_dim attention_head_dim kv_channels linear_key_head_dim linear_value_head_dim linear_head_dim v_head_dim "
        "qk_nope_head_dim index_head_dim swa_head_dim d_head dim_head attention_head_size d_rel gated_norm_rank laurel_rank",
    ),
    (
        8,
        "qk_rope_head_dim rotary_dim hidden_size_per_layer_input attention_chunk_size chunk_size mamba_chunk_size "
        "time_step_rank mamba_dt_rank block_size mamba_d_state state_size ssm_state_size adapter_rank "
        "o_lora_rank router_hidden_size rel_extent hc_lowrank",
    ),
    (32, "q_lora_rank kv_lora_rank mamba_d_head mamba_head_dim mamba_headdim"),
    (
        FFN,
        "intermediate_size ffn_dim dff dim_ff n_inner d_inner feed_forward_size decoder_ffn_dim encoder_ffn_dim "
        "ffn_hidden_size dense_intermediate_size intermediate_size_mlp",
    ),
    (
        48,
        "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size shared_intermediate_size "
        "shared_experts_intermediate_size moe_shared_expert_intermediate_size",
    ),
    (
        LAYERS,
        "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers "
        "num_encoder_layers num_blocks max_window_layers",
    ),
    (
        VOCAB,
        "vocab_size decoder_vocab_size vocab_size_per_layer_input unpadded_vocab_size pronunciation_vocab_size "
        "shape_vocab_size",
    ),
    (EXPERTS, "num_experts n_routed_experts num_local_experts moe_num_experts"),
    (
        2,
        "num_experts_per_tok num_experts_per_token moe_topk moe_k n_group num_expert_group n_groups mamba_ngroups "
        "mamba_n_groups global_attn_every_n_layers sliding_window_pattern _sliding_window_pattern interleave_moe_layer_step "
        "expert_layer_period attn_layer_period hc_mult hc_count hc_magnitude layer_group_size num_kv_shared_layers",
    ),
    (
        1,
        "topk_group first_k_dense_replace num_dense_layers moe_layer_start_index num_shared_experts n_shared_experts "
        "moe_num_shared_experts expert_layer_offset attn_layer_offset num_layers_per_stack n_layers_per_attn_res_block",
    ),
    (5, "sliding_window sliding_window_size attention_window_size window_size local_attention keep_window_size"),
    (TOKENS, "max_position_embeddings n_positions max_seq_len n_ctx max_target_positions context_length"),
    (0, "num_nextn_predict_layers num_mtp_layers dropout attention_dropout"),
    (4, "index_topk floor_scale log_scaling_n_floor num_chroma type_vocab_size"),
    (1.5, "swiglu_limit"),
    (3.0, "attn_logit_softcapping"),
    (10.0, "final_logit_softcapping logits_soft_cap output_logit_soft_cap"),
    (24, "pronunciation_embed_dim shape_embed_dim"),
]
SIZES: dict[str, Any] = {name: value for value, names in _GROUPS for name in names.split()}

# Neutral defaults that make a mechanism invisible, by key: the value used instead.
NEUTRAL: dict[str, Any] = {
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
    "logits_scaling": 1.6,
    "routed_scaling_factor": 1.7,
    "route_scale": 1.7,
    "moe_routed_scaling_factor": 1.7,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 1.3,
    "key_multiplier": 0.7,
    "lm_head_multiplier": 1.4,
    "mlp_multipliers": [0.9, 1.2],
    "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.9,
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 1.3],
}

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.8}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0}  # fmt: skip
FACTORS = [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8]
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
            "short_factor": FACTORS, "long_factor": [2 * factor for factor in FACTORS]}  # fmt: skip

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
DECODER = {"is_decoder": True, "add_cross_attention": False}
# Values that differ from the tables above, by model type.
OVERRIDES: dict[str, dict[str, Any]] = {
    name: dict(DECODER)
    for name in "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
    "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod".split()
}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16}
OVERRIDES.update(
    {
        "bamba": {**MAMBA2, "attn_layer_indices": [1, 3]},
        "granitemoehybrid": {**MAMBA2, "layer_types": ["mamba", "attention", "mamba", "attention"]},
        "mamba2": {"num_heads": 8, "head_dim": 16},
        "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy"},
        "dots1": {
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
        },
        "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
        "reformer": {
            "is_decoder": True,
            "axial_pos_embds_dim": [16, 48],
            "axial_pos_shape": [8, 16],
            "feed_forward_size": FFN,
        },
        "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
        "cohere_compass_text": {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {"sliding_attention": PLAIN_ROPE, "full_attention": PLAIN_ROPE},
        },
        "dbrx": {
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 8, "moe_top_k": 2},
        },
        "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 6, "H_cycles": 2, "L_cycles": 2},
        "dots3_note_text": {
            "head_dim": 24,
            "per_layer_config": {"01": {"kv_lora_rank": 24}, "03": {"kv_lora_rank": 24}},
        },
        "qwen4_exp_text": {
            "layer_types": ["linear_attention", "indexed_attention"] * 2,
            "indexer_n_heads": 4,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
        },
        "gemma4_text": {"num_kv_shared_layers": 2},
        "xlstm": {"qk_dim_factor": 1.0},
        "zaya": {"num_experts_per_tok": 1},
        "xmod": {**DECODER, "default_language": "en_XX"},
    }
)

# Variants of an architecture: name of the directory, model type, values.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3_yarn": ("deepseek_v3", {"rope_parameters": YARN}),
    "llama_llama3": (
        "llama",
        {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "phi3_longrope": ("phi3", {"rope_parameters": LONGROPE}),
    "mistral_global": ("mistral", {"sliding_window": None}),
}

QWEN_VISION = {"depth": LAYERS, "patch_size": 4, "out_hidden_size": 48}

# Models other than causal language models: directory, class, config class, values.
TOWERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert_encoder": ("BertModel", "BertConfig", {}),
    "xlm_roberta_encoder": ("XLMRobertaModel", "XLMRobertaConfig", {}),
    "modernbert_encoder": ("ModernBertModel", "ModernBertConfig", {}),
    "nomic_bert_encoder": ("NomicBertModel", "NomicBertConfig", {}),
    "distilbert_encoder": ("DistilBertModel", "DistilBertConfig", {"dim": HIDDEN, "hidden_dim": FFN}),
    "mpnet_sentence_encoder": ("MPNetModel", "MPNetConfig", {}),
    "eurobert_encoder": ("EuroBertModel", "EuroBertConfig", {}),
    "siglip_vision": ("SiglipVisionModel", "SiglipVisionConfig", {"image_size": 16, "patch_size": 4}),
    "clip_vision": ("CLIPVisionModel", "CLIPVisionConfig", {"image_size": 16, "patch_size": 4}),
    "dinov2_vision": ("Dinov2Model", "Dinov2Config", {"image_size": 16, "patch_size": 4}),
    "qwen2_5_vl_vision": (
        "Qwen2_5_VisionTransformerPretrainedModel",
        "Qwen2_5_VLVisionConfig",
        {**QWEN_VISION, "window_size": 16, "fullatt_block_indexes": [1, 3]},
    ),
    "qwen3_vl_vision": (
        "Qwen3VLVisionModel",
        "Qwen3VLVisionConfig",
        {**QWEN_VISION, "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2]},
    ),
    "whisper_encoder": ("WhisperEncoder", "WhisperConfig", {"num_mel_bins": 16, "max_source_positions": 24}),
    "t5_encoder": ("T5EncoderModel", "T5Config", {"d_kv": HEAD_DIM, "d_ff": FFN, "feed_forward_proj": "gated-gelu"}),
}
