#!/usr/bin/env python3
"""Makes tests/data/quantised: a small random Llama, quantised by the real libraries, with the SHA-256 of the weights that each
library decodes, and dumps of transformers with the quantised weights.

`original` is the unquantised model. Folders of `MODELS` are whole models with a dump. Folders of `WEIGHTS` have the tensors of one module. The versions of the
libraries are in each `decoded.json`. GPTQModel is not built: its source folder is enough.

    PYTHONPATH=python/src:gptqmodel-7.7.0 python reference-scripts/make/make_quantised_models.py tests/data/quantised [awq ...]
"""

import json
import sys
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import torch
import xcheck
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from weight_digest import digest

TOKENS = torch.tensor([[1, 39, 35, 26, 9, 41]])
MODULE = "model.layers.0.mlp.down_proj"
LINEAR = [
    *(f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"),
    *(f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")),
]


def model(dtype):
    """The model before it is quantised."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype=str(dtype).removeprefix("torch."),
    )
    made = LlamaForCausalLM(config).eval()
    frequencies = made.model.rotary_emb.inv_freq.clone()
    made = made.to(dtype)
    made.model.rotary_emb.inv_freq = frequencies
    random = torch.Generator().manual_seed(2)
    for name, weight in made.named_parameters():
        size = 0.7 if "embed" in name else 0.18
        if weight.dim() == 2:
            weight.data = (torch.randn(weight.shape, generator=random) * size).to(dtype)
    return made


# ---------------------------------------------------------------------------------------------------
# Each way returns the tensors of a module, and its decoded weight.


def affine(weight, bits, group, symmetric):
    """Scales and zero points of groups of inputs, both [out, groups], as the quantisers compute them."""
    parts = weight.float().reshape(weight.shape[0], -1, group)
    most = 2**bits - 1
    if symmetric:
        scales = parts.abs().amax(-1) * 2 / most
        return scales, torch.full_like(scales, 2 ** (bits - 1))
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scales = (high - low) / most
    return scales, torch.round(-low / scales).clamp(0, most)


def awq(weight, group=32):
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    linear = with_weight(weight.to(torch.float16))
    made = AwqTorchLinear(
        bits=4, group_size=group, sym=False, desc_act=False, in_features=linear.in_features,
        out_features=linear.out_features, bias=False, register_buffers=False,
    )  # fmt: skip
    scales, zeros = affine(weight, 4, group, False)
    made.pack(linear, scales.to(torch.float16), zeros)
    decoded = dequantize_gemm(
        qweight=made.qweight, qzeros=made.qzeros, scales=made.scales, bits=4, group_size=group
    )
    return {name: getattr(made, name) for name in ("qweight", "qzeros", "scales")}, decoded.T, made


def gptq(weight, bits=4, group=32, symmetric=True, v1=True, by_activation=False):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    class Settings:
        pack_dtype = torch.int32

    Settings.bits = bits
    linear = with_weight(weight.to(torch.float16))
    cols = linear.in_features
    made = TorchLinear(
        bits=bits, group_size=group, sym=symmetric, desc_act=by_activation, in_features=cols,
        out_features=linear.out_features, bias=False, pack_dtype=torch.int32, register_buffers=True,
    )  # fmt: skip
    order = torch.randperm(cols, generator=torch.Generator().manual_seed(3)) if by_activation else torch.arange(cols)
    groups = torch.empty(cols, dtype=torch.int32)
    groups[order] = torch.arange(cols, dtype=torch.int32) // group
    scales, zeros = affine(weight[:, order], bits, group, symmetric)
    made.pack_original(linear, scales, zeros, groups)
    made.optimize = lambda *_, **__: None
    made.post_init()
    decoded = made.dequantize_weight().T.to(made.scales.dtype)
    tensors = {name: getattr(made, name).clone() for name in ("qweight", "qzeros", "scales", "g_idx")}
    if v1:
        kept = made.qzeros.clone()
        convert_gptq_v2_to_v1_format_module(made, Settings)
        tensors["qzeros"] = made.qzeros.clone()
        made.qzeros.data.copy_(kept)
    return tensors, decoded, made


# Settings of single modules: a pattern, a module's name, and modules that are not quantised.
DYNAMIC = {
    "-:.*k_proj": {},
    r"+:model\.layers\.0\.mlp\.up_proj": {"bits": 8},
    r".*\.mlp\.down": {"group_size": 64, "sym": False, "desc_act": True},
}


def gptq_by_rules(module):
    """The way to quantise a module by GPTQModel's rules; `None` if they exclude it."""
    from gptqmodel.quantization.config import dynamic_get

    own = dynamic_get(DYNAMIC, module, default={})
    names = {"bits": "bits", "group_size": "group", "sym": "symmetric", "desc_act": "by_activation"}
    return None if own is False else lambda w: gptq(w, **{names[key]: value for key, value in own.items()})


def with_weight(weight):
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    linear.weight.data = weight
    return linear


def scheme(settings):
    from compressed_tensors.quantization import QuantizationScheme

    return QuantizationScheme(targets=["Linear"], **settings)


def compressed(weight, settings, scale_dtype=None):
    """compressed-tensors' own scales, packing and unpacking."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    made = scheme(settings)
    arguments, state = made.weights, {"weight": weight}
    rows, cols = weight.shape
    match str(arguments.strategy):
        case "tensor":
            parts = weight.reshape(1, -1)
            low, high = parts.amin(-1), parts.amax(-1)
        case "channel":
            low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
        case "block":
            height, width = arguments.block_structure
            down, across = -(-rows // height), -(-cols // width)
            padded = torch.zeros(down * height, across * width, dtype=weight.dtype)
            padded[:rows, :cols] = weight
            parts = padded.reshape(down, height, across, width)
            low, high = parts.amin((1, 3)), parts.amax((1, 3))
        case _:
            parts = weight.reshape(rows, -1, arguments.group_size)
            low, high = parts.amin(-1), parts.amax(-1)
    global_scale = None
    if str(arguments.strategy) == "tensor_group":
        global_scale = generate_gparam(weight.amin(), weight.amax())
        state["weight_global_scale"] = global_scale
    scale, zero = calculate_qparams(low, high, arguments, global_scale=global_scale)
    state["weight_scale"] = scale if scale_dtype is None else scale.to(scale_dtype)
    if not arguments.symmetric:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(made.format)
    packed = compressor.compress(state, made)
    decoded = compressor.decompress(packed, made)["weight"]
    return packed, decoded, None


def observed(made, settings, modules):
    """Static scales of the activations, by module: compressed-tensors' scales for the values that a run shows."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    arguments, tensors = scheme(settings).input_activations, {}

    def observe(module):
        def hook(_, inputs):
            low, high = inputs[0].amin().reshape(1), inputs[0].amax().reshape(1)
            if str(arguments.strategy) == "tensor_group":
                tensors[f"{module}.input_global_scale"] = generate_gparam(low, high)
                return
            scale, zero = calculate_qparams(low, high, arguments)
            tensors[f"{module}.input_scale"] = scale
            if not arguments.symmetric:
                tensors[f"{module}.input_zero_point"] = zero

        return hook

    handles = [made.get_submodule(name).register_forward_pre_hook(observe(name)) for name in modules]
    with torch.no_grad():
        made(TOKENS)
    for handle in handles:
        handle.remove()
    return tensors


def observed_cache(made, arguments):
    """Scales of an FP8 cache: compressed-tensors' scales for the keys and values that a run shows."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.utils import calculate_qparams

    with torch.no_grad():
        cached = made(TOKENS, use_cache=True).past_key_values.layers[0]
    tensors, arguments = {}, QuantizationArgs(**arguments)
    for name, values in (("k", cached.keys), ("v", cached.values)):
        parts = values[0].flatten(1) if str(arguments.strategy) == "attn_head" else values.reshape(1, -1)
        scale, _ = calculate_qparams(parts.amin(-1), parts.amax(-1), arguments)
        shape = (-1, 1, 1) if str(arguments.strategy) == "attn_head" else (1,)
        tensors[f"model.layers.0.self_attn.{name}_scale"] = scale.reshape(shape)
    return tensors


def fp8(weight, block=32, exponents=False):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    rows, cols = weight.shape
    parts = weight.float().reshape(rows // block, block, cols // block, block)
    scale = parts.abs().amax((1, 3)) / 448.0
    if exponents:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    codes = (parts / scale[:, None, :, None]).to(torch.float8_e4m3fn).reshape(rows, cols)
    if exponents:
        scale = scale.to(torch.float8_e8m0fnu)
    decoded = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.bfloat16)
    stored = scale.view(torch.uint8) if exponents else scale
    return {"weight": codes, "weight_scale_inv": stored}, decoded, None


def fp8_tensor(weight, scale_dtype=torch.float32):
    """transformers' `fp8` without blocks, as in Ministral 3."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    scale = (weight.float().abs().amax() / 448.0).to(scale_dtype)
    codes = (weight.float() / scale.float()).to(torch.float8_e4m3fn)
    decoded = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.bfloat16)
    return {"weight": codes, "weight_scale_inv": scale}, decoded, None


def bitsandbytes(weight, kind, nested):
    import bitsandbytes.functional as bnb

    codes, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
    tensors = {"weight": codes} | {f"weight.{name}": x for name, x in state.as_dict(packed=True).items()}
    return tensors, bnb.dequantize_4bit(codes, state), None


def integers(weight):
    import bitsandbytes.functional as bnb

    codes, largest, _ = bnb.int8_vectorwise_quant(weight.to(torch.float16))
    return {"weight": codes, "SCB": largest}, bnb.int8_vectorwise_dequant(codes, largest), None


def mlx(weight, bits, group=32):
    import mlx.core as mx
    import numpy as np

    stored = mx.array(weight.float().numpy()).astype(mx.bfloat16)
    codes, scales, biases = mx.quantize(stored, group_size=group, bits=bits)
    decoded = mx.dequantize(codes, scales, biases, group_size=group, bits=bits)
    short = lambda x: torch.from_numpy(np.array(x.astype(mx.float32))).to(torch.bfloat16)  # noqa: E731
    words = torch.from_numpy(np.array(codes).view(np.int32)).view(torch.uint32)
    return {"weight": words, "scales": short(scales), "biases": short(biases)}, short(decoded), None


# ---------------------------------------------------------------------------------------------------


def weights(bits, kind="int", **more):
    return {"num_bits": bits, "type": kind, **more}


def compressed_config(settings):
    group = scheme(settings).model_dump(mode="json", exclude_none=True)
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "format": settings["format"],
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
    }


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"}
PACKED = {"weights": weights(4, strategy="group", group_size=32), "format": "pack-quantized"}
TOKEN = {"strategy": "token", "dynamic": True}
INTEGERS = {
    "weights": weights(8, strategy="channel"),
    "input_activations": weights(8, **TOKEN),
    "format": "int-quantized",
}
FLOATS = {
    "weights": weights(8, "float", strategy="channel"),
    "input_activations": weights(8, "float", **TOKEN),
    "format": "float-quantized",
}
STATIC = {"strategy": "tensor", "dynamic": False}
STATIC_FLOATS = FLOATS | {"input_activations": weights(8, "float", **STATIC)}
STATIC_INTEGERS = INTEGERS | {"input_activations": weights(8, **STATIC)}
STATIC_ZEROS = INTEGERS | {"input_activations": weights(8, symmetric=False, **STATIC)}
NVFP4 = {
    "weights": weights(4, "float", strategy="tensor_group", group_size=16, scale_dtype="torch.float8_e4m3fn"),
    "format": "nvfp4-pack-quantized",
}
# Activations of 4 bits: scales of groups are computed from the values. NVFP4 stores one more scale for each matrix.
NVFP4_INPUTS = NVFP4 | {"input_activations": NVFP4["weights"] | {"dynamic": "local"}}
MXFP4 = {
    "weights": weights(4, "float", strategy="group", group_size=32, scale_dtype="torch.uint8"),
    "format": "mxfp4-pack-quantized",
}
MXFP4_INPUTS = MXFP4 | {"input_activations": MXFP4["weights"] | {"dynamic": True}}
MXFP8 = {
    "weights": weights(8, "float", strategy="group", group_size=32, scale_dtype="torch.uint8"),
    "format": "mxfp8-quantized",
}
MXFP8_INPUTS = MXFP8 | {"input_activations": MXFP8["weights"] | {"dynamic": True}}


def cache(strategy):
    return weights(8, "float", strategy=strategy, dynamic=False, symmetric=True)


def with_cache(strategy):
    dtype, config, way = with_compressed(PACKED)
    return dtype, config | {"kv_cache_scheme": cache(strategy)}, way


def gptq_config(bits=4, group=32, symmetric=True, v1=True, by_activation=False):
    form = "gptq" if v1 else "gptq_v2"
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": symmetric,
        "desc_act": by_activation,
        "checkpoint_format": form,
        "pack_dtype": "int32",
        "lm_head": False,
    }


def with_two(name, attention, feed_forward):
    """Attention and the feed-forward block with settings of their own."""
    groups = {"attention": (attention, ["re:.*self_attn.*proj"]), "feed_forward": (feed_forward, ["re:.*mlp.*proj"])}
    made = {
        key: (scheme(settings).model_dump(mode="json", exclude_none=True) | {"targets": targets})
        for key, (settings, targets) in groups.items()
    }
    config = compressed_config(attention) | {"config_groups": made, "format": "mixed-precision"}
    BY_MODULE[name] = lambda module: lambda w: compressed(w, attention if "self_attn" in module else feed_forward)
    return torch.bfloat16, config, None


def with_gptq(**settings):
    return torch.float16, gptq_config(**settings), lambda w: gptq(w, **settings)


def with_compressed(settings, scale_dtype=None):
    way = lambda w: compressed(w, settings, scale_dtype)  # noqa: E731
    return torch.bfloat16, compressed_config(settings), way


# Ways to quantise that differ between modules.
BY_MODULE = {"gptq-dynamic": gptq_by_rules}

# Type of the model, quantization_config, and the way to quantise a module.
MODELS = {
    "awq": (torch.float16, AWQ, awq),
    "gptq": with_gptq(),
    "gptq-dynamic": (torch.float16, gptq_config() | {"dynamic": DYNAMIC}, gptq_by_rules),
    "w4a16": with_compressed(PACKED),
    "fp8-cache": with_cache("tensor"),
    "fp8-cache-heads": with_cache("attn_head"),
    "nvfp4": with_compressed(NVFP4),
    "nvfp4-inputs": with_compressed(NVFP4_INPUTS),
    "mxfp4-inputs": with_compressed(MXFP4_INPUTS),
    "mxfp8-inputs": with_compressed(MXFP8_INPUTS),
    "nvfp4-and-fp8": with_two("nvfp4-and-fp8", FLOATS, NVFP4_INPUTS),
    "static-and-dynamic": with_two("static-and-dynamic", STATIC_INTEGERS, INTEGERS),
    "w8a8": with_compressed(INTEGERS),
    "fp8-dynamic": with_compressed(FLOATS),
    "fp8-static": with_compressed(STATIC_FLOATS),
    "w8a8-static": with_compressed(STATIC_INTEGERS),
    "w8a8-static-zeros": with_compressed(STATIC_ZEROS),
    "fp8": (
        torch.bfloat16,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        fp8,
    ),
    "fp8-static-tensor": (
        torch.bfloat16,
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None, "dequantize": False},
        fp8_tensor,
    ),
    "nf4-model": (
        torch.bfloat16,
        BNB | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        lambda w: bitsandbytes(w, "nf4", True),
    ),
    "fp4-model": (
        torch.bfloat16,
        BNB | {"bnb_4bit_quant_type": "fp4"},
        lambda w: bitsandbytes(w, "fp4", False),
    ),
    # The threshold is so low that some activations of a small model are above it.
    "int8-model": (
        torch.bfloat16,
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 2.5},
        integers,
    ),
}
# Static scales of activations, and the part of the names of the modules that have them.
INPUTS = {
    "fp8-static-tensor": STATIC_FLOATS,
    "fp8-static": STATIC_FLOATS,
    "w8a8-static": STATIC_INTEGERS,
    "w8a8-static-zeros": STATIC_ZEROS,
    "nvfp4-inputs": NVFP4_INPUTS,
    "nvfp4-and-fp8": (NVFP4_INPUTS, "mlp"),
    "static-and-dynamic": (STATIC_INTEGERS, "self_attn"),
}
WEIGHTS = {
    "gptq-activation-order": with_gptq(symmetric=False, v1=False, by_activation=True),
    "gptq-asymmetric": with_gptq(symmetric=False),
    "gptq-2-bits": with_gptq(bits=2),
    "gptq-3-bits": with_gptq(bits=3, symmetric=False),
    "gptq-8-bits": with_gptq(bits=8, group=64),
    "w4a16-asymmetric": with_compressed(
        {"weights": weights(4, strategy="group", group_size=32, symmetric=False), "format": "pack-quantized"}
    ),
    "w8a16-channel": with_compressed({"weights": weights(8, strategy="channel"), "format": "pack-quantized"}),
    "w3a16": with_compressed(
        {"weights": weights(3, strategy="group", group_size=32), "format": "pack-quantized"}
    ),
    "w8-naive": with_compressed({"weights": weights(8, strategy="channel"), "format": "naive-quantized"}),
    "fp8-exponents": (
        torch.bfloat16,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"},
        lambda w: fp8(w, exponents=True),
    ),
    "fp8-block": with_compressed(
        {"weights": weights(8, "float", strategy="block", block_structure=[48, 48]), "format": "naive-quantized"}
    ),
    "fp8-channel": with_compressed(
        {"weights": weights(8, "float", strategy="channel"), "format": "float-quantized"}
    ),
    "fp8-tensor": with_compressed(
        {"weights": weights(8, "float", strategy="tensor"), "format": "float-quantized"}, torch.float32
    ),
    "mxfp4": with_compressed(MXFP4),
    "mxfp8": with_compressed(MXFP8),
    "nf4": (
        torch.bfloat16,
        BNB | {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        lambda w: bitsandbytes(w, "nf4", True),
    ),
    "bnb-fp4": (torch.bfloat16, BNB | {"bnb_4bit_quant_type": "fp4"}, lambda w: bitsandbytes(w, "fp4", False)),
    "bnb-int8": (torch.float16, {"quant_method": "bitsandbytes", "load_in_8bit": True}, integers),
    "mlx-4-bits": (torch.bfloat16, None, lambda w: mlx(w, 4)),
    "mlx-3-bits": (torch.bfloat16, None, lambda w: mlx(w, 3)),
    "mlx-8-bits": (torch.bfloat16, None, lambda w: mlx(w, 8, 64)),
}
MLX = {"mlx-4-bits": (4, 32), "mlx-3-bits": (3, 32), "mlx-8-bits": (8, 64)}
CACHE_TAPS = (
    "embed", "attn_norm", "q", "k", "v", "k_cache", "v_cache", "attn_context", "attn_out", "attn_residual", "ffn_norm",
    "ffn_gate", "ffn_up", "ffn_act", "ffn_out", "block_out", "final_norm", "logits", "last_logits", "argmax",
)  # fmt: skip
LIBRARIES = ("torch", "transformers", "compressed-tensors", "bitsandbytes", "mlx")


def make(folder, name, dtype, config, way):
    made = model(dtype)
    whole = name in MODELS
    tensors, decoded, modules = {}, {}, {}
    for module in LINEAR if whole else [MODULE]:
        weight = made.get_submodule(module).weight.data
        way_of_module = BY_MODULE[name](module) if name in BY_MODULE else way
        if way_of_module is None:
            continue
        parts, plain, modules[module] = way_of_module(weight)
        tensors |= {f"{module}.{part}": x.detach().clone().contiguous() for part, x in parts.items()}
        decoded[module] = plain
    if name in INPUTS:
        settings, part = INPUTS[name] if isinstance(INPUTS[name], tuple) else (INPUTS[name], "")
        tensors |= observed(made, settings, [module for module in LINEAR if part in module])
    if name.startswith("fp8-cache"):
        tensors |= observed_cache(made, config["kv_cache_scheme"])
    if name == "fp8-static-tensor":
        renamed = {key.replace("input_scale", "activation_scale"): x for key, x in tensors.items()}
        tensors = {key: x.float().reshape(()) if "activation_scale" in key else x for key, x in renamed.items()}
    folder.mkdir(parents=True, exist_ok=True)
    if whole:
        kept = {key: x for key, x in made.state_dict().items() if key.removesuffix(".weight") not in modules}
        tensors |= {key: x.contiguous() for key, x in kept.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = made.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    if config is None:
        bits, group = MLX[name]
        settings["quantization"] = {"group_size": group, "bits": bits}
    else:
        settings["quantization_config"] = config
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    versions = installed()
    digests = {module: digest(weight) for module, weight in decoded.items()}
    facts = {"made_with": versions, "weights": digests}
    (folder / "decoded.json").write_text(json.dumps(facts, indent=2) + "\n")
    if whole:
        dump(folder, made, dtype, modules, decoded)


def installed():
    """The versions of the libraries that are there."""
    there = {one.metadata["Name"].lower() for one in metadata.distributions()}
    versions = {library: metadata.version(library) for library in LIBRARIES if library in there}
    if find_spec("gptqmodel"):
        from gptqmodel.version import __version__

        versions["gptqmodel"] = __version__
    return versions


def dump(folder, made, dtype, modules, decoded):
    """A run of the model with the library's modules, or as transformers loads the folder."""
    made.config._attn_implementation = "eager"
    file = folder / "dump.safetensors"
    if all(modules.values()):
        for module, quantised in modules.items():
            made.set_submodule(module, quantised.eval())
    else:
        made = loaded(folder, dtype)
    kernels = [module for module in made.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    has_own_kernel = any(module.support_avx512bf16_for_cpu for module in kernels)
    for module in kernels:
        module.support_avx512bf16_for_cpu = False
    run(made, file)
    if folder.name == "fp8-static-tensor":
        run_scaled_mm(made, folder)
    for module in kernels if has_own_kernel else []:
        module.support_avx512bf16_for_cpu = True
    if has_own_kernel:
        run(made, folder / "dump-avx512-bf16.safetensors")
    if folder.name in ("nvfp4-inputs", "mxfp4-inputs"):
        run_in_f32(folder)
    if folder.name.startswith("fp8-cache"):
        run(loaded(folder, torch.float32), folder / "dump-f32.safetensors")


def loaded(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def run_in_f32(folder):
    """A run in f32. By default, compressed-tensors decodes 4-bit weights to bf16."""
    from compressed_tensors.compressors.nvfp4 import base

    unpack = partial(base.unpack_fp4_from_uint8, dtype=torch.float32)
    with patch.object(base, "unpack_fp4_from_uint8", unpack):
        run(loaded(folder, torch.float32), folder / "dump-f32.safetensors")


def run_scaled_mm(made, folder):
    """A run with torch's kernel for products of FP8 (`_scaled_mm`), called as vLLM does, with the stored scales."""
    from safetensors.torch import load_file

    stored = load_file(folder / "model.safetensors")

    def forward(module):
        weight, scale, step = (stored[f"{module}.{part}"] for part in ("weight", "weight_scale_inv", "activation_scale"))

        def product(x):
            rows = (x.float() / step).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(0, -2)
            made = torch._scaled_mm(rows, weight.t(), scale_a=step, scale_b=scale, out_dtype=x.dtype)
            return made.unflatten(0, x.shape[:-1])

        return product

    for module in LINEAR:
        made.get_submodule(module).forward = forward(module)
    run(made, folder / "dump-scaled-mm.safetensors")


def run(made, file):
    mask = torch.ones_like(TOKENS)
    # compressed-tensors quantises keys before the hook of k_rope sees them.
    has_cache = file.parent.name.startswith("fp8-cache")
    with torch.no_grad(), xcheck.hook(made, file, only=CACHE_TAPS if has_cache else None) as dump:
        if has_cache:
            dump.setting("kv_cache", "f8_e4m3")
        made.generate(TOKENS, attention_mask=mask, max_new_tokens=2, min_new_tokens=2, do_sample=False)


def save_original(folder):
    """The model before it is quantised."""
    made = model(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(folder)


def main():
    out, *wanted = sys.argv[1:]
    if not wanted or "original" in wanted:
        save_original(Path(out) / "original")
    for name, (dtype, config, way) in (MODELS | WEIGHTS).items():
        if not wanted or name in wanted:
            print(name, flush=True)
            make(Path(out) / name, name, dtype, config, way)


main()
