"""A module of the evaluated model, run again on the candidate's inputs with one thing changed."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ..bounds import over
from ..call import Call, is_real
from ..constants import UNIT
from ..errors import EvaluatorError
from ..evaluation import Session, run_passes
from ..forcing import Forcing
from ..model import mark_computed_buffers
from ..modules import ROTARY
from ..operations import CREATIONS
from ..outputs import recorded
from ..rounding import Evaluation, is_composite, is_view
from ..ties import is_within
from ..tracked import RoundingErrors, Settings, Tracked, exact_of, fresh
from .bypass import Bypass
from .change import LAYER_NUMBER, SHORT, Change, Run

RULED = (
    frozenset(
        [
            "embedding",
            "_to_copy",
            "_grouped_mm",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_fused_rms_norm",
            "topk",
        ]
    )
    | CREATIONS
)


class Exact(Evaluation):  # type: ignore[no-untyped-call]
    """An evaluation without rounding errors, which is faster."""

    def evaluate(self, call: Call) -> Any:
        if call.name == "topk" and isinstance(call.leaves[0], Tracked):
            call.leaves[0] = roughly(call.leaves[0])
            call.rebuild()
        plain = not (is_composite(call.func) or call.func._schema.is_mutable or is_view(call.func))
        if plain and call.reals and call.name not in RULED:
            dtype = call.dtype()
            return tree_map(lambda part: fresh(part, dtype) if is_real(part) else part, call.run())
        result = super().evaluate(call)
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, Tracked):
                part.errors = RoundingErrors()
        return result


def roughly(scores: Tracked) -> Tracked:
    """Returns scores with an assumed error, so that recorded experts are chosen if their scores are nearly as large."""
    size = torch.where(scores.exact.isfinite(), scores.exact.abs(), 0.0).amax(-1, keepdim=True)
    return fresh(scores.exact, scores.dtype, (ROUGH * size).square().expand_as(scores.exact))


@dataclass
class Fit:
    """A comparison of one output with the candidate's."""

    error: float  # relative root mean square
    violations: int
    is_close: bool = False  # True if every value is within the bound of the present model

    @property
    def is_possible(self) -> bool:
        return self.violations == 0 and self.error < float("inf")


UNCHANGED = Change(0, {})
ROUGH = 2.0**-9  # assumed sigma of a score, relative to the largest score; a later run computes it and decides
GENEROUS = 16.0  # a change may raise sigma by this factor


class Reached(Exception):
    """Ends a run at the module in question."""


class Trial:
    """One call of a module, with its inputs as the candidate computed them."""

    def __init__(self, session: Session, module: str, call: int, pass_number: int, seconds: float):
        self.session = session
        self.path = module
        self.site = (module, call, pass_number)
        self.call = session.forcing.call_of.get(self.site, call)  # the model's own, which may call in another order
        self.deadline = time.monotonic() + seconds
        self.end = self.deadline  # of the confirmations
        self.unconfirmed: list[Change] = []  # changes that explain the values, without time for their confirmation
        if self.site not in session.dump.rows:
            raise EvaluatorError("request", f"module {module!r}, call {call}, pass {pass_number}: not recorded; "
                                 "give a site of the dump")  # fmt: skip
        self.row = session.dump.rows[self.site]
        self.stored = session.dump.value(self.row)
        self.want = self.stored.double()
        self.name = "" if module == "logits" else module
        self.root = self.name
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.calls: dict[str, int] = {}
        self.tried = False  # True if changes of the module itself have been tried by the inner trial
        self.own: tuple[Any, Any, dict[str, int]]  # inputs of the module itself, and the calls before it
        self.bypass = Bypass(pass_number, set(ancestors(self.name)))
        self.sigma: torch.Tensor | None = None
        self.last_sigma: torch.Tensor | None = None  # of the last output that was judged
        self.undetermined = session.undetermined.get(self.site, torch.tensor(False))
        self.dump_without_site = self.without_site()
        self.capture()
        self.before = self.judged()

    def inner(self) -> Trial | None:
        """Returns a trial of the module alone, with the inputs that the model computes; None if it is this one."""
        if self.root == self.name:
            return None
        trial = copy.copy(self)
        trial.root, (trial.args, trial.kwargs, trial.calls) = self.name, self.own
        trial.bypass = Bypass(self.site[2], set(ancestors(self.name)))
        trial.sigma = None
        trial.before = trial.judged()
        self.tried = trial.before is not None and trial.before.violations > 0
        return trial if self.tried else None

    def skips(self, path: str) -> bool:
        """Returns true for a module, or a role of modules, whose changes have been tried before."""
        return self.tried and (is_within(path, self.name) or is_within(path, LAYER_NUMBER.sub(".*", self.name)))

    @property
    def module(self) -> Any:
        """The module that is run: the smallest one whose inputs are the candidate's values."""
        return self.session.model.get_submodule(self.root)

    @property
    def module_of_site(self) -> Any:
        """The module whose output is in question."""
        return self.session.model.get_submodule(self.name)

    @property
    def is_short(self) -> bool:
        """Returns true if the output has a short type, in which many numbers give the same values."""
        return self.row.dtype in SHORT

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.deadline

    def without_site(self) -> Any:
        """Returns the dump without the outputs in question, so that they are not replaced."""
        dump = copy.copy(self.session.dump)
        aliases = {"", "logits"} if self.name == "" else {self.name}
        dump.rows = {
            site: row for site, row in dump.rows.items() if not (site[0] in aliases and site[1:] == self.site[1:])
        }
        return dump

    def capture(self) -> None:
        """Runs the model up to the module, and keeps the inputs of the smallest module with known inputs."""
        candidates = ancestors(self.name)
        kept: dict[str, tuple[Any, Any, dict[str, int]]] = {}
        forcing: Forcing

        def keeper(path: str) -> Callable[..., None]:
            def keep(module: Any, args: Any, kwargs: Any) -> None:
                if forcing.paused or forcing.pass_number != self.site[2]:
                    return
                if path == self.name and forcing.calls.get(path, 0) != self.call:
                    return
                with _disable_current_modes():
                    is_known = all_known(args, kwargs) or is_rotary(module)
                    if not kept or path == self.name or is_known:
                        kept[path] = (*copied(args, kwargs), dict(forcing.calls))
                        known[path] = is_known
                if path == self.name:
                    raise Reached

            return keep

        known: dict[str, bool] = {}
        evaluation = Evaluation(Settings(self.session.settings.samples))
        handles = []
        with torch.no_grad(), Forcing(self.session.model, self.session.dump, evaluation, ignore) as forcing:
            forcing.on_leave = self.progress
            self.session.follow_recorded(forcing)
            for path in candidates:
                module = self.session.model.get_submodule(path)
                handles.append(module.register_forward_pre_hook(keeper(path), with_kwargs=True, prepend=True))
            try:
                with self.bypass.noted(forcing):
                    run_passes(self.session.model, self.session.dump, evaluation, forcing)
            except Reached:
                self.root = next((path for path in candidates if known.get(path)), self.name)
                self.args, self.kwargs, self.calls = kept[self.root]
                self.own = kept[self.name]
                return
            finally:
                for handle in handles:
                    handle.remove()
        raise EvaluatorError("request", f"module {self.path!r}: call {self.site[1]} is not reached; give a judged site")

    @contextmanager
    def forcing(self, model: Any, evaluation: Evaluation) -> Iterator[Forcing]:
        """Replaces the outputs of modules within the module by the candidate's."""
        with Forcing(model, self.dump_without_site, evaluation, ignore, self.root) as forcing:
            forcing.on_leave = self.progress
            forcing.calls = dict(self.calls)
            forcing.pass_number = self.site[2]
            self.session.follow_recorded(forcing)
            yield forcing

    def progress(self, path: str) -> None:
        """Reports after each module that the search works, so that a large model does not look stuck."""
        self.session.on_trial()

    def run(self, evaluation: Evaluation, change: Change | None = None) -> torch.Tensor | None:
        """Returns the module's output; None if it has another shape."""
        change = change or UNCHANGED
        self.session.on_trial()
        model = change.model if change.model is not None else self.session.model
        if change.is_deep:
            output = self.run_from_the_start(evaluation, model)
        else:
            output = self.run_module(evaluation, model, change)
        return None if output is None or tuple(output.shape) != self.row.shape else output

    def run_module(self, evaluation: Evaluation, model: Any, change: Change) -> torch.Tensor | None:
        """Runs the module on the candidate's inputs."""
        args, kwargs = copied(self.args, self.kwargs)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            forcing = stack.enter_context(self.forcing(model, evaluation))
            bypass = self.bypass.noted(forcing) if change is UNCHANGED else self.bypass.installed(model, forcing)
            stack.enter_context(bypass)
            stack.enter_context(evaluation)
            outputs = stack.enter_context(self.kept(model, forcing))
            stack.enter_context(change.installed(Run(model, evaluation, forcing, frozenset([self.root]))))
            with suppress(Reached):
                model.get_submodule(self.root)(*args, **kwargs)
        return outputs[0] if outputs else None

    def run_from_the_start(self, evaluation: Evaluation, model: Any) -> torch.Tensor | None:
        """Runs the model up to the module."""
        mark_computed_buffers(model)
        forcing = Forcing(model, self.dump_without_site, evaluation, ignore)
        forcing.on_leave = self.progress
        self.session.follow_recorded(forcing)
        bypass = self.bypass.installed(model, forcing)
        with torch.no_grad(), forcing, bypass, self.kept(model, forcing) as outputs, suppress(Reached):
            run_passes(model, self.session.dump, evaluation, forcing)
        return outputs[0] if outputs else None

    @contextmanager
    def kept(self, model: Any, forcing: Forcing) -> Iterator[list[torch.Tensor | None]]:
        """Keeps the output of the call in question, and ends the run there."""
        outputs: list[torch.Tensor | None] = []

        def keep(module: Any, args: Any, output: Any) -> None:
            here = forcing.calls.get(self.name, 0), forcing.pass_number
            if here == (self.call, self.site[2]) and not forcing.paused:
                outputs.append(recorded(output))
                raise Reached

        handle = model.get_submodule(self.name).register_forward_hook(keep, prepend=True)
        try:
            yield outputs
        finally:
            handle.remove()

    def fit(self, change: Change) -> Fit | None:
        """Compares the exact output with the candidate's, with a generous bound in place of the change's own."""
        output = self.run(Exact(Settings(0)), change)
        if output is None:
            return None
        exact = exact_of(output)
        sigma = torch.zeros_like(exact) if self.sigma is None else self.sigma
        # An operation may be exact where its replacement is not: no sigma is small next to all others.
        generous = GENEROUS * torch.maximum(sigma, sigma.square().mean().sqrt())
        return Fit(self.relative(exact), self.count(exact, generous), self.count(exact, sigma) == 0)

    def judged(self, change: Change | None = None) -> Fit | None:
        """Compares the output with the candidate's, with the error bound at each value."""
        output = self.run(Evaluation(Settings(self.session.settings.samples)), change)
        if output is None:
            return None
        exact = exact_of(output)
        sigma = self.session.sigma(output, self.row.dtype)
        if self.sigma is None:
            self.sigma = sigma
        self.last_sigma = sigma
        return Fit(self.relative(exact), self.count(exact, sigma))

    def count(self, exact: torch.Tensor, sigma: torch.Tensor) -> int:
        """Returns the number of values above their bound, apart from those that a choice by rounding decides."""
        return int((over(self.stored, exact, sigma) & ~self.undetermined).sum())

    def explains(self, change: Change) -> Fit | None:
        """Returns the fit if every value of the output is within its bound."""
        found = self.fit(change)
        if found is None or not found.is_possible:
            return None
        found = self.judged(change)
        return found if found is not None and found.violations == 0 else None

    @property
    def noise(self) -> float:
        """The relative error that rounding alone leaves of the last output that was judged."""
        assert self.last_sigma is not None
        size = torch.where(torch.isfinite(self.want), self.want, 0.0)
        stored = UNIT.get(self.row.dtype, 0.0) * size
        error = (self.last_sigma.square() + stored.square()).mean().sqrt()
        return float(error / size.square().mean().sqrt().clamp(min=1e-300))

    def relative(self, exact: torch.Tensor) -> float:
        """Returns the error relative to the candidate's values, as root mean squares."""
        seen = torch.isfinite(self.want) & ~self.undetermined
        error = torch.where(seen, exact - self.want, 0.0)
        size = torch.where(seen, self.want, 0.0)
        if not bool(torch.isfinite(error).all()):
            return float("inf")
        return float(error.square().mean().sqrt() / size.square().mean().sqrt().clamp(min=1e-300))


def ancestors(path: str) -> list[str]:
    """Returns a module and the modules around it, from the inside out."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)] + [""]


def all_known(args: Any, kwargs: Any) -> bool:
    """Returns true if the values that a module computes from are the candidate's."""
    tensors = [leaf for leaf in tree_leaves((args, {k: v for k, v in kwargs.items() if is_data(k)})) if is_real(leaf)]
    return all(getattr(leaf, "is_known", False) for leaf in tensors)


def is_rotary(module: Any) -> bool:
    """Returns true for a module that computes rotations from positions alone."""
    return bool(ROTARY.search(type(module).__name__)) and not list(module.parameters())


def is_data(name: str) -> bool:
    """Returns false for inputs that no module computes: masks and rotations are the same in all layers."""
    return "mask" not in name and "position_embeddings" not in name


def copied(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Returns inputs that a run may change. Without earlier passes a cache is not needed."""
    return copy.deepcopy((args, kwargs))


def ignore(*_: Any) -> None:
    return None
