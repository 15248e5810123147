"""Records every module's output of a torch model, and replays a model with recorded outputs put in place of its own."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save_file

NAMES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16",
         torch.int32: "i32", torch.int64: "i64"}  # fmt: skip
CACHES = ("past_key_values", "cache_params", "state")


class Site(NamedTuple):
    """One recorded array: the module, its call within the pass, the pass."""

    module: str
    call: int
    index: int


Recording = dict[Site, torch.Tensor]


def value_of(output: Any) -> torch.Tensor | None:
    """Returns the tensor that stands for a module's output: the first of a tuple, logits, or the last hidden state."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, transformers.utils.ModelOutput):
        return next((output[key] for key in ("logits", "last_hidden_state") if output.get(key) is not None), None)
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], torch.Tensor):
        return output[0]
    return None


def with_value(output: Any, value: torch.Tensor) -> Any:
    """Returns a module's output with its tensor replaced."""
    if isinstance(output, torch.Tensor):
        return value
    if isinstance(output, transformers.utils.ModelOutput):
        key = next(key for key in ("logits", "last_hidden_state") if output.get(key) is not None)
        output[key] = value
        return output
    return type(output)([value, *output[1:]]) if type(output) in (tuple, list) else (value, *output[1:])


class Passes:
    """Counts the passes of a model and the calls of its modules within each."""

    def __init__(self) -> None:
        self.index = -1
        self.calls: Counter[str] = Counter()

    def begin(self) -> None:
        self.index += 1
        self.calls.clear()

    def site(self, module: str) -> Site:
        call = self.calls[module]
        self.calls[module] += 1
        return Site(module, call, self.index)


@contextmanager
def recording(model: Any, force: Recording | None = None) -> Iterator[Recording]:
    """Records every module's output inside the block. With `force`, each output is replaced by the recorded one."""
    recorded: Recording = {}
    passes = Passes()

    def see(name: str, module: Any, output: Any) -> Any:
        value = value_of(output)
        if value is None:
            return None
        site = passes.site(name)
        recorded[site] = value.detach().clone()
        if "continue_with" in vars(module):  # a fault: the output is recorded, and something else used
            return with_value(output, module.continue_with(value))
        if force is None or site not in force or force[site].shape != value.shape:
            return None
        return with_value(output, force[site].to(value.dtype, copy=True))

    def end(_: Any, __: Any, output: Any) -> None:
        if getattr(output, "logits", None) is not None:
            recorded[passes.site("logits")] = output.logits.detach().clone()

    handles = [model.register_forward_pre_hook(lambda *_: passes.begin())]
    for name, module in model.named_modules():
        if name:
            handles.append(module.register_forward_hook(lambda module, _, output, name=name: see(name, module, output)))
    handles.append(model.register_forward_hook(end))
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


Inputs = dict[str, torch.Tensor]  # of a model that reads no tokens: pixel_values, input_features


def typed(value: torch.Tensor, model: Any) -> torch.Tensor:
    """Returns an input in the model's type; integers keep their type."""
    return value.to(model.dtype) if value.is_floating_point() else value


class Run(NamedTuple):
    """The passes of a run: the tokens each one read, or the arrays given; and the recorded outputs."""

    given: list[list[int]] | Inputs
    values: Recording


def run(model: Any, given: list[list[int]] | Inputs, decode: int, force: Recording | None = None) -> Run:
    """Runs the given passes and records every module; after the last, `decode` tokens are generated greedily."""
    with torch.no_grad(), recording(model, force) as values:
        if isinstance(given, dict):
            model(**{name: typed(value, model) for name, value in given.items()})
            return Run(given, values)
        tokens, count, cache = [list(part) for part in given], len(given) + decode, {}
        # Some models round keys to the cache's type: the evaluator uses no cache for one pass.
        cached = {"use_cache": count > 1} if "use_cache" in inspect.signature(model.forward).parameters else {}
        for index in range(count):
            output = model(input_ids=torch.tensor([tokens[index]]), **cached, **cache)
            if index == count - 1:
                break
            name = next(key for key in CACHES if getattr(output, key, None) is not None)
            cache = {name: getattr(output, name)}
            if index + 1 == len(tokens):
                tokens.append([int(output.logits[0, -1].float().argmax())])
    return Run(tokens, values)


def write_dump(path: Path, model: Any, run: Run, settings: dict[str, str]) -> None:
    """Writes a recording as a dump in one safetensors file."""
    rows, tensors, position = [], {}, 0
    passes, inputs = [], {}
    for name, value in run.given.items() if isinstance(run.given, dict) else ():
        tensors[f"p0/inputs/{name}"] = value = typed(value, model).contiguous()
        inputs[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "file": f"p0/inputs/{name}"}
    for part in [[]] if isinstance(run.given, dict) else run.given:
        passes.append({"position": position, "tokens": part})
        position += len(part)
    for (module, call, index), value in run.values.items():
        key = f"p{index}/{module}" + (f"@{call}" if call else "")
        if value.dtype not in NAMES:  # complex numbers, and masks
            continue
        rows.append({"module": module, "pass": index, "call": call, "dtype": NAMES[value.dtype],
                     "shape": list(value.shape), "file": key})  # fmt: skip
        tensors[key] = value.contiguous().clone()
    manifest = {
        "format": "xcheck-dump",
        "version": 1,
        "producer": {"name": "transformers", "version": transformers.__version__, "settings": settings},
        "model": {"name": Path(model.config._name_or_path).name, "architecture": model.config.model_type},
        "input": {"tokens": passes[0]["tokens"], "decode": "forced"},
        **({"inputs": inputs} if inputs else {}),
        "passes": passes,
        "tensors": rows,
    }
    save_file(tensors, path, metadata={"xcheck": json.dumps(manifest)})
