#!/usr/bin/env python3
"""Dumps every intermediate value of a transformers model's greedy run, in xcheck's dump format.

The model runs twice: plainly, and with hooks and a recording attention function. Nothing is written unless both
runs agree bit for bit in every logit, and model.generate agrees with them on every token. With --compile it runs once:
which kernels there are depends on what is recorded, so that no other run has the same bits.
"""

import argparse
import hashlib
import inspect
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch's deterministic mode demands it on a GPU

import torch
import transformers
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from tqdm import tqdm
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.activations import ACT2FN
from transformers.masking_utils import eager_mask, flex_attention_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from dump_writer import Record, prepare, write_dump

RECORDING = "xcheck_recording"
MASKS = {"eager": eager_mask, "sdpa": sdpa_mask, "flex_attention": flex_attention_mask}  # by the attention that is recorded: what builds its mask
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# What --rows cuts, and along which axis: what has a value for each query and key, or for each token of the vocabulary. All else
# stays whole, since a stage starts from whole arrays.
CUT = {"attn_scores": 1, "attn_weights": 1, "logits": 0}
WEIGHT_FILES = ("model.safetensors", "model-*.safetensors", "pytorch_model.bin", "pytorch_model-*.bin")

# ---------------------------------------------------------------------------------------------------
# Where each family keeps what the taps name. T = tokens of the pass, S = tokens so far, D = head size.


@dataclass(frozen=True)
class Port:
    """One side of a module of a decoder layer, where a tap's value passes by."""

    module: str
    is_input: bool = False
    third: int | None = None  # a fused q-k-v projection: which third of the last axis
    of_each_head: int | None = None  # a fused projection: which part of each head
    parts: int = 3  # parts of each head
    of_each_group: slice | None = None  # a fused projection: which heads of each group of heads
    part: Callable[[PreTrainedConfig], slice] | None = None  # another fused projection: which part of the last axis
    heads_first: bool = False  # batch, heads, T, D instead of batch, T, heads, D
    flat: bool = False  # batch and T are one axis
    first: bool = False  # the first of several outputs
    then: Callable[[Tensor], Tensor] | None = None  # what the model does with it

    def read(self, value: Tensor, config: PreTrainedConfig) -> Tensor:
        """What is the tap's of it, batch x T x ..."""
        if self.first:
            value = value[0]
        if self.flat:
            value = value[None]
        if self.then is not None:
            value = self.then(value)
        if self.part is not None:
            value = value[..., self.part(config)]
        if self.of_each_head is not None:
            heads = value.unflatten(-1, (config.num_attention_heads, self.parts, -1))
            value = heads[..., self.of_each_head, :].flatten(-2)
        if self.of_each_group is not None:
            head_dim = config.hidden_size // config.num_attention_heads
            groups = value.unflatten(-1, (kv_heads(config), -1, head_dim))
            value = groups[..., self.of_each_group, :].flatten(-3)
        if self.third is not None:
            value = value.chunk(3, dim=-1)[self.third]
        return value.transpose(1, 2) if self.heads_first else value


def kv_heads(config: PreTrainedConfig) -> int:
    """Key-value heads. Falcon has one, unless the model is of the new decoder architecture or has no multi-query attention."""
    if hasattr(config, "num_key_value_heads"):
        return config.num_key_value_heads
    return 1 if config.multi_query and not config.new_decoder_architecture else config.num_kv_heads


def input_of(module: str) -> Port:
    """What enters the module."""
    return Port(module, is_input=True)


def output_of(module: str, third: int | None = None, heads_first: bool = False) -> Port:
    """What leaves the module."""
    return Port(module, third=third, heads_first=heads_first)


@dataclass(frozen=True)
class Family:
    """The modules of one model family; `taps` are relative to a decoder layer."""

    layers: str
    final_norm: str
    taps: dict[str, Port]
    rope: str | None = "half"  # which values of a head RoPE turns together
    has_dense_layers: bool = False  # some layers have other modules: those without experts
    recurrent: dict[str, Port] | None = None  # taps of the layers without attention


LLAMA = Family(
    layers="model.layers",
    final_norm="model.norm",
    taps={
        "attn_norm": output_of("input_layernorm"),
        "q": output_of("self_attn.q_proj"),
        "k": output_of("self_attn.k_proj"),
        "v": output_of("self_attn.v_proj"),
        "attn_out": output_of("self_attn.o_proj"),
        "attn_residual": input_of("post_attention_layernorm"),
        "ffn_norm": output_of("post_attention_layernorm"),
        "ffn_gate": output_of("mlp.gate_proj"),
        "ffn_up": output_of("mlp.up_proj"),
        "ffn_act": input_of("mlp.down_proj"),
        "ffn_out": output_of("mlp.down_proj"),
    },
)
QK_NORMS = {"q_norm": output_of("self_attn.q_norm"), "k_norm": output_of("self_attn.k_norm")}
QWEN3 = replace(
    LLAMA,
    taps=LLAMA.taps | QK_NORMS,
)
GEMMA3 = replace(
    LLAMA,
    taps=LLAMA.taps
    | {
        "q_norm": output_of("self_attn.q_norm", heads_first=True),
        "k_norm": output_of("self_attn.k_norm", heads_first=True),
        "attn_post_norm": output_of("post_attention_layernorm"),
        "attn_residual": input_of("pre_feedforward_layernorm"),
        "ffn_norm": output_of("pre_feedforward_layernorm"),
        "ffn_post_norm": output_of("post_feedforward_layernorm"),
    },
)
OLMO2 = replace(
    LLAMA,
    taps={tap: port for tap, port in LLAMA.taps.items() if tap not in ("attn_norm", "ffn_norm")}
    | {
        "q_norm": output_of("self_attn.q_norm"),
        "k_norm": output_of("self_attn.k_norm"),
        "attn_post_norm": output_of("post_attention_layernorm"),
        "attn_residual": input_of("mlp"),
        "ffn_post_norm": output_of("post_feedforward_layernorm"),
    },
)
GEMMA2 = replace(
    GEMMA3, taps={tap: port for tap, port in GEMMA3.taps.items() if tap not in ("q_norm", "k_norm")}
)


def part_of_qkv(first: int, count: int) -> Callable[[PreTrainedConfig], slice]:
    """Of queries, keys and values side by side, `count` from the `first` on."""

    def part(config: PreTrainedConfig) -> slice:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
        return slice(sum(heads[:first]) * head_dim, sum(heads[: first + count]) * head_dim)

    return part


GATE_AND_UP = {
    "ffn_gate": Port("mlp.gate_up_proj", part=lambda config: slice(config.intermediate_size)),
    "ffn_up": Port("mlp.gate_up_proj", part=lambda config: slice(config.intermediate_size, None)),
}
PHI3 = replace(
    LLAMA,
    taps=LLAMA.taps
    | {
        "q": Port("self_attn.qkv_proj", part=part_of_qkv(0, 1)),
        "k": Port("self_attn.qkv_proj", part=part_of_qkv(1, 1)),
        "v": Port("self_attn.qkv_proj", part=part_of_qkv(2, 1)),
    }
    | GATE_AND_UP,
)
BITNET = replace(
    LLAMA,
    taps=LLAMA.taps
    | {
        "attn_sub_norm": output_of("self_attn.attn_sub_norm"),
        "ffn_act": input_of("mlp.ffn_sub_norm"),
        "ffn_sub_norm": output_of("mlp.ffn_sub_norm"),
    },
)
GPT2 = Family(
    layers="transformer.h",
    final_norm="transformer.ln_f",
    taps={
        "attn_norm": output_of("ln_1"),
        "q": output_of("attn.c_attn", third=0),
        "k": output_of("attn.c_attn", third=1),
        "v": output_of("attn.c_attn", third=2),
        "attn_out": output_of("attn.c_proj"),
        "attn_residual": input_of("ln_2"),
        "ffn_norm": output_of("ln_2"),
        "ffn_up": output_of("mlp.c_fc"),
        "ffn_act": input_of("mlp.c_proj"),
        "ffn_out": output_of("mlp.c_proj"),
    },
    rope=None,
)

# Of a mixture of experts `record_experts` keeps what its modules do not show.
MOE = {tap: port for tap, port in LLAMA.taps.items() if tap not in ("ffn_gate", "ffn_up", "ffn_act", "ffn_out")} | {
    "ffn_out": output_of("mlp"),
}
MIXTRAL = replace(LLAMA, taps=MOE)
QWEN3_MOE = replace(
    LLAMA, taps=MOE | QK_NORMS
)

# A shared expert reads the rows of all sequences as one axis. Its weight is the sigmoid of its gate's only output.
QWEN2_MOE = replace(
    LLAMA,
    taps=MOE
    | {
        "routed_out": Port("mlp.experts", flat=True),
        "shared_gate": Port("mlp.shared_expert.gate_proj", flat=True),
        "shared_up": Port("mlp.shared_expert.up_proj", flat=True),
        "shared_act": Port("mlp.shared_expert.down_proj", is_input=True, flat=True),
        "shared_out": Port("mlp.shared_expert.down_proj", flat=True),
        "shared_logit": Port("mlp.shared_expert_gate", flat=True, then=lambda logit: logit[..., 0]),
        "shared_weight": Port("mlp.shared_expert_gate", flat=True, then=lambda logit: torch.sigmoid(logit)[..., 0]),
    },
)

# The output gate of attention is the second half of each query head. LinearAttention records the values that hooks
# cannot see.
QWEN3_NEXT = replace(
    QWEN2_MOE,
    taps=QWEN2_MOE.taps
    | QK_NORMS
    | {
        "q": Port("self_attn.q_proj", of_each_head=0, parts=2),
        "attn_gate": Port("self_attn.q_proj", of_each_head=1, parts=2),
        "attn_gated": input_of("self_attn.o_proj"),
    },
    recurrent={"recurrent_norm": input_of("linear_attn.out_proj"), "attn_out": output_of("linear_attn.out_proj")},
)
# Qwen 3.5 has a module for each projection of linear attention.
QWEN35_MOE = replace(
    QWEN3_NEXT,
    recurrent=QWEN3_NEXT.recurrent
    | {
        "conv_in": output_of("linear_attn.in_proj_qkv"),
        "mixer_gate": output_of("linear_attn.in_proj_z"),
        "beta_logit": output_of("linear_attn.in_proj_b"),
        "decay_logit": output_of("linear_attn.in_proj_a"),
    },
)
QWEN35 = replace(
    QWEN35_MOE, taps=LLAMA.taps | {tap: port for tap, port in QWEN3_NEXT.taps.items() if port.module.startswith("self_attn")}
)


def neighbours(family: Family) -> Family:
    """The family with RoPE that turns neighbours together."""
    return replace(family, rope="interleaved")


EXAONE4 = replace(
    OLMO2,
    taps=OLMO2.taps
    | {
        "q_norm": output_of("self_attn.q_norm", heads_first=True),
        "k_norm": output_of("self_attn.k_norm", heads_first=True),
    },
)
GLM4 = replace(
    LLAMA,
    taps=LLAMA.taps
    | GATE_AND_UP
    | {
        "attn_post_norm": output_of("post_self_attn_layernorm"),
        "ffn_post_norm": output_of("post_mlp_layernorm"),
    },
)
UNGATED = replace(LLAMA, taps={tap: port for tap, port in LLAMA.taps.items() if tap != "ffn_gate"})
STARCODER2 = replace(
    UNGATED,
    taps=UNGATED.taps
    | {
        "ffn_up": output_of("mlp.c_fc"),
        "ffn_act": input_of("mlp.c_proj"),
        "ffn_out": output_of("mlp.c_proj"),
    },
)
# Both halves of a block read its input: there is no stream between them.
PARALLEL = replace(
    LLAMA, taps={tap: port for tap, port in LLAMA.taps.items() if tap not in ("attn_residual", "ffn_norm")}
)
GPT_NEOX = Family(
    layers="gpt_neox.layers",
    final_norm="gpt_neox.final_layer_norm",
    taps={
        "attn_norm": output_of("input_layernorm"),
        "q": Port("attention.query_key_value", of_each_head=0),
        "k": Port("attention.query_key_value", of_each_head=1),
        "v": Port("attention.query_key_value", of_each_head=2),
        "attn_out": output_of("attention.dense"),
        "ffn_norm": output_of("post_attention_layernorm"),
        "ffn_up": output_of("mlp.dense_h_to_4h"),
        "ffn_act": input_of("mlp.dense_4h_to_h"),
        "ffn_out": output_of("mlp.dense_4h_to_h"),
    },
)
PHI = replace(
    PARALLEL,
    final_norm="model.final_layernorm",
    taps={tap: port for tap, port in PARALLEL.taps.items() if tap != "ffn_gate"}
    | {
        "attn_out": output_of("self_attn.dense"),
        "ffn_up": output_of("mlp.fc1"),
        "ffn_act": input_of("mlp.fc2"),
        "ffn_out": output_of("mlp.fc2"),
    },
)
# Attention that does not go through AttentionInterface: see Recorder.watch_attention.
FALCON = Family(
    layers="transformer.h",
    final_norm="transformer.ln_f",
    taps={
        "attn_norm": output_of("input_layernorm"),
        "q": Port("self_attention.query_key_value", of_each_group=slice(None, -2)),
        "k": Port("self_attention.query_key_value", of_each_group=slice(-2, -1)),
        "v": Port("self_attention.query_key_value", of_each_group=slice(-1, None)),
        "attn_context": input_of("self_attention.dense"),
        "attn_out": output_of("self_attention.dense"),
        "ffn_up": output_of("mlp.dense_h_to_4h"),
        "ffn_act": input_of("mlp.dense_4h_to_h"),
        "ffn_out": output_of("mlp.dense_4h_to_h"),
    },
)
FALCON_WITH_TWO_NORMS = replace(
    FALCON, taps=FALCON.taps | {"attn_norm": output_of("ln_attn"), "ffn_norm": output_of("ln_mlp")}
)
BETWEEN_HALVES = {
    "attn_residual": input_of("post_attention_layernorm"),
    "ffn_norm": output_of("post_attention_layernorm"),
}
# Scores before ALiBi. One operation computes the scores and adds ALiBi: see InlineAttention.
BLOOM = replace(
    FALCON,
    taps=FALCON.taps
    | BETWEEN_HALVES
    | {tap: Port("self_attention.query_key_value", of_each_head=part) for part, tap in enumerate("qkv")},
    rope=None,
)
GROUPS = {"q": slice(None, -2), "k": slice(-2, -1), "v": slice(-1, None)}
GPT_BIGCODE = replace(
    GPT2, taps=GPT2.taps | {tap: Port("attn.c_attn", of_each_group=heads) for tap, heads in GROUPS.items()}
)
GPTJ = Family(
    layers="transformer.h",
    final_norm="transformer.ln_f",
    taps={
        "attn_norm": output_of("ln_1"),
        "q": output_of("attn.q_proj"),
        "k": output_of("attn.k_proj"),
        "v": output_of("attn.v_proj"),
        "attn_context": input_of("attn.out_proj"),
        "attn_out": output_of("attn.out_proj"),
        "ffn_up": output_of("mlp.fc_in"),
        "ffn_act": input_of("mlp.fc_out"),
        "ffn_out": output_of("mlp.fc_out"),
    },
    rope="interleaved",
)
OPT = replace(
    LLAMA,
    layers="model.decoder.layers",
    final_norm="model.decoder.final_layer_norm",
    taps={tap: port for tap, port in LLAMA.taps.items() if tap != "ffn_gate"}
    | {
        "attn_norm": output_of("self_attn_layer_norm"),
        "attn_out": output_of("self_attn.out_proj"),
        "attn_residual": Port("final_layer_norm", is_input=True, flat=True),
        "ffn_norm": Port("final_layer_norm", flat=True),
        "ffn_up": Port("fc1", flat=True),
        "ffn_act": Port("fc2", is_input=True, flat=True),
        "ffn_out": Port("fc2", flat=True),
    },
    rope=None,
)
# The block's second output is the router's weights.
GPT_OSS = replace(LLAMA, taps=MOE | {"ffn_out": Port("mlp", first=True)})
# Some layers have no experts. A shared expert has no weight.
DENSE = {
    "ffn_gate": output_of("mlp.gate_proj"),
    "ffn_up": output_of("mlp.up_proj"),
    "ffn_act": input_of("mlp.down_proj"),
}
DEEPSEEK_MOE = MOE | DENSE | {
    "routed_out": Port("mlp.experts", flat=True),
    "shared_gate": output_of("mlp.shared_experts.gate_proj"),
    "shared_up": output_of("mlp.shared_experts.up_proj"),
    "shared_act": input_of("mlp.shared_experts.down_proj"),
    "shared_out": output_of("mlp.shared_experts.down_proj"),
}
# Keys and values are compressed; Recorder.keep_latents records what only the attention module shows.
DEEPSEEK_V3 = replace(
    LLAMA,
    taps={tap: port for tap, port in DEEPSEEK_MOE.items() if tap not in ("q", "k", "v")}
    | {
        "q_latent": output_of("self_attn.q_a_proj"),
        "q_latent_norm": output_of("self_attn.q_a_layernorm"),
        "q": output_of("self_attn.q_b_proj"),
        "kv_latent": output_of("self_attn.kv_a_proj_with_mqa"),
        "kv_latent_norm": output_of("self_attn.kv_a_layernorm"),
    },
    rope="interleaved",
    has_dense_layers=True,
)
GLM4_MOE = replace(LLAMA, taps=DEEPSEEK_MOE | QK_NORMS, has_dense_layers=True)
FLAT_SHARED = {tap: replace(port, flat=True) for tap, port in DEEPSEEK_MOE.items() if tap.startswith("shared_")}
ERNIE45_MOE = replace(LLAMA, taps=DEEPSEEK_MOE | FLAT_SHARED, has_dense_layers=True)
# Gated short convolutions instead of attention. Recorder.watch_convolution records the values that hooks cannot see.
LFM2 = replace(
    LLAMA,
    final_norm="model.embedding_norm",
    taps={
        "attn_norm": output_of("operator_norm"),
        "q": output_of("self_attn.q_proj"),
        "k": output_of("self_attn.k_proj"),
        "v": output_of("self_attn.v_proj"),
        "q_norm": output_of("self_attn.q_layernorm"),
        "k_norm": output_of("self_attn.k_layernorm"),
        "attn_out": output_of("self_attn.out_proj"),
        "attn_residual": input_of("ffn_norm"),
        "ffn_norm": output_of("ffn_norm"),
        "ffn_gate": output_of("feed_forward.w1"),
        "ffn_up": output_of("feed_forward.w3"),
        "ffn_act": input_of("feed_forward.w2"),
        "ffn_out": output_of("feed_forward.w2"),
    },
    recurrent={
        "mixer_in": output_of("conv.in_proj"),
        "conv_gated": input_of("conv.out_proj"),
        "attn_out": output_of("conv.out_proj"),
    },
)
# Some layers have no experts.
LFM2_MOE = replace(LFM2, taps=LFM2.taps | {"ffn_out": output_of("feed_forward")}, has_dense_layers=True)
# A mixture of experts beside a feed-forward block that every token uses.
GRANITE_HYBRID_MOE = {
    "routed_out": output_of("block_sparse_moe"),
    "shared_gate": Port("shared_mlp.input_linear", part=lambda config: slice(config.shared_intermediate_size)),
    "shared_up": Port("shared_mlp.input_linear", part=lambda config: slice(config.shared_intermediate_size, None)),
    "shared_act": input_of("shared_mlp.output_linear"),
    "shared_out": output_of("shared_mlp.output_linear"),
}
# Mamba-2 instead of attention. Recorder.watch_state_space records the values that hooks cannot see.
GRANITE_HYBRID = replace(
    LLAMA,
    taps=LLAMA.taps
    | {
        "ffn_gate": Port("shared_mlp.input_linear", part=lambda config: slice(config.shared_intermediate_size)),
        "ffn_up": Port("shared_mlp.input_linear", part=lambda config: slice(config.shared_intermediate_size, None)),
        "ffn_act": input_of("shared_mlp.output_linear"),
        "ffn_out": output_of("shared_mlp.output_linear"),
    },
    recurrent={
        "mixer_in": output_of("mamba.in_proj"),
        "recurrent_norm": input_of("mamba.out_proj"),
        "attn_out": output_of("mamba.out_proj"),
    },
)
GRANITE_MOE = replace(LLAMA, taps=MOE | {"ffn_out": output_of("block_sparse_moe")})
# Mamba-2 and attention in parallel.
FALCON_H1 = replace(
    LLAMA,
    final_norm="model.final_layernorm",
    taps={
        **{tap: port for tap, port in LLAMA.taps.items() if tap in ("attn_norm", "q", "k", "v", "attn_out")},
        "attn_residual": input_of("pre_ff_layernorm"),
        "ffn_norm": output_of("pre_ff_layernorm"),
        "ffn_gate": output_of("feed_forward.gate_proj"),
        "ffn_up": output_of("feed_forward.up_proj"),
        "ffn_act": input_of("feed_forward.down_proj"),
        "ffn_out": output_of("feed_forward.down_proj"),
    },
    recurrent={
        "mixer_in": output_of("mamba.in_proj"),
        "recurrent_norm": input_of("mamba.out_proj"),
        "mixer_out": output_of("mamba.out_proj"),
    },
)
# Each layer has one half, a `mixer`: Mamba-2, attention, a feed-forward block or experts. All have a norm of the same name.
NEMOTRON_H = Family(
    layers="model.layers",
    final_norm="model.norm_f",
    taps={
        "attn_norm": output_of("norm"),
        "q": output_of("mixer.q_proj"),
        "k": output_of("mixer.k_proj"),
        "v": output_of("mixer.v_proj"),
        "attn_out": output_of("mixer.o_proj"),
        "ffn_norm": output_of("norm"),
        "ffn_up": output_of("mixer.up_proj"),
        "ffn_act": input_of("mixer.down_proj"),
        "ffn_out": output_of("mixer.down_proj"),
        "routed_out": Port("mixer.fc2_latent_proj", flat=True),  # without latents, what passes through
        "shared_up": output_of("mixer.shared_experts.up_proj"),
        "shared_act": input_of("mixer.shared_experts.down_proj"),
        "shared_out": output_of("mixer.shared_experts.down_proj"),
    },
    rope=None,
    recurrent={
        "mixer_in": output_of("mixer.in_proj"),
        "recurrent_norm": input_of("mixer.out_proj"),
        "attn_out": output_of("mixer.out_proj"),
    },
)


def of_mixture(output: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """The output of Llama 4's feed-forward block. With experts, the second output is the router's logits."""
    return output[0][None] if isinstance(output, tuple) else output


# Some layers have no experts. The shared expert reads the rows of all sequences as one axis.
LLAMA4 = replace(
    LLAMA,
    taps={tap: port for tap, port in LLAMA.taps.items() if not tap.startswith("ffn_") or tap == "ffn_norm"}
    | {
        "ffn_gate": output_of("feed_forward.gate_proj"),
        "ffn_up": output_of("feed_forward.up_proj"),
        "ffn_act": input_of("feed_forward.down_proj"),
        "ffn_out": Port("feed_forward", then=of_mixture),
        "shared_gate": Port("feed_forward.shared_expert.gate_proj", flat=True),
        "shared_up": Port("feed_forward.shared_expert.up_proj", flat=True),
        "shared_act": Port("feed_forward.shared_expert.down_proj", is_input=True, flat=True),
        "shared_out": Port("feed_forward.shared_expert.down_proj", flat=True),
    },
    rope="interleaved",
    has_dense_layers=True,
)

# Layers that read the keys of earlier layers have no projections of keys. Values may be outputs of the key projection.
GEMMA4 = replace(
    GEMMA3,
    taps=GEMMA3.taps
    | QK_NORMS
    | {
        "v_norm": output_of("self_attn.v_norm"),
        "ffn_residual": input_of("per_layer_input_gate"),
        "layer_gate": output_of("per_layer_input_gate"),
        "layer_act": input_of("per_layer_projection"),
        "layer_out": output_of("per_layer_projection"),
        "layer_post_norm": output_of("post_per_layer_input_norm"),
    },
    has_dense_layers=True,
)

# AltUp keeps several streams: `record_streams` keeps the values that no module shows.
GEMMA3N = replace(
    GEMMA4,
    taps={tap: port for tap, port in GEMMA4.taps.items() if tap not in ("attn_residual", "ffn_residual")}
    | {
        "predict_router": input_of("altup.prediction_coefs"),
        "predict_coefs": output_of("altup.prediction_coefs"),
        "laurel_low": output_of("laurel.linear_left"),
        "laurel_high": output_of("laurel.linear_right"),
        "laurel_norm": output_of("laurel.post_laurel_norm"),
        "laurel_out": output_of("laurel"),
        "laurel_residual": input_of("pre_feedforward_layernorm"),
        "correct_router": input_of("altup.correction_coefs"),
        "correct_coefs": output_of("altup.correction_coefs"),
    },
)
# Experts with compressed inputs.
NEMOTRON_H_LATENT = replace(
    NEMOTRON_H,
    taps=NEMOTRON_H.taps
    | {"expert_latent": Port("mixer.fc1_latent_proj", flat=True), "routed_latent": Port("mixer.experts", flat=True)},
)
# Experts next to the feed-forward block; both branches and the router read the stream, through norms of their own.
GEMMA4_MOE = replace(
    GEMMA4,
    taps={tap: port for tap, port in GEMMA4.taps.items() if tap not in ("ffn_gate", "ffn_up", "ffn_act")}
    | {
        "router_norm": Port("router.proj", is_input=True, flat=True),
        "router_logits": Port("router.proj", flat=True),
        "expert_norm": Port("pre_feedforward_layernorm_2", flat=True),
        "routed_out": Port("experts", flat=True),
        "routed_post_norm": output_of("post_feedforward_layernorm_2"),
        "shared_gate": output_of("mlp.gate_proj"),
        "shared_up": output_of("mlp.up_proj"),
        "shared_act": input_of("mlp.down_proj"),
        "shared_out": output_of("mlp.down_proj"),
        "shared_post_norm": output_of("post_feedforward_layernorm_1"),
        "ffn_out": input_of("post_feedforward_layernorm"),
    },
)

# By the `model_type` of config.json. "gemma3" is the vision-language model, whose text part is dumped.
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": MIXTRAL,
    "qwen2": LLAMA,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_moe": replace(QWEN3_MOE, taps=QWEN3_MOE.taps | DENSE, has_dense_layers=True),
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5_text": QWEN35,
    "qwen3_5_moe_text": QWEN35_MOE,
    "gemma3_text": GEMMA3,
    "gemma3": replace(GEMMA3, layers="model.language_model.layers", final_norm="model.language_model.norm"),
    "gemma2": GEMMA2,
    "gemma": LLAMA,
    "seed_oss": LLAMA,
    "olmo3": OLMO2,
    "ernie4_5": neighbours(LLAMA),
    "exaone4": EXAONE4,
    "glm4": neighbours(GLM4),
    "glm": neighbours(replace(LLAMA, taps=LLAMA.taps | GATE_AND_UP)),
    "helium": neighbours(LLAMA),
    "arcee": UNGATED,
    "olmoe": QWEN3_MOE,
    "granitemoe": GRANITE_MOE,
    "starcoder2": STARCODER2,
    "gpt_neox": GPT_NEOX,
    "stablelm": LLAMA,
    "cohere": neighbours(PARALLEL),
    "cohere2": neighbours(PARALLEL),
    "olmo": LLAMA,
    "phi": PHI,
    "falcon": FALCON,
    "opt": OPT,
    "bloom": BLOOM,
    "gpt_bigcode": GPT_BIGCODE,
    "gptj": GPTJ,
    "hunyuan_v1_dense": LLAMA,
    "gpt_oss": GPT_OSS,
    "ministral": LLAMA,
    "ministral3": LLAMA,
    "lfm2": LFM2,
    "lfm2_moe": LFM2_MOE,
    "granitemoehybrid": GRANITE_HYBRID,
    "nemotron_h": NEMOTRON_H,
    "falcon_h1": FALCON_H1,
    "jais2": UNGATED,
    "nemotron": UNGATED,
    "glm4_moe": GLM4_MOE,
    "dots1": GLM4_MOE,
    "deepseek_v2": DEEPSEEK_V3,
    "deepseek_v3": DEEPSEEK_V3,
    "glm4_moe_lite": DEEPSEEK_V3,
    "minimax_m2": QWEN3_MOE,
    "ernie4_5_moe": neighbours(ERNIE45_MOE),
    "granite": LLAMA,
    "olmo2": OLMO2,
    "phi3": PHI3,
    "smollm3": LLAMA,
    "bitnet": BITNET,
    "llama4_text": LLAMA4,
    "gemma4_text": GEMMA4,
    "gemma3n_text": GEMMA3N,
    "gpt2": GPT2,
}


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a model. Some state whether both halves of a block read its input."""
    family, is_parallel = FAMILIES[config.model_type], getattr(config, "use_parallel_residual", None)
    if config.model_type == "stablelm" and is_parallel:
        return PARALLEL
    if config.model_type == "falcon" and config.new_decoder_architecture and config.num_ln_in_parallel_attn != 1:
        return FALCON_WITH_TWO_NORMS
    if config.model_type == "falcon" and not (config.new_decoder_architecture or config.parallel_attn):
        return replace(family, taps=family.taps | BETWEEN_HALVES)
    if config.model_type == "granitemoehybrid" and config.num_local_experts > 0:
        kept = {tap: port for tap, port in family.taps.items() if not tap.startswith("ffn_") or tap == "ffn_norm"}
        return replace(family, taps=kept | GRANITE_HYBRID_MOE)
    if config.model_type == "gemma4_text" and config.enable_moe_block:
        return GEMMA4_MOE
    if config.model_type == "nemotron_h" and config.moe_latent_size is not None:
        return NEMOTRON_H_LATENT
    if config.model_type == "gpt_neox" and not is_parallel:
        return replace(family, taps=family.taps | {"attn_residual": input_of("post_attention_layernorm")})
    return family


# ---------------------------------------------------------------------------------------------------
# Recording.


class SoftmaxInput(TorchFunctionMode):
    """Keeps what the code run inside it hands to softmax; with sinks, what it joins with them before."""

    scores = None

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.cat:
            self.scores = args[0][0]
        if function is nn.functional.softmax and self.scores is None:
            self.scores = args[0]
        return function(*args, **(kwargs or {}))


class InlineAttention(TorchFunctionMode):
    """Keeps the products, the scores and the weights of attention that a module computes by itself.

    The last product before softmax is that of queries and keys, and the next one that of weights and values. The scores
    are what the mask is added to. BLOOM adds ALiBi to the products in one operation: its scores are the results of this
    operation without the summand.
    """

    PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm")

    def __init__(self):
        super().__init__()
        self.product: tuple[Tensor, Tensor] | None = None
        self.scores: Tensor | None = None
        self.mixed: tuple[Tensor, Tensor] | None = None
        self.is_after_softmax = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, named = function.__name__, kwargs or {}
        if name in ("add", "__add__") and not self.is_after_softmax and self.scores is None:
            self.scores = args[0].clone()
        if name == "softmax":
            self.scores = args[0].clone() if self.scores is None else self.scores
            self.is_after_softmax = True
        result = function(*args, **named)
        if name in self.PRODUCTS:
            operands = (named["batch1"], named["batch2"]) if "batch1" in named else (args[0], args[1])
            if not self.is_after_softmax:
                self.product, self.scores = operands, None
            if name == "baddbmm":
                self.scores = function(*args, **{**named, "beta": 0})
            self.mixed = operands if self.is_after_softmax and self.mixed is None else self.mixed
        return result


class ClampedExperts(TorchFunctionMode):
    """Keeps what gpt-oss's experts compute, expert after expert: projections, the gated product, and the outputs."""

    def __init__(self, experts: nn.Module):
        super().__init__()
        self.experts = experts
        self.gated: list[tuple[Tensor, Tensor]] = []
        self.outputs: list[Tensor] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (Tensor.mul, Tensor.__mul__) and len(self.outputs) < len(self.gated) and args[1].shape[-1:] == (1,):
            self.outputs.append(args[0])
        return function(*args, **(kwargs or {}))

    def __enter__(self):
        gate = type(self.experts)._apply_gate

        def keep(gate_up: Tensor) -> Tensor:
            self.gated.append((gate_up, gate(self.experts, gate_up)))
            return self.gated[-1][1]

        self.experts._apply_gate = keep
        return super().__enter__()

    def parts(self) -> Iterator[dict[str, Tensor]]:
        """What each expert computed, by tap."""
        for (gate_up, act), out in zip(self.gated, self.outputs, strict=True):
            gate, up = gate_up[..., ::2], gate_up[..., 1::2]
            yield {"expert_gate": gate, "expert_up": up, "expert_act": act, "expert_out": out}


class FirstTopk(TorchFunctionMode):
    """Keeps what the code run inside it first hands to topk, or to max: the scores by which a router chooses."""

    scores = None

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.topk, Tensor.topk, Tensor.max) and self.scores is None:
            self.scores = args[0]
        return function(*args, **(kwargs or {}))


class Calls(TorchFunctionMode):
    """Keeps, in the order of calls, operands and results of some functions that are called inside the context."""

    functions: tuple[Callable, ...] = ()

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[tuple, Tensor]] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function in self.functions:
            self.calls.append((args, result))
        return result


class Products(Calls):
    functions = (torch.mul, Tensor.mul, Tensor.__mul__)


class ExpertProducts(Calls):
    functions = (torch.bmm, Tensor.sum)


class Sums(Calls):
    functions = (torch.add, Tensor.add, Tensor.__add__)


class LinearResults(Calls):
    functions = (nn.functional.linear,)

    def parts(self) -> Iterator[dict[str, Tensor]]:
        """What each expert computed, by tap. Experts without a gate have as many projected as activated values."""
        for (_, gate_up), ((act, *_), out) in zip(self.calls[::2], self.calls[1::2], strict=True):
            if gate_up.shape == act.shape:
                yield {"expert_up": gate_up, "expert_act": act, "expert_out": out}
                continue
            gate, up = gate_up.chunk(2, dim=-1)
            yield {"expert_gate": gate, "expert_up": up, "expert_act": act, "expert_out": out}


class StateSpaceSteps(TorchFunctionMode):
    """Records the convolution of Mamba-2 before and after SiLU, and the step sizes within their limits."""

    convolved = steps = gate = scanned = None

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is nn.functional.silu:
            self.gate = result
            self.convolved = self.convolved or (args[0], result)
        if function in Products.functions and args[1] is self.gate:
            self.scanned = args[0]
        if function is nn.functional.softplus or (function is torch.clamp and args[0] is self.steps):
            self.steps = result
        return result


class LinearAttention:
    """Patches functions of the model's file to record values of linear attention that hooks cannot see."""

    def __init__(self, recorder: "Recorder", mixer: nn.Module, layer: int):
        self.recorder, self.mixer, self.layer = recorder, mixer, layer
        self.code = inspect.getmodule(type(mixer))
        self.units: list[Tensor] = []
        names = ("causal_conv1d_fn", "causal_conv1d_update", "l2norm")
        rules = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
        self.own = {name: getattr(self.code, name) for name in names + rules}
        self.calls = {
            "causal_conv1d_fn": self.convolve,
            "causal_conv1d_update": self.convolve_further,
            "l2norm": self.norm,
            **{name: self.rule(self.own[name]) for name in rules},
        }
        self.tokens = 0

    def keep(self, tap: str, value: Tensor) -> None:
        self.recorder.keep(tap, self.layer, value)

    def __enter__(self) -> "LinearAttention":
        for name, call in self.calls.items():
            setattr(self.code, name, call)
        if not hasattr(self.mixer, "fix_query_key_value_ordering"):
            return self  # Qwen 3.5, whose projections are modules
        ordered = type(self.mixer).fix_query_key_value_ordering

        def order(*projected: Tensor) -> tuple[Tensor, ...]:
            query, key, value, z, b, a = ordered(self.mixer, *projected)
            self.keep("conv_in", torch.cat([x.flatten(2) for x in (query, key, value)], dim=-1))
            for tap, part in {"mixer_gate": z.flatten(2), "beta_logit": b, "decay_logit": a}.items():
                self.keep(tap, part)
            return query, key, value, z, b, a

        self.mixer.fix_query_key_value_ordering = order
        return self

    def __exit__(self, *_: object) -> None:
        for name, own in self.own.items():
            setattr(self.code, name, own)
        self.mixer.__dict__.pop("fix_query_key_value_ordering", None)

    def keep_convolved(self, tap: str, convolved: Tensor) -> None:
        """Records an output of the convolution, `[batch, channels, T]`, for the tokens of this pass only."""
        self.keep(tap, convolved[..., -self.tokens :].transpose(1, 2))

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, **rest: object) -> Tensor:
        own = self.own["causal_conv1d_fn"]
        self.keep_convolved("conv_out", own(x, weight, bias, activation=None, **rest))
        result = own(x, weight, bias, activation=activation, **rest)
        self.keep_convolved("conv_act", result)
        return result

    def convolve_further(self, x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        own = self.own["causal_conv1d_update"]
        self.keep_convolved("conv_out", own(x, state.clone(), weight, bias, None))
        result = own(x, state, weight, bias, activation)
        self.keep_convolved("conv_act", result)
        return result

    def norm(self, x: Tensor, **rest: object) -> Tensor:
        """Wraps `l2norm`, called for queries, then keys: `[batch, H, T, D]`.

        Heads are repeated for each value head, so only every `each`-th one is kept.
        """
        result = self.own["l2norm"](x, **rest)
        each = self.mixer.num_v_heads // self.mixer.num_k_heads
        self.units.append(result[:, ::each].transpose(1, 2).flatten(2))
        return result

    def rule(self, own: Callable) -> Callable:
        """Wraps a function of the gated delta rule: the chunked or the recurrent form."""

        def call(*args: Tensor, g: Tensor, beta: Tensor, **rest: object) -> tuple[Tensor, Tensor]:
            out, state = own(*args, g=g, beta=beta, **rest)
            for tap, unit in zip(("q_unit", "k_unit"), self.units, strict=True):
                self.keep(tap, unit)
            self.keep("beta", beta)
            self.keep("decay", g)
            self.keep("recurrent_state", state.transpose(-1, -2))
            self.keep("recurrent_out", out.flatten(2))
            return out, state

        return call


def has_temperature(attention: nn.Module) -> bool:
    """True if attention multiplies rotated queries by a temperature (Ministral 3)."""
    rope = getattr(getattr(attention, "config", None), "rope_parameters", None) or {}
    return "llama_4_scaling_beta" in rope


def neighbours_again(x: Tensor, width: int) -> Tensor:
    """The last `width` values of each head in the order in which RoPE read them: its pairs are neighbours."""
    if width == 0:
        return x
    plain, rotated = x[..., :-width], x[..., -width:]
    return torch.cat((plain, rotated.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)), dim=-1)


class Recorder:
    """Collects the taps of one forward pass, in data-flow order; `attention_name` is the attention it records."""

    def __init__(self, config: PreTrainedConfig, head_dim: int, attention_name: str):
        self.config = config
        self.head_dim = head_dim
        self.attention_name = attention_name
        self.taps: dict[tuple[str, int | None], Tensor] = {}
        self.latents: dict[int, tuple[Tensor, Tensor]] = {}
        self.head_dims: dict[int, int] = {}  # by layer, if head sizes differ

    def keep(self, tap: str, layer: int | None, value: Tensor) -> None:
        """Copies the value of a batch of one, whose axis goes: what runs later may write into it."""
        self.taps[tap, layer] = value[0].detach().clone().cpu()

    def keep_port(self, tap: str, layer: int, port: Port, value: Tensor) -> None:
        """A module's input or output as its tap; the per-head taps become batch x T x heads x D."""
        value = port.read(value, self.config)
        if tap in ("q", "k", "v", "q_norm", "k_norm", "v_norm"):
            value = value.reshape(*value.shape[:2], -1, self.head_dims.get(layer, self.head_dim))
        self.keep(tap, layer, value)

    def take(self) -> dict[tuple[str, int | None], Tensor]:
        """The taps since the last call, by (tap, layer)."""
        taps, self.taps = self.taps, {}
        return taps

    def attention(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs):
        """The model's own attention, recorded: query batch x H x T x D; key and value batch x Hkv x S x D."""
        layer, tokens = module.layer_idx, query.shape[2]
        if hasattr(module, "kv_lora_rank"):
            self.keep_latents(module, query, key, value)
        elif hasattr(module, "attn_temperature_tuning"):
            self.keep_tempered(module, query, key, value)
        else:
            # OPT multiplies the queries by the factor of the scores before this.
            is_scaled = kwargs.get("scaling") == 1.0 and getattr(module, "scaling", 1.0) != 1.0
            suffix = "_norm" if hasattr(module, "query_layernorm") else ""  # see watch_norms_after_rope
            queries = "q_scaled" if has_temperature(module) else f"q_rope{suffix}"  # see watch_rotation
            self.keep(queries, layer, self.taps["q", layer][None] if is_scaled else query.transpose(1, 2))
            if not getattr(module, "is_kv_shared_layer", False):
                self.keep(f"k_rope{suffix}", layer, key[:, :, -tokens:].transpose(1, 2))
            self.keep("k_cache", layer, key.transpose(1, 2))
            self.keep("v_cache", layer, value.transpose(1, 2))
        attend = self.eager if self.attention_name == "eager" else ALL_ATTENTION_FUNCTIONS[self.attention_name]
        context, weights = attend(module, query, key, value, mask, **kwargs)  # batch x T x H x D, batch x H x T x S
        self.keep("attn_context", layer, context.flatten(2))
        return context, weights

    def keep_tempered(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Records queries and keys of Llama 4, which have a norm after RoPE, or a temperature if they do not rotate."""
        layer, tokens = module.layer_idx, query.shape[2]
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        if hasattr(module, "qk_norm"):  # `watch_norms_after_rope` records its inputs
            self.keep("q_rope_norm", layer, query)
            self.keep("k_rope_norm", layer, key[:, -tokens:])
        else:
            is_tempered = module.attn_temperature_tuning and not module.use_rope
            self.keep("q_rope", layer, self.taps["q", layer][None] if is_tempered else query)
            self.keep("k_rope", layer, key[:, -tokens:])
            if is_tempered:
                self.keep("q_scaled", layer, query)
        self.keep("k_cache", layer, key)
        self.keep("v_cache", layer, value)

    def watch_variants(self, block: nn.Module, layer: int) -> None:
        """Records the embeddings of one of Gemma 4's layers, and values that are outputs of the key projection."""
        attention = block.self_attn
        self.head_dims[layer] = attention.head_dim
        if getattr(attention, "v_proj", True) is None:
            hook_port(self, block, "v", layer, output_of("self_attn.k_proj"))
        if block.hidden_size_per_layer_input:
            place = 2 if hasattr(block, "altup") else 1
            block.register_forward_pre_hook(lambda _, args: self.keep("layer_input", layer, args[place]))

    def watch_rotation(self, attention: nn.Module, layer: int) -> None:
        """Records the rotated queries of Ministral 3, which are then multiplied by a temperature."""
        own, code = attention.forward, inspect.getmodule(type(attention))

        def forward(*args: object, **kwargs: object) -> object:
            rotate = code.apply_rotary_pos_emb

            def keep(*rotated: Tensor, **rest: object) -> tuple[Tensor, Tensor]:
                query, key = rotate(*rotated, **rest)
                self.keep("q_rope", layer, query.transpose(1, 2))
                return query, key

            code.apply_rotary_pos_emb = keep
            try:
                return own(*args, **kwargs)
            finally:
                code.apply_rotary_pos_emb = rotate

        attention.forward = forward

    def watch_norms_after_rope(self, attention: nn.Module, layer: int) -> None:
        """Records the inputs of norms after RoPE: one norm for queries, then keys, or two of batch x heads x T x D (Hunyuan)."""
        names = itertools.cycle(("q_rope", "k_rope"))
        if hasattr(attention, "qk_norm"):
            attention.qk_norm.register_forward_pre_hook(lambda _, args: self.keep(next(names), layer, args[0]))
        if hasattr(attention, "query_layernorm"):
            for tap, norm in (("q_rope", attention.query_layernorm), ("k_rope", attention.key_layernorm)):
                norm.register_forward_pre_hook(lambda _, args, tap=tap: self.keep(tap, layer, args[0].transpose(1, 2)))

    def watch_attention(self, module: nn.Module, layer: int) -> None:
        """Records attention that a module computes by itself. Keys and values may be repeated for each query head."""
        own, heads = module.forward, self.config.num_attention_heads

        def of_heads(x: Tensor, repeated: int = 1) -> Tensor:
            """Returns batch x heads x rows x columns, each head once."""
            x = x if x.ndim == 4 else x.unflatten(0, (-1, heads))
            return x[:, ::repeated]

        def forward(hidden_states: Tensor, *args: object, **kwargs: object) -> object:
            with InlineAttention() as seen:
                output = own(hidden_states, *args, **kwargs)
            (query, key), (weights, value), tokens = seen.product, seen.mixed, hidden_states.shape[1]
            stored = kv_heads(self.config) if hasattr(self.config, "num_kv_heads") else heads
            repeated = of_heads(key).shape[1] // stored
            keys, values = of_heads(key, repeated).permute(0, 3, 1, 2), of_heads(value, repeated).transpose(1, 2)
            dtype = value.dtype  # GPT-J multiplies queries and keys as float32, which does not change their values
            self.keep("q_rope", layer, of_heads(query).transpose(1, 2).to(dtype))
            self.keep("k_rope", layer, keys[:, -tokens:].to(dtype))
            self.keep("k_cache", layer, keys.to(dtype))
            self.keep("v_cache", layer, values)
            self.keep("attn_scores", layer, of_heads(seen.scores))
            self.keep("attn_weights", layer, of_heads(weights))
            return output

        module.forward = forward

    def keep_latents(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Rotated queries, the cache of latents, and the keys and values of all heads that follow from it."""
        layer, tokens, width = module.layer_idx, query.shape[2], module.qk_rope_head_dim
        latents, rotated = self.latents[layer]  # batch x 1 x S x ...
        width = 0 if self.config.model_type == "deepseek_v2" else width  # whose rotation keeps neighbours
        cached = neighbours_again(torch.cat((latents, rotated), dim=-1), width).transpose(1, 2)
        self.keep("q_rope", layer, neighbours_again(query, width).transpose(1, 2))
        self.keep("k_rope", layer, cached[:, -tokens:])
        self.keep("k_cache", layer, cached)
        self.keep("v_cache", layer, latents.transpose(1, 2))
        self.keep("k_expanded", layer, neighbours_again(key, width).transpose(1, 2))
        self.keep("v_expanded", layer, value.transpose(1, 2))

    def watch_convolution(self, module: nn.Module, layer: int) -> None:
        """Records `conv_in` (input after the first gate) and `conv_out` (output before the second gate).

        Both are `[batch, d, T]` in the module.
        """
        own = module.forward

        def forward(*args: Tensor, **kwargs: object) -> Tensor:
            with Products() as seen:
                result = own(*args, **kwargs)
            (_, before), ((_, after), _) = seen.calls
            self.keep("conv_in", layer, before.transpose(1, 2))
            self.keep("conv_out", layer, after.transpose(1, 2))
            return result

        module.forward = forward

    def watch_state_space(self, module: nn.Module, layer: int) -> None:
        """Records the taps of a Mamba-2 layer between its input and output projections."""
        own, channels = module.forward, slice(module.intermediate_size, module.intermediate_size + module.conv_dim)

        def forward(hidden_states: Tensor, cache_params: DynamicCache, **kwargs: object) -> Tensor:
            with StateSpaceSteps() as seen:
                result = own(hidden_states=hidden_states, cache_params=cache_params, **kwargs)
            tokens = hidden_states.shape[1]
            self.keep("conv_in", layer, self.projected[..., channels])
            for tap, value in zip(("conv_out", "conv_act"), seen.convolved, strict=True):
                self.keep(tap, layer, value[..., -tokens:].transpose(1, 2))
            # In single-token decode, the step size is repeated for each value of a head.
            is_single = seen.steps.shape[1:] == (module.num_heads, module.head_dim)
            self.keep("step_size", layer, seen.steps[..., 0][:, None] if is_single else seen.steps)
            self.keep("recurrent_state", layer, cache_params.get_recurrent_state(layer, state_idx=0))
            if isinstance(module.norm, nn.Identity):
                self.keep("recurrent_out", layer, seen.scanned.reshape(1, tokens, -1))
            return result

        def keep_projected(_: nn.Module, args: tuple, output: Tensor) -> None:
            self.projected = output * module.mup_vector if hasattr(module, "mup_vector") else output

        def keep_output(_: nn.Module, args: tuple) -> None:
            self.keep("recurrent_out", layer, args[0])

        module.in_proj.register_forward_hook(keep_projected)
        module.norm.register_forward_pre_hook(keep_output)
        module.forward = forward

    def watch_latents(self, module: nn.Module) -> None:
        """Keeps the cached latents that an attention module expands."""
        own, layer = module.expand_kv, module.layer_idx

        def expand(latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
            self.latents[layer] = latents, rotated
            return own(latents, rotated)

        module.expand_kv = expand

    def eager(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs):
        """The eager attention of the model's own file; no other kind shows its scores and weights."""
        eager = inspect.getmodule(type(module)).eager_attention_forward
        context, weights = eager(module, query, key, value, mask, **kwargs)
        with SoftmaxInput() as softmax_input:
            eager(module, query, key, value, None, **kwargs)
        self.keep("attn_scores", module.layer_idx, softmax_input.scores)
        self.keep("attn_weights", module.layer_idx, weights)
        return context, weights


def hook_port(recorder: Recorder, block: nn.Module, tap: str, layer: int, port: Port) -> None:
    """Records `tap` of decoder layer `block` whenever it runs."""
    module = block.get_submodule(port.module)
    if port.is_input:
        module.register_forward_pre_hook(lambda _, args: recorder.keep_port(tap, layer, port, args[0]))
    else:
        module.register_forward_hook(lambda _, args, output: recorder.keep_port(tap, layer, port, output))


def record_experts(recorder: Recorder, mixture: nn.Module, layer: int) -> None:
    """Records the router and the experts: what these compute, expert after expert, is put where the tokens have them."""
    experts = mixture.experts
    eager = inspect.unwrap(type(experts).forward)

    def route(module: nn.Module, args: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
        for tap, value in zip(("router_logits", "expert_weights", "experts"), output, strict=True):
            if not (tap == "router_logits" and hasattr(module, "proj")):  # Gemma 4 returns their softmax
                recorder.keep(tap, layer, value[None])

    def forward(hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        with ClampedExperts(experts) if hasattr(experts, "limit") else LinearResults() as seen:
            result = eager(experts, hidden, chosen, weights)
        kept = {}
        for number, parts in zip(chosen.unique().tolist(), seen.parts(), strict=True):
            slot, token = torch.where((chosen == number).T)  # in the order in which the expert reads them
            for tap, value in parts.items():
                kept.setdefault(tap, value.new_empty(*chosen.shape, value.shape[-1]))[token, slot] = value
        for tap, value in kept.items():
            recorder.keep(tap, layer, value[None])
        return result

    router = mixture.gate if hasattr(mixture, "gate") else mixture.router
    own = router.forward

    def score(*args: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with FirstTopk() as seen:
            output = own(*args)
        recorder.keep("expert_scores", layer, seen.scores.reshape(output[0].shape)[None])
        return output

    named = [*mixture.named_parameters(), *mixture.named_buffers()]
    has_groups = (getattr(recorder.config, "n_group", None) or 1) > 1
    if has_groups or any(name.endswith(("e_score_correction_bias", "expert_bias")) for name, _ in named):
        router.forward = score
    router.register_forward_hook(route)
    experts.forward = forward


def record_weighed_inputs(recorder: Recorder, mixture: nn.Module, layer: int) -> None:
    """Records Llama 4's experts, each of which reads every token times its weight: 0 if it is not chosen."""
    own = mixture.forward

    def forward(hidden: Tensor) -> tuple[Tensor, Tensor]:
        with ExpertProducts() as seen:
            output = own(hidden)
        ((each, _), gate_up), ((act, _), out), (_, summed) = seen.calls
        logits = output[1]
        chosen = logits.topk(mixture.top_k, dim=-1).indices
        of_chosen = lambda x: x.transpose(0, 1).gather(1, chosen[..., None].expand(*chosen.shape, x.shape[-1]))
        gate, up = gate_up.chunk(2, dim=-1)
        recorder.keep("router_logits", layer, logits[None])
        recorder.keep("experts", layer, chosen[None])
        recorder.keep("expert_weights", layer, torch.sigmoid(logits.float()).to(logits.dtype).gather(1, chosen)[None])
        taps = {"expert_in": each, "expert_gate": gate, "expert_up": up, "expert_act": act, "expert_out": out}
        for tap, value in taps.items():
            recorder.keep(tap, layer, of_chosen(value)[None])
        recorder.keep("routed_out", layer, summed[None])
        return output

    mixture.forward = forward


def record_sum(recorder: Recorder, block: nn.Module, summand: nn.Module, layer: int, tap: str) -> None:
    """Records the sum of a value and the output of the module `summand`, which no module returns."""
    own, outputs = block.forward, []
    summand.register_forward_hook(lambda _, args, output: outputs.append(output))

    def forward(*args: object, **rest: object) -> Tensor:
        outputs.clear()
        with Sums() as seen:
            result = own(*args, **rest)
        (total,) = [total for (_, added, *_), total in seen.calls if added is outputs[0]]
        recorder.keep(tap, layer, total)
        return result

    block.forward = forward


def side_by_side(streams: Tensor) -> Tensor:
    """AltUp's streams, n x batch x T x d, as the parts of a row: batch x T x n·d."""
    return streams.movedim(0, 2).flatten(2)


def record_streams(recorder: Recorder, block: nn.Module, layer: int) -> None:
    """Records AltUp's streams, the sum after attention, and the sparse gate of one of Gemma 3n's layers."""
    altup, predict, correct = block.altup, block.altup.predict, block.altup.correct

    def keep_prediction(streams: Tensor) -> Tensor:
        predicted = predict(streams)
        recorder.keep("altup_predicted", layer, side_by_side(predicted))
        return predicted

    def keep_correction(predicted: Tensor, activated: Tensor) -> Tensor:
        recorder.keep("ffn_residual", layer, activated)
        corrected = correct(predicted, activated)
        recorder.keep("altup_corrected", layer, side_by_side(corrected))
        return corrected

    altup.predict, altup.correct = keep_prediction, keep_correction
    record_sum(recorder, block, block.post_attention_layernorm, layer, "attn_residual")
    if block.mlp.activation_sparsity > 0:
        hook_port(recorder, block, "ffn_sparse", layer, input_of("mlp.act_fn"))
    if block.config.altup_correct_scale:
        hook_port(recorder, block, "altup_active", layer, input_of("per_layer_input_gate"))


def record_projected_streams(recorder: Recorder, text: nn.Module) -> None:
    """Records what enters and leaves AltUp's streams: their projections, the input of layer 0, and their mean."""

    def keep(tap: str, projections: nn.ModuleList) -> None:
        parts = []

        def collect(_: nn.Module, args: tuple, output: Tensor) -> None:
            parts.append(output)
            if len(parts) == len(projections):
                recorder.keep(tap, None, torch.cat(parts, dim=-1))
                parts.clear()

        for projection in projections:
            projection.register_forward_hook(collect)

    keep("altup_projected", text.altup_projections)
    keep("altup_unembedded", text.altup_unembed_projections)
    text.layers[0].register_forward_pre_hook(lambda _, args: recorder.keep("altup_streams", None, side_by_side(args[0])))
    text.norm.register_forward_pre_hook(lambda _, args: recorder.keep("altup_mean", None, args[0]))


def record_linear_attention(recorder: Recorder, mixer: nn.Module, layer: int) -> None:
    """Records linear attention with a gated delta rule."""
    own = mixer.forward

    def forward(hidden_states: Tensor, *args: object, **rest: object) -> Tensor:
        with LinearAttention(recorder, mixer, layer) as recording:
            recording.tokens = hidden_states.shape[1]
            return own(hidden_states, *args, **rest)

    mixer.forward = forward


def hook_layer(recorder: Recorder, block: nn.Module, layer: int, family: Family) -> None:
    """Records every tap of one decoder layer, its input too if it is the first."""
    has_streams = hasattr(block, "altup")
    if layer == 0:
        block.register_forward_pre_hook(lambda _, args: recorder.keep("embed", None, args[0][0] if has_streams else args[0]))
    modules = dict(block.named_modules())
    has_others = family.has_dense_layers or family.recurrent is not None
    mixer = getattr(block, "mamba", None) or getattr(block, "mixer", None)
    is_feed_forward = "mixer.up_proj" in modules or "mixer.experts" in modules
    other_norm = {"attn_norm" if is_feed_forward else "ffn_norm"} if hasattr(block, "mixer") else set()
    for tap, port in [*family.taps.items(), *(family.recurrent or {}).items()]:
        if tap not in other_norm and (not has_others or port.module in modules):
            hook_port(recorder, block, tap, layer, port)
    if "conv.conv" in modules:
        recorder.watch_convolution(block.conv, layer)
    if hasattr(mixer, "conv1d"):
        recorder.watch_state_space(mixer, layer)
    if hasattr(block, "self_attention"):
        recorder.watch_attention(block.self_attention, layer)
    if recorder.config.model_type == "gptj":
        recorder.watch_attention(block.attn, layer)
    if hasattr(getattr(block, "self_attn", None), "expand_kv"):
        recorder.watch_latents(block.self_attn)
    if hasattr(block, "linear_attn"):
        record_linear_attention(recorder, block.linear_attn, layer)
    if hasattr(block, "hidden_size_per_layer_input"):
        recorder.watch_variants(block, layer)
    if hasattr(block, "self_attn"):
        recorder.watch_norms_after_rope(block.self_attn, layer)
        if has_temperature(block.self_attn):
            recorder.watch_rotation(block.self_attn, layer)
    if "feed_forward.router" in modules:
        record_weighed_inputs(recorder, block.feed_forward, layer)
    mixture = getattr(block, "mlp", None) or getattr(block, "block_sparse_moe", None)
    if "feed_forward.gate" in modules:
        mixture = block.feed_forward
    if "mixer.experts" in modules:
        mixture = block.mixer
        hook_port(recorder, block, "ffn_out", layer, output_of("mixer"))
    if "router.proj" in modules:
        mixture = block
    if hasattr(mixture, "experts"):
        record_experts(recorder, mixture, layer)
        if hasattr(block, "shared_mlp"):
            record_sum(recorder, block, block.shared_mlp, layer, "ffn_out")
    if has_streams:
        record_streams(recorder, block, layer)
        block.register_forward_hook(lambda _, args, output: recorder.keep("block_out", layer, side_by_side(output)))
        return
    block.register_forward_hook(
        lambda _, args, output: recorder.keep("block_out", layer, output[0] if isinstance(output, tuple) else output)
    )


def instrument(model: PreTrainedModel, family: Family, kind: type[Recorder] = Recorder) -> Recorder:
    """Hooks the model and replaces its attention function by one that calls and records it."""
    attention = model.config.get_text_config()._attn_implementation
    config = model.config.get_text_config()
    head_dim = getattr(config, "qk_head_dim", None) or vars(config).get("head_dim")
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    recorder = kind(config, head_dim, attention)
    for layer, block in enumerate(model.get_submodule(family.layers)):
        hook_layer(recorder, block, layer, family)
    if hasattr(block, "altup"):
        record_projected_streams(recorder, model.model)
    final_norm = model.get_submodule(family.final_norm)
    final_norm.register_forward_hook(lambda _, args, output: recorder.keep("final_norm", None, output))
    AttentionInterface.register(RECORDING, recorder.attention)
    AttentionMaskInterface.register(RECORDING, MASKS[attention])  # without it the model would build no mask
    model.set_attn_implementation(RECORDING)
    return recorder


# ---------------------------------------------------------------------------------------------------
# Running.


@dataclass(frozen=True)
class Pass:
    """One forward pass: its first position, its tokens, and their logits, T x V."""

    position: int
    tokens: list[int]
    logits: Tensor

    @property
    def greedy(self) -> int:
        """The next token: the lowest id among the largest logits of the last row."""
        return self.logits[-1].argmax().item()


def run_passes(model: PreTrainedModel, tokens: list[int], decode: int) -> Iterator[Pass]:
    """The prefill, then `decode` greedy passes of one token each, on one KV cache.

    The cache is given no config, so that layers with a sliding window keep every position too, unless layers keep another
    state than keys and values.
    """
    is_recurrent = family_of(model.config).recurrent is not None
    cache, position = DynamicCache(config=model.config) if is_recurrent else DynamicCache(), 0
    for _ in range(decode + 1):
        ids = torch.tensor([tokens], device=model.device)
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0].cpu()
        current = Pass(position, tokens, logits)
        yield current
        position += len(tokens)
        tokens = [current.greedy]


def sampling_taps(logits: Tensor) -> dict[tuple[str, None], Tensor]:
    """What follows from a pass's logits, T x V."""
    last = logits[-1]
    return {
        ("logits", None): logits,
        ("last_logits", None): last,
        ("argmax", None): last.argmax(),
        ("probs", None): last.float().softmax(dim=-1),
    }


def to_record(tap: str, pass_index: int | None, layer: int | None, value: Tensor) -> Record:
    """A tensor as the dump stores it: bf16 as its bits, token ids as u32."""
    if value.dtype is torch.bfloat16:
        return Record(tap, pass_index, layer, "bf16", value.contiguous().view(torch.uint16).numpy())
    return Record(tap, pass_index, layer, DTYPE_NAMES.get(value.dtype, "u32"), value.numpy())


def cut(record: Record, rows: tuple[int, ...]) -> Record:
    """The record with no more than these rows, if it is one of those that are large."""
    if record.tap not in CUT:
        return record
    return replace(record, values=record.values.take(rows, CUT[record.tap]), rows=rows)


def record_passes(
    model: PreTrainedModel,
    family: Family,
    tokens: list[int],
    decode: int,
    rows: tuple[int, ...] | None = None,
    compiled: bool = False,
) -> tuple[list[Pass], list[Record]]:
    """Runs the instrumented model: its passes, and every tap of each; of the first pass the large ones in `rows` alone."""
    recorder = instrument(model, family)
    if compiled:
        model.forward = torch.compile(model.forward)
    passes, records = [], []
    for index, current in enumerate(progress(run_passes(model, tokens, decode), "recorded run", decode)):
        taps = recorder.take() | sampling_taps(current.logits)
        recorded = [to_record(tap, index, layer, value) for (tap, layer), value in taps.items()]
        if rows is not None and index == 0:
            recorded = [cut(record, rows) for record in recorded]
        records += recorded
        passes.append(current)
    return passes, records


def generate(model: PreTrainedModel, tokens: list[int], count: int) -> list[int]:
    """`count` greedy tokens by model.generate, without the model's own stop tokens and sampling defaults."""
    model.generation_config = GenerationConfig()
    output = model.generate(torch.tensor([tokens], device=model.device), max_new_tokens=count, do_sample=False)
    return output[0, len(tokens) :].tolist()


def replace_activation(model: PreTrainedModel, name: str) -> None:
    """Another activation function in every feed-forward block than the model's configuration asks for."""
    blocks = [module for module in model.modules() if hasattr(module, "act_fn")]
    if not blocks:
        sys.exit("error: --activation: no module of this model has an act_fn")
    for block in blocks:
        block.act_fn = ACT2FN[name]


def progress(passes: Iterator[Pass], description: str, decode: int) -> Iterator[Pass]:
    """The passes, with a progress bar."""
    return tqdm(passes, desc=description, total=decode + 1, unit="pass")


# ---------------------------------------------------------------------------------------------------
# Checking.


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality of shape and bits: NaN equals itself, 0 does not equal -0."""
    return a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def check_passes(plain: list[Pass], recorded: list[Pass]) -> None:
    """Recording must not have changed a bit of any logit."""
    for index, (a, b) in enumerate(zip(plain, recorded, strict=True)):
        if a.tokens != b.tokens or not same_bits(a.logits, b.logits):
            sys.exit(f"error: pass {index}: recording changed the logits; nothing written")


def check_generated(passes: list[Pass], generated: list[int]) -> None:
    """model.generate must choose the tokens that the passes chose."""
    ours = [current.greedy for current in passes]
    if ours != generated:
        sys.exit(f"error: model.generate gives {generated}, the passes gave {ours}; nothing written")


# ---------------------------------------------------------------------------------------------------
# The manifest.


def weight_files(model: str) -> list[Path]:
    """The weight files of a model directory, or of a hub id that is in the cache, in file-name order."""
    directory = Path(model) if Path(model).is_dir() else Path(snapshot_download(model, local_files_only=True))
    return next(files for pattern in WEIGHT_FILES if (files := sorted(directory.glob(pattern))))


def sha256(files: list[Path]) -> str:
    """The digest of the files, concatenated."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def bitnet_settings(config: PreTrainedConfig) -> dict[str, str]:
    """How a BitNet model's linear layers compute, which its activations' rounding depends on."""
    quantised = getattr(config, "quantization_config", None)
    if quantised is None:
        return {}
    quantised = quantised if isinstance(quantised, dict) else quantised.to_dict()
    linear = quantised.get("linear_class", "bitlinear")
    return {"linear": f"{linear} {quantised.get('quantization_mode', 'offline')}", "torch_compile": "off"}


def other_activation(arguments: argparse.Namespace, config: PreTrainedConfig) -> dict[str, str]:
    """What makes the dump one of another model than the checkpoint's."""
    if arguments.activation is None:
        return {}
    text = config.get_text_config()
    own = getattr(text, "hidden_act", None) or text.hidden_activation  # Gemma's name for it
    return {"activation_replaced": f"{own} by {arguments.activation}"}


def device_settings(arguments: argparse.Namespace) -> dict[str, str | bool]:
    """The processor, and on a GPU what decides how its kernels add and round."""
    if arguments.device == "cpu":
        return {"cpu": torch.backends.cpu.get_cpu_capability()}
    return {
        "device": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "reduced_precision_sums": "on" if arguments.reduced_sums else "off",
        **({"attention_kernel": arguments.kernel} if arguments.kernel else {}),
        **({"float8": arguments.float8} if arguments.float8 else {}),
    }


def build_manifest(arguments: argparse.Namespace, config: PreTrainedConfig, passes: list[Pass]) -> dict:
    """The manifest without its tensors; generated[i] is the argmax of pass i."""
    prompt = {} if arguments.prompt is None else {"prompt": arguments.prompt}
    return {
        "format": "xcheck-dump",
        "version": 1,
        "producer": {
            "name": "transformers",
            "version": transformers.__version__,
            "settings": {
                "dtype": "tf32" if arguments.tf32 else arguments.dtype,
                **({"autocast": arguments.autocast} if arguments.autocast else {}),
                **({"torch_compile": "on"} if arguments.compile else {}),
                "attention": arguments.attention,
                "kv_cache": arguments.dtype,
                **bitnet_settings(config),
                **({"experts": "eager"} if has_experts(config) else {}),
                **other_activation(arguments, config),
                "threads": arguments.threads,
                "torch": torch.__version__,
                **device_settings(arguments),
            },
            **({"rounding": {"like": f"{arguments.autocast}-autocast"}} if arguments.autocast else {}),
        },
        "model": {
            "name": arguments.name or Path(arguments.model).resolve().name,
            "architecture": config.model_type.removesuffix("_text"),
            "sha256": sha256(weight_files(arguments.model)),
        },
        "layout": {"rope_pairing": rope} if (rope := family_of(config).rope) else {},
        "input": {**prompt, "tokens": passes[0].tokens, "decode": "greedy"},
        "passes": [{"position": current.position, "tokens": current.tokens} for current in passes],
        "generated": [current.greedy for current in passes],
    }


# ---------------------------------------------------------------------------------------------------
# The command line.


def load_config(model: str) -> PreTrainedConfig:
    """The model's config.json, if the family is one that can be dumped."""
    try:
        config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {model}: neither a model directory nor a hub id that loads: {first_line(error)}")
    if config.model_type not in FAMILIES:
        sys.exit(f"error: {model}: family {config.model_type!r} is not one of {', '.join(FAMILIES)}")
    return config


def input_tokens(arguments: argparse.Namespace, config: PreTrainedConfig) -> list[int]:
    """The token ids given, or the prompt's; they must be the model's, and fit its context."""
    tokens = arguments.tokens or AutoTokenizer.from_pretrained(arguments.model)(arguments.prompt).input_ids
    text = config.get_text_config()
    if not tokens:
        sys.exit("error: the prompt has no tokens")
    if unknown := [token for token in tokens if not 0 <= token < text.vocab_size]:
        sys.exit(f"error: token {unknown[0]} is outside the vocabulary of {text.vocab_size}")
    context = getattr(text, "max_position_embeddings", sys.maxsize)  # ALiBi has no largest position
    if len(tokens) + arguments.decode > context:
        sys.exit(f"error: {len(tokens)} + {arguments.decode} tokens do not fit into {context}")
    return tokens


def first_line(error: Exception) -> str:
    """The first line of its message; the libraries' messages run to many."""
    return str(error).splitlines()[0]


def has_experts(config: PreTrainedConfig) -> bool:
    """Whether its layers choose experts."""
    return any(getattr(config, key, None) is not None for key in ("num_experts_per_tok", "top_k_experts"))


def token_list(text: str) -> list[int]:
    """argparse type: 1,2,3"""
    return [int(token) for token in text.split(",")]


def at_least(minimum: int) -> Callable[[str], int]:
    """argparse type: an integer, `minimum` or more."""

    def integer(text: str) -> int:
        if (number := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"{number} is less than {minimum}")
        return number

    return integer


def row_choice(text: str) -> Callable[[int], tuple[int, ...]]:
    """argparse type: last, every:16 or 0-3,17; which rows that is of so many."""
    name, _, step = text.partition(":")
    if text == "last":
        return lambda count: (count - 1,)
    if name == "every":
        step = at_least(1)(step)
        return lambda count: tuple(range(0, count, step))
    parts = [part.partition("-") for part in text.split(",")]
    ends = [(int(first), int(last if dash else first)) for first, dash, last in parts]

    def choose(count: int) -> tuple[int, ...]:
        if not all(first <= last < count for first, last in ends):
            sys.exit(f"error: --rows {text}: expected rows from 0 to {count - 1}, which the input has")
        return tuple(row for row in range(count) if any(first <= row <= last for first, last in ends))

    return choose


ATTENTION = "eager shows scores and weights; sdpa, transformers' default, and flex_attention are one operation (default: eager)"
AUTOCAST = "compute products in this type by torch.autocast, of weights of --dtype"
DEVICE = "cpu or cuda (default: cpu)"
TF32 = "round the operands of f32 products to TF32, on a GPU"
REDUCED_SUMS = "let a GPU's bf16 and f16 products add partial sums in that type, which is torch's default there"
KERNEL = "the kernel of --attention sdpa, in place of torch's choice"
FLOAT8 = "compute products with f8_e4m3 operands on a GPU, with one scale per row of weights and of activations"
COMPILE = "run the hooked model by torch.compile, with whatever compiler there is"
TAPS = "write these alone, of those that were recorded: q_rope,logits"
ROWS = "of scores, weights and logits write these rows of the prompt alone: last, every:16 or 0-3,17"
OTHER_ACTIVATION = "of the feed-forward blocks, in place of the model's own: a wrong reference, and marked as one (silu …)"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=textwrap.fill(f"Families (model_type in config.json): {', '.join(FAMILIES)}", 100),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="model directory or hub id")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--prompt", help="text, tokenized as the model's tokenizer does by default")
    start.add_argument("--tokens", type=token_list, help="token ids instead of text: 1,2,3")
    parser.add_argument("--decode", type=at_least(0), default=4, help="greedy passes after the prompt's (default: 4)")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="of weights and activations (default: f32)")
    parser.add_argument("--autocast", choices=["bf16", "f16"], help=AUTOCAST)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help=DEVICE)
    parser.add_argument("--tf32", action="store_true", help=TF32)
    parser.add_argument("--reduced-sums", action="store_true", help=REDUCED_SUMS)
    parser.add_argument("--kernel", choices=KERNELS, help=KERNEL)
    parser.add_argument("--float8", choices=["row"], help=FLOAT8)
    parser.add_argument("--compile", action="store_true", help=COMPILE)
    parser.add_argument("--attention", choices=MASKS, default="eager", help=ATTENTION)
    parser.add_argument("--activation", choices=sorted(ACT2FN), metavar="NAME", help=OTHER_ACTIVATION)
    parser.add_argument("--threads", type=at_least(1), default=1, help="torch's CPU threads (default: 1)")
    parser.add_argument("--taps", type=lambda text: text.split(","), metavar="LIST", help=TAPS)
    parser.add_argument("--rows", type=row_choice, metavar="ROWS", help=ROWS)
    parser.add_argument("--name", help="model.name in the manifest (default: the last part of --model)")
    parser.add_argument("--out", type=Path, required=True, help="a directory, FILE.safetensors or FILE.npz")
    return checked(parser, parser.parse_args())


def checked(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments, if each has an effect."""
    of_gpu = [name for name in ("tf32", "reduced_sums", "kernel", "float8") if getattr(arguments, name)]
    if of_gpu and arguments.device == "cpu":
        parser.error(f"--{of_gpu[0].replace('_', '-')} needs --device cuda")
    if arguments.tf32 and (arguments.dtype != "f32" or arguments.autocast):
        parser.error("--tf32 needs --dtype f32 without --autocast")
    if arguments.kernel and arguments.attention != "sdpa":
        parser.error("--kernel needs --attention sdpa")
    return arguments


def autocast(arguments: argparse.Namespace) -> AbstractContextManager:
    """What products are computed in."""
    if arguments.autocast is None:
        return nullcontext()
    return torch.autocast(arguments.device, dtype=DTYPES[arguments.autocast])


def attention_kernel(arguments: argparse.Namespace) -> AbstractContextManager:
    """The kernel of sdpa, if one is demanded."""
    return nullcontext() if arguments.kernel is None else sdpa_kernel(KERNELS[arguments.kernel])


def choose_products(arguments: argparse.Namespace) -> None:
    """Sets how products on a GPU round."""
    products = torch.backends.cuda.matmul
    products.allow_tf32 = arguments.tf32
    products.allow_bf16_reduced_precision_reduction = arguments.reduced_sums
    products.allow_fp16_reduced_precision_reduction = arguments.reduced_sums


class Float8Linear(nn.Module):
    """A linear layer with f8_e4m3 operands, each row with a scale of its own."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight, self.scale = to_float8(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        values, scale = to_float8(x.flatten(0, -2))
        product = torch._scaled_mm(
            values, self.weight.T, scale_a=scale, scale_b=self.scale.T, bias=self.bias, out_dtype=x.dtype
        )
        return product.unflatten(0, x.shape[:-1])


def to_float8(x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a matrix as f8_e4m3, and their scales, one per row."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def replace_products(model: PreTrainedModel) -> None:
    """Computes every linear layer of the decoder's blocks in f8."""
    replaced = 0
    for block in model.get_submodule(family_of(model.config).layers):
        for name, module in list(block.named_modules()):
            if isinstance(module, nn.Linear):
                block.set_submodule(name, Float8Linear(module))
                replaced += 1
    if not replaced:
        sys.exit("error: --float8: no layer of this model is an nn.Linear; nothing written")


@torch.inference_mode()
def main() -> None:
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    choose_products(arguments)
    # BitNet's layers are compiled otherwise, by whatever compiler there is. Flex attention is a compiled kernel.
    is_compiled = arguments.compile or arguments.attention == "flex_attention"
    torch.compiler.set_stance("default" if is_compiled else "force_eager")
    counters.clear()
    prepare(arguments.out)
    config = load_config(arguments.model)
    tokens = input_tokens(arguments, config)
    rows = arguments.rows and arguments.rows(len(tokens))
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model,
        dtype=DTYPES[arguments.dtype],
        attn_implementation=arguments.attention,
        **({"experts_implementation": "eager"} if has_experts(config) else {}),
    ).eval().to(arguments.device)
    if arguments.float8:
        replace_products(model)
    if arguments.activation is not None:
        replace_activation(model, arguments.activation)

    family = family_of(config)
    with autocast(arguments), attention_kernel(arguments):
        if not arguments.compile:
            plain = list(progress(run_passes(model, tokens, arguments.decode), "plain run", arguments.decode))
            generated = generate(model, tokens, len(plain))
        passes, records = record_passes(model, family, tokens, arguments.decode, rows, arguments.compile)
    if arguments.compile and not counters["stats"]["unique_graphs"]:
        sys.exit("error: --compile: nothing was compiled; nothing written")
    if not arguments.compile:
        check_passes(plain, passes)
        check_generated(passes, generated)
    records.append(to_record("generated", None, None, torch.tensor([current.greedy for current in passes])))
    if arguments.taps is not None:
        records = [record for record in records if record.tap in arguments.taps]
    manifest = build_manifest(arguments, config, passes)
    if any(record.rows for record in records):
        manifest["version"] = 2
    write_dump(arguments.out, manifest, records)
    generated = manifest["generated"]
    print(f"{arguments.out}: {len(passes)} passes, {len(records)} tensors; prompt {tokens}, generated {generated}")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"error: {first_line(error)}")
