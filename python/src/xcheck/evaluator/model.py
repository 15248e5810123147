"""The transformers model of a local directory."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]

from .candidate import Dump
from .constants import COMPUTED_BUFFER, U32
from .errors import EvaluatorError
from .rounding import as_tracked
from .sentence import is_sentence_model, load_sentence_model
from .tap_rounding import SAME_CODE
from .tracked import Tracked, fresh

# Orders in which transformers runs experts, and those that compute alike on a CPU.
EXPERTS = {
    "eager": "eager",
    "grouped_mm": "grouped_mm",
    "batched_mm": "batched_mm",
    "deepgemm": "grouped_mm",
    "sonicmoe": "grouped_mm",
}
ROOT = ("", "logits")  # names of the root module's output


def check_arguments(model: Any, dump: Dump) -> None:
    """Refuses other inputs that no module of the model accepts."""
    accepted: set[str] = set()
    for module in model.modules():
        accepted.update(inspect.signature(module.forward).parameters)
    for name in dump.manifest.get("inputs", {}):
        if name.partition(".")[0] not in accepted:  # a dotted name is a part of an argument
            text = f"inputs.{name}: {type(model).__name__} has no such argument"
            raise EvaluatorError("dump", f"{text}; record the dump again, or give the model that it was made with")


def load(path: str, dump: Dump) -> Any:
    """Loads a model in the type of the dump, with eager attention and the dump's order of experts."""
    model = load_any(path, dump)
    check_arguments(model, dump)
    return model


def load_any(path: str, dump: Dump) -> Any:
    """Loads a model by the first class that fits."""
    config = load_config(path)
    config._experts_implementation = experts_implementation(dump)
    if is_sentence_model(path, dump):
        return load_sentence_model(path, dump, lambda model_class: loaded(model_class, path, config, dump))
    model_class = chosen_class(config, dump, path)
    try:
        return loaded(model_class, path, config, dump)
    except EvaluatorError as error:
        if config._experts_implementation == "eager" or "experts" not in error.text:
            raise
        config._experts_implementation = "eager"  # the class has one implementation only
        return loaded(model_class, path, config, dump)


def loaded(model_class: Any, path: str, config: Any, dump: Dump) -> Any:
    """Loads the weights in the type of the dump."""
    try:
        model, notes = model_class.from_pretrained(
            path,
            config=config,
            dtype=dump.dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except MemoryError:
        raise
    except Exception as error:
        raise model_error(path, error) from error
    missing = sorted(map(str, notes.get("missing_keys", ())))
    if missing:
        raise EvaluatorError(
            "model",
            f"{path}: {len(missing)} weights are missing, such as {', '.join(missing[:3])}; expected every weight of "
            f"{model_class.__name__}; check config.json and the weight files",
        )
    return model.eval()


def mark_computed_buffers(model: Any) -> None:
    """Gives rounding errors to the constants that the model has computed in f32 when it was created."""
    for module in model.modules():
        for name in getattr(module, "_non_persistent_buffers_set", ()):
            buffer = module._buffers.get(name)
            if buffer is None or isinstance(buffer, Tracked) or not buffer.is_floating_point() or is_integral(buffer):
                continue
            exact = as_tracked(buffer).exact
            module._buffers[name] = fresh(exact, buffer.dtype, (COMPUTED_BUFFER * U32 * exact).square())


def is_integral(values: torch.Tensor) -> bool:
    return bool((values.nan_to_num() == values.nan_to_num().round()).all())


def model_error(path: str, error: Exception) -> EvaluatorError:
    if isinstance(error, RuntimeError) and "memory" in str(error):
        return EvaluatorError("memory", f"not enough memory to load the model {path}; use a machine with more memory")
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return EvaluatorError("model", f"cannot load the model {path}: {text[:300]}; check config.json and the weights")


def load_config(path: str) -> Any:
    """Reads config.json. Code that comes with a model is never run."""
    file = Path(path) / "config.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluatorError("model", f"cannot read {file}: {error}; give the directory of a model") from error
    known = content.get("model_type") in CONFIG_MAPPING_NAMES
    if not known and content.get("auto_map"):
        raise EvaluatorError(
            "remote-code",
            f"{file}: the model type {content.get('model_type')!r} needs code from the model's repository, which "
            "xcheck never runs; expected a model type of transformers; install a version that contains it",
        )
    if not known:
        raise EvaluatorError(
            "model",
            f"{file}: model type {content.get('model_type')!r} is unknown to transformers {transformers.__version__}; "
            "install a version that contains it",
        )
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise model_error(path, error) from error
    if "quantization_config" in content or "quantization_config" in content.get("text_config", {}):
        raise EvaluatorError(
            "model",
            f"{file}: the weights are quantised (quantization_config), expected unquantised weights; give the "
            "unquantised checkpoint",
        )
    config._attn_implementation = "eager"
    return config


def experts_implementation(dump: Dump) -> str:
    """Returns the order in which the candidate runs experts: all at once, sorted by expert, or one after another."""
    stated = dump.manifest.get("producer", {}).get("settings", {}).get("experts")
    is_known = stated in EXPERTS
    if stated is not None and not is_known and dump.manifest["producer"].get("name") in SAME_CODE:
        raise EvaluatorError(
            "dump",
            f"producer.settings.experts: {stated!r}, expected one of {', '.join(EXPERTS)}; record the dump again",
        )
    if is_known:
        return EXPERTS[str(stated)]
    inner = [row for row in dump.rows.values() if row.module.endswith(".experts.act_fn")]
    return "grouped_mm" if inner and all(row.call == 0 for row in inner) else "eager"


def candidate_classes(config: Any) -> list[Any]:
    """Returns the classes that can load a model: its own first."""
    named = [getattr(transformers, name, None) or class_beside(config, name) for name in config.architectures or []]
    is_model = [isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) for found in named]
    classes: list[Any] = [found for found, is_one in zip(named, is_model) if is_one]
    for mapping in (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING):
        if type(config) in mapping:
            found = mapping[type(config)]
            classes += list(found) if isinstance(found, (list, tuple)) else [found]
    return list(dict.fromkeys(classes))


def class_beside(config: Any, name: str) -> Any:
    """Returns a class of the configuration's own modelling file that transformers does not export."""
    import importlib

    package = type(config).__module__.rsplit(".", 1)
    modelling = f"{package[0]}.{package[1].replace('configuration_', 'modeling_')}"
    try:
        return getattr(importlib.import_module(modelling), name, None)
    except ImportError:
        return None


def chosen_class(config: Any, dump: Dump, path: str) -> Any:
    """Returns the class with the most of the dump's modules; the first of several."""
    classes = candidate_classes(config)
    if not classes:
        raise EvaluatorError("model", f"{path}: no model class for {config.model_type!r}; check config.json")
    if len(classes) == 1:
        return classes[0]
    scores = [module_share(found, config, dump.modules) for found in classes]
    best = scores.index(max(scores))
    if scores[best] < 0:
        return classes[0]
    return classes[best]


def module_share(model_class: Any, config: Any, modules: set[str]) -> int:
    """Returns the number of the dump's modules that a class has; -1 if the class cannot be built."""
    try:
        with torch.device("meta"):
            skeleton = model_class._from_config(config)
    except Exception:
        return -1
    return len(modules & {name for name, _ in skeleton.named_modules()})
