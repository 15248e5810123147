"""Evaluation of a dump: every recorded module output, in the order of execution."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any, Callable

import torch
import transformers

from xcheck.follow import CACHES

from . import decompositions, products, reductions  # noqa: F401  (these register the rules)
from .bounds import over
from .candidate import Dump, Row, open_dump
from .errors import EvaluatorError
from .forcing import Forcing
from .model import load, mark_computed_buffers
from .modules import LAYER_NUMBER, call, described, layers
from .other_choices import OtherChoices, explained
from .rounding import Evaluation
from .sigma import sigma_of
from .tap_forcing import OnMissing, OnTap, TapForcing
from .tap_rounding import is_compiled, is_other_engine, with_another_rounding
from .tap_rows import TapRow
from .ties import Choice, Ties, allowed, is_within
from .tracked import Settings, exact_of

MASKED = -1e4  # addends of masked scores are less

Send = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


class Session:
    """One model and one dump."""

    def __init__(self, model_path: str, dump_path: str, runs: int):
        self.path = model_path
        self.dump: Dump = open_dump(dump_path)
        self.model: Any = None
        self.settings = Settings(max(2, runs))
        manifest = self.dump.manifest
        self.settings.is_other_engine = is_other_engine(manifest)
        self.forcing: Forcing
        self.ties: Ties  # choices that rounding can decide
        self.others: OtherChoices
        self.on_trial: Callable[[], None] = lambda: None  # called for each change that is tried, and each of its sites
        self.rounds_otherwise = is_compiled(manifest) or (bool(self.dump.taps) and self.settings.is_other_engine)
        self.outputs: dict[tuple[str, int | None, int], Row] = {}  # taps that are all of a module's output
        self.wrong: set[tuple[str, int, int]] = set()  # outputs of modules with values above their bound
        self.seen: set[tuple[str, int, int]] = set()  # outputs of modules with an exact value
        self.skips_initialisation: bool | None = None  # True if models may be made again without initialisation
        self.undetermined: dict[tuple[str, int, int], torch.Tensor] = {}  # values that a choice by rounding decides

    def load(self) -> None:
        self.model = load(self.path, self.dump)

    def hello(self, version: str) -> dict[str, Any]:
        """Returns the first message of an answer."""
        source = inspect.getsourcefile(type(self.model)) or ""
        parts = Path(source).parts
        for package in ("transformers", "sentence_transformers"):
            if package in parts:
                source = "/".join(parts[len(parts) - 1 - parts[::-1].index(package) :])
        return {
            "message": "hello",
            "protocol": 1,
            "worker": version,
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "architecture": self.model.config.model_type,
            "model_class": type(self.model).__name__,
            "source": source,
            "modules": described(self.model, self.dump.passes[0], self.dump.inputs(0)),
        }

    def run(self, send: Send) -> None:
        """Evaluates all passes."""
        evaluation = Evaluation(self.settings)
        mark_computed_buffers(self.model)

        def on_site(row: Row, value: torch.Tensor) -> None:
            send(*self.site(row, value))

        with torch.no_grad(), Forcing(self.model, self.dump, evaluation, on_site) as forcing:

            def on_tie(choice: Choice, count: int) -> torch.Tensor | None:
                indices = self.with_recorded_experts(choice, forcing)
                if bool(choice.tied.any()):
                    self.ties.note(choice, count, len(self.dump.passes[forcing.pass_number]))
                return indices

            self.forcing, self.ties = forcing, Ties(self.model)
            self.others = OtherChoices(forcing, self.sigma, self.with_recorded_experts)
            evaluation.on_tie = on_tie
            forcing.on_choices, forcing.on_open = self.ties.take, self.ties.add
            forcing.on_missing = lambda row, why: send(missing(row, why), {})
            forcing.on_leave = self.progress(forcing, send)
            on_tap, on_missing = self.tap_messages(send)
            with TapForcing(self.model, self.dump, forcing, on_tap, on_missing) as taps:
                run_passes(self.model, self.dump, evaluation, forcing)
                taps.end()
            self.outputs = taps.outputs
        names = {name for name, _ in self.model.named_modules()} | {"logits"}
        for row in self.dump.rows.values():
            if row.site not in forcing.seen:
                send(missing(row, not_reached(row, names, forcing.called)), {})

    def site(self, row: Row, value: torch.Tensor) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Returns the message of one module output."""
        real = value.is_floating_point()
        message: dict[str, Any] = {
            "message": "site",
            "module": row.module,
            "call": row.call,
            "pass": row.pass_number,
            "kind": "real" if real else "ids",
        }
        exact = exact_of(value)
        stored, sigma = self.dump.value(row), self.sigma(value, row.dtype)
        exact = exact if real else self.ties.chosen(stored, exact)
        tokens = len(self.dump.passes[row.pass_number])
        unsure = self.ties.undetermined(row.module, value, tokens)
        inside = None if unsure is None else self.others.undetermined(row, self.ties.open, tokens)
        unsure = unsure if inside is None else inside
        above = over(stored, exact, sigma)
        if real and unsure is not None and bool(above.any()) and not bool((above & ~unsure).any()):
            made = self.others.outputs(row, self.ties.open)
            exact, sigma = explained(row, stored, (exact, sigma), made, tokens)
            if inside is None:
                self.ties.confused(row.module, value, tokens)
            above = over(stored, exact, sigma)
            if bool(above.any()) and self.others.is_the_same(row, exact_of(value), self.ties.open):
                unsure = None
        if self.decide(message, above, unsure, row.pass_number):
            self.wrong.add(row.site)
        if unsure is not None:
            self.undetermined[row.site] = unsure
        self.seen.add(row.site)
        self.ties.take(row.module)
        return message, {"exact": exact, "sigma": sigma}

    def follow_recorded(self, forcing: Forcing) -> None:
        """Makes a run use the recorded experts where rounding allows them."""
        forcing.evaluation.on_tie = lambda choice, count: self.with_recorded_experts(choice, forcing)

    def with_recorded_experts(self, choice: Choice, forcing: Forcing) -> torch.Tensor | None:
        """Returns the chosen experts, with the recorded ones where rounding allows them: these rows are not tied."""
        choice.path = forcing.stack[-1] if forcing.stack else ""
        layer = next((at for at, path in enumerate(layers(self.model)) if is_within(choice.path, path)), None)
        number = forcing.pass_number
        experts, logits = (self.dump.taps.get((tap, layer, number)) for tap in ("experts", "router_logits"))
        if experts is None or logits is None or logits.shape[-1] != choice.must.shape[-1]:
            return None
        recorded = experts.value(self.dump.read_file).long()
        if recorded.numel() != choice.indices.numel():
            return None
        recorded = recorded.view_as(choice.indices)
        fits = allowed(recorded, choice)
        choice.tied &= ~fits
        choice.indices = torch.where(fits.unsqueeze(-1), recorded, choice.indices)
        return choice.indices

    def decide(
        self, message: dict[str, Any], above: torch.Tensor, unsure: torch.Tensor | None, pass_number: int
    ) -> bool:
        """Returns true if values are wrong whatever rounding decides; else the message says that rounding decides."""
        is_wrong = bool((above if unsure is None else above & ~unsure).any())
        if unsure is not None and not is_wrong:
            message["tie"] = True
            makers = {choice.path for choice in self.ties.open} - {""}
            rows = self.dump.rows.values()
            missing = makers - {row.module for row in rows if row.pass_number == pass_number}
            message.update({"choice": listed(missing or makers)} if makers else {})
        return is_wrong

    def sigma(self, value: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
        """Returns the sigma of an output; that of integers is 0."""
        if not value.is_floating_point():
            return torch.zeros(value.shape, dtype=torch.float64)
        sigma = sigma_of(value, stored)
        if self.rounds_otherwise:
            exact = exact_of(value)
            sigma = with_another_rounding(sigma, exact, value.dtype)
        return sigma

    def with_modules(self) -> Session:
        """Returns a session whose dump has the recorded taps as outputs of modules, where a tap is such an output."""
        session = copy.copy(self)
        rows = {row.site: row for row in self.outputs.values()}
        session.dump = dataclasses.replace(self.dump, rows={**self.dump.rows, **rows})
        return session

    def tap_messages(self, send: Send) -> tuple[OnTap, OnMissing]:
        """Returns the functions that send a judged tap, and one that cannot be judged."""

        def on_missing(row: TapRow, why: str) -> None:
            send({"message": "missing", **row.name, "why": f"{row.tap}: {why}"}, {})

        return lambda row, value, module: send(*self.tap(row, value, module)), on_missing

    def tap(
        self, row: TapRow, value: torch.Tensor, module: str | None
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Returns the message of one tap; `module` returns exactly its values."""
        real = value.is_floating_point()
        message: dict[str, Any] = {
            "message": "site",
            **row.name,
            "kind": "real" if real else "ids",
        }
        exact = exact_of(value).reshape(row.shape)
        sigma = self.sigma(value, row.dtype).reshape(row.shape)
        above = over(row.value(self.dump.read_file), exact, sigma)
        unsure = torch.ones((), dtype=torch.bool) if self.ties.open else None
        is_wrong = self.decide(message, above, unsure, row.pass_number)
        if module is not None:
            self.ties.take(module)
            if is_wrong:
                self.wrong.add((module, 0, row.pass_number))
        return message, {"exact": exact, "sigma": sigma}

    def progress(self, forcing: Forcing, send: Send) -> Callable[[str], None]:
        paths = layers(self.model)
        places = {path: at + 1 for at, path in enumerate(paths)}
        count = len(paths) * len(self.dump.passes)

        def leave(path: str) -> None:
            self.ties.left(path)
            if path in places:
                done = forcing.pass_number * len(paths) + places[path]
                what = f"layer {places[path]} of {len(paths)}"
                send({"message": "progress", "done": done, "total": count, "what": what}, {})

        return leave


def listed(makers: set[str]) -> str:
    """Returns the paths of the modules that make a choice. Paths that differ only in the layer become one pattern."""
    roles = {LAYER_NUMBER.sub(".*", path, count=1) for path in makers}
    return " and ".join(sorted(makers if len(makers) == 1 else roles))


def missing(row: Row, why: str) -> dict[str, Any]:
    return {"message": "missing", "module": row.module, "call": row.call, "pass": row.pass_number, "why": why}


def not_reached(row: Row, names: set[str], called: dict[tuple[str, int], int]) -> str:
    """Returns the reason for which a recorded output has not been evaluated."""
    if row.module not in names:
        return "the model has no such module"
    count = called.get((row.module, row.pass_number), 0)
    return f"the module is called {count} times in this pass, expected call {row.call} or more"


def run_passes(model: Any, dump: Dump, evaluation: Evaluation, forcing: Forcing) -> None:
    """Runs all passes; later ones continue from the cache of the earlier ones."""
    cache: dict[str, Any] = {}
    several = any(dump.positions)
    keeps = several or has_cache(model, dump)
    for number, tokens in enumerate(dump.passes):
        forcing.start(number)
        if dump.positions[number] == 0:
            cache.clear()
        options: dict[str, Any] = {"use_cache": keeps, **cache}
        inputs = with_present_keys(dump.inputs(number), dump.positions[number] + len(tokens))
        rows = rows_of_logits(dump, number, len(tokens))
        if rows:
            options["logits_to_keep"] = rows
        with evaluation:
            output = call(model, tokens, inputs, **options)
        forcing.end()
        for name in (*CACHES, "mems", "state"):
            found = getattr(output, name, None)
            if several and found is not None:
                cache[name] = found
        if several and not cache:
            raise EvaluatorError(
                "model", f"{type(model).__name__} keeps no cache, expected one for {len(dump.passes)} passes; "
                "record the whole text in one pass",
            )  # fmt: skip


def has_cache(model: Any, dump: Dump) -> bool:
    """Returns true if the candidate kept a cache, whose type may round the keys and values of a single pass."""
    stated = dump.manifest.get("producer", {}).get("settings", {}).get("kv_cache")
    takes = "use_cache" in inspect.signature(model.forward).parameters  # an encoder has none
    return stated is not None and takes and bool(getattr(model.config.get_text_config(), "use_cache", False))


def with_present_keys(inputs: dict[str, torch.Tensor], keys: int) -> dict[str, torch.Tensor]:
    """Shortens a mask of queries and keys, which a cache of fixed size makes longer, to the keys so far."""
    mask = inputs.get("attention_mask")
    if mask is None or mask.dim() != 4 or not 0 < keys < mask.shape[-1]:
        return inputs
    rest = mask[..., keys:]
    if bool(rest.any() if rest.dtype == torch.bool else (rest > MASKED).any()):
        return inputs  # the candidate attends to them
    return {**inputs, "attention_mask": mask[..., :keys]}


def rows_of_logits(dump: Dump, number: int, tokens: int) -> int:
    """Returns the number of rows of the recorded logits if it is less than that of the tokens."""
    for name in ("logits", "lm_head"):
        row = dump.rows.get((name, 0, number))
        if row is not None and len(row.shape) == 3 and row.shape[1] < tokens:
            return row.shape[1]
    return 0
