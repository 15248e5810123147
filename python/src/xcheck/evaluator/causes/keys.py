"""Wrong configuration keys: the model made again with another value of one key."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ..evaluation import Session
from ..model import mark_computed_buffers
from ..tracked import Tracked
from .change import FITTED_KEY, USUAL_KEY, Change
from .trial import Trial

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
EXACT = 1.5  # error in units of the rounding error, of which no other explanation takes much
COUNTS = re.compile(r"window|chunk|per_tok|top_?k|topk_group|span")
OUTSIDE = re.compile(r"window|layer_types|rope|chunk|causal|rotary")  # keys that masks and rotations depend on


def words(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value).lower()


@dataclass
class KeyChange(Change):
    """Another value of a key."""

    made: Any = None
    outside: bool = False

    @property
    def model(self) -> Any:
        return self.made

    @property
    def is_deep(self) -> bool:
        return self.outside


def key_change(trial: Trial, path: tuple[str, ...], value: Any, other: Any, rank: int) -> KeyChange | None:
    """Returns the change of a key; None if the weights do not fit."""
    session = trial.session
    try:
        made = remade(session, changed(session.model.config, path, other))
    except Exception:
        return None  # the class refuses this value
    if made is None:
        return None
    key = ".".join(path)
    message = {
        "kind": "config",
        "what": f"the key {key} of config.json is read as {words(other)} (expected {words(value)})",
        "key": key,
        "expected": words(value),
        "found": words(other),
    }
    return KeyChange(rank, message, made=made, outside=alters_inputs(trial, key))


def alters_inputs(trial: Trial, key: str) -> bool:
    """Returns true if a key may alter the mask or the rotation that the module is given, or the order of its rows.

    Vision towers sort the rows of an image by windows, outside of any module.
    """
    if not OUTSIDE.search(key):
        return False
    if "window" in key and trial.session.dump.inputs(trial.site[2]):
        return True
    has_positions = any("mask" in name or "position" in name for name in trial.kwargs)
    return has_positions and not ("rope" in key and is_rotation_recorded(trial))


def is_rotation_recorded(trial: Trial) -> bool:
    """Returns true if the rotation that the module is given is the candidate's, and not the model's."""
    seen = trial.session.seen
    return any("rotary" in row.module and row.site in seen for row in trial.session.dump.rows.values())


def entries(config: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Returns the path and the value of each key of the text model."""
    found: list[tuple[tuple[str, ...], Any]] = []

    def walk(table: dict[str, Any], above: tuple[str, ...]) -> None:
        for key, value in table.items():
            if SHAPES.match(str(key)) or str(key).endswith("_config"):
                continue
            if isinstance(value, dict):
                walk(value, (*above, str(key)))
            else:
                found.append(((*above, str(key)), value))

    walk(config.get_text_config().to_dict(), ())
    return found


def read_entries(session: Session) -> list[tuple[tuple[str, ...], Any]]:
    """Returns keys that the modelling code reads, by their own name or by an alias in the config's `attribute_map`."""
    source = modelling_source(session.model)
    names: dict[str, list[str]] = {}
    for name, key in session.model.config.get_text_config().attribute_map.items():
        names.setdefault(key, []).append(name)

    def is_read(key: str) -> bool:
        return any(re.search(rf"\b{re.escape(name)}\b", source) for name in (key, *names.get(key, [])))

    return [(path, value) for path, value in entries(session.model.config) if is_read(path[0])]


def defaults_of(config: Any) -> dict[str, Any]:
    try:
        return dict(type(config.get_text_config())().to_dict())
    except Exception:
        return {}


def others(key: str, value: Any, default: Any) -> list[Any]:
    """Returns other values of a key: the class default, the opposite, and values that other models use."""
    if isinstance(value, list):
        return orders(value)
    if not isinstance(value, (bool, int, float, str, type(None))):
        return []
    found: list[Any] = []
    if isinstance(default, (bool, int, float, str)):
        found.append(default)
    if isinstance(value, bool):
        found.append(not value)
    for word, typical in TYPICAL.items():
        if key == word or f"_{word}" in key or key.startswith(f"{word}_"):
            found += [
                other for other in typical if other is None or type(other) is type(value) or isinstance(value, float)
            ]
    if isinstance(value, int) and not isinstance(value, bool) and COUNTS.search(key):
        found += [value - 1, value + 1]
    if key == "rope_type" and value != "default":
        found.append("default")
    unique = dict.fromkeys((type(other), other) for other in found)
    return [other for _, other in unique if other != value]


def orders(value: list[Any]) -> list[list[Any]]:
    """Returns other orders of a list of layer types, such as that of a pattern that begins one layer later."""
    kinds = list(dict.fromkeys(value)) if all(isinstance(part, str) for part in value) else []
    if len(kinds) < 2:
        return []
    found = [value[at:] + value[:at] for at in range(1, len(value))]
    found += [value[::-1], *([kind] * len(value) for kind in kinds)]
    if len(kinds) == 2:
        found.append([kinds[1 - kinds.index(part)] for part in value])
    result: list[list[Any]] = []
    for order in found:
        if order != value and order not in result:
            result.append(order)
    return result


def changed(config: Any, path: tuple[str, ...], value: Any) -> Any:
    """Returns a configuration with another value of one key."""
    result = copy.deepcopy(config)
    inner = result.get_text_config()
    if len(path) == 1:
        setattr(inner, path[0], value)
        return result
    table = copy.deepcopy(getattr(inner, path[0]))
    place = table
    for name in path[1:-1]:
        place = place[name]
    if path[-1] == "rope_type":
        theta = place["rope_theta"]
        place.clear()
        place["rope_theta"] = theta
    place[path[-1]] = value
    setattr(inner, path[0], table)
    return result


@contextmanager
def without_weights(skips: bool) -> Iterator[None]:
    """Creates parameters without memory; buffers keep their values. `skips` leaves all initialisation out."""
    register = torch.nn.Module.register_parameter

    def without_memory(module: Any, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        made = module._parameters.get(name)
        if made is not None and made.device.type != "meta":
            module._parameters[name] = torch.nn.Parameter(made.to("meta"), requires_grad=False)

    with ExitStack() as stack:
        stack.enter_context(exchanged_attribute(torch.nn.Module, "register_parameter", without_memory))
        if skips:
            stack.enter_context(exchanged_attribute(transformers.PreTrainedModel, "init_weights", nothing))
            for kind in vars(torch.nn).values():
                if isinstance(kind, type) and "reset_parameters" in vars(kind):
                    stack.enter_context(exchanged_attribute(kind, "reset_parameters", nothing))
        yield


@contextmanager
def exchanged_attribute(kind: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute of a class for a while."""
    old = getattr(kind, name)
    setattr(kind, name, value)
    try:
        yield
    finally:
        setattr(kind, name, old)


def nothing(*_: Any, **__: Any) -> None:
    return None


def may_skip(session: Session) -> bool:
    """Returns true if the model's computed buffers do not depend on the initialisation of its weights."""
    if session.skips_initialisation is None:
        own = dict(session.model.named_buffers())
        with without_weights(True):
            made = dict(type(session.model)._from_config(copy.deepcopy(session.model.config)).named_buffers())
        persistent = {
            f"{path}.{name}".lstrip(".")
            for path, module in session.model.named_modules()
            for name in module._buffers
            if name not in module._non_persistent_buffers_set
        }
        session.skips_initialisation = own.keys() == made.keys() and all(
            name in persistent or is_same(own[name], made[name]) for name in own
        )
    return session.skips_initialisation


def is_same(own: torch.Tensor, made: torch.Tensor) -> bool:
    exact = own.exact if isinstance(own, Tracked) else own.double()
    return exact.shape == made.shape and torch.equal(exact.to(made.dtype), made)


def remade(session: Session, config: Any) -> Any:
    """Returns the model of another configuration with the same weights; None if the weights do not fit."""
    with without_weights(may_skip(session)):
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


def causes(trial: Trial) -> Iterator[Change]:
    """Yields each key whose other value explains the output."""
    defaults = defaults_of(trial.session.model.config)
    for path, value in read_entries(trial.session):
        default = defaults.get(path[0])
        for name in path[1:]:
            default = default.get(name) if isinstance(default, dict) else None
        for other in others(path[-1], value, default):
            if not trial.has_time:
                return
            change = key_change(trial, path, value, other, USUAL_KEY)
            if change is not None and explains(trial, change):
                change.is_number = isinstance(value, float) or isinstance(other, float)
                change.is_vague = trial.is_short and change.is_number
                if not is_determined(trial, path, value, other):
                    change.is_vague = True
                    key, expected = change.message["key"], change.message["expected"]
                    what = f"the key {key} of config.json is read as another number, such as {words(other)}"
                    change.message.update(what=f"{what} (expected {expected})", found="another number")
                yield change
                if change.message["found"] == "another number":
                    break


def is_determined(trial: Trial, path: tuple[str, ...], value: Any, other: Any) -> bool:
    """Returns false if numbers near another value of a key explain the output as well."""
    if isinstance(value, (bool, str, list)) or isinstance(other, (bool, str, list)) or isinstance(value, int):
        return True
    near = [4 * value, 16 * value] if other is None else [0.8 * other, 1.25 * other]
    changes = [key_change(trial, path, value, number, USUAL_KEY) for number in near]
    return not any(change is not None and explains(trial, change) for change in changes)


def explains(trial: Trial, change: Change) -> bool:
    """Returns true if a change explains every value; keeps its error."""
    try:
        fit = trial.explains(change)
    except Exception:
        return False  # the modelling code refuses the value, or the shapes do not fit
    if fit is None:
        return False
    change.message["error_after"] = fit.error
    change.trial = trial
    change.is_exact = fit.error <= EXACT * trial.noise
    return True


def of_change(trial: Trial, change: Change) -> Iterator[Change]:
    """Yields the keys that set a changed constant: the constant is the key's value, or a power of it."""
    told = change.message
    if told["kind"] != "constant" or "line" not in told:
        return
    try:
        expected, found = float(told["expected"]), float(told["found"])
    except ValueError:  # a range
        return
    for path, value in read_entries(trial.session):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0 or found <= 0:
            continue
        for power in (1.0, -0.5, 0.5, -1.0, 2.0):
            if not trial.has_time or abs(float(value) ** power - expected) > 1e-5 * abs(expected):
                continue
            other: Any = float(f"{found ** (1 / power):.5g}")
            if isinstance(value, int) and other == round(other):
                other = round(other)
            made = key_change(trial, path, value, other, FITTED_KEY)
            if made is not None and explains(trial, made):
                made.message.update({name: told[name] for name in ("file", "line")})
                made.is_number, made.is_vague = True, trial.is_short
                change.keys.append(made)
                yield made


def modelling_source(model: Any) -> str:
    """Returns the text of the modelling file, and of the functions of transformers that it imports."""
    file = inspect.getsourcefile(type(model))
    text = Path(file).read_text(encoding="utf-8") if file else ""
    own = type(model).__module__
    functions = [part for part in vars(sys.modules[own]).values() if inspect.isfunction(part)]
    texts = []
    for function in functions:
        module = function.__module__ or ""
        if module.startswith("transformers.") and module != own:
            with suppress(OSError, TypeError):  # installed without its source
                texts.append(inspect.getsource(function))
    return " ".join([text, *texts, "rope_theta rope_parameters rope_scaling partial_rotary_factor"])
