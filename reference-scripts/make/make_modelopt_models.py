#!/usr/bin/env python3
"""Makes tests/data/quantised/modelopt-*: the unquantised model of that folder, quantised and exported by NVIDIA Model
Optimizer on a CPU, with the SHA-256 of the weights that its tensor classes decode.

Folders of `MODELS` are whole models with dumps. `dump.safetensors` of FP8 and int8 is a run of Model Optimizer's
modules with the exported weights. These modules have no CPU code for groups of 4-bit activations. `dump.safetensors` of
NVFP4, and each `dump-f32.safetensors`, is therefore a run of transformers with the exported tensors, in which Model
Optimizer's functions quantise activations. The other folders have the tensors of one module. AWQ and SmoothQuant
multiply the inputs of some products by `pre_quant_scale`. To find these factors, AWQ quantises weights. For NVFP4 the
library does this with a GPU kernel, which `nvfp4_on_cpu` replaces.

    PYTHONPATH=python/src python reference-scripts/make/make_modelopt_models.py tests/data/quantised [modelopt-fp8 ...]
"""

import copy
import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
import xcheck
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers
from modelopt.torch.quantization import qtensor, tensor_quant
from modelopt.torch.quantization.tensor_quant import fake_tensor_quant, fp8_eager
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from weight_digest import digest

TOKENS = torch.tensor([[1, 39, 35, 26, 9, 41]])
MODULE = "model.layers.0.mlp.down_proj"


def with_blocks(config, size):
    """The settings with another size of groups and blocks."""
    made = copy.deepcopy(config)
    for entry in made["quant_cfg"]:
        settings = entry.get("cfg") or {}
        for part in settings if isinstance(settings, list) else [settings]:
            blocks = part.get("block_sizes") or {}
            blocks.update({axis: size for axis in blocks if isinstance(axis, int)})
    return made


def with_mixed(quantised, base):
    """The settings of one format in attention and of another in the feed-forward block."""
    made = copy.deepcopy(base)
    made["quant_cfg"] += [
        entry | {"quantizer_name": entry["quantizer_name"].replace("*", "*self_attn*", 1)}
        for entry in copy.deepcopy(quantised["quant_cfg"])
        if entry["quantizer_name"] in ("*weight_quantizer", "*input_quantizer")
    ]
    return made


MODELS = {
    "modelopt-fp8": mtq.FP8_DEFAULT_CFG,
    "modelopt-int8": mtq.INT8_DEFAULT_CFG,
    "modelopt-nvfp4": mtq.NVFP4_DEFAULT_CFG,
    "modelopt-mixed": with_mixed(mtq.FP8_DEFAULT_CFG, mtq.NVFP4_DEFAULT_CFG),
    "modelopt-smoothquant": mtq.INT8_SMOOTHQUANT_CFG,
    "modelopt-int4-awq": with_blocks(mtq.INT4_AWQ_CFG, 32),
    "modelopt-nvfp4-awq": mtq.NVFP4_AWQ_LITE_CFG,
    "modelopt-w4a8-awq": with_blocks(mtq.W4A8_AWQ_BETA_CFG, 32),
}
WEIGHTS = {
    "modelopt-fp8-channel": mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
    "modelopt-fp8-block": mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG,
    "modelopt-int8-weights": mtq.INT8_WEIGHT_ONLY_CFG,
    "modelopt-int4": with_blocks(mtq.INT4_BLOCKWISE_WEIGHT_ONLY_CFG, 32),
    "modelopt-nvfp4-weights": mtq.W4A16_NVFP4_CFG,
    "modelopt-mxfp4": mtq.MXFP4_DEFAULT_CFG,
    "modelopt-mxfp8": mtq.MXFP8_DEFAULT_CFG,
}


def nvfp4_on_cpu(inputs, block_size, amax, *_):
    """Replaces the library's GPU kernel: quantises and decodes values with the library's class for NVFP4."""
    step = amax.float() / (6 * 448)
    codes, scale, _ = qtensor.NVFP4QTensor.quantize(inputs, block_size, weights_scaling_factor_2=step)
    return codes.dequantize(inputs.dtype, scale=scale, double_scale=step, block_sizes={-1: block_size})


tensor_quant.dynamic_block_quantize_op = nvfp4_on_cpu


def original(out, name):
    """The model that is quantised. Blocks of 128 x 128 need a larger one."""
    if name != "modelopt-fp8-block":
        settings = {"dtype": torch.bfloat16, "attn_implementation": "eager"}
        return AutoModelForCausalLM.from_pretrained(out / "original", **settings).eval()
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=48, hidden_size=144, intermediate_size=160, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=64, dtype="bfloat16", architectures=["LlamaForCausalLM"], initializer_range=0.1,
        pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().to(torch.bfloat16)


def decoded(tensors, module, weight, algorithm):
    """The weight of a module as Model Optimizer's class for the format decodes it, in f32."""
    scale, shape = tensors[f"{module}.weight_scale"], weight.shape
    codes = tensors[f"{module}.weight"]
    settings = {"scale": scale}
    if "NVFP4" in algorithm:
        kind, settings = qtensor.NVFP4QTensor, settings | {"double_scale": tensors[f"{module}.weight_scale_2"], "block_sizes": {-1: 16}}
    elif algorithm == "mxfp4":
        kind, settings = qtensor.MXFP4QTensor, {"scale": scale.reshape(-1, 1), "block_sizes": {-1: 32}}
    elif algorithm == "MXFP8":
        kind = qtensor.MXFP8QTensor
    elif algorithm == "fp8_pb_wo":
        rows, cols = (-(-length // 128) for length in shape)
        kind, settings = qtensor.FP8QTensor, {"scale": scale.reshape(rows, cols), "block_sizes": {-1: 128, -2: 128}}
    elif codes.dtype == torch.int8:
        kind, settings = qtensor.INT8QTensor, {"scale": scale[:, None]}
    else:
        kind, settings = qtensor.FP8QTensor, {"scale": scale[:, None] if scale.dim() else scale}
    return kind(shape, torch.float32, codes).dequantize(torch.float32, **settings)


def make(out, name, config):
    is_whole = name in MODELS
    folder, made = out / name, original(out, name)
    plain = {key: w for key, w in made.state_dict().items()}
    mtq.quantize(made, config, lambda model: model(TOKENS))
    folder.mkdir(parents=True, exist_ok=True)
    # The export gives one scale to queries, keys and values, and one to gate and up.
    requantize_resmooth_fused_llm_layers(made)
    fake = {}
    if name in ("modelopt-int4", "modelopt-int4-awq", "modelopt-w4a8-awq"):
        # No class of the library decodes the packed format, so its quantisers compute the decoded weights. They round
        # ties to other codes than the export does. Weights that have been quantised before have no ties.
        linears = dict(made.named_modules()) if is_whole else {MODULE: made.get_submodule(MODULE)}
        for module, linear in linears.items():
            if module.endswith("_proj"):
                quantiser = linear.weight_quantizer
                first = quantiser[0] if name == "modelopt-w4a8-awq" else quantiser
                linear.weight.data = first(linear.weight)
                # Adding 0 turns -0 into 0: the exported integers have no negative zero.
                fake[module] = quantiser(linear.weight) + 0.0
    live = copy.deepcopy(made)
    with tempfile.TemporaryDirectory() as saved:
        export_hf_checkpoint(made, export_dir=saved)
        tensors = load_file(Path(saved) / "model.safetensors")
        for file in ("config.json", "hf_quant_config.json"):
            (folder / file).write_text((Path(saved) / file).read_text() + "\n")
    tensors = {key: x for key, x in tensors.items() if is_whole or key.startswith(f"{MODULE}.")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    modules = [key.removesuffix(".weight_scale") for key in tensors if key.endswith(".weight_scale")]
    own = {module: settings.get("quantized_layers", {}).get(module, settings)["quant_algo"] for module in modules}
    weights = {
        module: fake[module] if module in fake else decoded(tensors, module, plain[f"{module}.weight"], own[module])
        for module in modules
    }
    if name == "modelopt-int4-awq":
        for module, weight in weights.items():
            weights[module] = unpacked(tensors[f"{module}.weight"], tensors[f"{module}.weight_scale"])
            assert torch.equal(weights[module].to(weight.dtype), weight), module
    if name == "modelopt-fp8-block":
        (folder / "original").mkdir(exist_ok=True)
        save_file({f"{MODULE}.weight": plain[f"{MODULE}.weight"]}, folder / "original/model.safetensors", metadata={"format": "pt"})
        made.config.to_json_file(folder / "original/config.json")
    versions = {library: metadata.version(library) for library in ("torch", "transformers", "nvidia-modelopt")}
    facts = {"made_with": versions, "weights": {module: digest(w) for module, w in weights.items()}}
    (folder / "decoded.json").write_text(json.dumps(facts, indent=2) + "\n")
    if is_whole:
        short = exported(out, tensors, weights, own, torch.bfloat16) if any("NVFP4" in algorithm for algorithm in own.values()) else with_weights(live, weights)
        run(short, folder / "dump.safetensors")
        run(exported(out, tensors, weights, own, torch.float32), folder / "dump-f32.safetensors")
        if any(key.endswith(".pre_quant_scale") for key in tensors):
            run(exported(out, tensors, weights, own, torch.float16), folder / "dump-f16.safetensors")


def unpacked(codes, scales):
    """Packed integers of 4 bits times their scales, in f32. A byte has the codes of two neighbouring outputs."""
    pairs = torch.stack([codes & 15, codes >> 4], dim=1).to(torch.int32)
    whole = (pairs.flatten(0, 1) ^ 8) - 8
    return whole * scales.repeat_interleave(whole.shape[1] // scales.shape[1], dim=1)


def with_weights(made, weights):
    """The calibrated model with the exported weights. Its own quantisers round a few weights to other codes."""
    for module, weight in weights.items():
        linear = made.get_submodule(module)
        linear.weight.data = weight.to(linear.weight.dtype)
        linear.weight_quantizer.disable()
    return made


def exported(out, tensors, weights, own, dtype):
    """The model with the exported weights, in another type."""
    made = AutoModelForCausalLM.from_pretrained(out / "original", dtype=dtype, attn_implementation="eager").eval()
    # AWQ moves factors into the weights of norms, so the exported norms are needed.
    own_tensors = made.state_dict()
    made.load_state_dict({key: x for key, x in tensors.items() if key in own_tensors and not key.endswith("_proj.weight")}, strict=False)
    for module, weight in weights.items():
        step, factors = (tensors.get(f"{module}.{name}") for name in ("input_scale", "pre_quant_scale"))
        factors = 1 if factors is None else factors.to(dtype)
        made.get_submodule(module).forward = product(weight.to(dtype), step, own[module], factors)
    return made


def product(weight, step, algorithm, factors):
    """The product of a weight with activations that Model Optimizer's functions quantise by a stored scale."""

    def forward(x):
        x = x * factors
        if algorithm == "W4A16_AWQ":
            pass
        elif "NVFP4" in algorithm:
            codes, scale, _ = qtensor.NVFP4QTensor.quantize(x, 16, weights_scaling_factor_2=step)
            x = codes.dequantize(x.dtype, scale=scale, double_scale=step, block_sizes={-1: 16})
        elif algorithm in ("FP8", "W4A8_AWQ"):
            x = fp8_eager(x, step * 448)
        else:
            x = fake_tensor_quant(x, step * 127, None, 8, False, False)
        return functional.linear(x, weight)

    return forward


def run(made, file):
    mask = torch.ones_like(TOKENS)
    with torch.no_grad(), xcheck.hook(made, file):
        made.generate(TOKENS, attention_mask=mask, max_new_tokens=2, min_new_tokens=2, do_sample=False)


def main():
    out, *wanted = Path(sys.argv[1]), *sys.argv[2:]
    for name, config in (MODELS | WEIGHTS).items():
        if not wanted or name in wanted:
            print(name, flush=True)
            make(out, name, config)


main()
