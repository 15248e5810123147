"""The table of the small untrained models: what each one is, its weights, and which mistakes it must show."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

NORM_NOISE = 0.3
SHARED = {
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
THREE_LAYERS = {**SHARED, "num_hidden_layers": 3, "num_key_value_heads": 2}

WEIGHTS = """\
norm weights are 1 + 0.3 x noise (times 1.35 for those of q and k, if there are any),
matrices noise. """
GEMMA_WEIGHTS = """\
what norms multiply by is 1 + 0.3 x noise (times 1.35 for those of q and k, 3 for the
last one), which the Hugging Face directory stores less 1, as Gemma does; matrices are noise.
"""


@dataclass(frozen=True)
class Effect:
    """A mistake that an engine may make, and from which row of logits on it must show."""

    note: str  # for the model's card; {effect} is the most it changes of a row, the least of all rows
    mistake: Callable[[PreTrainedConfig], None]  # makes it in a configuration
    first_row: int = 1
    least: float = 0.5


@dataclass(frozen=True)
class TinyModel:
    """One row of the table of models."""

    summary: str
    build: type[PreTrainedModel]
    config: PreTrainedConfig
    seed: int
    gains: dict[str, float]  # by the module that a weight is of; the others have 1 (see `new_weight`)
    norm_shift: float = 0.0  # what the architecture adds to a norm's stored weight
    weights: str = WEIGHTS  # for the card, as the next one
    gguf_differs: str = ""  # how the F32 GGUF file's weights are not simply the original's
    effects: tuple[Effect, ...] = ()
    shard_size: str = "1GB"


# ---------------------------------------------------------------------------------------------------
# The mistakes.


def drop_rope_scaling(config: PreTrainedConfig) -> None:
    """RoPE without its scaling."""
    config.rope_parameters = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]}


def drop_window(config: PreTrainedConfig) -> None:
    """Local layers that see every position."""
    config.sliding_window = config.max_position_embeddings


def widen_window(config: PreTrainedConfig) -> None:
    """A window that is one position too wide."""
    config.sliding_window += 1


def swap_rope_bases(config: PreTrainedConfig) -> None:
    """Local layers with the global layers' RoPE, and the other way round."""
    rope = config.rope_parameters
    config.rope_parameters = {
        "full_attention": rope["sliding_attention"],
        "sliding_attention": rope["full_attention"],
    }


# ---------------------------------------------------------------------------------------------------
# The models.

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
        gguf_differs=", q and k rows reordered for llama.cpp's RoPE pairs",
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 3.0, "lm_head": 4.0},
        effects=(
            Effect(
                note=""" Without the scaling of RoPE, every row of logits but the first
would differ by {effect:.2f} or more in some logit. In the GGUF files the scaling is the tensor `rope_freqs.weight`, as
llama.cpp's own converter writes it.""",
                mistake=drop_rope_scaling,
            ),
        ),
        shard_size="750KB",
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
        gguf_differs=", norms as what they multiply by: Gemma's 1 is added",
        effects=(
            Effect(
                note="""

Without the window, every row of logits from the sixth on would differ by {effect:.2f} or more in some logit,""",
                mistake=drop_window,
                first_row=5,
            ),
            Effect(
                note=" with a window of 6\nby {effect:.2f},",
                mistake=widen_window,
                first_row=5,
            ),
            Effect(
                note=" and with the two RoPE bases swapped every row from the fifth on by {effect:.2f}.",
                mistake=swap_rope_bases,
                first_row=4,
            ),
        ),
    ),
}

# ---------------------------------------------------------------------------------------------------
# The weights.


def new_weight(parameter: Tensor, gain: float, norm_shift: float) -> Tensor:
    """A norm's weight around `gain`, or a matrix of which a unit-RMS input makes outputs of RMS `gain`."""
    noise = torch.randn(parameter.shape)
    if parameter.ndim == 1:
        return gain * (1 + NORM_NOISE * noise) - norm_shift
    return gain * noise / parameter.shape[1] ** 0.5


def new_model(tiny: TinyModel, mistake: Callable[[PreTrainedConfig], None] = lambda config: None) -> PreTrainedModel:
    """The model with its weights, and with a mistake in its configuration if one is given."""
    config = deepcopy(tiny.config)
    mistake(config)
    model = tiny.build(config).eval()
    torch.manual_seed(tiny.seed)
    for name, parameter in sorted(model.named_parameters()):
        module = name.removesuffix(".weight").rpartition(".")[2]
        parameter.copy_(new_weight(parameter, tiny.gains.get(module, 1.0), tiny.norm_shift))
    return model
