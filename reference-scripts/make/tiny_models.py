"""The table of the small untrained models."""

from functools import partial

from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tiny_layouts import save_as_hub_gemma3, save_gpt2
from tiny_mistakes import (
    drop_biases,
    drop_global_scaling,
    drop_rope_scaling,
    drop_shared_expert,
    drop_shared_weight,
    drop_window,
    move_experts,
    norm_each_head,
    norm_keeping_mean,
    norm_of_sample_variance,
    rope_change,
    rotate_all,
    scale_local_layers,
    setting_change,
    swap_gate_and_up,
    swap_rope_bases,
    use_short_factors,
    weigh_by_all,
    widen_window,
)
from tiny_model import Effect, TinyModel, save_hf

SHARED = {
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
THREE_LAYERS = {**SHARED, "num_hidden_layers": 3, "num_key_value_heads": 2}
TWO_LAYERS = {**SHARED, "num_hidden_layers": 2, "num_key_value_heads": 2}

# For the cards.
GEMMA_WEIGHTS = """\
what norms multiply by is 1 + 0.3 x noise (times 1.35 for those of q and k, 3 for the
last one), which the Hugging Face directory stores less 1, as Gemma does; matrices are noise.
"""
GPT2_WEIGHTS = """\
norm weights are 1 + 0.3 x noise, biases 0.3 x noise,
matrices noise; the position embeddings have a mean of 1, which LayerNorm subtracts.
"""
BPE_VOCABULARY = """\
No text and no weights of others are in it; the
vocabulary is a byte-level BPE of tiny-llama2's stories, with `<|endoftext|>` as last id: to this model the ids mean
nothing."""

BIAS_EFFECTS = (
    Effect(
        note=""" Without the biases, every row of logits but the first would
differ by {effect:.2f} or more in some logit.""",
        wrong=drop_biases,
    ),
)

MODELS = {
    "tiny-qwen3": TinyModel(
        summary="""\
Qwen3's architecture at 0.2 M parameters: 3 layers, hidden size 64, 4 heads of 32 (so q is wider than the hidden state)
that share 2 key-value heads, q and k normalised per head, feed-forward size 160, vocabulary 512, context 512, RoPE base
1000000, RMSNorm epsilon 1e-6, the embedding matrix used as output matrix too.""",
        build=Qwen3ForCausalLM,
        config=Qwen3Config(
            **THREE_LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            head_dim=32,
            intermediate_size=160,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            tie_word_embeddings=True,
            attention_bias=False,
        ),
        seed=137,
        # q and k are normalised per head: only the norms' weights can make the scores larger.
        gains={"q_norm": 1.35, "k_norm": 1.35, "embed_tokens": 3.0},
    ),
    "tiny-qwen2": TinyModel(
        summary="""\
Qwen2's architecture at 0.1 M parameters: 2 layers, hidden size 64, 4 heads of 16 that share 2 key-value heads, biases in the
projections of queries, keys and values, feed-forward size 96, vocabulary 512, context 512, RoPE base 1000000, RMSNorm
epsilon 1e-6, the embedding matrix used as output matrix too.""",
        build=Qwen2ForCausalLM,
        config=Qwen2Config(
            **TWO_LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=96,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            tie_word_embeddings=True,
        ),
        seed=2,
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 3.0},
        effects=BIAS_EFFECTS,
    ),
    "tiny-llama-bias": TinyModel(
        summary="""\
Llama's architecture with `attention_bias` and `mlp_bias` at 0.1 M parameters: 2 layers, hidden size 64, 4 heads of 16 that
share 2 key-value heads, biases in all seven matrices of a layer, feed-forward size 96, vocabulary 512, context 512, RoPE base
10000, RMSNorm epsilon 1e-5, untied output matrix.""",
        build=LlamaForCausalLM,
        config=LlamaConfig(
            **TWO_LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            head_dim=16,
            intermediate_size=96,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=False,
            attention_bias=True,
            mlp_bias=True,
        ),
        seed=1,
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 3.0, "lm_head": 4.0},
        types=("f32", "q8_0"),
        effects=BIAS_EFFECTS,
    ),
    "tiny-qwen3-bias": TinyModel(
        summary="""\
Qwen3's architecture with `attention_bias` at 0.1 M parameters: 2 layers, hidden size 64, 4 heads of 16 that share 2 key-value
heads, biases in the four matrices of attention, q and k normalised per head, feed-forward size 96, vocabulary 512, context 512,
RoPE base 1000000, RMSNorm epsilon 1e-6, the embedding matrix used as output matrix too. llama.cpp does not read such files.""",
        build=Qwen3ForCausalLM,
        config=Qwen3Config(
            **TWO_LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            head_dim=16,
            intermediate_size=96,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            tie_word_embeddings=True,
            attention_bias=True,
        ),
        seed=33,
        gains={"q_norm": 1.35, "k_norm": 1.35, "embed_tokens": 3.0},
        types=(),
        effects=BIAS_EFFECTS,
    ),
    "tiny-qwen3-yarn": TinyModel(
        summary="""\
Qwen3's architecture with YaRN at 0.1 M parameters: 2 layers, hidden size 32, 4 heads of 16 (so q is wider than the hidden
state) that share 2 key-value heads, q and k normalised per head, feed-forward size 64, vocabulary 512, context 512, RoPE base
10000 with YaRN's scaling (factor 4, original context 128: pair 0 is kept, pairs 3 to 7 are divided by 4, and what is turned is
stretched by 1.14), RMSNorm epsilon 1e-6, the embedding matrix used as output matrix too.""",
        build=Qwen3ForCausalLM,
        config=Qwen3Config(
            **TWO_LAYERS,
            hidden_size=32,
            num_attention_heads=4,
            head_dim=16,
            intermediate_size=64,
            rms_norm_eps=1e-6,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
            tie_word_embeddings=True,
            attention_bias=False,
        ),
        seed=19,
        gains={"q_norm": 1.25, "k_norm": 1.25, "embed_tokens": 3.0},
        types=("f32", "q8_0"),
        effects=(
            Effect(
                note=""" Every row of logits but the first would differ in some logit, without
the scaling of RoPE by {effect:.2f} or more,""",
                wrong=drop_rope_scaling,
                least=0.1,
            ),
            Effect(note=" with a factor of 8 by {effect:.2f},", wrong=rope_change(factor=8.0), least=0.05),
            Effect(
                note=" without the stretching\nby {effect:.2f},",
                wrong=rope_change(attention_factor=1.0),
                least=0.1,
            ),
            Effect(
                note=" and from the fifth row on with the whole context as the original one by {effect:.2f}.",
                wrong=rope_change(original_max_position_embeddings=512),
                first_row=4,
                least=0.1,
            ),
        ),
    ),
    "tiny-llama-yarn": TinyModel(
        summary="""\
Llama's architecture with all of YaRN's settings at 0.1 M parameters: 2 layers, hidden size 32, 4 heads of 16 that share 2
key-value heads, feed-forward size 64, vocabulary 512, context 512, RoPE base 10000 with YaRN's scaling (factor 2.5, original
context 204, beta_fast 4 and beta_slow 0.5, a ramp that is not rounded to pairs, mscale 1.5 and mscale_all_dim 0.5), RMSNorm
epsilon 1e-5, untied output matrix. llama.cpp does not read these settings of a Llama.""",
        build=LlamaForCausalLM,
        config=LlamaConfig(
            **TWO_LAYERS,
            hidden_size=32,
            num_attention_heads=4,
            head_dim=16,
            intermediate_size=64,
            rms_norm_eps=1e-5,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 2.5,
                "original_max_position_embeddings": 204,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "truncate": False,
                "mscale": 1.5,
                "mscale_all_dim": 0.5,
            },
            tie_word_embeddings=False,
        ),
        seed=8,
        gains={"q_proj": 1.25, "k_proj": 1.25, "embed_tokens": 3.0, "lm_head": 4.0},
        types=(),
        effects=(
            Effect(
                note=""" Every row of logits from the fifth on would differ in some logit, with the default betas by
{effect:.2f} or more,""",
                wrong=rope_change(beta_fast=32.0, beta_slow=1.0),
                first_row=4,
                least=0.1,
            ),
            Effect(
                note=" with a rounded ramp by {effect:.2f},",
                wrong=rope_change(truncate=True),
                first_row=4,
                least=0.05,
            ),
            Effect(
                note=" with the paper's stretching\nby {effect:.2f}.",
                wrong=rope_change(mscale=None),
                first_row=4,
                least=0.02,
            ),
        ),
    ),
    "tiny-gemma3-bias": TinyModel(
        summary="""\
Gemma 3's architecture (text only) with `attention_bias` at 0.1 M parameters: 3 layers of which the last sees everything and
the others the last 5 positions, hidden size 32, 4 heads of 16 that share 1 key-value head, biases in the four matrices of
attention, feed-forward size 64, vocabulary 512, context 512, RoPE base 1000000 in the last layer and 10000 in the others,
RMSNorm epsilon 1e-6, the embedding matrix used as output matrix too. llama.cpp does not read such files.""",
        build=Gemma3ForCausalLM,
        config=Gemma3TextConfig(
            **SHARED,
            num_hidden_layers=3,
            num_key_value_heads=1,
            hidden_size=32,
            num_attention_heads=4,
            head_dim=16,
            query_pre_attn_scalar=16,
            intermediate_size=64,
            rms_norm_eps=1e-6,
            sliding_window=5,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            attention_bias=True,
        ),
        seed=7,
        gains={"q_norm": 1.35, "k_norm": 1.35, "embed_tokens": 1.0, "norm": 3.0},
        norm_shift=1.0,
        types=(),
        weights=GEMMA_WEIGHTS,
        effects=BIAS_EFFECTS,
    ),
    "tiny-mistral": TinyModel(
        summary="""\
Mistral's architecture at 0.1 M parameters: 2 layers, hidden size 64, 4 heads of 16 that share 2 key-value heads, all layers
see the last 6 tokens, feed-forward size 96, vocabulary 512, context 512, RoPE base 10000, RMSNorm epsilon 1e-5, untied
output matrix. In its GGUF files it is a Llama, which llama.cpp computes without a window.""",
        build=MistralForCausalLM,
        config=MistralConfig(
            **TWO_LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            head_dim=16,
            intermediate_size=96,
            rms_norm_eps=1e-5,
            sliding_window=6,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=False,
        ),
        seed=2,
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 3.0, "lm_head": 4.0},
        effects=(
            Effect(
                note=""" Without the window, the rows of logits from the seventh on would
differ by {effect:.2f} or more in some logit;""",
                wrong=drop_window,
                first_row=6,
            ),
            Effect(
                note=""" were it one token wider, by {effect:.2f}.""",
                wrong=widen_window,
                first_row=6,
                least=0.2,
            ),
        ),
    ),
    "tiny-mixtral": TinyModel(
        summary="""\
Mixtral's architecture at 0.1 M parameters: 2 layers, hidden size 32, 4 heads of 8 that share 2 key-value heads, 6 experts of
feed-forward size 32 of which each token chooses 2, vocabulary 512, context 512, RoPE base 1000000, RMSNorm epsilon 1e-5, the
embedding matrix used as output matrix too. In its GGUF files it is a Llama with experts.""",
        build=MixtralForCausalLM,
        config=MixtralConfig(
            **TWO_LAYERS,
            hidden_size=32,
            num_attention_heads=4,
            intermediate_size=32,
            num_local_experts=6,
            num_experts_per_tok=2,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            tie_word_embeddings=True,
        ),
        seed=10,
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 3.0, "experts": 2.0},
        types=("f32", "q8_0"),
        effects=(
            Effect(
                note=""" Every row of logits but the first would differ in some logit, with one expert of a token
by {effect:.2f} or more,""",
                wrong=setting_change(num_experts_per_tok=1),
                least=0.2,
            ),
            Effect(
                note=" with three by {effect:.2f},",
                wrong=setting_change(num_experts_per_tok=3),
                least=0.2,
            ),
            Effect(note=" with weights that are not divided by their sum by {effect:.2f},", wrong=weigh_by_all, least=0.2),
            Effect(note=" with gate and up exchanged by {effect:.2f},", wrong=swap_gate_and_up(axis=1), least=0.2),
            Effect(note=" with each expert in the place of the next by {effect:.2f}.", wrong=move_experts, least=0.2),
        ),
    ),
    "tiny-qwen2moe": TinyModel(
        summary="""\
The architecture of Qwen 2's mixtures of experts at 0.1 M parameters: 2 layers, hidden size 32, 4 heads of 8 that share 2
key-value heads, biases in the projections of queries, keys and values, 8 experts of feed-forward size 32 of which each token
chooses 3, whose weights are not divided by their sum, a shared expert of feed-forward size 64 with a weight for each token,
vocabulary 512, context 512, RoPE base 1000000, RMSNorm epsilon 1e-6, untied output matrix.""",
        build=Qwen2MoeForCausalLM,
        config=Qwen2MoeConfig(
            **TWO_LAYERS,
            hidden_size=32,
            num_attention_heads=4,
            intermediate_size=64,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
            num_experts=8,
            num_experts_per_tok=3,
            norm_topk_prob=False,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            tie_word_embeddings=False,
        ),
        seed=20,
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 3.0, "lm_head": 4.0, "experts": 2.0},
        types=("f32", "q8_0"),
        effects=(
            Effect(
                note=""" Every row of logits but the first would differ in some logit, without the shared
expert by {effect:.2f} or more,""",
                wrong=drop_shared_expert,
                least=0.5,
            ),
            Effect(note=" without its weight by {effect:.2f},", wrong=drop_shared_weight, least=0.2),
            Effect(
                note=" with weights that are divided by their sum\nby {effect:.2f},",
                wrong=setting_change(norm_topk_prob=True),
                least=0.2,
            ),
            Effect(note=" with each expert in the place of the next by {effect:.2f}.", wrong=move_experts, least=0.2),
        ),
    ),
    "tiny-qwen3moe": TinyModel(
        summary="""\
The architecture of Qwen 3's mixtures of experts at 0.1 M parameters: 2 layers, hidden size 32, 4 heads of 16 (so q is wider
than the hidden state) that share 2 key-value heads, q and k normalised per head, 12 experts of feed-forward size 32 of which
each token chooses 3, whose weights are divided by their sum, vocabulary 512, context 512, RoPE base 1000000, RMSNorm epsilon
1e-6, the embedding matrix used as output matrix too.""",
        build=Qwen3MoeForCausalLM,
        config=Qwen3MoeConfig(
            **TWO_LAYERS,
            hidden_size=32,
            num_attention_heads=4,
            head_dim=16,
            intermediate_size=96,
            moe_intermediate_size=32,
            num_experts=12,
            num_experts_per_tok=3,
            norm_topk_prob=True,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            tie_word_embeddings=True,
        ),
        seed=24,
        gains={"q_norm": 1.35, "k_norm": 1.35, "embed_tokens": 3.0, "experts": 2.0},
        types=("f32", "q8_0"),
        effects=(
            Effect(
                note=""" Every row of logits but the first would differ in some logit, with two experts of a token
by {effect:.2f} or more,""",
                wrong=setting_change(num_experts_per_tok=2),
                least=0.2,
            ),
            Effect(
                note=" with four by {effect:.2f},",
                wrong=setting_change(num_experts_per_tok=4),
                least=0.2,
            ),
            Effect(
                note=" with weights that are not divided by their sum by {effect:.2f},",
                wrong=setting_change(norm_topk_prob=False),
                least=0.2,
            ),
            Effect(note=" with gate and up exchanged by {effect:.2f},", wrong=swap_gate_and_up(axis=1), least=0.2),
            Effect(note=" with each expert in the place of the next by {effect:.2f}.", wrong=move_experts, least=0.2),
        ),
    ),
    "tiny-olmo2": TinyModel(
        summary="""\
OLMo 2's architecture at 0.1 M parameters: 2 layers, hidden size 64, 4 heads of 16 that share 2 key-value heads, all queries
of a token normalised together and all its keys, norms behind both halves of a block and none before them, feed-forward size
96, vocabulary 512, context 512, RoPE base 500000, RMSNorm epsilon 1e-6, untied output matrix.""",
        build=Olmo2ForCausalLM,
        config=Olmo2Config(
            **TWO_LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=96,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
            tie_word_embeddings=False,
        ),
        seed=3,
        gains={"q_norm": 1.35, "k_norm": 1.35, "embed_tokens": 3.0, "lm_head": 4.0},
        types=("f32", "q8_0"),
        effects=(
            Effect(
                note=""" With a norm of each head in the place of the norm of all, every row of
logits would differ by {effect:.2f} or more in some logit;""",
                wrong=norm_each_head,
                first_row=1,
                least=0.2,
            ),
        ),
    ),
    "tiny-gemma2": TinyModel(
        summary="""\
Gemma 2's architecture at 0.1 M parameters: 2 layers of which the first sees the last 5 positions, hidden size 64, 4 heads of 32 (so q is wider than the hidden state) that share 2 key-value heads, four
norms, scores softly capped at 3 and logits at 12, feed-forward size 64, vocabulary 512, context 512, RoPE base 10000, RMSNorm
epsilon 1e-6, the embedding matrix used as output matrix too.""",
        build=Gemma2ForCausalLM,
        config=Gemma2Config(
            **TWO_LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            head_dim=32,
            query_pre_attn_scalar=32,  # llama.cpp takes it from head_dim
            intermediate_size=64,
            rms_norm_eps=1e-6,
            sliding_window=5,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=12.0,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
        seed=1,
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 1.0, "norm": 3.0},
        norm_shift=1.0,
        types=("f32", "q8_0"),
        weights=GEMMA_WEIGHTS,
        files={"{name}-f32.gguf": "the same weights, norms as what they multiply by: Gemma's 1 is added"},
        effects=(
            Effect(
                note="""

Without the cap of scores, every row of logits but the first would differ by {effect:.2f} or more in some logit,""",
                wrong=setting_change(attn_logit_softcapping=None),
                least=0.1,
            ),
            Effect(
                note=" without the cap of\nlogits by {effect:.2f},",
                wrong=setting_change(final_logit_softcapping=None),
            ),
            Effect(
                note=" without the window every row from the sixth on by {effect:.2f}.",
                wrong=drop_window,
                first_row=5,
                least=0.1,
            ),
        ),
    ),
    "tiny-smollm3": TinyModel(
        summary="""\
SmolLM3's architecture at 0.2 M parameters: 4 layers, of which the last does not rotate queries and keys, hidden size 64, 4
heads of 16 that share 2 key-value heads, feed-forward size 64, vocabulary 512, context 512, RoPE base 5000000, RMSNorm epsilon
1e-6, the embedding matrix used as output matrix too.""",
        build=SmolLM3ForCausalLM,
        config=SmolLM3Config(
            **{**TWO_LAYERS, "num_hidden_layers": 4},
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=64,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 5e6},
            tie_word_embeddings=True,
        ),
        seed=1,
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 3.0},
        types=("f32", "q8_0"),
        effects=(
            Effect(
                note=""" If the last layer rotated too, every row of logits but the first would
differ by {effect:.2f} or more in some logit.""",
                wrong=setting_change(no_rope_layers=[1, 1, 1, 1]),
            ),
        ),
    ),
    "tiny-granite": TinyModel(
        summary="""\
Granite 3's architecture at 0.1 M parameters: 2 layers, hidden size 64, 4 heads of 16 that share 2 key-value heads, embeddings
times 12, scores times 0.3, both halves of a block times 0.22, logits divided by 3, feed-forward size 96, vocabulary 512,
context 512, RoPE base 10000, RMSNorm epsilon 1e-5, the embedding matrix used as output matrix too.""",
        build=GraniteForCausalLM,
        config=GraniteConfig(
            **TWO_LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=96,
            rms_norm_eps=1e-5,
            embedding_multiplier=12.0,
            attention_multiplier=0.3,
            residual_multiplier=0.22,
            logits_scaling=3.0,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            tie_word_embeddings=True,
        ),
        seed=0,
        gains={"q_proj": 1.2, "k_proj": 1.2, "embed_tokens": 5.0, "o_proj": 60.0, "down_proj": 60.0},
        types=("f32", "q8_0"),
        effects=(
            Effect(
                note=""" Every row of logits would differ in some logit, without the factor of embeddings by
{effect:.2f} or more,""",
                wrong=setting_change(embedding_multiplier=1.0),
            ),
            Effect(
                note=" of scores (all rows but the first) by {effect:.2f},",
                wrong=setting_change(attention_multiplier=0.25),
                least=0.1,
            ),
            Effect(note=" of the halves by {effect:.2f},", wrong=setting_change(residual_multiplier=1.0)),
            Effect(note=" of logits by {effect:.2f}.", wrong=setting_change(logits_scaling=1.0)),
        ),
    ),
    "tiny-phi4": TinyModel(
        summary="""\
The architecture of Phi-4 mini (`phi3`) at 0.1 M parameters: 2 layers, hidden size 64, 4 heads of 16 that share 2 key-value
heads, of which 8 values rotate, one matrix for queries, keys and values and one for gate and up, LongRoPE beyond position 10
(context 512, so that what is turned is stretched by 1.65), feed-forward size 96, vocabulary 512, RoPE base 10000, RMSNorm
epsilon 1e-5, the embedding matrix used as output matrix too.""",
        build=Phi3ForCausalLM,
        config=Phi3Config(
            **TWO_LAYERS,
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=96,
            rms_norm_eps=1e-5,
            original_max_position_embeddings=10,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
                "short_factor": [1.0, 1.1, 1.3, 1.7],
                "long_factor": [1.1, 1.9, 3.1, 6.7],
                "original_max_position_embeddings": 10,
            },
            tie_word_embeddings=True,
        ),
        seed=28,
        gains={"qkv_proj": 1.1, "embed_tokens": 3.0},
        types=("f32", "q8_0"),
        effects=(
            Effect(
                note=""" With the factors of short texts, every row of logits but the first would
differ by {effect:.2f} or more in some logit,""",
                wrong=use_short_factors,
                least=0.1,
            ),
            Effect(note=" if all of a head rotated by {effect:.2f}.", wrong=rotate_all, least=0.2),
        ),
    ),
    "tiny-llama3": TinyModel(
        summary="""\
Llama-3's architecture at 0.3 M parameters: 3 layers, hidden size 96, 6 heads of 16 that share 2 key-value heads,
feed-forward size 192, vocabulary 512, context 512, RoPE base 500000 with Llama 3.1's scaling (factor 8, low and high
frequency factors 1 and 4, original context 64), RMSNorm epsilon 1e-5, untied output matrix. The Hugging Face directory
has its weights in two shards.""",
        build=LlamaForCausalLM,
        config=LlamaConfig(
            **THREE_LAYERS,
            hidden_size=96,
            num_attention_heads=6,
            head_dim=16,
            intermediate_size=192,
            rms_norm_eps=1e-5,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            tie_word_embeddings=False,
        ),
        seed=71,
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 3.0, "lm_head": 4.0},
        effects=(
            Effect(
                note=""" Without the scaling of RoPE, every row of logits but the first
would differ by {effect:.2f} or more in some logit. In the GGUF files the scaling is the tensor `rope_freqs.weight`, as
llama.cpp's own converter writes it.""",
                wrong=drop_rope_scaling,
            ),
        ),
        save=partial(save_hf, shard_size="750KB"),
        files={"{name}-f32.gguf": "the same weights, q and k rows reordered for llama.cpp's RoPE pairs"},
    ),
    "tiny-gemma3": TinyModel(
        summary="""\
Gemma 3's architecture (text only, `gemma3_text`) at 0.1 M parameters: 7 layers of which layer 5 sees everything and the
others the last 5 positions, hidden size 32 (so the embedding scale is no power of two), 4 heads of 16 (so q is wider
than the hidden state) that share 1 key-value head, q and k normalised per head, feed-forward size 64, vocabulary 512,
context 512, RoPE base 1000000 in layer 5 and 10000 in the others, RMSNorm epsilon 1e-6, the embedding matrix used as
output matrix too.""",
        build=Gemma3ForCausalLM,
        config=Gemma3TextConfig(
            **SHARED,
            num_hidden_layers=7,
            num_key_value_heads=1,
            hidden_size=32,
            num_attention_heads=4,
            head_dim=16,
            query_pre_attn_scalar=16,  # llama.cpp takes it from head_dim
            intermediate_size=64,
            rms_norm_eps=1e-6,
            sliding_window=5,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        seed=254,
        gains={"q_norm": 1.35, "k_norm": 1.35, "embed_tokens": 1.0, "norm": 3.0},
        norm_shift=1.0,
        weights=GEMMA_WEIGHTS,
        files={"{name}-f32.gguf": "the same weights, norms as what they multiply by: Gemma's 1 is added"},
        effects=(
            Effect(
                note="""

Without the window, every row of logits from the sixth on would differ by {effect:.2f} or more in some logit,""",
                wrong=drop_window,
                first_row=5,
            ),
            Effect(
                note=" with a window of 6\nby {effect:.2f},",
                wrong=widen_window,
                first_row=5,
            ),
            Effect(
                note=" and with the two RoPE bases swapped every row from the fifth on by {effect:.2f}.",
                wrong=swap_rope_bases,
                first_row=4,
            ),
        ),
    ),
    "tiny-gpt2": TinyModel(
        summary="""\
GPT-2's architecture at 0.1 M parameters: 2 layers, hidden size 64, 4 heads of 16, feed-forward size 256, vocabulary
512, 64 learned positions, LayerNorm epsilon 1e-5, GELU by tanh, the embedding matrix used as output matrix too.""",
        build=GPT2LMHeadModel,
        config=GPT2Config(
            vocab_size=512,
            n_positions=64,
            n_embd=64,
            n_layer=2,
            n_head=4,
            bos_token_id=511,
            eos_token_id=511,
        ),
        seed=255,
        gains={"c_attn": 1.25, "wte": 4.0, "wpe": 12.0},
        offsets={"wpe": 1.0},
        prompt="Once, Mia's fox said 7 times",
        effects=(
            Effect(
                note="""

Without the subtraction of the mean in LayerNorm every row of logits would differ by {effect:.2f} or more in some
logit,""",
                wrong=norm_keeping_mean,
                first_row=0,
            ),
            Effect(
                note=" with a variance over n - 1 by {effect:.3f},",
                wrong=norm_of_sample_variance,
                first_row=0,
                least=0.02,
            ),
            Effect(
                note=" with GELU by the error function by {effect:.4f}.",
                wrong=setting_change(activation_function="gelu"),
                first_row=0,
                least=0.0005,
            ),
        ),
        save=save_gpt2,
        weights=GPT2_WEIGHTS,
        vocabulary=BPE_VOCABULARY,
        files={
            "hf/": "the original, as transformers 5 writes it: safetensors, float32, names with `transformer.`",
            "pt/": "the same weights as the hub has GPT-2: `pytorch_model.bin`, names without `transformer.`, "
            "each layer's causal mask (`h.0.attn.bias`, float32), and 4.x's `config.json`",
            "{name}-f32.gguf": "the same weights, matrices transposed to [out, in]",
            "{name}-f16.gguf": "matrices F16; positions, norms and biases F32",
            "{name}-q8_0.gguf": "matrices Q8_0 (embedding and output too); positions, norms and biases F32",
        },
    ),
    "tiny-gemma3-vision": TinyModel(
        summary="""\
The layout of Gemma 3's models that see (gemma-3-4b and larger) at 0.1 M parameters: text model, vision tower and
projector in one directory, of which xcheck runs the text model. That is tiny-gemma3's architecture with 2 key-value
heads, and with RoPE scaled linearly by 8 in layer 5, the global one. The vision tower (SigLIP, 1 layer of size 16) and
the projector are there to be left aside.

Names and `config.json` are those of the hub's files, from transformers 4.x: `language_model.model.layers.0...`,
`vision_tower.vision_model...`, `multi_modal_projector...`; `rope_theta`, `rope_local_base_freq`, `rope_scaling` and
`sliding_window_pattern` in `text_config`. transformers 5.23 reads them; it writes `vision_tower.encoder...` without
`vision_model`, `rope_parameters` by layer type, and names the modules `model.language_model.layers.0...` in memory.""",
        build=Gemma3ForConditionalGeneration,
        config=Gemma3Config(
            text_config={
                **SHARED,
                "num_hidden_layers": 7,
                "num_key_value_heads": 2,
                "hidden_size": 32,
                "num_attention_heads": 4,
                "head_dim": 16,
                "query_pre_attn_scalar": 16,
                "intermediate_size": 64,
                "rms_norm_eps": 1e-6,
                "sliding_window": 5,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            },
            vision_config={
                "model_type": "siglip_vision_model",
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 16,
                "patch_size": 8,
                "vision_use_head": False,
            },
            mm_tokens_per_image=4,
            boi_token_index=509,
            eoi_token_index=510,
            image_token_index=511,
        ),
        seed=210,
        gains={"q_norm": 1.35, "k_norm": 1.35, "embed_tokens": 1.0, "norm": 3.0},
        norm_shift=1.0,
        effects=(
            Effect(
                note="""

Without the scaling of RoPE in layer 5, every row of logits from the third on would differ by {effect:.2f} or more in
some logit,""",
                wrong=drop_global_scaling,
                first_row=2,
            ),
            Effect(
                note=" with the scaling in the other layers too every row but the first by {effect:.2f},",
                wrong=scale_local_layers,
            ),
            Effect(
                note=" without\nthe window every row from the sixth on by {effect:.2f}.",
                wrong=drop_window,
                first_row=5,
            ),
        ),
        save=save_as_hub_gemma3,
        weights=GEMMA_WEIGHTS,
        files={
            "hf/": "the original: Hugging Face directory as the hub has it, float32, without a tokenizer",
            "{name}-f32.gguf": "the text model's weights, norms as what they multiply by: Gemma's 1 is added",
        },
    ),
}
