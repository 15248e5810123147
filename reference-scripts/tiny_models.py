"""The table of the small untrained models: what each one is, its weights, and which mistakes it must show."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import tiny_bpe

NORM_NOISE = 0.3
BIAS_NOISE = 0.3
PROMPT = (1, 393, 395, 260, 394, 486, 263, 305, 315, 17, 200, 77)
SHARED = {
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
THREE_LAYERS = {**SHARED, "num_hidden_layers": 3, "num_key_value_heads": 2}

HUB_GPT2_KEYS = (
    "activation_function", "attn_pdrop", "bos_token_id", "embd_pdrop", "eos_token_id", "initializer_range",
    "layer_norm_epsilon", "n_embd", "n_head", "n_layer", "n_positions", "resid_pdrop", "vocab_size",
)  # fmt: skip

# For the cards.
WEIGHTS = """\
norm weights are 1 + 0.3 x noise (times 1.35 for those of q and k, if there are any),
matrices noise. """
GEMMA_WEIGHTS = """\
what norms multiply by is 1 + 0.3 x noise (times 1.35 for those of q and k, 3 for the
last one), which the Hugging Face directory stores less 1, as Gemma does; matrices are noise.
"""
GPT2_WEIGHTS = """\
norm weights are 1 + 0.3 x noise, biases 0.3 x noise,
matrices noise; the position embeddings have a mean of 1, which LayerNorm subtracts.
"""
VOCABULARY = """\
No text and no weights of others are in it; the
vocabulary of the GGUF files is tiny-llama2's: to this model the ids mean nothing."""
BPE_VOCABULARY = """\
No text and no weights of others are in it; the
vocabulary is a byte-level BPE of tiny-llama2's stories, with `<|endoftext|>` as last id: to this model the ids mean
nothing."""
FILES = {
    "hf/": "the original: Hugging Face directory, float32, without a tokenizer",
    "{name}-f32.gguf": "the same weights",
    "{name}-f16.gguf": "matrices F16, norms F32",
    "{name}-q8_0.gguf": "matrices Q8_0 (embedding and output too), norms F32",
    "dumps/": "reference dumps of these files, by `reference-scripts/make_dumps.sh`",
}


def save_hf(model: PreTrainedModel, out: Path, shard_size: str = "1GB") -> None:
    """Writes `out`/hf, without a tokenizer."""
    model.save_pretrained(out / "hf", max_shard_size=shard_size)


@dataclass(frozen=True)
class Effect:
    """A mistake that an engine may make, and from which row of logits on it must show."""

    note: str  # for the model's card; {effect} is the most it changes of a row, the least of all rows
    wrong: Callable[["TinyModel"], PreTrainedModel]  # the model with the mistake
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
    offsets: dict[str, float] = field(default_factory=dict)  # by module: added to every element of its weight
    norm_shift: float = 0.0  # what the architecture adds to a norm's stored weight
    prompt: tuple[int, ...] | str = PROMPT  # text if the model has a vocabulary of its own
    effects: tuple[Effect, ...] = ()
    save: Callable[[PreTrainedModel, Path], None] = save_hf
    # For the card.
    weights: str = WEIGHTS
    vocabulary: str = VOCABULARY
    files: dict[str, str] = field(default_factory=dict)  # where they are not FILES


# ---------------------------------------------------------------------------------------------------
# The weights.


def new_weight(name: str, parameter: Tensor, tiny: TinyModel) -> Tensor:
    """A norm's weight around its gain, or a matrix of which a unit-RMS input makes outputs of RMS gain, or a bias."""
    module, kind = name.split(".")[-2:]
    gain, noise = tiny.gains.get(module, 1.0), torch.randn(parameter.shape)
    if kind == "bias":
        return BIAS_NOISE * noise
    if parameter.ndim == 1:
        return gain * (1 + NORM_NOISE * noise) - tiny.norm_shift
    inputs = parameter.shape[0] if module.startswith("c_") else parameter.shape[1:].numel()  # c_: GPT-2's Conv1D
    return gain * noise / inputs**0.5 + tiny.offsets.get(module, 0)


def new_model(tiny: TinyModel, config: PreTrainedConfig | None = None) -> PreTrainedModel:
    """The model with its weights; `config` replaces its own configuration."""
    model = tiny.build(deepcopy(config or tiny.config)).eval()
    torch.manual_seed(tiny.seed)
    for name, parameter in sorted(model.named_parameters()):
        parameter.copy_(new_weight(name, parameter, tiny))
    return model


# ---------------------------------------------------------------------------------------------------
# The mistakes.


def configured(change: Callable[[PreTrainedConfig], None]) -> Callable[[TinyModel], PreTrainedModel]:
    """The model with its text configuration changed."""

    def build(tiny: TinyModel) -> PreTrainedModel:
        config = deepcopy(tiny.config)
        change(config.get_text_config())
        return new_model(tiny, config)

    return build


def normalised(norm: Callable[[nn.LayerNorm, Tensor], Tensor]) -> Callable[[TinyModel], PreTrainedModel]:
    """The model with `norm` in place of every LayerNorm."""

    def build(tiny: TinyModel) -> PreTrainedModel:
        model = new_model(tiny)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.forward = partial(norm, module)
        return model

    return build


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


def use_exact_gelu(config: PreTrainedConfig) -> None:
    """GELU by the error function instead of by tanh."""
    config.activation_function = "gelu"


def norm_keeping_mean(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """RMSNorm where LayerNorm belongs."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias


def norm_of_sample_variance(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """LayerNorm that divides the squares' sum by n - 1."""
    variance, mean = torch.var_mean(x, dim=-1, correction=1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias


def save_gpt2(model: PreTrainedModel, out: Path) -> None:
    """hf/ as transformers 5 writes it, and pt/ as the hub has GPT-2: see the card."""
    save_hf(model, out)
    save_as_hub_gpt2(model, out / "pt")
    for directory in ("hf", "pt"):
        tiny_bpe.write(out / directory)


def save_as_hub_gpt2(model: PreTrainedModel, out: Path) -> None:
    """config.json with 4.x's keys; names without `transformer.`, no lm_head, and each layer's causal mask in float32."""
    out.mkdir(exist_ok=True)
    config, size = model.config, model.config.n_positions
    state = {name: tensor.clone() for name, tensor in model.transformer.state_dict().items()}
    mask = torch.ones(size, size).tril().view(1, 1, size, size)
    masks = {f"h.{layer}.attn.bias": mask.clone() for layer in range(config.n_layer)}
    torch.save(state | masks, out / "pytorch_model.bin")
    values = {key: getattr(config, key) for key in HUB_GPT2_KEYS}
    values |= {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": size}
    (out / "config.json").write_text(json.dumps(dict(sorted(values.items())), indent=2) + "\n")


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
        gains={"q_proj": 1.35, "k_proj": 1.35, "embed_tokens": 3.0, "lm_head": 4.0},
        effects=(
            Effect(
                note=""" Without the scaling of RoPE, every row of logits but the first
would differ by {effect:.2f} or more in some logit. In the GGUF files the scaling is the tensor `rope_freqs.weight`, as
llama.cpp's own converter writes it.""",
                wrong=configured(drop_rope_scaling),
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
                wrong=configured(drop_window),
                first_row=5,
            ),
            Effect(
                note=" with a window of 6\nby {effect:.2f},",
                wrong=configured(widen_window),
                first_row=5,
            ),
            Effect(
                note=" and with the two RoPE bases swapped every row from the fifth on by {effect:.2f}.",
                wrong=configured(swap_rope_bases),
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
                wrong=normalised(norm_keeping_mean),
                first_row=0,
            ),
            Effect(
                note=" with a variance over n - 1 by {effect:.3f},",
                wrong=normalised(norm_of_sample_variance),
                first_row=0,
                least=0.02,
            ),
            Effect(
                note=" with GELU by the error function by {effect:.4f}.",
                wrong=configured(use_exact_gelu),
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
}
