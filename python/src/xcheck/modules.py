"""Hooks that record the output of every module of a torch model, of any architecture."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from .arrays import NAMES
from .dump import Dump
from .errors import DumpError
from .follow import CACHES, POSITIONS, TOKENS, Call, is_ids
from .maps import is_linear
from .watcher import WRAPPED, Watcher

# Fields of a dictionary that a module returns, the preferred ones first.
OUTPUTS = ("last_hidden_state", "logits", "sentence_embedding", "token_embeddings")
LOGITS = "logits"  # the row of what the model returns
IDS = ("int16", "int32", "int64", "uint16", "uint32")  # types of choices; shorter ones are bits or masks


class ModuleWatcher(Watcher):
    """The hooks of one model whose modules are recorded by their paths."""

    def __init__(self, dump: Dump, model: Any, patterns: Collection[str] | None, outer: Any):
        super().__init__(dump, model, only=(), also=(), outer=outer)
        self.patterns = patterns
        self.counts: Counter[str] = Counter()  # calls of each module in the pass at hand
        self.is_causal = is_causal(model)
        self.has_own_logits = False  # a module is called so

    def begin(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begins a pass, and notes the type of autocast, which may have been switched on after the hook."""
        super().begin(model, args, kwargs)
        weight = next((weight for weight in self.model.parameters() if weight.is_floating_point()), None)
        dtype = autocast_type(sys.modules["torch"], weight)
        if dtype is not None and weight is not None:
            self.dump.setting("autocast", dtype)
            self.dump.setting("device", weight.device.type)

    def attach_values(self) -> Iterator[Any]:
        """Registers the hooks of all modules inside the model."""
        modules = dict(modules_of(self.model))
        check_patterns(self.patterns, modules, self.model)
        self.has_own_logits = LOGITS in modules
        see = self.guarded(self.see_module)
        for path, module in modules.items():
            if self.takes(path):
                self.has_layers = True
                yield module.register_forward_hook(lambda _, args, result, path=path: see(path, result))

    def takes(self, path: str) -> bool:
        """Returns whether the outputs of a module are recorded."""
        return self.patterns is None or any(fnmatchcase(path, pattern) for pattern in self.patterns)

    def see_module(self, path: str, result: Any) -> None:
        """Writes what a module returns, and counts the call."""
        self.seen_layers = True
        if self.current is None:  # a module that is called by itself
            return
        call = self.counts[path]
        self.counts[path] += 1
        value = value_of(result)
        if value is not None:
            self.dump._write_output(path, value, call, warn=False)

    def see_cache(self, layer: int, new: Any, keys: Any, values: Any) -> None:
        """Ignores caches, which are not outputs of modules."""

    # -----------------------------------------------------------------------------------------------
    # What a call reads.

    def read(self, arguments: dict[str, Any]) -> Call:
        """Returns the rows of a call, and its other inputs."""
        if arguments.get("encoder_outputs") is not None:
            raise DumpError(
                "the decoder was called with encoder_outputs, which a dump cannot express: call the whole model once "
                "with the input of its encoder, or hook model.get_encoder()"
            )
        self.reads_tokens = has_tokens(arguments)
        if self.reads_tokens:
            call = self.calls.read(arguments)
            self.check_one_text(call)
        else:
            self.check_first(arguments)
            call = Call(None, None, None, None)
        self.counts.clear()
        call.inputs = self.inputs_of(arguments, call)
        if not self.is_causal and call.tokens is not None:
            # The inputs have the padding of an encoder's text, and positions, which may begin anywhere.
            call.sequence, call.position = [[0] * call.tokens.shape[1]], None
        return call

    def check_one_text(self, call: Call) -> None:
        """Raises an error unless the call goes on with the only text of the dump."""
        entries = 1 if call.tokens is None else len(call.tokens)
        if entries != 1:
            raise DumpError(
                f"the model was called with a batch of {entries}, expected 1: outputs of modules are recorded "
                "of one text; hook one call for each text"
            )
        if self.calls.group.was_cut:
            raise DumpError(
                "the model's cache was cut back, as by assisted generation, which outputs of modules cannot express: "
                "generate without assistant_model and prompt_lookup_num_tokens"
            )
        if any(sequence for row in call.sequence or [] for sequence in row):
            raise DumpError(
                "the model was called with a second text, or with its text again without a cache, expected one text "
                "in a dump of outputs of modules: write each text to a dump of its own, and generate with a cache"
            )

    def check_first(self, arguments: dict[str, Any]) -> None:
        """Raises an error unless this is the only call, of one image or one recording."""
        if self.caller is not None:
            raise DumpError(
                "the model was called a second time without tokens, expected one call: write each input to a dump of "
                "its own"
            )
        value = arguments.get(getattr(self.model, "main_input_name", ""))
        shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
        if len(shape) > 2 and shape[0] != 1:
            raise DumpError(
                f"the model was called with a batch of {shape[0]}, expected 1: outputs of modules are recorded of one "
                "input; hook one call for each input"
            )

    def inputs_of(self, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """Returns the tensor arguments that do not follow from the tokens of the pass."""
        tensors = {
            inner: value
            for name, given in arguments.items()
            if name not in CACHES
            for inner, value in tensors_of(name, given)
        }
        is_padded = any(sequence is None for row in call.sequence or [] for sequence in row)
        if not self.reads_tokens or not self.is_causal or is_padded:
            return tensors
        return {name: value for name, value in tensors.items() if not follows(name, value)}

    def check_positions(self, given: Any) -> None:
        """Checks the positions of a causal model against its tokens."""
        if self.reads_tokens and self.is_causal:
            super().check_positions(given)

    # -----------------------------------------------------------------------------------------------
    # What the model returns.

    def see_logits(self, logits: Any) -> None:
        """Writes the logits, and sees what they choose."""
        self.seen_logits = True
        if self.reads_tokens and self.is_causal:
            list(self.calls.see_logits(logits))
        if self.takes(LOGITS) and not self.has_own_logits and is_recorded(logits):
            self.dump._write_output(LOGITS, logits, 0, warn=False)

    def see_output(self, result: Any) -> None:
        """Writes what the model returns if that is neither logits nor the output of one of its modules."""
        value = None if self.seen_logits else value_of(result)
        name = next((name for name in OUTPUTS if value is not None and field(result, name) is value), "output")
        if value is not None and self.takes(name):
            self.dump._write_output(name, value, 0, warn=False, repeats=False)


# ---------------------------------------------------------------------------------------------------
# Modules.


def modules_of(model: Any) -> Iterator[tuple[str, Any]]:
    """The modules of a model with their paths, as in the model that was not compiled and has no adapters."""
    linear: tuple[str, ...] = ()
    for path, module in model.named_modules():
        # A LoRA layer or a quantized one is a linear layer whose weights are those of modules inside it. Likewise a
        # parametrization (weight norm) computes a weight, and no activation.
        if not path or path.startswith(linear) or "parametrizations" in path.split("."):
            continue
        if is_linear(module):
            linear = (*linear, f"{path}.")
        if WRAPPED not in module._modules:
            yield path.replace(f"{WRAPPED}.", "").replace(f".{WRAPPED}", ""), module


def check_patterns(patterns: Collection[str] | None, paths: Collection[str], model: Any) -> None:
    """Raises an error if a pattern matches no module."""
    for pattern in patterns or ():
        if not any(fnmatchcase(path, pattern) for path in (*paths, LOGITS, *OUTPUTS)):
            raise DumpError(
                f"{pattern!r} matches no module of {type(model).__name__}, expected a path or a pattern such as "
                "'*.self_attn'; model.named_modules() lists the paths"
            )


def is_causal(model: Any) -> bool:
    """Returns whether a model predicts the next of its own tokens. A model that is not of transformers is taken so."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    return bool(model.can_generate()) if hasattr(model, "can_generate") else True


# ---------------------------------------------------------------------------------------------------
# Values.


def autocast_type(torch: Any, weight: Any) -> str | None:
    """Returns the type that autocast computes products in, on the device of a weight; None without autocast."""
    if weight is None or not torch.is_autocast_enabled(weight.device.type):
        return None
    name = NAMES.get(str(torch.get_autocast_dtype(weight.device.type)).replace("torch.", ""))
    return name if name in ("bf16", "f16") else None


def is_tensor(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor)


def is_recorded(value: Any) -> bool:
    """Returns whether a tensor is of a type that dumps have, and has values."""
    name = str(value.dtype).replace("torch.", "")
    return bool(value.numel()) and (name in IDS or (value.is_floating_point() and name in NAMES))


def value_of(result: Any) -> Any:
    """Returns the tensor that is recorded of what a module returns; None if there is none.

    Whole numbers are ids: the choices of a router, alone or with their weights. Whole numbers among others, as
    positions, are left out.
    """
    values = tensors_in(result)
    if not values or not is_recorded(values[0]):
        return None
    is_choice = len(values) == 1 or any(value.is_floating_point() for value in values)
    return values[0] if values[0].is_floating_point() or is_choice else None


def tensors_in(result: Any) -> list[Any]:
    """Returns the tensors of a tuple, or of a dictionary the first field of `OUTPUTS`: the first one is recorded."""
    if isinstance(result, Mapping):
        named = next((result[name] for name in OUTPUTS if is_tensor(result.get(name))), None)
        result = tuple(result.values()) if named is None else named
    return [value for value in (result if isinstance(result, (tuple, list)) else [result]) if is_tensor(value)]


def field(result: Any, name: str) -> Any:
    return result.get(name) if isinstance(result, Mapping) else None


# ---------------------------------------------------------------------------------------------------
# Arguments.


def has_tokens(arguments: dict[str, Any]) -> bool:
    """Returns whether a call reads tokens: by their usual names, or as its only kind of tensors."""
    if any(arguments.get(name) is not None for name in TOKENS):
        return True
    tensors = [value for value in arguments.values() if is_tensor(value)]
    return bool(tensors) and all(not value.is_floating_point() for value in tensors) and is_ids(tensors[0])


def tensors_of(name: str, given: Any) -> Iterator[tuple[str, Any]]:
    """The tensors of an argument with their names; those in a dictionary or a list have dotted ones."""
    if is_tensor(given):
        if given.numel():
            yield name, given
    elif isinstance(given, (Mapping, list, tuple)):
        parts = given.items() if isinstance(given, Mapping) else enumerate(given)
        for key, part in parts:
            yield from tensors_of(f"{name}.{key}", part)


def follows(name: str, value: Any) -> bool:
    """Returns whether an argument of a causal model follows from the tokens of a text without padding."""
    if name == "attention_mask":
        return value.ndim == 2 and bool((value != 0).all())
    if name.startswith("attention_mask."):  # one for each kind of layers, as transformers makes them
        return True
    return name in TOKENS or (name in POSITIONS and value.ndim <= 2)
