"""What a small untrained model is: its configuration, its weights, and which mistakes it must show."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

NORM_NOISE = 0.3
BIAS_NOISE = 0.3
PROMPT = (1, 393, 395, 260, 394, 486, 263, 305, 315, 17, 200, 77)

# For the cards, where a model does not say otherwise.
WEIGHTS = """\
norm weights are 1 + 0.3 x noise (times 1.35 for those of q and k, if there are any),
matrices noise. """
VOCABULARY = """\
No text and no weights of others are in it; the
vocabulary of the GGUF files is tiny-llama2's: to this model the ids mean nothing."""
FILES = {
    "hf/": "the original: Hugging Face directory, float32, without a tokenizer",
    "{name}-f32.gguf": "the same weights",
    "{name}-f16.gguf": "matrices F16, norms F32",
    "{name}-q8_0.gguf": "matrices Q8_0 (embedding and output too), norms F32",
    "dumps/": "reference dumps of these files, by `reference-scripts/make/make_dumps.sh`",
}


def save_hf(model: PreTrainedModel, out: Path, shard_size: str = "1GB") -> None:
    """Writes `out`/hf, without a tokenizer."""
    model.save_pretrained(out / "hf", max_shard_size=shard_size)


def save_as_in_memory(model: PreTrainedModel, out: Path) -> None:
    """Writes `out`/hf with the experts of a layer in two tensors, as transformers 5 has them in memory and Qwen's files have
    them."""
    model.save_pretrained(out / "hf", save_original_format=False)


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
    types: tuple[str, ...] = ("f32", "f16", "q8_0")  # of the GGUF files
    norm_shift: float = 0.0  # what the architecture adds to a norm's stored weight
    prompt: tuple[int, ...] | str = PROMPT  # text if the model has a vocabulary of its own
    effects: tuple[Effect, ...] = ()
    save: Callable[[PreTrainedModel, Path], None] = save_hf
    # For the card.
    weights: str = WEIGHTS
    vocabulary: str = VOCABULARY
    files: dict[str, str] = field(default_factory=dict)  # where they are not FILES


def new_weight(name: str, parameter: Tensor, tiny: TinyModel) -> Tensor:
    """A norm's weight around its gain, or a matrix of which a unit-RMS input makes outputs of RMS gain, or a bias."""
    module, kind = name.split(".")[-2:]
    gain, noise = tiny.gains.get(module, 1.0), torch.randn(parameter.shape)
    if kind in ("e_score_correction_bias", "expert_bias"):  # in steps that bf16 holds
        return (128 * tiny.gains.get(kind, BIAS_NOISE) * noise).round() / 128
    if kind == "layer_scalar":  # in steps that bf16 holds
        return 1 + (128 * BIAS_NOISE * noise).round() / 128
    if kind in ("bias", "gate_up_proj_bias", "down_proj_bias"):
        return BIAS_NOISE * noise
    if kind in ("A_log", "dt_bias"):  # matrices that keep three quarters from token to token
        return BIAS_NOISE * noise - float(kind == "dt_bias")
    if parameter.ndim == 1:
        return gain * (1 + NORM_NOISE * noise) - (0 if name.endswith("linear_attn.norm.weight") else tiny.norm_shift)
    if parameter.ndim == 3:  # of each expert; gpt-oss and Llama 4 have inputs in rows
        return gain * noise / parameter.shape[1 if tiny.config.model_type in ("gpt_oss", "llama4_text") else 2] ** 0.5
    inputs = parameter.shape[0] if module.startswith("c_") else parameter.shape[1:].numel()  # c_: GPT-2's Conv1D
    return gain * noise / inputs**0.5 + tiny.offsets.get(module, 0)


def new_model(tiny: TinyModel, config: PreTrainedConfig | None = None) -> PreTrainedModel:
    """The model with its weights; `config` replaces its own configuration."""
    model = tiny.build(deepcopy(config or tiny.config)).eval()
    torch.manual_seed(tiny.seed)
    biases = [buffer for buffer in model.named_buffers() if buffer[0].endswith(("e_score_correction_bias", "expert_bias", "layer_scalar"))]
    for name, parameter in [*sorted(model.named_parameters()), *sorted(biases)]:
        parameter.copy_(new_weight(name, parameter, tiny))
    return model
