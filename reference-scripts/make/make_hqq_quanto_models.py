#!/usr/bin/env python3
"""Makes tests/data/quantised/hqq* and quanto*: models that hqq, transformers 4 with hqq, and quanto quantise and
save, with the SHA-256 of the weights that these libraries decode after they load the files again. Folders with
`dump.safetensors` are whole models; the others have the tensors of one module.

transformers 5 loads no files of hqq. `hqq` is therefore made with transformers 4.57, and the other folders with 5.23:

    PYTHONPATH=python/src python reference-scripts/make/make_hqq_quanto_models.py tests/data/quantised [hqq ...]
"""

import json
import shutil
import sys
import tempfile
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
import transformers
import xcheck
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from hqq.models.hf.base import AutoHQQHFModel
from optimum import quanto
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, HqqConfig, LlamaConfig, LlamaForCausalLM
from weight_digest import digest

TOKENS = torch.tensor([[1, 39, 35, 26, 9, 41]])
MODULE = "model.layers.0.mlp.down_proj"
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

# Whole models in hqq's own format: the model's type, and the settings of hqq.
HQQ = {
    "hqq-bf16": (BF16, {"nbits": 4, "group_size": 64, "axis": 1}),
    "hqq-f16": (F16, {"nbits": 4, "group_size": 32, "axis": 0}),
}
# Single modules, as transformers saves them.
HQQ_MODULES = {
    "hqq-8-bits": (F16, {"nbits": 8, "group_size": 128, "axis": 1}),
    "hqq-3-bits": (BF16, {"nbits": 3, "group_size": 32, "axis": 1}),
    "hqq-3-bits-outputs": (F32, {"nbits": 3, "group_size": 64, "axis": 0}),
    "hqq-2-bits": (F32, {"nbits": 2, "group_size": 16, "axis": 0}),
    "hqq-1-bit": (F16, {"nbits": 1, "group_size": 8, "axis": 1}),
    "hqq-float-view": (BF16, {"nbits": 4, "group_size": 64, "axis": 0, "view_as_float": True}),
}
# The original, the model's type, the type of quantised weights, and True for a whole model (False: one module).
QUANTO = {
    "quanto-int8": ("original", BF16, quanto.qint8, True),
    "quanto-int4": ("original", F32, quanto.qint4, True),
    "quanto-fp8": ("original", F16, quanto.qfloat8, True),
    "quanto-int2": ("original", F16, quanto.qint2, False),
    "quanto-fp8-e5m2": ("original", BF16, quanto.qfloat8_e5m2, False),
    # Modules with more than 128 inputs have groups. In bf16, those with groups of 128 use torch's kernel for int4.
    "quanto-groups": ("quanto-groups/original", BF16, quanto.qint4, True),
    "quanto-int2-groups": ("quanto-groups/original", F32, quanto.qint2, False),
}
# Shifts that do not survive the kernel for int4, of matrices that use this kernel or not: the original, the model's
# type, and the modules.
QUANTO_SHIFTS = {
    "quanto-shifts": ("quanto-groups/original", BF16, ("self_attn.o_proj", "mlp.down_proj")),
    "quanto-shifts-f16": ("quanto-groups/original", F16, ("self_attn.o_proj", "mlp.down_proj")),
    "quanto-shifts-narrow": ("original", BF16, ("mlp.down_proj",)),
}


def wide_model():
    """A model with 256 inputs of `o_proj` and 160 of `down_proj`."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=160, num_hidden_layers=1, num_attention_heads=16,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, dtype="bfloat16",
    )  # fmt: skip
    made = LlamaForCausalLM(config).eval()
    random = torch.Generator().manual_seed(2)
    for name, weight in made.named_parameters():
        if weight.dim() == 2:
            weight.data = torch.randn(weight.shape, generator=random) * (0.7 if "embed" in name else 0.18)
    return made.to(BF16)


def loaded(folder, dtype, **settings):
    made = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **settings)
    return made.eval()


def write_facts(folder, weights):
    libraries = ("torch", "transformers", "hqq" if folder.name.startswith("hqq") else "optimum-quanto")
    versions = {library: metadata.version(library) for library in libraries}
    digests = {name: digest(weight) for name, weight in weights.items()}
    (folder / "decoded.json").write_text(json.dumps({"made_with": versions, "weights": digests}, indent=2) + "\n")


def run(made, file):
    mask = torch.ones_like(TOKENS)
    with torch.no_grad(), xcheck.hook(made, file):
        made.generate(TOKENS, attention_mask=mask, max_new_tokens=2, min_new_tokens=2, do_sample=False)


def hqq_weights(made):
    modules = {name: module for name, module in made.named_modules() if isinstance(module, HQQLinear)}
    return {name: module.dequantize() for name, module in modules.items()}


def make_hqq_with_transformers(original, folder):
    """Quantises with `HqqConfig` of transformers 4, which always quantises and computes in f32."""
    config = AutoConfig.from_pretrained(original)
    config.rope_theta = config.rope_parameters.pop("rope_theta")  # the key of transformers 4
    del config.rope_parameters
    settings = HqqConfig(nbits=4, group_size=32)
    loaded(original, F32, config=config, quantization_config=settings).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    made = loaded(folder, F32)
    write_facts(folder, hqq_weights(made))
    run(made, folder / "dump.safetensors")
    run(quantised_by_hqq(original, folder, BF16, config), folder / "dump-bf16.safetensors")


def quantised_by_hqq(original, folder, dtype, config):
    """A model of another type with the modules of a folder: hqq rounds their scales to this type."""
    made, stored = loaded(original, dtype, config=config), load_file(folder / "model.safetensors")
    for name in [name.removesuffix(".W_q") for name in stored if name.endswith(".W_q")]:
        module = HQQLinear(None, None, compute_dtype=dtype, device="cpu")
        own = {key.removeprefix(f"{name}."): x for key, x in stored.items() if key.startswith(f"{name}.")}
        module.load_state_dict(own)
        made.set_submodule(name, module)
    return made


def make_hqq(original, folder, dtype, settings):
    made = loaded(original, dtype)
    AutoHQQHFModel.quantize_model(made, BaseQuantizeConfig(**settings), compute_dtype=dtype, device="cpu")
    AutoHQQHFModel.save_quantized(made, str(folder))
    made = loaded_by_hqq(original, folder, dtype)
    write_facts(folder, hqq_weights(made))
    run(made, folder / "dump.safetensors")
    name, other = ("f16", F16) if dtype == BF16 else ("bf16", BF16)
    run(loaded_by_hqq(original, folder, other), folder / f"dump-{name}.safetensors")


def loaded_by_hqq(original, folder, dtype):
    made = AutoHQQHFModel.from_quantized(
        str(folder), compute_dtype=dtype, device="cpu", attn_implementation="eager"
    ).eval()
    # hqq rounds RoPE's frequencies to the model's type. The unquantised model does not, so they are restored.
    made.model.rotary_emb = loaded(original, dtype).model.rotary_emb
    return made


def make_hqq_module(original, folder, dtype, settings):
    made, settings = loaded(original, dtype), BaseQuantizeConfig(**settings)
    module = HQQLinear(made.get_submodule(MODULE), settings, compute_dtype=dtype, device="cpu")
    stored = {name: x.detach().clone().contiguous() for name, x in module.state_dict().items()}
    again = HQQLinear(None, None, compute_dtype=dtype, device="cpu")
    again.load_state_dict(dict(stored))
    save_file({f"{MODULE}.{name}": x for name, x in stored.items()}, folder / "model.safetensors")
    config = made.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    config.pop("_name_or_path", None)
    config["quantization_config"] = {
        "quant_config": settings,
        "quant_method": "hqq",
        "skip_modules": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_facts(folder, {MODULE: again.dequantize()})


def make_quanto(original, folder, dtype, weights, is_whole):
    exclude = "lm_head" if is_whole else None
    made = quanto.QuantizedModelForCausalLM.quantize(loaded(original, dtype), weights=weights, exclude=exclude)
    made.save_pretrained(folder)
    for name in ("README.md", "generation_config.json"):
        (folder / name).unlink()
    made = quanto.QuantizedModelForCausalLM.from_pretrained(folder)._wrapped
    made.config._attn_implementation = "eager"
    modules = {name: module for name, module in made.named_modules() if isinstance(module, quanto.QLinear)}
    for module in modules.values() if weights.bits == 8 else []:
        # torch's int8 kernel needs aligned memory, which a mapped file does not always have.
        module.weight._data = module.weight._data.clone()
    decoded = {name: module.weight.dequantize() for name, module in modules.items()}
    if is_whole:
        write_facts(folder, decoded)
        run(made, folder / "dump.safetensors")
        return
    file, map_file = folder / "model.safetensors", folder / "quanto_qmap.json"
    save_file({name: x for name, x in load_file(file).items() if name.startswith(f"{MODULE}.")}, file)
    map_file.write_text(json.dumps({MODULE: json.loads(map_file.read_text())[MODULE]}, indent=4))
    write_facts(folder, {MODULE: decoded[MODULE]})


def make_quanto_shifts(original, folder, dtype, modules):
    """Modules of qint4 with shifts far from the middle of the codes, as devices without the kernel may store them. With
    the kernel, quanto rounds them when it loads the file."""
    made = quanto.QuantizedModelForCausalLM.quantize(loaded(original, dtype), weights=quanto.qint4, exclude="lm_head")
    made.save_pretrained(folder)
    for name in ("README.md", "generation_config.json"):
        (folder / name).unlink()
    file, map_file = folder / "model.safetensors", folder / "quanto_qmap.json"
    stored = load_file(file)
    for name, x in stored.items():
        if name.endswith("._shift"):
            stored[name] = x * 0.3
    save_file(stored, file)
    made = quanto.QuantizedModelForCausalLM.from_pretrained(folder)._wrapped
    modules = [f"model.layers.0.{module}" for module in modules]
    save_file({name: x for name, x in stored.items() if name.partition(".weight.")[0] in modules}, file)
    types = json.loads(map_file.read_text())
    map_file.write_text(json.dumps({module: types[module] for module in modules}, indent=4))
    write_facts(folder, {module: made.get_submodule(module).weight.dequantize() for module in modules})


def ways(out):
    """Returns the function that makes each folder, by the folder's name."""
    original = out / "original"
    if transformers.__version__.startswith("4."):
        return {"hqq": partial(make_hqq_with_transformers, original)}
    made = {}
    for name, way in HQQ.items():
        made[name] = partial(make_hqq, original, dtype=way[0], settings=way[1])
    for name, way in HQQ_MODULES.items():
        made[name] = partial(make_hqq_module, original, dtype=way[0], settings=way[1])
    for name, (source, dtype, weights, is_whole) in QUANTO.items():
        made[name] = partial(make_quanto, out / source, dtype=dtype, weights=weights, is_whole=is_whole)
    for name, (source, dtype, modules) in QUANTO_SHIFTS.items():
        made[name] = partial(make_quanto_shifts, out / source, dtype=dtype, modules=modules)
    return made


def main():
    out, *wanted = sys.argv[1:]
    out = Path(out)
    with tempfile.TemporaryDirectory() as place:
        wide_model().save_pretrained(place)
        for name, make in ways(out).items():
            if wanted and name not in wanted:
                continue
            print(name, flush=True)
            shutil.rmtree(out / name, ignore_errors=True)
            (out / name).mkdir()
            if name == "quanto-groups":
                shutil.copytree(place, out / name / "original", ignore=shutil.ignore_patterns("generation_config.json"))
            make(out / name)


main()
