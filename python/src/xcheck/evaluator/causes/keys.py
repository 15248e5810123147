"""Wrong configuration keys: the model made again with another value of one key."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..evaluation import Session
from ..forcing import Forcing
from ..model import mark_computed_buffers
from ..rounding import Evaluation
from ..sigma import sigma_of
from ..tracked import Settings
from .trial import Trial, exact_of, violations

SHAPES = re.compile(
    r"^(vocab_size|hidden_size|num_hidden_layers|n_layer|n_embd|intermediate_size|.*_token_id|dtype|torch_dtype|"
    r"architectures|model_type|transformers_version|use_cache|output_.*|return_dict|_.*|initializer_range|"
    r".*dropout.*|pad_.*|tie_.*|chunk_size_feed_forward|is_encoder_decoder|id2label|label2id|problem_type|auto_map)$"
)
TYPICAL: dict[str, list[Any]] = {
    "eps": [1e-5, 1e-6, 1e-12, 1e-8],
    "epsilon": [1e-5, 1e-6, 1e-12],
    "rope_theta": [10000.0, 100000.0, 500000.0, 1000000.0],
    "hidden_act": ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2"],
    "activation": ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu"],
    "scale": [1.0],
    "scaling": [1.0],
    "multiplier": [1.0],
    "factor": [1.0],
    "softcapping": [None],
    "window": [None],
}


def words(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value).lower()


def changes(config: Any, source: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields key, present value and another value for each key that the modelling code reads."""
    defaults = defaults_of(config)
    for key, value in config.to_dict().items():
        if SHAPES.match(key) or not re.search(rf"\b{re.escape(key)}\b", source):
            continue
        if isinstance(value, dict):
            for inner, number in value.items():
                for other in others(inner, number, None):
                    yield f"{key}.{inner}", number, other
            if "rope_theta" in value and value.get("rope_type", "default") != "default":
                yield f"{key}.rope_type", value["rope_type"], "default"
        else:
            for other in others(key, value, defaults.get(key)):
                yield key, value, other


def defaults_of(config: Any) -> dict[str, Any]:
    try:
        return dict(type(config)().to_dict())
    except Exception:
        return {}


def others(key: str, value: Any, default: Any) -> list[Any]:
    """Returns other values of a key: the class default, the opposite, and values that other models use."""
    if not isinstance(value, (bool, int, float, str, type(None))):
        return []
    found: list[Any] = []
    if isinstance(default, (bool, int, float, str)):
        found.append(default)
    if isinstance(value, bool):
        found.append(not value)
    for word, typical in TYPICAL.items():
        if key == word or key.endswith(f"_{word}") or f"_{word}" in key:
            found += [
                other for other in typical if other is None or type(other) is type(value) or isinstance(value, float)
            ]
    if isinstance(value, int) and not isinstance(value, bool) and "window" in key:
        found += [value - 1, value + 1]
    unique = dict.fromkeys((type(other), other) for other in found)
    return [other for _, other in unique if other != value]


def is_alike(other: Any, value: Any) -> bool:
    return other is None or type(other) is type(value) or isinstance(value, float)


def changed(config: Any, key: str, value: Any) -> Any:
    """Returns a configuration with another value of one key."""
    result = copy.deepcopy(config)
    if "." in key:
        outer, inner = key.split(".", 1)
        table = dict(getattr(result, outer))
        if inner == "rope_type":
            table = {"rope_type": value, "rope_theta": table["rope_theta"]}
        table[inner] = value
        setattr(result, outer, table)
    else:
        setattr(result, key, value)
    return result


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Creates parameters without memory; buffers keep their values."""
    register = torch.nn.Module.register_parameter

    def without_memory(module: Any, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        made = module._parameters.get(name)
        if made is not None and made.device.type != "meta":
            module._parameters[name] = torch.nn.Parameter(made.to("meta"), requires_grad=False)

    torch.nn.Module.register_parameter = without_memory  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def remade(session: Session, config: Any) -> Any:
    """Returns the model of another configuration with the same weights; None if the weights do not fit."""
    with parameters_on_meta():
        model = type(session.model)._from_config(config).eval()
    sources = dict(session.model.named_modules())
    for path, module in model.named_modules():
        source = sources.get(path)
        if source is None:
            return None
        for name, parameter in module._parameters.items():
            old = source._parameters.get(name)
            if (old is None) != (parameter is None) or (old is not None and old.shape != parameter.shape):
                return None
            module._parameters[name] = old
        for name in module._buffers:
            if name not in module._non_persistent_buffers_set and source._buffers.get(name) is not None:
                module._buffers[name] = source._buffers[name]
    mark_computed_buffers(model)
    return model


def broken_sites(session: Session, model: Any) -> set[tuple[str, int, int]]:
    """Returns the sites with values above their error bound."""
    found = set()

    def look(row: Any, value: torch.Tensor) -> None:
        if not value.is_floating_point():
            return
        if violations(session.dump.value(row), exact_of(value), sigma_of(value, row.dtype)):
            found.add(row.site)

    from ..evaluation import run_passes

    evaluation = Evaluation(Settings(session.settings.samples))
    with torch.no_grad(), Forcing(model, session.dump, evaluation, look) as forcing:
        run_passes(model, session.dump, evaluation, forcing)
    return found


def causes(trial: Trial) -> Iterator[dict[str, Any]]:
    """Yields each key whose other value explains the output, and breaks no other."""
    session = trial.session
    source = modelling_source(session.model)
    base: set[tuple[str, int, int]] | None = None
    for key, value, other in changes(session.model.config, source):
        if not trial.has_time:
            return
        try:
            model = remade(session, changed(session.model.config, key, other))
            if model is None:
                continue
            found = trial.fit(model=model)
            fit = trial.explains(model=model) if found is not None and found.is_possible else None
        except Exception:
            continue  # the class refuses this value, or its shapes do not fit
        if fit is None:
            continue
        base = broken_sites(session, session.model) if base is None else base
        after = broken_sites(session, model)
        if after - base:
            continue
        yield {
            "kind": "config",
            "what": f"the key {key} of config.json is read as {words(other)} (expected {words(value)})",
            "key": key,
            "expected": words(value),
            "found": words(other),
            "error_after": fit.error,
            "left_over": len(after),
        }


def modelling_source(model: Any) -> str:
    """Returns the text of the modelling file, and of the RoPE functions that all models share."""
    file = inspect.getsourcefile(type(model))
    text = Path(file).read_text(encoding="utf-8") if file else ""
    return text + " rope_theta rope_parameters rope_scaling partial_rotary_factor "
