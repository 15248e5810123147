"""Teacher forcing by taps: values at inputs and outputs of modules are judged, and replaced by the candidate's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Callable, Optional, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes
from transformers.utils import ModelOutput

from xcheck.hook import rope_pairing

from .attention import AttentionCall, called_once, watched_attention
from .candidate import Dump, Row
from .constants import UNIT, rounding_sigma
from .forcing import Forcing
from .outputs import has_choices, recorded, replaced
from .tap_places import Place, Places, has_latents
from .tap_results import choice, probabilities, same_experts, weights_of
from .tap_rounding import gelu_from_a_table
from .tap_rows import TapRow
from .tap_views import View, views
from .ties import unknown_choice
from .tracked import Tracked, fresh

OnTap = Callable[[TapRow, torch.Tensor, Optional[str]], None]
OnMissing = Callable[[TapRow, str], None]


class TapForcing:
    """Hooks on the modules whose values are recorded taps. The hooks of `Forcing` count passes and calls."""

    def __init__(self, model: Any, dump: Dump, forcing: Forcing, on_tap: OnTap, on_missing: OnMissing):
        self.model = model
        self.dump = dump
        self.forcing = forcing
        self.on_tap = on_tap
        self.on_missing = on_missing
        self.places = Places(model)
        self.heads = self.places.heads
        declared = dump.manifest.get("layout", {}).get("rope_pairing")
        # Latent attention rotates neighbouring values in a part of each head, in whatever order it returns them.
        is_other = declared == "interleaved" and rope_pairing(model) == "half"
        self.is_interleaved = is_other and not has_latents(model)
        self.rows: dict[tuple[str, str, int], list[tuple[TapRow, Place]]] = defaultdict(list)
        self.left: dict[tuple[str, int | None, int], TapRow] = {}
        self.outputs: dict[tuple[str, int | None, int], Row] = {}  # taps that are all of a module's output
        self.handles = ExitStack()

    def place(self) -> None:
        """Finds the place of each tap, and reports those that have none."""
        for row in self.dump.taps.values():
            found = row.problem or self.places.find(row.tap, row.layer)
            if isinstance(found, str):
                self.on_missing(row, found)
                continue
            self.left[row.site] = row
            side = "output" if found.side.endswith(" output") else found.side
            self.rows[found.module, side, row.pass_number].append((row, found))

    def __enter__(self) -> TapForcing:
        self.place()
        self.forcing.taps_again = self.again
        self.handles.enter_context(gelu_from_a_table(self.model, self.dump.manifest))
        modules = dict(self.model.named_modules())
        for path, side in {(path, side) for path, side, _ in self.rows}:
            module = modules[path]
            if side == "input":
                self.keep(module.register_forward_pre_hook(self.entering(path), with_kwargs=True))
            if side in ("output", "logits"):
                self.keep(module.register_forward_hook(self.leaving(path, side), with_kwargs=True))
        if any(side == "attention" for _, side, _ in self.rows):
            once = self.called_once()
            names = {id(modules[path]): path for path in once}
            self.handles.enter_context(watched_attention(lambda call: self.attending(names, call)))
        return self

    def called_once(self) -> set[str]:
        """Returns the modules that call attention once in a pass. Refuses taps of layers that run several times."""
        calls: list[None] = []
        count = self.model.get_submodule(f"{self.places.path}.0").register_forward_hook(lambda *_: calls.append(None))
        self.forcing.paused = True
        once = called_once(self.model, self.dump.passes[0], self.forcing.evaluation.settings)
        self.forcing.paused = False
        count.remove()
        if len(calls) > 1:
            why = f"the model runs its layers {len(calls)} times in a pass; record outputs of modules"
            self.refuse([row for row in self.left.values() if row.layer is not None or row.tap == "embed"], why)
        return once

    def __exit__(self, *error: object) -> None:
        self.handles.close()
        self.forcing.taps_again = nullcontext

    @contextmanager
    def again(self) -> Iterator[None]:
        """Forces the recorded taps while a module runs again, without judging them a second time."""
        kept = self.left, self.outputs, self.on_tap, self.on_missing
        self.left = {row.site: row for rows in self.rows.values() for row, _ in rows}
        self.outputs, self.on_tap, self.on_missing = {}, ignored, ignored
        try:
            yield
        finally:
            self.left, self.outputs, self.on_tap, self.on_missing = kept

    def keep(self, handle: Any) -> None:
        self.handles.callback(handle.remove)

    def end(self) -> None:
        """Reports taps whose modules were not called."""
        for row in self.left.values():
            self.on_missing(row, "the model computes no such value in this pass; record outputs of modules")
        self.left.clear()

    def due(self, path: str, side: str) -> list[tuple[TapRow, Place]]:
        """Returns the taps of a module's side in the current pass; each is judged at the first call."""
        if self.forcing.paused:
            return []
        found = self.rows.get((path, side, self.forcing.pass_number), [])
        return [(row, place) for row, place in found if row.site in self.left]

    def entering(self, path: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            value = args[0] if args else next(iter(kwargs.values()), None)
            for row, place in self.due(path, "input"):
                self.judge_in_place(row, place, value)

        return hook

    def leaving(self, path: str, side: str) -> Callable[..., Any]:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            due = self.due(path, side)
            if not due:
                return None
            if side == "logits":
                logits = output.get("logits") if isinstance(output, ModelOutput) else recorded(output)
                self.judge_logits(logits, [row for row, _ in due])
                return None
            return self.judge_output(path, module, args, kwargs, output, due)

        return hook

    def judge_output(
        self, path: str, module: Any, args: Any, kwargs: Any, output: Any, due: list[tuple[TapRow, Place]]
    ) -> Any:
        """Judges the taps of a module's output; returns the output with the candidate's values."""
        first = [(row, place) for row, place in due if place.side == "output"]
        value = recorded(output)
        if first and isinstance(value, Tracked):
            choices = has_choices(output)
            made = self.forcing.on_choices(path) if choices else []
            forced = contiguous(value)
            for row, place in first:
                self.judge(row, place, forced)
            if choices:
                again = self.forcing.chosen_again(module, args, kwargs, value, forced)
                if again is None:
                    self.forcing.on_open(made)  # the other outputs depend on them
                output = output if again is None else again
            output = replaced(output, forced)
        self.judge_router(output, [(row, place) for row, place in due if place.side != "output"])
        return output

    def judge_router(self, output: Any, due: list[tuple[TapRow, Place]]) -> None:
        """Judges the experts that a router has chosen, and their weights; of Llama 4's router the logits."""
        results = output if isinstance(output, (tuple, list)) else ()
        for row, place in due:
            if row.tap == "router_logits":
                self.judge_in_place(row, place, results[1] if len(results) > 1 else None)
        due = [(row, place) for row, place in due if row.tap != "router_logits"]
        if not due:
            return
        chosen = next((part for part in results if isinstance(part, torch.Tensor) and is_whole(part)), None)
        weights = next((part for part in results[1:] if isinstance(part, Tracked)), None)
        if chosen is None or weights is None or weights.shape != chosen.shape:
            self.refuse([row for row, _ in due], "the router does not return expert indices and weights")
            return
        rows = {row.tap: row for row, _ in due}
        listed = rows.get("experts")
        if listed is None:
            self.refuse(rows.values(), "the numbers of the experts are not recorded (tap experts)")
            return
        with _disable_current_modes():
            numbers = listed.value(self.dump.read_file).long()
        if numbers.shape != chosen.shape:
            self.refuse(rows.values(), f"shape {list(numbers.shape)}, expected {list(chosen.shape)}")
            return
        self.report(listed, same_experts(numbers, chosen))
        row = rows.get("expert_weights")
        if row is not None:
            found = weights_of(numbers, chosen, weights)
            if found is None:
                self.refuse([row], "the model chooses other experts than the dump records")
            else:
                self.report(row, found)

    def judge_logits(self, logits: Any, rows: list[TapRow]) -> None:
        """Judges the logits and the values that follow from them."""
        due = {row.tap: row for row in rows}
        if not isinstance(logits, Tracked) or logits.dim() != 3:
            self.refuse(rows, "the model returns no logits")
            return
        logits = contiguous(logits)
        if "logits" in due:
            self.judge(due["logits"], Place("", "output"), logits)
        last = logits[:, -1]
        if "last_logits" in due:
            self.judge(due["last_logits"], Place("", "output", ("batch", "vocab")), last)
        if "argmax" in due:
            is_recorded = "last_logits" in due or ("logits" in due and due["logits"].tokens is None)
            numbers, is_tie = choice(last, is_recorded)
            if is_tie:
                self.forcing.on_open([unknown_choice("")])
            self.report(due["argmax"], numbers)
        if "probs" in due:
            temperature = float(self.dump.manifest["passes"][self.forcing.pass_number].get("temperature", 1.0))
            self.report(due["probs"], probabilities(last, temperature))

    def attending(self, names: dict[int, str], call: AttentionCall) -> None:
        """Judges queries, keys and values of an attention function, and its weights after it has run."""
        layer = self.places.layer_around(names.get(id(call.module), ""))
        for row, place in self.due(layer, "attention"):
            value = call.value(row.tap, len(self.dump.passes[self.forcing.pass_number]))
            if value is not None:
                self.judge_in_place(row, place, value)

    def judge_in_place(self, row: TapRow, place: Place, value: Any) -> None:
        """Judges a value, and writes the candidate's into it: other operations may read the same tensor."""
        if not isinstance(value, Tracked):
            self.refuse([row], "the module is given no tensor")
            return
        copy = contiguous(value)
        if self.judge(row, place, copy):
            value.copy_(copy)

    def judge(self, row: TapRow, place: Place, value: Tracked) -> bool:
        """Judges a tap of a contiguous tensor, and writes the candidate's values into the tensor."""
        with _disable_current_modes():
            stored = row.value(self.dump.read_file)
        view = self.chosen_view(row, place, value, stored)
        if view is None:
            shown = place.module or "the model"
            self.refuse([row], f"shape {list(row.shape)}, but {shown} has {list(value.shape)}")
            return False
        target = view(value)
        if place.side == "output" and place.module and row.is_plain and is_all_of(target, value):
            self.outputs[row.site] = Row(place.module, 0, row.pass_number, tuple(value.shape), row.dtype, row.file)
        parts = [target] if row.tokens is None else [target[token] for token in row.tokens]
        module = place.module if place.side == "output" else None
        self.report(row, target if row.tokens is None else torch.stack(parts), module)
        pieces = [stored] if row.tokens is None else list(stored.unbind(0))
        for part, piece in zip(parts, pieces):
            part.copy_(known(piece, row.dtype, cast(Tracked, part)))
        return True

    def chosen_view(self, row: TapRow, place: Place, value: Tracked, stored: torch.Tensor) -> View | None:
        """Returns the view with the recorded shape; of several, the one whose values are nearest to the recorded."""
        fits: list[tuple[float, int, View]] = []
        with _disable_current_modes():
            for view in views(row, place, tuple(value.shape), self.heads, self.is_interleaved):
                try:
                    seen = view(value.exact)
                except (RuntimeError, IndexError):  # axes of other lengths
                    continue
                if row.tokens is not None:
                    seen = seen[list(row.tokens)] if max(row.tokens, default=0) < len(seen) else seen[:0]
                if seen.numel() == stored.numel() and is_shaped(seen, row.shape):
                    error = (seen.reshape(-1) - stored.double().reshape(-1)).nan_to_num().square().sum()
                    fits.append((float(error), len(fits), view))
        return min(fits)[2] if fits else None

    def report(self, row: TapRow, value: torch.Tensor, module: str | None = None) -> None:
        """Reports exact values; `module` is known from here on."""
        self.left.pop(row.site, None)
        with _disable_current_modes():
            self.on_tap(row, value, module)

    def refuse(self, rows: Iterable[TapRow], why: str) -> None:
        for row in rows:
            self.left.pop(row.site, None)
            self.on_missing(row, why)


def ignored(*_: Any) -> None:
    return None


def contiguous(value: Tracked) -> Tracked:
    """Returns a copy whose values can be written through views. Runs inside an evaluation."""
    return cast(Tracked, value.clone(memory_format=torch.contiguous_format))


def known(stored: torch.Tensor, dtype: torch.dtype, like: Tracked) -> Tracked:
    """Returns the candidate's values as a tensor of the model's type; a shorter type has rounded them."""
    with _disable_current_modes():
        exact = stored.reshape(like.shape).double().clone(memory_format=torch.contiguous_format)
        narrow = UNIT.get(dtype, 0.0) > UNIT[like.dtype]
        return fresh(exact, like.dtype, rounding_sigma(exact, dtype).square() if narrow else None)


def is_all_of(target: torch.Tensor, value: torch.Tensor) -> bool:
    """Returns true if a view has all values of a contiguous tensor, in the same order."""
    return target.numel() == value.numel() and target.is_contiguous()


def is_whole(part: torch.Tensor) -> bool:
    return not part.is_floating_point() and part.dtype != torch.bool


def is_shaped(seen: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Returns true if a view has the recorded axes: leading axes of one and split axes apart."""
    lengths = [length for length in shape if length != 1]
    found = [length for length in seen.shape if length != 1]
    return found == lengths or len(found) > len(lengths)
