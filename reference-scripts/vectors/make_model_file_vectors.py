#!/usr/bin/env python3
"""Writes tests/data/model-files/logits.json and adapter/: logits of real libraries for models whose files are laid out
otherwise, and a LoRA adapter of peft.

usage: make_model_file_vectors.py [OUT_FOLDER]

Needs torch, transformers, peft, gguf and llama-cpp-python. A case names a folder of this repository, the changes to its
`config.json` (null: the key goes), and what wraps its tensors. The logits are the first ones of the last token.
"""

import json
import math
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import gguf
import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
QWEN3 = "checkpoints/tiny-qwen3/hf"
LLAMA = "checkpoints/tiny-llama2/hf"
BIASED = "tests/data/architectures/tiny-llama-bias/hf"
CHUNKS = "tests/data/architectures/tiny-llama4-chunks/hf"
TOKENS = [1, 5, 9, 12, 3, 7, 200, 31]
# Longer than the original context of tiny-phi4, beyond which llama.cpp computes in its whole context.
MORE_TOKENS = [*TOKENS, 8, 100, 17, 45]
SHOWN = 24
NONE = {"rope_parameters": None, "rope_theta": None, "rope_scaling": None}

ROPE = {
    "rope_theta inside rope_scaling": {"rope_scaling": {"type": "linear", "factor": 4.0, "rope_theta": 1e6}},
    "rope_theta beside rope_scaling": {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 1e6},
    "rope_scaling replaces rope_parameters": {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
    "and its base": {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0},
    },
    "an empty rope_scaling": {"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "rope_theta twice": {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "dynamic NTK within the context": {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "rope_theta": 1e4},
    "YaRN by its old keys": {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        "rope_theta": 1e4,
    },
}
CASES = [
    *({"name": name, "source": QWEN3, "config": NONE | change} for name, change in ROPE.items()),
    {"name": "windows on, but no layer slides", "source": QWEN3,
     "config": {"use_sliding_window": True, "sliding_window": 4, "layer_types": None, "max_window_layers": 28}},
    {"name": "windows on, but all layers are full", "source": QWEN3,
     "config": {"use_sliding_window": True, "sliding_window": 4}},
    {"name": "chunks in layers without RoPE", "source": CHUNKS,
     "config": {"layer_types": ["full_attention", "chunked_attention"]}},
    {"name": "without its head", "source": QWEN3, "config": {}, "wrapper": "base"},
    {"name": "DataParallel", "source": QWEN3, "config": {}, "wrapper": "parallel"},
    {"name": "torch.compile", "source": QWEN3, "config": {}, "wrapper": "compiled"},
    {"name": "torch.compile of each layer", "source": QWEN3, "config": {}, "wrapper": "layers"},
    {"name": "biases in attention and MLP", "source": BIASED, "config": {}},
    {"name": "a LoRA adapter apart", "source": LLAMA, "config": {}, "adapter": "apart"},
    {"name": "a LoRA adapter beside the weights", "source": LLAMA, "config": {}, "adapter": "beside"},
    {"name": "a LoRA adapter merged by peft", "source": LLAMA, "config": {}, "adapter": "merged"},
    {"name": "a rank-stabilised LoRA adapter with a module to save", "source": LLAMA, "config": {}, "adapter": "saved"},
]  # fmt: skip


def shown(logits: torch.Tensor) -> list[float]:
    return [float(value) for value in logits[:SHOWN]]


def logits(model) -> list[float]:
    with torch.no_grad():
        return shown(model(torch.tensor([TOKENS])).logits[0, -1])


def wrap(model, wrapper: str):
    """Returns the names and tensors that a wrapped model saves."""
    if wrapper == "base":
        model = model.model
    elif wrapper == "parallel":
        model = torch.nn.DataParallel(model)
    elif wrapper == "compiled":
        model = torch.compile(model)
    else:
        for index, layer in enumerate(model.model.layers):
            model.model.layers[index] = torch.compile(layer)
    return model.state_dict()


def make_adapters(out: Path) -> None:
    """Writes two LoRA adapters of tiny-llama2 with random weights."""
    plain = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    saved = {"r": 2, "lora_alpha": 8, "use_rslora": True, "target_modules": ["o_proj"], "modules_to_save": ["norm"]}
    for name, settings in [("plain", plain), ("saved", saved)]:
        torch.manual_seed(20261127)
        base = AutoModelForCausalLM.from_pretrained(ROOT / LLAMA, dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
        for key, parameter in model.named_parameters():
            if "lora_" in key or "modules_to_save" in key:
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
        shutil.rmtree(out / name, ignore_errors=True)
        model.save_pretrained(out / name)
        (out / name / "README.md").unlink(missing_ok=True)
        config = json.loads((out / name / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = LLAMA
        config["target_modules"].sort()
        (out / name / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")


def adapted(case: dict, adapters: Path):
    kind = case["adapter"]
    base = AutoModelForCausalLM.from_pretrained(ROOT / LLAMA, dtype=torch.float32)
    if kind == "beside":
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / LLAMA, folder, dirs_exist_ok=True)
            shutil.copytree(adapters / "plain", folder, dirs_exist_ok=True)
            config = json.loads((Path(folder) / "adapter_config.json").read_text())
            config["base_model_name_or_path"] = folder
            (Path(folder) / "adapter_config.json").write_text(json.dumps(config))
            return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapters / ("saved" if kind == "saved" else "plain"))
    return model.merge_and_unload() if kind == "merged" else model


def of_case(case: dict, adapters: Path) -> dict:
    if "adapter" in case:
        return case | {"logits": logits(adapted(case, adapters).eval())}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / case["source"], folder, dirs_exist_ok=True)
        path = Path(folder) / "config.json"
        config = json.loads(path.read_text()) | case["config"]
        config = {key: value for key, value in config.items() if not (key in case["config"] and value is None)}
        path.write_text(json.dumps(config))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        case = case | {"logits": logits(model)}
        if "wrapper" in case:
            own = set(load_file(Path(folder) / "model.safetensors"))
            case["names"] = sorted(key for key in wrap(model, case["wrapper"]) if key.replace("_orig_mod.", "").removeprefix("module.") in own or case["wrapper"] == "base")
    return case


def of_gguf(name: str, file: str, changes: dict) -> dict:
    """Logits of llama.cpp for a GGUF file with other metadata."""
    from llama_cpp import Llama

    with tempfile.TemporaryDirectory() as folder:
        source, out = ROOT / file, Path(folder) / "model.gguf"
        reader = gguf.GGUFReader(source)
        writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key == "general.architecture" or key in changes:
                continue
            kind = field.types[0]
            writer.add_key_value(key, field.contents(), kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
        for key, value in changes.items():
            writer.add_array(key, value) if isinstance(value, list) else writer.add_uint32(key, value)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        # ggml's type 0 is f32: an f32 cache and no flash attention, as near to exact as llama.cpp gets.
        model = Llama(str(out), n_ctx=64, logits_all=True, verbose=False, type_k=0, type_v=0, flash_attn=False)
        model.eval(MORE_TOKENS)
        last = np.array(model.scores[len(MORE_TOKENS) - 1])
    return {"name": name, "file": file, "changes": changes, "logits": [float(value) for value in last[:SHOWN]]}


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/data/model-files"
    make_adapters(out / "adapter")
    cases = [of_case(case, out / "adapter") for case in CASES]
    phi, llama = "tests/data/architectures/tiny-phi4/tiny-phi4-f32.gguf", "tests/data/architectures/tiny-llama-bias/tiny-llama-bias-f32.gguf"
    reader = gguf.GGUFReader(ROOT / llama)
    size = lambda key: int(reader.fields[key].contents())
    layers = size("llama.block_count")
    arrays = {key: [size(key)] * layers for key in ["llama.attention.head_count", "llama.attention.head_count_kv", "llama.feed_forward_length"]}
    files = [
        of_gguf("a window that llama.cpp does not use", phi, {"phi3.attention.sliding_window": 4}),
        of_gguf("a size for each layer", llama, arrays),
    ]
    assert all(math.isfinite(value) for case in cases + files for value in case["logits"])
    names = ["torch", "transformers", "peft", "llama-cpp-python", "gguf"]
    made_by = "make_model_file_vectors.py, " + ", ".join(f"{name} {version(name)}" for name in names)
    line = lambda rows: ",\n".join("  " + json.dumps(row) for row in rows)
    head = f' "made_by": {json.dumps(made_by)},\n "tokens": {TOKENS},\n "gguf_tokens": {MORE_TOKENS},\n'
    (out / "logits.json").write_text(f'{{\n{head} "cases": [\n{line(cases)}\n ],\n "gguf": [\n{line(files)}\n ]\n}}\n')


main()
