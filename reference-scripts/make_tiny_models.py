#!/usr/bin/env python3
"""Makes the small untrained models of architectures other than Llama-2's, as every file xcheck reads.

Weights are random but not neutral: norm weights are 1 + 0.3 * noise, attention scores have an RMS near 2, so that the
mask and RoPE decide where attention looks, and the best token of each pass leads the next by a clear margin. A model
that misses one of these is not written. The same versions on the same machine give the same bytes.
"""

import argparse
import platform
import sys
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

import export_gguf
from dump_transformers import FAMILIES, instrument, run_passes
from make_tiny_llama2 import DEFAULT_OUT as TINY_LLAMA2
from make_tiny_llama2 import PACKAGES, sha256

CHECKPOINTS = TINY_LLAMA2.parent
TOKENIZER = TINY_LLAMA2 / "hf" / "tokenizer.model"  # for the GGUF files: llama.cpp loads none without a vocabulary

# What make_dumps.sh runs: the margins are checked there.
PROMPT = (1, 393, 395, 260, 394, 486, 263, 305, 315, 17, 200, 77)
DECODE = 3
LEAST_MARGIN = 0.5
SCORES_RMS = (1.5, 2.5)
LEAST_SCALING_EFFECT = 0.5

NORM_NOISE = 0.3
SHARED = {
    "vocab_size": 512,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


@dataclass(frozen=True)
class TinyModel:
    """One row of the table of models."""

    summary: str
    build: type[PreTrainedModel]
    config: PreTrainedConfig
    seed: int
    gains: dict[str, float]  # by the module that a weight is of; the others have 1 (see `new_weight`)
    shard_size: str = "1GB"


MODELS = {
    "tiny-qwen3": TinyModel(
        summary="""\
Qwen3's architecture at 0.2 M parameters: 3 layers, hidden size 64, 4 heads of 32 (so q is wider than the hidden state)
that share 2 key-value heads, q and k normalised per head, feed-forward size 160, vocabulary 512, context 512, RoPE base
1000000, RMSNorm epsilon 1e-6, the embedding matrix used as output matrix too.""",
        build=Qwen3ForCausalLM,
        config=Qwen3Config(
            **SHARED,
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
            **SHARED,
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
        shard_size="750KB",
    ),
}

# ---------------------------------------------------------------------------------------------------
# The weights.


def new_weight(parameter: Tensor, gain: float) -> Tensor:
    """A norm's weight around `gain`, or a matrix of which a unit-RMS input makes outputs of RMS `gain`."""
    noise = torch.randn(parameter.shape)
    if parameter.ndim == 1:
        return gain * (1 + NORM_NOISE * noise)
    return gain * noise / parameter.shape[1] ** 0.5


def new_model(tiny: TinyModel, rope_type: str | None = None) -> PreTrainedModel:
    """The model with its weights; `rope_type` replaces the configured one."""
    config = deepcopy(tiny.config)
    if rope_type is not None:
        config.rope_parameters = {"rope_type": rope_type, "rope_theta": config.rope_parameters["rope_theta"]}
    model = tiny.build(config).eval()
    torch.manual_seed(tiny.seed)
    for name, parameter in sorted(model.named_parameters()):
        module = name.removesuffix(".weight").rpartition(".")[2]
        parameter.copy_(new_weight(parameter, tiny.gains.get(module, 1.0)))
    return model


# ---------------------------------------------------------------------------------------------------
# What they must be.


@dataclass(frozen=True)
class Measures:
    """What a model does in the run that its dumps record."""

    generated: list[int]
    margin: float  # between the two largest logits, the least of all passes
    scores_rms: float
    scaling_effect: float | None  # of RoPE: the most it changes of a row of logits, the least of all rows but the first


def scaling_effect(tiny: TinyModel, tokens: list[int]) -> float | None:
    """How much the model would be another one without its RoPE scaling; None if it has none."""
    if tiny.config.rope_parameters["rope_type"] == "default":
        return None
    scaled, plain = (next(run_passes(new_model(tiny, rope), tokens, 0)).logits for rope in (None, "default"))
    return (scaled - plain).abs().amax(dim=-1)[1:].min().item()


def measure(tiny: TinyModel) -> Measures:
    """Runs the model as its dumps do."""
    model = new_model(tiny)
    recorder = instrument(model, FAMILIES[model.config.model_type])
    generated, margins, scores = [], [], []
    for current in run_passes(model, list(PROMPT), DECODE):
        best, second = current.logits[-1].topk(2).values.tolist()
        generated.append(current.greedy)
        margins.append(best - second)
        scores += [value.flatten() for (tap, _), value in recorder.take().items() if tap == "attn_scores"]
    return Measures(
        generated=generated,
        margin=min(margins),
        scores_rms=torch.cat(scores).square().mean().sqrt().item(),
        scaling_effect=scaling_effect(tiny, [*PROMPT, *generated[:-1]]),
    )


def check(name: str, measures: Measures) -> None:
    """A model whose errors would not show is not written."""
    if measures.margin < LEAST_MARGIN:
        sys.exit(f"error: {name}: the best token leads by {measures.margin:.3f} only; nothing written")
    if not SCORES_RMS[0] <= measures.scores_rms <= SCORES_RMS[1]:
        sys.exit(f"error: {name}: the scores have an RMS of {measures.scores_rms:.2f}; nothing written")
    if measures.scaling_effect is not None and measures.scaling_effect < LEAST_SCALING_EFFECT:
        sys.exit(f"error: {name}: RoPE scaling changes a row by {measures.scaling_effect:.3f} only; nothing written")


# ---------------------------------------------------------------------------------------------------
# What is written.

CARD = """\
# {name}

{summary}

Random weights, not trained: norm weights are 1 + 0.3 x noise (times 1.35 for those of q and k, if there are any),
matrices noise. Made by `reference-scripts/make_tiny_models.py --model {name}` (which writes this file too),
seed {seed}. On one machine the same versions give the same bytes again. No text and no weights of others are in it; the
vocabulary of the GGUF files is tiny-llama2's: to this model the ids mean nothing.

Versions: Python {python}, {versions}.

The dumps are of the tokens {prompt} and {decode} greedy passes more. transformers
generates {generated} in float32. In that run the best token of each pass leads the next by {margin:.2f} or more,
and the attention scores have an RMS of {scores_rms:.2f}.{scaling}

| file | what it is |
|---|---|
| `hf/` | the original: Hugging Face directory, float32, without a tokenizer |
| `{name}-f32.gguf` | the same weights{reordered} |
| `{name}-f16.gguf` | matrices F16, norms F32 |
| `{name}-q8_0.gguf` | matrices Q8_0 (embedding and output too), norms F32 |
| `dumps/` | reference dumps of these files, by `reference-scripts/make_dumps.sh` |

sha256:

    {sums}
"""
SCALING_NOTE = """ Without the scaling of RoPE, every row of logits but the first
would differ by {effect:.2f} or more in some logit. In the GGUF files the scaling is the tensor `rope_freqs.weight`, as
llama.cpp's own converter writes it."""


def write_card(name: str, tiny: TinyModel, measures: Measures, out: Path) -> None:
    """README.md beside the files: how they were made, and their hashes."""
    files = sorted([*(out / "hf").iterdir(), *out.glob("*.gguf")])
    effect = measures.scaling_effect
    card = CARD.format(
        name=name, summary=tiny.summary, seed=tiny.seed, decode=DECODE, generated=measures.generated,
        prompt=",".join(map(str, PROMPT)), margin=measures.margin, scores_rms=measures.scores_rms,
        python=platform.python_version(),
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
        scaling="" if effect is None else SCALING_NOTE.format(effect=effect),
        reordered=", q and k rows reordered for llama.cpp's RoPE pairs" if tiny.build is LlamaForCausalLM else "",
        sums="\n    ".join(f"{sha256(path)}  {path.relative_to(out)}" for path in files),
    )  # fmt: skip
    (out / "README.md").write_text(card)


def make(name: str, out: Path) -> None:
    """Writes one model's directory."""
    tiny = MODELS[name]
    measures = measure(tiny)
    check(name, measures)
    hf = out / "hf"
    hf.mkdir(parents=True, exist_ok=True)
    new_model(tiny).save_pretrained(hf, max_shard_size=tiny.shard_size)
    for type_name in export_gguf.MATRIX_TYPES:
        export_gguf.export(hf, type_name, out / f"{name}-{type_name}.gguf", name, TOKENIZER)
    write_card(name, tiny, measures, out)
    print(f"{out}: {measures}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all", help="which one (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=CHECKPOINTS, help="where its directory goes (default: %(default)s)")
    return parser.parse_args()


@torch.no_grad()
def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in MODELS if arguments.model == "all" else [arguments.model]:
        make(name, arguments.out / name)


if __name__ == "__main__":
    main()
