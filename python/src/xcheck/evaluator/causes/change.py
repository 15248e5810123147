"""A changed thing that may explain a wrong output, and the run that it is tried in."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

from ..call import Call
from ..forcing import Forcing
from ..modules import LAYER_NUMBER
from ..rounding import Evaluation

# Plausibility of an explanation: smaller numbers are likelier.
USUAL_KEY, FITTED_KEY, ROUND_CONSTANT, WEIGHT, OPERATION, INPUT, UNROUND = range(7)
MODULE_CALL = "_call_impl"  # function of torch that calls a module's forward function
SHORT = frozenset([torch.bfloat16, torch.float16])
SHOWN = 100  # characters of a quoted source line


def role_of(path: str) -> str:
    """Returns the path of a module without the number of its layer."""
    return LAYER_NUMBER.sub(".*", path, count=1)


@dataclass
class Run:
    """A run of the model, or of one module of it, in which a change is tried."""

    model: Any
    evaluation: Evaluation
    forcing: Forcing
    paths: frozenset[str]  # modules in which the change applies
    calls: frozenset[int] | None = None  # calls of these modules in which it applies; None for all

    @property
    def applies(self) -> bool:
        """True while one of the modules runs."""
        return any(path in self.paths and self.is_wanted(path) for path in self.forcing.stack)

    def is_wanted(self, path: str) -> bool:
        return self.calls is None or self.forcing.calls.get(path, 0) in self.calls

    @contextmanager
    def hooks(self, make: Callable[[str, Any], Any]) -> Iterator[None]:
        """Registers a hook on each module in which the change applies."""
        with ExitStack() as stack:
            for path in sorted(self.paths):
                stack.callback(make(path, self.model.get_submodule(path)).remove)
            yield

    @staticmethod
    def part(module: Any, inside: str) -> Any:
        """Returns a module inside of another; None if a layer of another kind lacks it."""
        return dict(module.named_modules(remove_duplicate=False)).get(inside)


@dataclass
class Change:
    """A changed thing. `message` has the fields of the protocol's message."""

    rank: int
    message: dict[str, Any]
    is_local: bool = False  # True for a change of one module, which does not apply in other layers
    trial: Any = None  # the trial that the change has explained
    confirmed: int | None = None  # modules in which the change is confirmed; None if no run has tried
    is_exact: bool = False  # True if rounding explains all of the error that is left
    is_number: bool = False  # True if one number is changed
    is_vague: bool = False  # True for a number that the values do not determine well
    keys: list[Change] = field(default_factory=list)  # keys that set a changed constant

    @property
    def is_key(self) -> bool:
        """True for another value of a key of config.json."""
        return bool(self.message.get("kind") == "config")

    @property
    def model(self) -> Any:
        """Another model in place of the session's; None for the same."""
        return None

    @property
    def is_deep(self) -> bool:
        """True if the change may alter the inputs of the module, so that the whole model has to run."""
        return False

    def installed(self, run: Run) -> AbstractContextManager[Any]:
        """Installs the change for the length of a run."""
        return nullcontext()


class Edit:
    """A change of operations. One edit lasts for one call of a module in which the change applies."""

    def before(self, call: Call) -> Any:
        """Returns a result in place of the operation's own; None to run it. May exchange operands."""
        return None

    def after(self, call: Call, result: Any) -> Any:
        """Returns the operation's result."""
        return result


class BeforeEdit(Edit):
    """An edit by a function that is called before each operation."""

    def __init__(self, function: Callable[[Call], Any]):
        self.function = function

    def before(self, call: Call) -> Any:
        return self.function(call)


@dataclass
class CodeChange(Change):
    """A change of operations. `make` is called when a module begins in which the change applies."""

    make: Callable[[Evaluation], Edit] = field(default=lambda evaluation: Edit())

    @contextmanager
    def installed(self, run: Run) -> Iterator[None]:
        evaluation = run.evaluation
        current = [self.make(evaluation)]

        def begin(module: Any, args: Any) -> None:
            current[0] = self.make(evaluation)

        evaluation.before = lambda call: current[0].before(call) if run.applies else None
        evaluation.after = lambda call, result: current[0].after(call, result) if run.applies else result
        with run.hooks(lambda path, module: module.register_forward_pre_hook(begin)):
            yield
        evaluation.before = lambda call: None
        evaluation.after = lambda call, result: result


@dataclass(frozen=True)
class Place:
    """A line of the modelling code."""

    path: str
    line: int

    @property
    def file(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def text(self) -> str:
        """The source line, shortened."""
        text = linecache.getline(self.path, self.line).strip()
        return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."

    @property
    def fields(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line}


NOWHERE = Place("", 0)


def place() -> Place:
    """Returns the line of the modelling code that runs the current operation.

    It is the same line whichever module a run begins with: in a module of torch, the line of that module.
    """
    found = NOWHERE
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename.replace("\\", "/")
        file = name.rsplit("/", 1)[-1]
        if "/transformers/" in name and "/transformers/utils/" not in name and file != "modeling_layers.py":
            return Place(name, frame.f_lineno)
        if "/torch/nn/modules/" in name and file not in ("module.py", "container.py") and found is NOWHERE:
            found = Place(name, frame.f_lineno)
        if found is not NOWHERE and frame.f_code.co_name == MODULE_CALL:
            return found
        frame = frame.f_back
    return found


@dataclass(frozen=True)
class CodeSite:
    """An operation of the modelling code: the calls that lead to it within its module, and the module's role."""

    place: Place
    calls: tuple[tuple[int, int], ...]  # function and instruction of each call, from the inside out
    operation: str
    role: str  # path of the innermost module, without numbers

    def is_of(self, call: Call, evaluation: Evaluation) -> bool:
        """Returns true if the current operation is at this site. The name is compared first, as it costs least."""
        return call.name == self.operation and code_site(call, evaluation) == self


def code_site(call: Call, evaluation: Evaluation) -> CodeSite | None:
    """Returns the site of the current operation; None outside of modelling code."""
    here = place()
    if not here.path:
        return None
    frame: Any = sys._getframe(1)
    calls: list[tuple[int, int]] = []
    while frame is not None and frame.f_code.co_name != MODULE_CALL:
        name = frame.f_code.co_filename
        if ("transformers" in name or "/nn/modules/" in name) and not name.endswith("module.py"):
            calls.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    path = evaluation.stack[-1] if evaluation.stack else ""
    return CodeSite(here, tuple(calls), call.name, LAYER_NUMBER.sub(".*", path))
