"""Watches a torch model while it runs, and writes what its modules show."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Union

from .arrays import NAMES
from .caches import watched_caches
from .dump import Dump
from .errors import DumpError
from .maps import decoder_layers, known_map, read_map
from .modules import ModuleWatcher, autocast_type, is_causal
from .watcher import WRAPPED, Watcher, wanted

Modules = Union[bool, str, Collection[str], None]


@contextmanager
def hook(
    model: Any,
    out: str | os.PathLike[str],
    map: Mapping[str, str] | None = None,
    *,
    only: Collection[str] | None = None,
    also: Collection[str] = (),
    modules: Modules = None,
    **options: Any,
) -> Iterator[Dump]:
    """Dumps every call of a torch model inside the block, `model.generate(...)` too.

    map: which module has which tap's value (`xcheck.maps`); of transformers' decoders it is known.
    only: the taps to write. also: those to write besides the usual: k_cache, v_cache, attn_weights.
    modules: True writes the output of every module under its path, in place of taps; patterns such as "*.self_attn"
        select modules, as `only` does then. This is the default for a model whose map is not known. False refuses it.
    options: as of `Dump`; what can be found in the model (producer, architecture, heads, ...) need not be said.
    """
    inner = without_adapters(model)
    if map is not None and modules:
        raise DumpError("map= names taps, and modules= paths of modules: give one of the two")
    places = None if modules else map if map is not None or is_chain(inner) else known_map(inner)
    with ExitStack() as stack:
        if places is None:
            patterns = patterns_of(model, modules, only, also)
            dump = stack.enter_context(Dump(out, **{**found_by_module(inner), **options}))
            watcher: Watcher = ModuleWatcher(dump, inner, patterns, outer=model)
        else:
            dump = stack.enter_context(Dump(out, **{"cut_fused": True, **found_in(inner), **options}))
            watcher = Watcher(dump, inner, only, also, outer=model)
            watcher.ports = [port for port in read_map(places) if wanted(port.tap, only, also)]
        if any(is_compiled(part) for part in model.modules()):
            dump.setting("torch_compile", "on")
        with ExitStack() as handles:
            for handle in watcher.attach():
                handles.callback(handle.remove)
            with watched_caches(watcher.guarded(watcher.see_cache), watcher.calls.see_moved):
                yield dump
            watcher.finish()


def is_compiled(part: Any) -> bool:
    """Returns true if `torch.compile(part)`, `part.compile()` or `torch.compile(part.forward)` compiles a module."""
    if hasattr(part, WRAPPED) or getattr(part, "_compiled_call_impl", None) is not None:
        return True
    forward = part.forward  # torch.compiler.disable wraps a function too
    return hasattr(forward, "_torchdynamo_orig_callable") and not getattr(forward, "_torchdynamo_disable", False)


def is_chain(model: Any) -> bool:
    """Returns true for a model followed by other parts, such as the pooling of an embedding model."""
    return isinstance(model, sys.modules["torch"].nn.Sequential)


def patterns_of(
    model: Any, modules: Modules, only: Collection[str] | None, also: Collection[str]
) -> Collection[str] | None:
    """Returns the patterns of the modules to record; None for all."""
    if modules is False:
        raise DumpError(
            f"the modules of {type(model).__name__} are not named as in a model that is known: see what "
            "print(xcheck.guess_map(model)) makes of it, and give hook(model, out, map=...), or leave modules=False out"
        )
    if also:
        raise DumpError(
            f"also={also!r} names taps, and outputs of modules are recorded: leave it out, or give hook(model, out, "
            "map=...) as print(xcheck.guess_map(model)) guesses it"
        )
    named = None if modules is True else modules
    if named is not None and only is not None:
        raise DumpError("modules= and only= both name modules: give one of the two")
    patterns = only if named is None else named
    return (patterns,) if isinstance(patterns, str) else patterns


def without_adapters(model: Any) -> Any:
    """The model inside a `peft.PeftModel`, whose linear layers have the adapters; any other model itself.

    Likewise of a model that torch.compile has returned.
    """
    model = getattr(model, WRAPPED, model)
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        model = model.get_base_model()
    return getattr(model, WRAPPED, model)


def found_in(model: Any) -> dict[str, Any]:
    """Returns the options of `Dump` that a model determines."""
    config = getattr(model, "config", None)
    package = type(model).__module__.partition(".")[0]
    torch = sys.modules["torch"]
    library = package if package == "transformers" else "torch"
    first = next((weight for weight in model.parameters() if weight.is_floating_point()), None)
    dtype = NAMES.get(str(first.dtype).replace("torch.", "")) if first is not None else None
    settings = {
        "dtype": dtype,
        "kv_cache": dtype if library == "transformers" else None,
        "attention": getattr(config, "_attn_implementation", None),
        "torch": str(torch.__version__),
    }
    name = getattr(config, "_name_or_path", None)
    autocast = autocast_type(torch, first)
    return {
        "producer": library,
        "version": str(sys.modules[library].__version__),
        "model": Path(name).name if name else type(model).__name__,
        "settings": {key: value for key, value in settings.items() if value is not None},
        **({"rounding": {"like": f"{autocast}-autocast"}} if autocast is not None and dtype == "f32" else {}),
        "rope_pairing": rope_pairing(model) if library == "transformers" else None,
        "config": config,
    }


def found_by_module(model: Any) -> dict[str, Any]:
    """Options of `Dump` for a model whose modules are recorded."""
    found = found_in(model)
    config = found.pop("config")
    settings = dict(found["settings"])
    if not is_causal(model):
        settings.pop("kv_cache", None)
    return {
        **found,
        "settings": settings,
        "rope_pairing": None,
        "architecture": getattr(config, "model_type", None) or "unknown",
        "model_class": type(model).__name__,
    }


def rope_pairing(model: Any) -> str | None:
    """Returns which two values of a head RoPE turns together, found in the model's own code; None without RoPE."""
    path = decoder_layers(model)
    layer = model.get_submodule(path)[0] if path else model  # a text model may have a file of its own
    code, config = inspect.getmodule(type(layer)), getattr(model, "config", None)
    # DeepSeek V3 reorders neighbours to halves first.
    reorders = hasattr(code, "apply_rotary_pos_emb_interleave") and getattr(config, "rope_interleave", True)
    if reorders or rotates_neighbours(code):
        return "interleaved"
    return "half" if any(name.endswith("rotary_emb") for name, _ in model.named_modules()) else None


def rotates_neighbours(code: Any) -> bool:
    """Returns true if the RoPE functions of a transformers file turn values 0 and 1 of a head together."""
    rotate = getattr(code, "rotate_half", None) or getattr(code, "rotate_every_two", None)
    if rotate is None:
        apply = getattr(code, "apply_rotary_emb", None)
        return "view_as_complex" in getattr(getattr(apply, "__code__", None), "co_names", ())
    try:
        return int(rotate(sys.modules["torch"].arange(1, 5).view(1, 1, 1, 4)).flatten()[0]) == -2
    except Exception:  # a function of another library that needs more than the values
        return False
