"""The small untrained models of architectures that are settings of a common block."""

import math
from types import SimpleNamespace

import torch
from transformers import (
    ArceeConfig,
    ArceeForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Dots1Config,
    Dots1ForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    HeliumConfig,
    HeliumForCausalLM,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    Jais2Config,
    Jais2ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from tiny_mistakes import (
    copy_embeddings,
    cut_gates_at_middle,
    drop_attention_gate,
    drop_biases,
    drop_embedding_scale,
    drop_global_scaling,
    drop_norm_offset,
    drop_shared_expert,
    drop_shared_weight,
    drop_window,
    enlarge_router_inputs,
    exchanged,
    given,
    misroute,
    move_experts,
    norm_each_head,
    norm_keeping_mean,
    read_first_group,
    replaced,
    rope_change,
    rotate_full_layers,
    rotate_whole_heads,
    scale_of_latents,
    scale_scores,
    setting_change,
    softmax,
    swap_gate_and_up,
    swap_pairing,
    swap_streams,
    use_sample_deviation,
    weigh_by_all,
    weigh_by_softmax,
    weigh_outputs,
    weight_change,
    with_attributes,
    without_modules,
)
from tiny_model import Effect, TinyModel, save_as_in_memory

# Settings of all models here that their rows do not state.
SIZES = {
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
GAINS = {"embed_tokens": 3.0, "lm_head": 4.0}
QK = {"q_proj": 1.35, "k_proj": 1.35}
QK_NORM = {"q_norm": 1.35, "k_norm": 1.35}


# A setting of SIZES that the configuration does not have.
UNSTATED = object()

# Names of a size in configurations; `size` reads the first one that a configuration has.
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "num_attention_heads")
FFN_SIZES = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "hidden_size")
CONTEXTS = ("max_position_embeddings", "seq_length")


def size(config: PreTrainedConfig, keys: tuple[str, ...]) -> int:
    """The first of these sizes that the configuration has; of layers that differ (Gemma 4) or are listed, the first one's."""
    config = SimpleNamespace(**vars(config)) if config.model_type == "gemma4_text" else config
    found = next(getattr(config, key) for key in keys if hasattr(config, key))
    return found[0] if isinstance(found, list) else found


def tiny(
    what: str,
    build: type[PreTrainedModel],
    config: type[PreTrainedConfig],
    seed: int,
    effects: dict[str, Effect],
    gains: dict[str, float] = QK,
    settings: dict[str, object] = {},
    **rest: object,
) -> TinyModel:
    """A row: `settings` are added to SIZES, `effects` are by what the mistake is."""
    made = config(**{key: value for key, value in {**SIZES, **settings}.items() if value is not UNSTATED})
    notes = [f"\n- {mistake}: {{effect:.3f}}{{rows}}" for mistake in effects]
    listed = [
        Effect(note.replace("{rows}", f" from row {one.first_row} on" if one.first_row > 1 else ""), one.wrong, one.first_row, one.least)
        for note, one in zip(notes, effects.values(), strict=True)
    ]
    title = "\n\nSmallest change of a row of logits that each mistake causes:\n"
    first = Effect(title + listed[0].note, listed[0].wrong, listed[0].first_row, listed[0].least)
    head = size(made, ("head_dim", "hidden_size"))  # a head size may be stated as None
    head = made.hidden_size // made.num_attention_heads if head in (None, made.hidden_size) else head
    summary = (
        f"{what} at 0.1 M parameters: {made.num_hidden_layers} layers, hidden size {made.hidden_size},\n"
        f"{made.num_attention_heads} heads of {head} that share {size(made, KV_HEADS)} key-value heads, feed-forward size "
        f"{size(made, FFN_SIZES)}, vocabulary 512, context {size(made, CONTEXTS)}."
    )
    return TinyModel(
        summary=summary, build=build, config=made, seed=seed, gains={**GAINS, **gains},
        effects=(first, *listed[1:]), **{"types": ("f32", "q8_0"), **rest},
    )  # fmt: skip


def shows(wrong, least: float = 0.2, first_row: int = 1) -> Effect:
    """A mistake, the least that it must change of a row, and the first row that it must change."""
    return Effect("", wrong, first_row, least)


ROPE = {"rope_type": "default", "rope_theta": 1e4}
GEMMA3N = {
    "head_dim": 8,
    "sliding_window": 5,
    "rope_parameters": {"sliding_attention": ROPE, "full_attention": {"rope_type": "default", "rope_theta": 1e2}},
}
GEMMA3N_GAINS = {
    "q_norm": 0.75, "k_norm": 0.75, "embed_tokens": 1.0, "norm": 4.0, "modality_router": 32.0, "prediction_coefs": 0.5, "correction_coefs": 0.5
}  # fmt: skip
GEMMA3N_EFFECTS = {
    "no AltUp predictions": shows(weight_change("prediction_coefs.weight", torch.zeros_like)),
    "AltUp predictions with transposed coefficients": shows(swap_streams),
    "AltUp corrections without a router": shows(weight_change("correction_coefs.weight", torch.zeros_like)),
    "copies of the embeddings as streams": shows(copy_embeddings),
    "no low-rank residual": shows(weight_change("post_laurel_norm.weight", torch.zeros_like)),
    "gates that are not sparse": shows(with_attributes("mlp", activation_sparsity=0.0)),
    "no embeddings of layers": shows(weight_change("per_layer_projection.weight", torch.zeros_like)),
    "no norm of values": shows(without_modules("v_norm")),
    "scores divided by the root of the head size": shows(scale_scores(lambda attention: attention.head_dim**-0.5)),
    "no cap of logits": shows(setting_change(final_logit_softcapping=1e9)),
}
FALCON = {"query_key_value": 1.25, "word_embeddings": 3.0}
FALCON_SIZES = {
    "num_key_value_heads": UNSTATED,
    "intermediate_size": UNSTATED,
    "ffn_hidden_size": 64,
    "attn_implementation": "eager",
}

GPT2_SIZES = {
    "num_key_value_heads": UNSTATED,
    "rope_parameters": UNSTATED,
    "intermediate_size": UNSTATED,
    "n_inner": 64,
    "tie_word_embeddings": False,
}

# Linear attention with a gated delta rule in layer 0, attention with an output gate in layer 1.
DELTA_RULE = {
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
SHARED_MOE = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
QWEN35 = {**DELTA_RULE, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}}
# Rows of the first value head of every key head, then of the second ones, as in llama.cpp's files.
TILED = [*range(64), *(64 + 16 * head + row for head in (0, 2, 1, 3) for row in range(16))]

# Mamba-2 with 2 groups of heads, and steps of 0.2 or more.
NEMOTRON_H = {
    "head_dim": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "time_step_min": 0.2,
    "rope_parameters": None,
}

# Sizes of latent attention: ranks, parts of a head without and with RoPE, values of a head.
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}

# Mistakes in routing by sigmoids with a correction bias.
BIASED_SIGMOIDS = {
    "softmax in place of sigmoids": shows(misroute(scores=softmax), 0.1),
    "no correction bias": shows(misroute(biased=False), 0.1, 3),
    "the correction bias in the weights": shows(misroute(weighs_bias=True), 0.1),
}

MODELS = {
    "tiny-gemma": tiny(
        "Gemma's architecture, a first generation: norms multiply by 1 + weight, embeddings are multiplied by √32, GELU by tanh,",
        GemmaForCausalLM,
        GemmaConfig,
        1,
        {
            "norms that multiply by their weight": shows(drop_norm_offset),
            "embeddings that are not multiplied": shows(drop_embedding_scale),
            "SiLU": shows(setting_change(hidden_act="silu"), 0.05),
        },
        gains={**QK, "embed_tokens": 1.0, "norm": 3.0},
        settings={"head_dim": 16},
        norm_shift=1.0,
    ),
    "tiny-seed-oss": tiny(
        "Seed-OSS's architecture, biases of queries, keys and values,",
        SeedOssForCausalLM,
        SeedOssConfig,
        3,
        {"no biases": shows(drop_biases)},
        settings={"head_dim": 16},
    ),
    "tiny-olmo3": tiny(
        "OLMo 3's architecture, norms after both halves, all queries normed together and all keys, a window of 5 positions in\nlayer 0, "
        "YaRN (factor 4, original context 128) in layer 1,",
        Olmo3ForCausalLM,
        Olmo3Config,
        2,
        {
            "no window": shows(drop_window, 0.2, 5),
            "norms of each head": shows(norm_each_head),
            "no YaRN in layer 1": shows(drop_global_scaling, 0.1),
        },
        gains=QK_NORM,
        settings={
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                },
            },
        },
    ),
    "tiny-ernie45": tiny(
        "ERNIE 4.5's architecture, RoPE of neighbours,",
        Ernie4_5ForCausalLM,
        Ernie4_5Config,
        0,
        {"RoPE of halves": shows(swap_pairing())},
        settings={"head_dim": 16},
    ),
    "tiny-exaone4": tiny(
        "EXAONE 4's architecture without a window, norms after both halves and of each query and key head,",
        Exaone4ForCausalLM,
        Exaone4Config,
        0,
        {
            "no norms of queries and keys": shows(without_modules("q_norm", "k_norm")),
            "no norm after attention": shows(without_modules("post_attention_layernorm")),
        },
        gains=QK_NORM,
        settings={"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "tiny-exaone4-window": tiny(
        "EXAONE 4's architecture, norms after both halves and of each query and key head, a window of 5 positions in layer 0, no\n"
        "RoPE in layer 1 (llama.cpp computes so for 64 layers only),",
        Exaone4ForCausalLM,
        Exaone4Config,
        9,
        {
            "RoPE in layer 1": shows(rotate_full_layers),
            "no window": shows(drop_window, 0.2, 5),
        },
        gains=QK_NORM,
        settings={"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        types=(),
    ),
    "tiny-glm4": tiny(
        "GLM 4's architecture, norms before and after both halves, one matrix for gate and up, biases of queries, keys and values,\n"
        "RoPE of neighbours in 8 values of each head,",
        Glm4ForCausalLM,
        Glm4Config,
        0,
        {
            "RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0)),
            "RoPE of halves": shows(swap_pairing(0.5)),
            "gate and up exchanged": shows(swap_gate_and_up(axis=0)),
            "no norm after attention": shows(without_modules("post_self_attn_layernorm")),
        },
        settings={"head_dim": 16, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
    ),
    "tiny-glm": tiny(
        "The architecture of GLM 4 as of 2024, one matrix for gate and up, biases of queries, keys and values, RoPE of\n"
        "neighbours in 4 values of each head,",
        GlmForCausalLM,
        GlmConfig,
        9,
        {
            "RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0)),
            "RoPE of halves": shows(swap_pairing(0.5)),
            "gate and up exchanged": shows(swap_gate_and_up(axis=0)),
        },
        settings={"head_dim": 8, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
    ),
    "tiny-helium": tiny(
        "Helium's architecture, RoPE of neighbours (llama.cpp does not read such files),",
        HeliumForCausalLM,
        HeliumConfig,
        0,
        {"RoPE of halves": shows(swap_pairing())},
        settings={"head_dim": 8},
        types=(),
    ),
    "tiny-arcee": tiny(
        "Arcee's architecture, squared ReLU without a gate,",
        ArceeForCausalLM,
        ArceeConfig,
        2,
        {"ReLU": shows(setting_change(hidden_act="relu"))},
    ),
    "tiny-olmoe": tiny(
        "OLMoE's architecture, all queries normed together and all keys, 8 experts of which each token chooses 3, whose weights\nare not "
        "divided by their sum,",
        OlmoeForCausalLM,
        OlmoeConfig,
        6,
        {
            "norms of each head": shows(norm_each_head),
            "weights divided by their sum": shows(setting_change(norm_topk_prob=True)),
        },
        gains={**QK_NORM, "experts": 2.0},
        settings={"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32, "num_key_value_heads": 4},
    ),
    "tiny-granitemoe": tiny(
        "The architecture of Granite 3 with experts, embeddings times 12, scores times 0.3, both halves of a block times 0.22,\n"
        "logits divided by 3, 6 experts of which each token chooses 2,",
        GraniteMoeForCausalLM,
        GraniteMoeConfig,
        17,
        {
            "no factor of embeddings": shows(setting_change(embedding_multiplier=1.0)),
            "no residual multiplier": shows(setting_change(residual_multiplier=1.0)),
            "each expert in the place of the next": shows(move_experts),
        },
        gains={"q_proj": 1.2, "k_proj": 1.2, "embed_tokens": 5.0, "o_proj": 60.0, "experts": 12.0},
        settings={
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.22,
            "logits_scaling": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "tiny-starcoder2": tiny(
        "StarCoder2's architecture, LayerNorm, biases in all matrices, GELU by tanh without a gate,",
        Starcoder2ForCausalLM,
        Starcoder2Config,
        0,
        {
            "no biases": shows(drop_biases),
            "a norm that keeps the mean": shows(norm_keeping_mean),
        },
    ),
    "tiny-gptneox": tiny(
        "GPT-NeoX's architecture, LayerNorm, biases, GELU without a gate, both halves of a block read its input, RoPE in 4 values\n"
        "of each head (llama.cpp computes GELU by tanh),",
        GPTNeoXForCausalLM,
        GPTNeoXConfig,
        1,
        {
            "halves one after the other": shows(setting_change(use_parallel_residual=False)),
            "RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0)),
            "no biases": shows(drop_biases),
        },
        gains={"query_key_value": 1.25, "embed_in": 3.0, "embed_out": 4.0},
        settings={"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "num_key_value_heads": 4},
    ),
    "tiny-stablelm": tiny(
        "StableLM's architecture, LayerNorm, biases of queries, keys and values, RoPE in 4 values of each head,",
        StableLmForCausalLM,
        StableLmConfig,
        0,
        {
            "RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0)),
            "no biases": shows(drop_biases),
            "a norm that keeps the mean": shows(norm_keeping_mean, 0.1),
        },
        settings={"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "use_qkv_bias": True},
    ),
    "tiny-gptneox-sequential": tiny(
        "GPT-NeoX's architecture with `use_parallel_residual` false: the second half of a block reads the sum after the first,",
        GPTNeoXForCausalLM,
        GPTNeoXConfig,
        0,
        {"both halves read the input": shows(setting_change(use_parallel_residual=True))},
        gains={"query_key_value": 1.25, "embed_in": 3.0, "embed_out": 4.0},
        settings={
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
            "num_key_value_heads": 4,
            "use_parallel_residual": False,
        },
    ),
    "tiny-stablelm-parallel": tiny(
        "StableLM's architecture with `use_parallel_residual`: both halves of a block read one norm of its input,",
        StableLmForCausalLM,
        StableLmConfig,
        5,
        {"RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0))},
        settings={"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "use_parallel_residual": True},
    ),
    "tiny-cohere": tiny(
        "Command R's architecture, LayerNorm without biases, both halves of a block read one norm of its input, RoPE of\nneighbours, logits "
        "times 0.3,",
        CohereForCausalLM,
        CohereConfig,
        1,
        {
            "RoPE of halves": shows(swap_pairing()),
            "logits that are not scaled": shows(setting_change(logit_scale=1.0)),
        },
        settings={"logit_scale": 0.3},
    ),
    "tiny-cohere2": tiny(
        "Command R7B's architecture, LayerNorm without biases, both halves of a block read one norm of its input, logits times\n0.3, RoPE of "
        "neighbours and a window of 5 positions in layers 0 to 2, neither in layer 3,",
        Cohere2ForCausalLM,
        Cohere2Config,
        120,
        {
            "RoPE in layer 3": shows(rotate_full_layers),
            "no window": shows(drop_window, 0.2, 5),
            "RoPE of halves": shows(swap_pairing()),
        },
        settings={"logit_scale": 0.3, "sliding_window": 5, "num_hidden_layers": 4, "intermediate_size": 32},
    ),
    "tiny-ministral": tiny(
        "Ministral's architecture, a window of 5 positions in layer 0 (in GGUF files it is a Llama without a window),",
        MinistralForCausalLM,
        MinistralConfig,
        0,
        {"no window": shows(drop_window, 0.2, 5), "a window in both layers": shows(setting_change(layer_types=["sliding_attention"] * 2), 0.1, 5)},
        settings={"head_dim": 16, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        types=(),
    ),
    "tiny-lfm2": tiny(
        "LFM2's architecture, gated convolutions over 3 positions in layers 0 and 2, attention with norms of each query and key\nhead in layer 1 "
        "(two thirds of the feed-forward size are used),",
        Lfm2ForCausalLM,
        Lfm2Config,
        6,
        {
            "the kernels in the opposite order": shows(weight_change("conv.conv.weight", lambda w: w.flip(-1))),
            "the two gates exchanged": shows(
                weight_change("conv.in_proj.weight", lambda w: torch.cat([w.chunk(3)[part] for part in (1, 0, 2)]))
            ),
            "no earlier inputs": shows(weight_change("conv.conv.weight", lambda w: w * (torch.arange(3) == 2))),
            "no norms of queries and keys": shows(without_modules("q_layernorm", "k_layernorm"), 0.1),
        },
        gains={"q_layernorm": 1.35, "k_layernorm": 1.35, "conv": 1.5},
        settings={
            "num_hidden_layers": 3,
            "intermediate_size": 96,
            "block_multiple_of": 16,
            "layer_types": ["conv", "full_attention", "conv"],
            "tie_word_embeddings": False,
        },
    ),
    "tiny-lfm2moe": tiny(
        "LFM2's architecture with experts, gated convolutions over 3 positions in layers 0 and 2, attention with norms of each query\nand key head in layer 1, "
        "8 experts in layers 1 and 2 of which each token chooses 2 by sigmoids and a correction bias,",
        Lfm2MoeForCausalLM,
        Lfm2MoeConfig,
        16,
        {
            **BIASED_SIGMOIDS,
            "weights that are not divided by their sum": shows(misroute(divided=False), 0.1),
            "the kernels in the opposite order": shows(weight_change("conv.conv.weight", lambda w: w.flip(-1))),
        },
        gains={"q_layernorm": 1.35, "k_layernorm": 1.35, "conv": 1.5, "experts": 2.0},
        settings={
            "num_hidden_layers": 3,
            "moe_intermediate_size": 32,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention", "conv"],
        },
    ),
    "tiny-granitehybrid": tiny(
        "Granite 4's architecture without experts, Mamba-2 in layers 0 and 2 (8 heads of 8 values with 40 columns, convolutions\nover 4 positions), "
        "attention without RoPE in layer 1, embeddings times 12, scores times 0.3, both halves of a block\ntimes 0.22, logits divided by 3,",
        GraniteMoeHybridForCausalLM,
        GraniteMoeHybridConfig,
        14,
        {
            "no state decay": shows(weight_change("A_log", lambda w: w - 100), 0.1),
            "no skip connection": shows(weight_change("mamba.D", torch.zeros_like), 0.1),
            "no bias of steps": shows(weight_change("dt_bias", torch.zeros_like), 0.1),
            "the kernels in the opposite order": shows(weight_change("conv1d.weight", lambda w: w.flip(-1)), 0.1),
            "no residual multiplier": shows(setting_change(residual_multiplier=1.0)),
        },
        gains={"q_proj": 1.3, "k_proj": 1.3, "lm_head": 12.0, "embed_tokens": 5.0, "o_proj": 20.0, "out_proj": 20.0, "output_linear": 12.0},
        settings={
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 40,
            "mamba_d_conv": 4,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.22,
            "logits_scaling": 3.0,
            "tie_word_embeddings": False,
        },
    ),
    "tiny-granitehybridmoe": tiny(
        "Granite 4's architecture with experts, Mamba-2 in layer 0 (8 heads of 8 values with 16 columns in 2 groups, steps from\n0.1 to 0.6, convolutions "
        "over 4 positions), attention without RoPE in layer 1, embeddings times 12, scores times 0.3,\nboth halves of a block times 0.22, logits divided "
        "by 3, 6 experts of which each token chooses 2, and a feed-forward block\nof size 32 beside them,",
        GraniteMoeHybridForCausalLM,
        GraniteMoeHybridConfig,
        5,
        {
            "all heads in one group": shows(read_first_group, 0.1),
            "steps without limits": shows(setting_change(time_step_limit=(0.0, float("inf"))), 0.1),
            "no feed-forward block beside the experts": shows(weight_change("shared_mlp.output_linear.weight", torch.zeros_like)),
            "each expert in the place of the next": shows(move_experts),
            "no residual multiplier": shows(setting_change(residual_multiplier=1.0)),
        },
        gains={
            "q_proj": 1.3, "k_proj": 1.3, "lm_head": 12.0, "embed_tokens": 5.0, "o_proj": 20.0, "out_proj": 20.0, "output_linear": 30.0,
            "experts": 4.0,
        },
        settings={
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "shared_intermediate_size": 32,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "time_step_limit": (0.1, 0.6),
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.22,
            "logits_scaling": 3.0,
            "tie_word_embeddings": False,
        },
    ),
    "tiny-ministral3": tiny(
        "Ministral 3's architecture, YaRN (factor 4, original context 4) and a temperature of queries that grows every 4 positions,",
        Ministral3ForCausalLM,
        Ministral3Config,
        0,
        {
            "no temperature": shows(rope_change(llama_4_scaling_beta=0.0), 0.1, 4),
            "a temperature that grows one position earlier": shows(
                replaced(get_llama_4_attn_scale=lambda own: lambda at, *rest: own(at + 1, *rest)), 0.05, 11
            ),
            "no YaRN": shows(rope_change(rope_type="default"), 0.1, 2),
            "RoPE of neighbours": shows(swap_pairing()),
        },
        settings={
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 4,
                "beta_fast": 4.0,
                "beta_slow": 0.01,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "tiny-jais2": tiny(
        "Jais 2's architecture, LayerNorm, biases in all matrices, squared ReLU without a gate,",
        Jais2ForCausalLM,
        Jais2Config,
        2,
        {
            "ReLU": shows(setting_change(hidden_act="relu")),
            "no biases": shows(drop_biases),
            "a norm that keeps the mean": shows(norm_keeping_mean, 0.1),
        },
    ),
    "tiny-nemotron": tiny(
        "Nemotron's architecture, LayerNorm that multiplies by 1 + weight, squared ReLU without a gate, RoPE in 4 values of each\nhead,",
        NemotronForCausalLM,
        NemotronConfig,
        0,
        {
            "norms that multiply by their weight": shows(drop_norm_offset),
            "RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0)),
            "ReLU": shows(setting_change(hidden_act="relu")),
        },
        settings={"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
        norm_shift=1.0,
    ),
    "tiny-falconh1": tiny(
        "Falcon-H1's architecture, attention and Mamba-2 (8 heads of 8 values with 16 columns in 2 groups, convolutions over 4\npositions, no norm after the "
        "gate) in parallel in both layers, factors of most values,",
        FalconH1ForCausalLM,
        FalconH1Config,
        2,
        {
            "all heads in one group": shows(read_first_group, 0.1),
            "no factor of keys": shows(setting_change(key_multiplier=1.0), 0.1),
            "no factors of projections to the recurrence": shows(setting_change(ssm_multipliers=[1.0] * 5), 0.1),
            "no factor of Mamba-2's output": shows(setting_change(ssm_out_multiplier=1.0), 0.1),
            "no factors of the feed-forward block": shows(setting_change(mlp_multipliers=[1.0, 1.0]), 0.1),
            "no factor of attention's input": shows(setting_change(attention_in_multiplier=1.0), 0.1),
        },
        settings={
            "mamba_d_ssm": 64,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "embedding_multiplier": 0.7,
            "lm_head_multiplier": 1.3,
            "key_multiplier": 0.6,
            "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.8,
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.6,
            "ssm_multipliers": [0.7, 1.1, 1.3, 0.8, 0.6],
            "mlp_multipliers": [0.6, 1.4],
        },
    ),
    "tiny-phi2": tiny(
        "Phi-2's architecture, LayerNorm, biases in all matrices, the vocabulary projection included, GELU by tanh without a\n"
        "gate, both halves of a block read one norm of its input, RoPE in 4 values of each head,",
        PhiForCausalLM,
        PhiConfig,
        0,
        {
            "RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0)),
            "no biases": shows(drop_biases),
            "no bias of the logits": shows(weight_change("lm_head.bias", torch.zeros_like)),
            "a norm that keeps the mean": shows(norm_keeping_mean, 0.1),
        },
        settings={"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}, "num_key_value_heads": 4},
    ),
    "tiny-falcon": tiny(
        "The architecture of Falcon 7B, LayerNorm, GELU without a gate, both halves of a block read one norm of its input, all\n"
        "heads share one key and one value (llama.cpp computes GELU by tanh),",
        FalconForCausalLM,
        FalconConfig,
        27,
        {
            "another base of RoPE": shows(rope_change(rope_theta=100.0)),
            "SiLU": shows(setting_change(activation="silu")),
            "a norm that keeps the mean": shows(norm_keeping_mean, 0.1),
        },
        gains=FALCON,
        settings={**FALCON_SIZES, "tie_word_embeddings": False},
    ),
    "tiny-falcon-new": tiny(
        "The architecture of Falcon 40B, LayerNorm, GELU without a gate, a norm of the block's input for each of its two\n"
        "halves, queries, keys and values by group of heads (llama.cpp computes GELU by tanh),",
        FalconForCausalLM,
        FalconConfig,
        10,
        {
            "another base of RoPE": shows(rope_change(rope_theta=100.0)),
            "the two norms exchanged": shows(exchanged("ln_attn", "ln_mlp")),
            "queries, keys and values one after another": shows(
                weight_change("query_key_value.weight", lambda w: w.unflatten(0, (-1, 2, 8)).transpose(0, 1).flatten(0, 2))
            ),
        },
        gains=FALCON,
        settings={**FALCON_SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False},
    ),
    "tiny-falcon-sequential": tiny(
        "Falcon's architecture with `parallel_attn` and `multi_query` false, LayerNorm, GELU without a gate, queries, keys and\n"
        "values by head (llama.cpp reads no such files),",
        FalconForCausalLM,
        FalconConfig,
        11,
        {
            "another base of RoPE": shows(rope_change(rope_theta=100.0)),
            "the two norms exchanged": shows(exchanged("input_layernorm", "post_attention_layernorm")),
        },
        gains=FALCON,
        settings={**FALCON_SIZES, "parallel_attn": False, "multi_query": False, "tie_word_embeddings": False},
        types=(),
    ),
    "tiny-opt": tiny(
        "OPT's architecture, learned positions with two rows before the first, LayerNorm, biases in all matrices, ReLU without a\n"
        "gate, queries multiplied by 1/√8 (llama.cpp has no OPT),",
        OPTForCausalLM,
        OPTConfig,
        9,
        {
            "rows of positions without the offset": shows(
                weight_change("embed_positions.weight", lambda w: w.roll(2, dims=0))
            ),
            "no positions": shows(weight_change("embed_positions.weight", torch.zeros_like)),
            "no biases": shows(drop_biases),
            "GELU": shows(setting_change(activation_function="gelu"), 0.05),
        },
        gains={**QK, "embed_positions": 3.0},
        settings={
            "num_key_value_heads": UNSTATED,
            "rope_parameters": UNSTATED,
            "intermediate_size": UNSTATED,
            "ffn_dim": 64,
            "max_position_embeddings": 128,
            "tie_word_embeddings": False,
        },
        types=(),
    ),
    "tiny-bloom": tiny(
        "BLOOM's architecture, ALiBi, LayerNorm (of the embeddings, too), biases in all matrices, GELU by tanh without a\n"
        "gate,",
        BloomForCausalLM,
        BloomConfig,
        11,
        {
            "no ALiBi": shows(replaced(_get_alibi_slopes=lambda own: lambda *args: own(*args) * 0), 0.1),
            "a growing bias": shows(replaced(_get_alibi_slopes=lambda own: lambda *args: -own(*args)), 0.1),
            "no norm of the embeddings": shows(without_modules("word_embeddings_layernorm")),
            "no biases": shows(drop_biases),
        },
        gains={**FALCON, "word_embeddings_layernorm": 1.5},
        settings={
            "num_key_value_heads": UNSTATED,
            "rope_parameters": UNSTATED,
            "intermediate_size": UNSTATED,
            "max_position_embeddings": UNSTATED,
            "seq_length": 512,
            "tie_word_embeddings": False,
            "attn_implementation": "eager",
        },
    ),
    "tiny-bloom-6": tiny(
        "BLOOM's architecture with 6 heads; as 6 is no power of two, ALiBi's slopes come from two geometric series,",
        BloomForCausalLM,
        BloomConfig,
        3,
        {
            "no ALiBi": shows(replaced(_get_alibi_slopes=lambda own: lambda *args: own(*args) * 0), 0.1),
            "slopes of one geometric series": shows(
                replaced(_get_alibi_slopes=lambda _: lambda heads, device: 2.0 ** (-8 / heads * torch.arange(1, heads + 1))), 0.05
            ),
            "a growing bias": shows(replaced(_get_alibi_slopes=lambda own: lambda *args: -own(*args)), 0.1),
        },
        gains={**FALCON, "word_embeddings_layernorm": 1.5},
        settings={
            "num_attention_heads": 6,
            "hidden_size": 48,
            "num_key_value_heads": UNSTATED,
            "rope_parameters": UNSTATED,
            "intermediate_size": UNSTATED,
            "max_position_embeddings": UNSTATED,
            "seq_length": 512,
            "tie_word_embeddings": False,
            "attn_implementation": "eager",
        },
        types=(),
    ),
    "tiny-starcoder": tiny(
        "StarCoder's architecture, learned positions, LayerNorm, biases in all matrices, GELU by tanh without a gate, all heads\n"
        "share one key and one value,",
        GPTBigCodeForCausalLM,
        GPTBigCodeConfig,
        22,
        {
            "positions that begin with 1": shows(weight_change("wpe.weight", lambda w: w.roll(-1, dims=0))),
            "no biases": shows(drop_biases),
            "ReLU": shows(setting_change(activation_function="relu"), 0.05),
            "a norm that keeps the mean": shows(norm_keeping_mean, 0.1),
        },
        gains={"c_attn": 1.3, "wte": 3.0, "wpe": 2.0},
        settings={**GPT2_SIZES, "n_positions": 128},
    ),
    "tiny-gptj": tiny(
        "GPT-J's architecture, LayerNorm, both halves of a block read one norm of its input, GELU by tanh without a gate, RoPE\n"
        "of neighbours in 4 values of each head, biases of the feed-forward block and of the logits (llama.cpp has no GPT-J),",
        GPTJForCausalLM,
        GPTJConfig,
        9,
        {
            "RoPE of halves": shows(swap_pairing(0.5)),
            "RoPE of whole heads": shows(setting_change(rotary_dim=8)),
            "no bias of the logits": shows(weight_change("lm_head.bias", torch.zeros_like)),
        },
        gains={**QK, "wte": 3.0},
        settings={**GPT2_SIZES, "rotary_dim": 4},
        types=(),
    ),
    "tiny-hunyuan": tiny(
        "The architecture of Hunyuan without experts, norms of each query and key head after RoPE, a base of RoPE that a factor enlarges,",
        HunYuanDenseV1ForCausalLM,
        HunYuanDenseV1Config,
        2,
        {
            "no norms of queries and keys": shows(without_modules("query_layernorm", "key_layernorm"), 0.1),
            "a base that is not stretched": shows(rope_change(rope_type="default"), 0.1),
            "RoPE of neighbours": shows(swap_pairing()),
        },
        gains={"query_layernorm": 1.35, "key_layernorm": 1.35},
        settings={
            "head_dim": 8,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e2, "alpha": 1000.0, "factor": 1.0},
        },
    ),
    "tiny-nemotronh": tiny(
        "Nemotron-H's architecture, layers of one half each: Mamba-2 in layers 0 and 3 (8 heads of 8 values with 16 columns in 2\ngroups, convolutions over 4 "
        "positions, steps of 0.2 or more), a feed-forward block with squared ReLU and without a\ngate in layer 1, attention without RoPE in layer 2,",
        NemotronHForCausalLM,
        NemotronHConfig,
        3,
        {
            "all heads in one group": shows(read_first_group, 0.1),
            "no minimum of steps": shows(setting_change(time_step_min=1e-4), 0.1),
            "ReLU": shows(setting_change(mlp_hidden_act="relu"), 0.1),
            "the kernels in the opposite order": shows(weight_change("conv1d.weight", lambda w: w.flip(-1)), 0.1),
            "no skip connection": shows(weight_change("mixer.D", torch.zeros_like), 0.1),
        },
        gains={**QK, "embeddings": 3.0, "out_proj": 2.0},
        settings={
            **NEMOTRON_H,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        },
    ),
    "tiny-nemotronhmoe": tiny(
        "Nemotron-H's architecture with experts, layers of one half each: Mamba-2 in layer 0, attention without RoPE in layer 2, 8 experts\nwith squared ReLU and without a gate in "
        "layers 1 and 3, of which each token chooses 2 from one of 2 groups by sigmoids and a\ncorrection bias, weights times 2.5, a shared expert,",
        NemotronHForCausalLM,
        NemotronHConfig,
        7,
        {
            "softmax in place of sigmoids": shows(misroute(scores=softmax), 0.1),
            "no correction bias": shows(misroute(biased=False), 0.1, 3),
            "experts from all groups": shows(misroute(summed=0), 0.1, 3),
            "no factor of the weights": shows(misroute(scale=1.0), 0.1),
            "no shared expert": shows(drop_shared_expert),
            "ReLU": shows(setting_change(mlp_hidden_act="relu"), 0.1),
        },
        gains={**QK, "embeddings": 3.0, "out_proj": 2.0},
        settings={
            **NEMOTRON_H,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 64,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
        },
    ),
    "tiny-nemotronhlatent": tiny(
        "Nemotron-H's architecture with experts whose inputs are compressed to 32 values: attention without RoPE in layer 0, Mamba-2 in\nlayer 1, 4 experts with squared ReLU and "
        "without a gate in layer 2, of which each token chooses 2, a shared expert,",
        NemotronHForCausalLM,
        NemotronHConfig,
        4,
        {
            "weights that are not divided by their sum": shows(misroute(divided=False), 0.1),
            "no shared expert": shows(drop_shared_expert, 0.1),
            "ReLU": shows(setting_change(mlp_hidden_act="relu"), 0.1),
        },
        gains={**QK, "embeddings": 3.0, "out_proj": 2.0},
        settings={
            **NEMOTRON_H,
            "hidden_size": 64,
            "layers_block_type": ["full_attention", "linear_attention", "moe"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 32,
            "moe_latent_size": 32,
        },
    ),
    "tiny-gptoss": tiny(
        "gpt-oss's architecture, a sink in each head, a window of 5 positions in layer 0, YaRN (factor 4, original context 128,\na ramp that is "
        "not rounded), biases, 6 experts with a clamped GLU of which\neach token chooses 2,",
        GptOssForCausalLM,
        GptOssConfig,
        2,
        {
            "no sinks": shows(weight_change("sinks", lambda w: torch.full_like(w, -1e4))),
            "no window": shows(drop_window, 0.2, 5),
            "a limit of 2 in the GLU": shows(setting_change(swiglu_limit=2.0), 0.05),
            "weights of a softmax over all experts": shows(weigh_by_all),
            "no biases": shows(drop_biases),
        },
        gains={**QK, "experts": 2.0},
        settings={
            "head_dim": 16,
            "sliding_window": 5,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "swiglu_limit": 7.0,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 128,
            },
        },
        types=("f32", "q8_0", "mxfp4"),
        files={"{name}-mxfp4.gguf": "the matrices of experts MXFP4, the others Q8_0"},
    ),
    "tiny-gemma4": tiny(
        "Gemma 4's architecture, heads of 16 values and one key-value head in layers 1 and 3, where RoPE turns 2 pairs and values are\noutputs of the key projection, norms of "
        "values, a window of 5 positions in layers 0 and 2, layers 2 and 3 with the keys of layers 0 and 1\nand a feed-forward size of 64, embeddings of each layer, logits capped at 20,",
        Gemma4ForCausalLM,
        Gemma4TextConfig,
        37,
        {
            "no norm of values": shows(without_modules("v_norm")),
            "no embeddings of layers": shows(weight_change("per_layer_projection.weight", torch.zeros_like)),
            "embeddings of layers without those of tokens": shows(weight_change("embed_tokens_per_layer.weight", torch.zeros_like)),
            "outputs of layers that are not scaled": shows(weight_change("layer_scalar", torch.ones_like)),
            "scores divided by the root of the head size": shows(scale_scores(lambda attention: attention.head_dim**-0.5)),
            "RoPE of whole heads in layers with full attention": shows(rotate_whole_heads),
            "no window": shows(drop_window, 0.2, 5),
            "no cap of logits": shows(setting_change(final_logit_softcapping=None)),
        },
        gains={"q_norm": 0.75, "k_norm": 0.75, "embed_tokens": 1.0, "embed_tokens_per_layer": 2.0, "norm": 4.0},
        settings={
            "num_hidden_layers": 4,
            "head_dim": 8,
            "global_head_dim": 16,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "num_kv_shared_layers": 2,
            "intermediate_size": 32,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": 512,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "final_logit_softcapping": 20.0,
            "rope_parameters": {
                "sliding_attention": ROPE,
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e2},
            },
        },
    ),
    "tiny-gemma3n": tiny(
        "Gemma 3n's architecture with the sizes that llama.cpp has as constants: 4 AltUp streams, a low-rank residual of rank 64,\nembeddings of 256 values for "
        "each layer, the largest 5 % of the gates of both layers, a window of 5 positions in layer 0,\nlogits capped at 30,",
        Gemma3nForCausalLM,
        Gemma3nTextConfig,
        43,
        GEMMA3N_EFFECTS
        | {
            "sparse gates by the standard deviation of a sample": shows(use_sample_deviation, 0.02),
            "no scale of the stream before its gate": shows(weight_change("correct_output_scale", torch.ones_like)),
            "no window": shows(drop_window, 0.2, 5),
        },
        gains=GEMMA3N_GAINS,
        settings=GEMMA3N | {
            "altup_num_inputs": 4,
            "laurel_rank": 64,
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 512,
            "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "full_attention"],
            "activation_sparsity_pattern": [0.95, 0.95],
        },
    ),
    "tiny-gemma3n-shared": tiny(
        "Gemma 3n's architecture, 3 AltUp streams of which the second is active and not scaled, a low-rank residual of rank 8, embeddings of\n8 values "
        "for each layer and the first 384 tokens, three sparse layers of which one has a negative threshold, layers 2 and 3 with\nthe keys of layers 0 and 1, "
        "a window of 5 positions in layers 0 and 2, logits capped at 30,",
        Gemma3nForCausalLM,
        Gemma3nTextConfig,
        44,
        GEMMA3N_EFFECTS
        | {
            "embeddings of layers without those of tokens": shows(weight_change("embed_tokens_per_layer.weight", torch.zeros_like)),
            "no window": shows(drop_window, 0.2, 5),
        },
        gains=GEMMA3N_GAINS,
        settings=GEMMA3N | {
            "num_hidden_layers": 4,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "altup_correct_scale": False,
            "laurel_rank": 8,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 384,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.9, 0.3, 0.0, 0.5],
        },
        types=(),
    ),
    "tiny-gemma4moe": tiny(
        "Gemma 4's architecture with experts, 4 of which each token chooses 2, next to a feed-forward block; heads of 16 values and one\nkey-value head in layer 1, where RoPE "
        "turns 2 pairs, a window of 5 positions in layer 0, no embeddings of layers,",
        Gemma4ForCausalLM,
        Gemma4TextConfig,
        0,
        {
            "no factors of experts": shows(weight_change("per_expert_scale", torch.ones_like), 0.1),
            "a router without its weights": shows(weight_change("router.scale", torch.ones_like), 0.05),
            "a router whose inputs are not divided by √32": shows(enlarge_router_inputs, 0.1),
            "no norm after experts": shows(without_modules("post_feedforward_layernorm_2"), 0.1),
            "the norms before both branches exchanged": shows(
                exchanged("pre_feedforward_layernorm", "pre_feedforward_layernorm_2"), 0.1
            ),
        },
        gains={"q_norm": 0.75, "k_norm": 0.75, "embed_tokens": 1.0, "norm": 4.0, "proj": 10.0},
        settings={
            "head_dim": 8,
            "global_head_dim": 16,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 512,
            "final_logit_softcapping": 20.0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": ROPE,
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e2},
            },
        },
    ),
    "tiny-llama4": tiny(
        "Llama 4's architecture, norms of each query and key head after RoPE of neighbours, no RoPE in layer 3, 4 experts in layers\n1 and 3 of which each "
        "token chooses 1, whose inputs are multiplied by a sigmoid, a shared expert,",
        Llama4ForCausalLM,
        Llama4TextConfig,
        1,
        {
            "no norms of queries and keys": shows(setting_change(use_qk_norm=False)),
            "RoPE of halves": shows(swap_pairing()),
            "RoPE in layer 3": shows(setting_change(no_rope_layers=[1, 1, 1, 1])),
            "weights that multiply the outputs of experts": shows(weigh_outputs, 0.1),
            "softmax in place of sigmoids": shows(weigh_by_softmax, 0.1),
            "no shared expert": shows(drop_shared_expert),
            "gate and up of experts exchanged": shows(swap_gate_and_up(axis=2), 0.1),
        },
        gains={"q_proj": 1.75, "k_proj": 1.75, "experts": 2.0, "router": 2.0},
        settings={
            "num_hidden_layers": 4,
            "head_dim": 8,
            "intermediate_size": 32,
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
        },
    ),
    "tiny-llama4-chunks": tiny(
        "Llama 4's architecture, chunks of 5 positions in layer 0, a temperature of queries that grows every 4 positions in layer 1,\n4 experts in layer 1 of "
        "which each token chooses 2 (llama.cpp knows no other sizes than 8192),",
        Llama4ForCausalLM,
        Llama4TextConfig,
        7,
        {
            "no chunks": shows(setting_change(attention_chunk_size=512), 0.2, 5),
            "no temperature": shows(setting_change(attn_temperature_tuning=False), 0.1, 3),
            "a temperature that grows every 2 positions": shows(setting_change(floor_scale=2), 0.05, 3),
            "weights that multiply the outputs of experts": shows(weigh_outputs, 0.1),
        },
        gains={"q_proj": 1.5, "k_proj": 1.5, "experts": 2.0, "router": 2.0},
        settings={
            "head_dim": 8,
            "intermediate_size": 32,
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_layers": [1],
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 5,
            "floor_scale": 4,
            "attn_scale": 0.5,
        },
        types=(),
    ),
    "tiny-glm4moe": tiny(
        "GLM 4.5's architecture, norms of each query and key head, biases of queries, keys and values, RoPE in 8 values of each\nhead, 8 experts in "
        "layer 1 of which each token chooses 2 by sigmoids and a correction bias, weights times 1.5, one\nshared expert,",
        Glm4MoeForCausalLM,
        Glm4MoeConfig,
        68,
        {
            **BIASED_SIGMOIDS,
            "no factor of the weights": shows(misroute(scale=1.0)),
            "no shared expert": shows(drop_shared_expert),
            "RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0)),
        },
        gains={**QK_NORM, "experts": 2.0},
        settings={
            "head_dim": 16,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
            "use_qk_norm": True,
            "attention_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5,
            "num_nextn_predict_layers": 0,
        },
    ),
    "tiny-dots1": tiny(
        "The architecture of dots.llm1, norms of each query and key head, 12 experts in layers 1 and\n2 in 4 groups, of which each token chooses 2 groups "
        "and 3 experts by sigmoids and a correction bias, weights that are not divided by their sum, times\n1.25, two shared experts in one,",
        Dots1ForCausalLM,
        Dots1Config,
        2,
        {
            "softmax in place of sigmoids": shows(misroute(scores=softmax), 0.1),
            "no groups": shows(misroute(summed=0), 0.1, 3),
            "groups by their largest score": shows(misroute(summed=1), 0.1, 6),
            "weights divided by their sum": shows(misroute(divided=True), 0.1),
            "no factor of the weights": shows(misroute(scale=1.0), 0.1),
        },
        gains={**QK_NORM, "experts": 2.0},
        settings={
            "num_hidden_layers": 3,
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.25,
            "norm_topk_prob": False,
            "sliding_window": None,
            "num_key_value_heads": 4,
        },
    ),
    "tiny-minimaxm2": tiny(
        "MiniMax M2's architecture, all queries normed together and all keys, RoPE in 4 values of each head, 8 experts of which\neach token chooses "
        "2 by sigmoids and a correction bias,",
        MiniMaxM2ForCausalLM,
        MiniMaxM2Config,
        0,
        {
            **BIASED_SIGMOIDS,
            "norms of each head": shows(norm_each_head),
        },
        gains={**QK_NORM, "experts": 2.0},
        settings={
            "head_dim": 8,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
        },
    ),
    "tiny-ernie45moe": tiny(
        "The architecture of ERNIE 4.5 with experts, RoPE of neighbours, 8 experts in layer 1 of which each token chooses 2 by\nsoftmax and a "
        "correction bias, two shared experts in one,",
        Ernie4_5_MoeForCausalLM,
        Ernie4_5_MoeConfig,
        213,
        {
            "sigmoids in place of softmax": shows(misroute(), 0.1),
            "no correction bias": shows(misroute(scores=softmax, biased=False), 0.1, 3),
            "the correction bias in the weights": shows(misroute(scores=softmax, weighs_bias=True), 0.1),
            "RoPE of halves": shows(swap_pairing()),
        },
        gains={**QK, "experts": 2.0, "e_score_correction_bias": 0.1},
        settings={
            "moe_num_experts": 8,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "tie_word_embeddings": False,
        },
    ),
    "tiny-qwen3moe-dense": tiny(
        "The architecture of Qwen 3 with experts, with a layer without experts in `mlp_only_layers` (llama.cpp reads no such\nfiles), norms of each query "
        "and key head, 8 experts in layer 0 of which each token chooses 2,",
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig,
        0,
        {
            "no norms of queries and keys": shows(without_modules("q_norm", "k_norm"), 0.1),
            "RoPE with another base": shows(rope_change(rope_theta=100.0), 0.1),
        },
        gains={**QK_NORM, "experts": 2.0},
        settings={
            "head_dim": 8,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
        types=(),
    ),
    "tiny-deepseekv2": tiny(
        "DeepSeek V2's architecture, latent attention (ranks 32 of queries, 64 of keys and values; 32 values of a head do not\nrotate, 8 do, by "
        "neighbours; 16 values in a value head), 12 experts in layers 1 and 2 in 4 groups, of which each token\nchooses the 2 groups with the largest scores "
        "and 3 experts by softmax, weights times 4, two shared experts in one,",
        DeepseekV2ForCausalLM,
        DeepseekV2Config,
        0,
        {
            "a scale of the latents' width": shows(scale_scores(scale_of_latents), 0.1),
            "no norm of latents": shows(without_modules("kv_a_layernorm"), 0.1),
            "no factor of the weights": shows(misroute(scores=softmax, biased=False, summed=1, divided=False, scale=1.0), 0.1),
            "groups by their two largest scores": shows(misroute(scores=softmax, biased=False, divided=False), 0.1, 6),
            "weights divided by their sum": shows(misroute(scores=softmax, biased=False, summed=1, divided=True), 0.1),
        },
        gains={"kv_b_proj": 1.5, "q_b_proj": 1.2, "experts": 2.0},
        settings={
            "num_hidden_layers": 3,
            **LATENT,
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 4.0,
        },
    ),
    "tiny-deepseekv3": tiny(
        "DeepSeek V3's architecture, latent attention (ranks 32 of queries, 64 of keys and values; 32 values of a head do not\nrotate, 8 do, by "
        "neighbours; 16 values in a value head), YaRN (factor 4, original context 128) with a factor of\nscores, 12 experts in layer 1 in 4 groups, of "
        "which each token chooses 2 groups and 3 experts, weights times 1.5,\none shared expert,",
        DeepseekV3ForCausalLM,
        DeepseekV3Config,
        3,
        {
            "a scale of the latents' width": shows(scale_scores(scale_of_latents), 0.1),
            "no factor of scores": shows(scale_scores(lambda _: (0.1 * math.log(4) + 1) ** -2), 0.1),
            "RoPE of halves": shows(setting_change(rope_interleave=False)),
            "no norm of latents": shows(without_modules("kv_a_layernorm"), 0.1),
            "no norm of compressed queries": shows(without_modules("q_a_layernorm"), 0.1),
            "no factor of the weights": shows(misroute(scale=1.0)),
        },
        gains={"kv_b_proj": 1.5, "experts": 2.0},
        settings={
            **LATENT,
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 32,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5,
            "num_nextn_predict_layers": 0,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
    ),
    "tiny-glm47flash": tiny(
        "The architecture of GLM 4.7 Flash, latent attention (ranks 32 of queries, 64 of keys and values; 32 values of a head do\nnot rotate, 8 do, by "
        "neighbours; 16 values in a value head), 8 experts in layer 1 of which each token chooses 2,\nweights times 1.5, one shared expert,",
        Glm4MoeLiteForCausalLM,
        Glm4MoeLiteConfig,
        0,
        {
            "a scale of the latents' width": shows(scale_scores(scale_of_latents), 0.1),
            "RoPE of halves": shows(setting_change(rope_interleave=False)),
            "no norm of latents": shows(without_modules("kv_a_layernorm"), 0.1),
            "no shared expert": shows(drop_shared_expert),
        },
        gains={"kv_b_proj": 1.5, "q_b_proj": 1.2, "experts": 2.0},
        settings={
            **LATENT,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse"],
            "routed_scaling_factor": 1.5,
        },
    ),
    "tiny-qwen3next": tiny(
        "Qwen3-Next's architecture, linear attention with a gated delta rule in layer 0 (2 key heads and 4 value heads of 16,\na short "
        "convolution of 4 tokens), attention with an output gate in layer 1, norms that multiply by 1 + weight, RoPE of\n8 values of "
        "each head, 8 experts of which each token chooses 3, a shared expert with a weight for each token,",
        Qwen3NextForCausalLM,
        Qwen3NextConfig,
        10,
        {
            "norms that multiply by their weight": shows(drop_norm_offset),
            "no output gate": shows(drop_attention_gate),
            "RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0), 0.1),
            "no L2 norm of queries and keys": shows(replaced(l2norm=lambda _: lambda x, **_: x)),
            "no decay": shows(replaced(torch_chunk_gated_delta_rule=given(g=torch.zeros_like))),
            "β = 1": shows(replaced(torch_chunk_gated_delta_rule=given(beta=torch.ones_like))),
            "`in_proj_ba` split in the middle instead of per key head": shows(cut_gates_at_middle),
            "no weight of the shared expert": shows(drop_shared_weight),
        },
        gains={**QK_NORM, "experts": 2.0, "out_proj": 2.0},
        settings={
            **DELTA_RULE,
            **SHARED_MOE,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
        },
        norm_shift=1.0,
    ),
    "tiny-qwen35": tiny(
        "Qwen 3.5's architecture, linear attention with a gated delta rule in layer 0 (2 key heads and 4 value heads of 16,\na short "
        "convolution of 4 tokens), attention with an output gate in layer 1, norms that multiply by 1 + weight, RoPE of\n8 values of "
        "each head,",
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig,
        0,
        {
            "norms that multiply by their weight": shows(drop_norm_offset),
            "no output gate": shows(drop_attention_gate),
            "RoPE of whole heads": shows(rope_change(partial_rotary_factor=1.0), 0.1),
            "no L2 norm of queries and keys": shows(replaced(l2norm=lambda _: lambda x, **_: x)),
            "no decay": shows(replaced(torch_chunk_gated_delta_rule=given(g=torch.zeros_like))),
            "value heads in llama.cpp's order": shows(weight_change("in_proj_qkv.weight", lambda w: w[TILED])),
        },
        gains={**QK_NORM, "out_proj": 2.0},
        settings=QWEN35,
        norm_shift=1.0,
    ),
    "tiny-qwen35moe": tiny(
        "The architecture of Qwen 3.5 with experts, linear attention with a gated delta rule in layer 0 (2 key heads and 4\nvalue heads of 16, a short "
        "convolution of 4 tokens), attention with an output gate in layer 1, norms that multiply by\n1 + weight, RoPE of 8 values of "
        "each head, 8 experts of which each token chooses 3, a shared expert with a weight for each\ntoken,",
        Qwen3_5MoeForCausalLM,
        Qwen3_5MoeTextConfig,
        1,
        {
            "no output gate": shows(drop_attention_gate),
            "β = 1": shows(replaced(torch_chunk_gated_delta_rule=given(beta=torch.ones_like))),
            "value heads in llama.cpp's order": shows(weight_change("in_proj_qkv.weight", lambda w: w[TILED])),
            "weights that are not divided by their sum": shows(weigh_by_all),
            "no weight of the shared expert": shows(drop_shared_weight),
        },
        gains={**QK_NORM, "experts": 2.0, "out_proj": 2.0},
        settings={**QWEN35, **SHARED_MOE},
        norm_shift=1.0,
        save=save_as_in_memory,
    ),
    "tiny-olmo": tiny(
        "OLMo's architecture, LayerNorm without parameters,",
        OlmoForCausalLM,
        OlmoConfig,
        2,
        {"RoPE of neighbours": shows(swap_pairing()), "a base of 100": shows(rope_change(rope_theta=100.0))},
    ),
}
