"""Hooks that watch a torch model, and write the taps that its modules show."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import Any

from .dump import Dump
from .errors import DumpError
from .follow import CACHES, Call, Calls, is_ids
from .maps import Port
from .passes import Pass
from .taps import FUSED

# What grows with the square of the tokens, and what a dump loses nothing without.
COSTLY = ("k_cache", "v_cache", "attn_weights")
WRAPPED = "_orig_mod"  # the model inside a model that torch.compile has returned
POSITIONS = re.compile(r"(.*\.)?(rotary_emb|wpe)")  # modules that are given the positions of the rows


def wanted(tap: str, only: Collection[str] | None, also: Collection[str]) -> bool:
    """Returns true for a tap that is to be written: all parts of a fused projection, or none."""
    if tap in FUSED:
        return any(wanted(part, only, also) for part in FUSED[tap])
    if only is not None:
        return tap in only or tap in also
    return tap not in COSTLY or tap in also


class Watcher:
    """The hooks of one model."""

    def __init__(self, dump: Dump, model: Any, only: Collection[str] | None, also: Collection[str], outer: Any = None):
        self.dump = dump
        self.model = model
        # A peft.PeftModel around the model: a call of it does not run the model's own hooks.
        self.outer = model if outer is None else outer
        self.caller: Any = None  # the one of the two that was called
        self.only = only
        self.also = also
        self.calls = Calls(dump, model)
        self.ports: list[Port] = []
        self.reads_tokens = True  # the call at hand
        self.open = ExitStack()  # the latest pass: it ends where the next begins, which may turn rows of it down
        self.current: Pass | None = None  # that of a call that has not returned
        self.refused: DumpError | None = None
        self.seen_logits = False
        self.seen_layers = False
        self.has_layers = False
        self.depth = depth_of(model)
        self.needs_keys = any(wanted(tap, only, also) for tap in COSTLY)
        self.paddings: dict[int, int] = {}  # rows of padding in front of each sequence
        self.counts_padding = False

    def attach(self) -> Iterator[Any]:
        """Registers all hooks; the model's own come first and last."""
        entries = [self.model] if self.outer is self.model else [self.outer, self.model]
        for entry in entries:
            yield entry.register_forward_pre_hook(self.guarded(self.begin), with_kwargs=True)
        for name, module in self.model.named_modules():
            if POSITIONS.fullmatch(name):
                yield module.register_forward_pre_hook(self.guarded(self.see_positions), with_kwargs=True)
        yield from self.attach_values()
        for entry in entries:
            yield entry.register_forward_hook(self.guarded(self.end))

    def attach_values(self) -> Iterator[Any]:
        """Registers the hooks that see values."""
        for port in self.ports:
            for layer, module in port.find(self.model):
                yield self.attach_port(port, layer, module)

    def attach_port(self, port: Port, layer: int | None, module: Any) -> Any:
        """Sees the value of a port whenever its module runs."""
        layer = layer if "*" in port.modules else None
        self.has_layers = self.has_layers or layer is not None
        see = self.guarded(self.see)
        if port.side == "input":
            return module.register_forward_pre_hook(
                lambda _, args, kwargs: see(port, layer, args[0] if args else next(iter(kwargs.values()))),
                with_kwargs=True,
            )
        place = 1 if port.side == "second output" else 0
        return module.register_forward_hook(lambda _, args, output: see(port, layer, output, place))

    def guarded(self, see: Callable[..., Any]) -> Callable[..., Any]:
        """A hook that torch.compile leaves as it is (the graph breaks there).

        It never raises inside the model's call. Refusals are raised when the block ends; nothing is seen until then.
        """

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.refused is not None:
                return None
            try:
                return see(*args, **kwargs)
            except DumpError as error:
                self.refused = error
                return None

        disable = getattr(getattr(sys.modules["torch"], "compiler", None), "disable", None)
        return guarded if disable is None else disable(guarded)

    def begin(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begins a pass when the model is called."""
        copied = model is not self.model and model is not self.outer  # with its hooks, as an assistant
        early = depth_of(self.model) != self.depth  # some of its layers make a draft, as another model would
        inside = self.current is not None and model is not self.caller
        if copied or early or inside:
            return
        call = self.read(arguments_of(model, args, kwargs))
        self.end_pass()
        self.caller = model
        self.current = self.open.enter_context(
            self.dump.forward(
                call.tokens,
                sequence=call.sequence,
                keys=call.keys if self.needs_keys else None,
                inputs=call.inputs,
            )
        )
        self.seen_logits = self.seen_layers = False
        for sequence, count in self.current.rows.paddings().items():
            self.paddings.setdefault(sequence, count)
        if call.position is not None:
            self.check_positions(call.position)

    def read(self, arguments: dict[str, Any]) -> Call:
        """Returns the rows of a call."""
        return self.calls.read(arguments)

    def see_positions(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The positions that the model gives its rows have to be those of the dump."""
        for value in (*args, *kwargs.values()):
            if is_ids(value) and value.ndim == 2 and self.current is not None:
                self.check_positions(value)

    def check_positions(self, given: Any) -> None:
        """Sees positions that count the padding in front of a text, as transformers' models do without position_ids.

        Keys after RoPE are those of other positions, and are left out. Attention sees differences alone.
        """
        assert self.current is not None
        shifts = self.current.rows.shifts(given)
        if any(shifts.values()) and shifts == {sequence: self.paddings.get(sequence) for sequence in shifts}:
            self.counts_padding = True
            self.dump.setting("positions", "padding counts")
        else:
            self.current.rows.check_position(given)

    def see(self, port: Port, layer: int | None, value: Any, place: int = 0) -> None:
        """Writes a value of a port."""
        if isinstance(value, (tuple, list)):
            value = value[place] if len(value) > place else None
        elif place:
            value = None
        self.seen_layers = self.seen_layers or layer is not None
        if self.current is None or value is None:  # a module that is called by itself, weights that nobody made
            return
        if port.tap == "logits":
            self.see_logits(value)
        else:
            if port.tap == "attn_weights":
                value = self.calls.filled(value, port.axes.index("key") if port.axes else -1)
            self.dump.tap(port.tap, value, layer=layer, axes=port.axes, layout=port.layout)

    def see_logits(self, logits: Any) -> None:
        """Logits of all rows, or of the latest, and what they choose."""
        self.seen_logits = True
        # Of a prompt generate() computes the last row alone: that is a row of "logits" if no other tap has it.
        for tap, value, rows in self.calls.see_logits(logits, one_row=not wanted("last_logits", self.only, self.also)):
            if wanted(tap, self.only, self.also):
                self.dump.tap(tap, value, rows=rows)

    def see_cache(self, layer: int, new: Any, keys: Any, values: Any) -> None:
        """Attention has extended a cache; a cache inside another is seen twice."""
        if self.current is None or ("k_rope", layer) in self.current.held:
            return
        for tap, value, axes in self.calls.see_cache(new, keys, values):
            is_turned = self.counts_padding and tap in ("k_rope", "k_cache")
            if wanted(tap, self.only, self.also) and not is_turned:
                self.dump.tap(tap, value, layer=layer, axes=axes)

    def end(self, model: Any, args: tuple[Any, ...], output: Any) -> None:
        """The model returns: with logits, and the cache that it made if it was given none."""
        if self.current is None or model is not self.caller:
            return
        if self.has_layers and not self.seen_layers:
            raise DumpError(
                "no layer of the model called its hooks, as if it was compiled or exported before: hook it first, or "
                'run it under torch.compiler.set_stance("force_eager")'
            )
        logits = part_of(output, "logits", self.is_logits)
        if logits is not None and not self.seen_logits:
            self.see_logits(logits)
        self.see_output(output)
        if self.reads_tokens:
            caches = (part_of(output, name, lambda value: hasattr(value, "get_seq_length")) for name in CACHES)
            self.calls.remember(next((cache for cache in caches if cache is not None), None))
        self.current = None

    def see_output(self, output: Any) -> None:
        """Sees the return value of the model. Taps need only its logits, which `see_logits` has written."""

    def is_logits(self, value: Any) -> bool:
        """Returns true for an output without a name that is as wide as the model's last matrix: the logits."""
        head = self.model.get_output_embeddings() if hasattr(self.model, "get_output_embeddings") else None
        return head is not None and getattr(value, "ndim", 0) == 3 and value.shape[-1] == head.weight.shape[0]

    def end_pass(self) -> None:
        """The latest pass ends with what it chooses."""
        if self.current is not None:
            raise DumpError(
                "a call of the model was left by an exception, and its pass is not whole: leave such calls out"
            )
        for tap, value in self.calls.chosen.items():
            if wanted(tap, self.only, self.also):
                self.dump.tap(tap, value)
        self.calls.chosen = {}
        self.open.close()

    def finish(self) -> None:
        """Ends the recording, and raises an error that a hook has met, such as one in another thread."""
        if self.refused is not None:
            raise self.refused
        if self.caller is None:
            raise DumpError(
                "the model was not called inside the hook: call the model itself, or hook the part of it that you call"
            )
        self.end_pass()
        self.calls.tell_choices()


def arguments_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names."""
    signature = inspect.signature(getattr(model, WRAPPED, model).forward)
    bound = dict(signature.bind_partial(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound.update(bound.pop(name, {}))
    return bound


def depth_of(model: Any) -> int | None:
    """Returns the number of layers in the configuration."""
    return getattr(getattr(model, "config", None), "num_hidden_layers", None)


def part_of(output: Any, name: str, fits: Callable[[Any], bool]) -> Any:
    """A part of what a model returns: by its name, or in a tuple that which fits."""
    if type(output) is tuple:
        return next((value for value in output if fits(value)), None)
    return getattr(output, name, None)
