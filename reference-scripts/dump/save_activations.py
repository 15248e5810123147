#!/usr/bin/env python3
"""Saves the activations of a transformers model in the forms in which people save them.

Each form is written by the library that it belongs to: transformers' results and its debugger, TransformerLens, nnsight,
msprobe, NumPy, ONNX and Polygraphy. A form whose library is not installed is left out, and the script says so.

    pip install torch transformers numpy transformer-lens nnsight mindstudio-probe onnx polygraphy
    save_activations.py --model MODEL --tokens 1,5,9,12 --out DIR

tests/data/foreign/saved was made with --model tests/data/architectures/tiny-mistral/hf --tokenizer checkpoints/tiny-llama2/hf; the file versions.txt has the versions.
Folders with one file per module are packed as one file, folders.pt: {tool: {file name: tensor}}; equal tensors are stored once.
"""

import argparse
import importlib.metadata
import json
import pickle
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", required=True, help="model directory")
parser.add_argument("--tokens", required=True, help="1,2,3")
parser.add_argument("--out", required=True, type=Path, help="folder to write")
parser.add_argument("--tokenizer", help="directory with a tokenizer, if the model has none; TransformerLens needs one")
parser.add_argument("--only", help="write this form alone, such as results")
arguments = parser.parse_args()
tokens = torch.tensor([[int(token) for token in arguments.tokens.split(",")]])
out = arguments.out
out.mkdir(parents=True, exist_ok=True)


def load():
    """Loads the model in f32; eager attention returns its weights."""
    return AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def results():
    """transformers: the result of a call and of generate()."""
    model = load()
    output = model(input_ids=tokens, output_hidden_states=True, output_attentions=True)
    torch.save(output, out / "output.pt")
    generated = model.generate(
        input_ids=tokens, max_new_tokens=3, do_sample=False, pad_token_id=0, return_dict_in_generate=True,
        output_hidden_states=True, output_logits=True, output_scores=True,
    )  # fmt: skip
    torch.save(generated, out / "generate.pt")
    return output


def numpy(output):
    """NumPy arrays in a pickle, and inside of torch.save."""
    arrays = {"hidden_states": [value.numpy() for value in output.hidden_states], "logits": output.logits.numpy()}
    (out / "numpy.pkl").write_bytes(pickle.dumps(arrays, protocol=4))
    torch.save(arrays, out / "numpy.pt")


def debugger(_):
    """transformers' debugger for new models, with its files of tensors."""
    from transformers.model_debugging_utils import model_addition_debugger_context

    with tempfile.TemporaryDirectory() as folder:
        model = load()
        with model_addition_debugger_context(model, debug_path=folder, do_prune_layers=False, use_repr=False):
            model.forward(input_ids=tokens)
        return {file.name: load_file(file)["data"] for file in sorted(Path(folder).glob("*.safetensors"))}


def msprobe(_):
    """msprobe, level L0: the inputs and outputs of modules."""
    from msprobe.pytorch import PrecisionDebugger

    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        tensor = {"scope": [], "list": [], "data_mode": ["all"]}
        config.write_text(
            json.dumps({"task": "tensor", "dump_path": f"{folder}/dump", "rank": [], "step": [], "level": "L0", "tensor": tensor})
        )
        model, recorder = load(), PrecisionDebugger(config_path=str(config))
        recorder.start(model=model)
        model(input_ids=tokens)
        recorder.stop()
        recorder.step()
        files = sorted(Path(folder).glob("dump/**/dump_tensor_data/*.pt"))
        return {file.name: torch.load(file) for file in files if ".parameters." not in file.name}


def transformer_lens(_):
    """TransformerLens: the cache of a bridge, and of one with processed weights."""
    from transformer_lens.model_bridge import TransformerBridge

    def cached(bridge):
        return dict(bridge.run_with_cache(tokens)[1].items())

    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer or arguments.model)
    bridge = TransformerBridge.boot_transformers(
        arguments.model, device="cpu", dtype=torch.float32, tokenizer=tokenizer
    )
    torch.save(once(cached(bridge)), out / "transformer-lens.pt")
    bridge.enable_compatibility_mode()
    of_norms = {name: value for name, value in cached(bridge).items() if ".ln" in name or "resid" in name}
    torch.save(once(of_norms), out / "transformer-lens-processed.pt")


def nnsight(_):
    """nnsight: the outputs of its cache by the paths of modules."""
    from nnsight import NNsight

    model = NNsight(load())
    with model.trace(tokens) as tracer:
        cache = tracer.cache().save()
    is_result = {"model", "model.model"}
    torch.save(
        once({path: cache[path].output for path in cache.keys() if path not in is_result}), out / "nnsight.pt"
    )


def onnx(output):
    """ONNX: one TensorProto per file."""
    from onnx import numpy_helper

    (out / "onnx").mkdir(exist_ok=True)
    arrays = {f"hidden_states.{index}": value for index, value in enumerate(output.hidden_states)}
    for name, value in {**arrays, "logits": output.logits}.items():
        (out / "onnx" / f"{name}.pb").write_bytes(numpy_helper.from_array(value.numpy(), name).SerializeToString())


def polygraphy(output):
    """Polygraphy: results as `polygraphy run --save-outputs` writes them."""
    from polygraphy.comparator.struct import IterationResult, RunResults

    outputs = {f"hidden_states.{index}": value.numpy() for index, value in enumerate(output.hidden_states)}
    outputs["logits"] = output.logits.numpy()
    results = RunResults()
    results.append(("onnxrt-runner", [IterationResult(outputs=outputs, runner_name="onnxrt-runner")]))
    results.save(str(out / "polygraphy.json"))


def once(tensors, known=None):
    """Lets equal tensors share their storage."""
    known = {} if known is None else known

    def shared(value):
        if isinstance(value, dict):
            return {name: shared(inner) for name, inner in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(shared(inner) for inner in value)
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach().contiguous()
        key = (value.dtype, bytes(value.view(torch.uint8).numpy()) if value.numel() else b"")
        return known.setdefault(key, value.flatten().clone()).view(value.shape)

    return shared(tensors)


# msprobe replaces functions of NumPy, so it is the last.
forms = [numpy, onnx, polygraphy, debugger, transformer_lens, nnsight, msprobe]
with torch.no_grad():
    output = results()
    folders = {}
    for form in forms:
        if arguments.only not in (None, form.__name__):
            continue
        try:
            packed = form(output)
        except ImportError as missing:
            print(f"{form.__name__}: left out, {missing}")
            continue
        if packed is not None:
            folders[form.__name__] = packed
if folders:
    torch.save(once(folders), out / "folders.pt")
packages = ["torch", "transformers", "numpy", "transformer-lens", "nnsight", "mindstudio-probe", "onnx", "polygraphy"]
versions = [f"{package} {importlib.metadata.version(package)}\n" for package in packages]
(out / "versions.txt").write_text("".join(versions))
