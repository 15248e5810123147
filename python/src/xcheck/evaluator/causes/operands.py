"""Wrong operations: another function, other axes or counts, exchanged operands, another value, another order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Any, Callable

import torch

from ..call import Call, is_real
from ..rounding import Evaluation, as_tracked
from ..tracked import Settings
from .change import INPUT, OPERATION, UNROUND, BeforeEdit, CodeChange, CodeSite, Edit, code_site
from .keys import explains
from .trial import Exact, Trial

aten = torch.ops.aten
Reading = tuple[int, int, "Variant", CodeSite]  # distance, rank, change, place
Function = Callable[[Evaluation, Call], Any]  # computes a result in place of the operation's own
FAR = 12  # operations between two values of which one may be read in place of the other
FEW = 40  # changes of a module of which two are tried together
MANY = 400  # operations of a module that are tried

# Functions that one line of code exchanges for one another.
UNARY: dict[str, tuple[Any, dict[str, Any]]] = {
    "silu": (aten.silu.default, {}),
    "gelu": (aten.gelu.default, {}),
    "tanh gelu": (aten.gelu.default, {"approximate": "tanh"}),
    "relu": (aten.relu.default, {}),
    "sigmoid": (aten.sigmoid.default, {}),
    "tanh": (aten.tanh.default, {}),
    "softplus": (aten.softplus.default, {}),
    "exp": (aten.exp.default, {}),
    "square": (aten.square.default, {}),
}
BINARY = {
    "sub": ["add"], "add": ["sub"], "mul": ["div"], "div": ["mul"], "lt": ["le"], "le": ["lt"], "gt": ["ge"],
    "ge": ["gt"], "maximum": ["minimum"], "minimum": ["maximum"], "floor": ["round", "ceil"], "rsqrt": ["reciprocal"],
    "cos": ["sin"], "sin": ["cos"],
}  # fmt: skip
COMPARISONS = frozenset(["lt", "le", "gt", "ge"])
REDUCTIONS = frozenset(["mean", "sum", "amax", "var", "linalg_vector_norm"])  # with axes and keepdim
ALONG = frozenset(["_softmax", "cumsum", "_log_softmax"])  # along one axis, with a result of the same shape
COUNTS = frozenset(["topk", "tril", "triu", "roll"])
EXCHANGED = frozenset(["sub", "div", "where", "rsub", "atan2"])
MOVED = frozenset(["mul", "add", "sub", "div"])
PLAIN = frozenset(["detach", "clone", "_to_copy", "alias", "view", "_unsafe_view", "expand", "contiguous"])


@dataclass
class Operation:
    """An operation that ran, with the numbers of the operations that made its operands."""

    site: CodeSite
    call: Call
    result: Any
    makers: dict[int, int] = field(default_factory=dict)  # by the operand's place


@dataclass
class Variant:
    """One change of an operation, and a phrase for it."""

    what: str
    edit: Callable[[Evaluation], Edit]


class OtherOperand(Edit):
    """An operand that is another value of the same module."""

    def __init__(self, site: CodeSite, evaluation: Evaluation, at: int, source: CodeSite):
        self.site, self.at, self.source = site, at, source
        self.evaluation = evaluation
        self.value: Any = None

    def before(self, call: Call) -> Any:
        if self.value is None or not self.site.is_of(call, self.evaluation):
            return None
        if call.leaves[self.at].shape == self.value.shape:
            call.leaves[self.at] = self.value
            call.rebuild()
        return None

    def after(self, call: Call, result: Any) -> Any:
        if self.source.is_of(call, self.evaluation):
            self.value = result
        return result


class Moved(Edit):
    """An operation with two operands that is applied to a later result."""

    def __init__(self, site: CodeSite, evaluation: Evaluation, at: int, target: CodeSite):
        self.site, self.at, self.target = site, at, target
        self.evaluation = evaluation
        self.call: Call | None = None

    def before(self, call: Call) -> Any:
        if not self.site.is_of(call, self.evaluation):
            return None
        self.call = call
        return as_tracked(call.leaves[self.at])

    def after(self, call: Call, result: Any) -> Any:
        if self.call is None or not self.target.is_of(call, self.evaluation):
            return result
        moved, self.call = self.call, None
        args = list(moved.args)
        args[self.at] = result
        return self.evaluation.evaluate(Call(moved.func, tuple(args), moved.kwargs))


class Both(Edit):
    """Two edits, one after the other."""

    def __init__(self, first: Edit, second: Edit):
        self.edits = first, second

    def before(self, call: Call) -> Any:
        for edit in self.edits:
            result = edit.before(call)
            if result is not None:
                return result
        return None

    def after(self, call: Call, result: Any) -> Any:
        for edit in self.edits:
            result = edit.after(call, result)
        return result


def traced(trial: Trial) -> list[Operation]:
    """Returns the operations of a module, each line once, in the order of execution."""
    operations: list[Operation] = []
    makers: dict[int, int] = {}
    seen: set[CodeSite] = set()
    evaluation = Exact(Settings(0))

    def look(call: Call, result: Any) -> Any:
        site = code_site(call, evaluation)
        if site is None or site in seen or len(operations) >= MANY:
            return result
        seen.add(site)
        operation = Operation(site, call, result)
        operation.makers = {at: makers[id(leaf)] for at, leaf in enumerate(call.leaves) if id(leaf) in makers}
        for part in result if isinstance(result, (tuple, list)) else (result,):
            makers[id(part)] = len(operations)
        operations.append(operation)
        return result

    evaluation.after = look
    trial.run(evaluation)
    return operations


def functions(operation: Operation) -> Iterator[Variant]:
    """Yields other functions of the same operands."""
    name, site, call = operation.site.operation, operation.site, operation.call
    own = "tanh gelu" if call.kwargs.get("approximate") == "tanh" else name
    if own in UNARY and call.reals:
        for other, (func, options) in UNARY.items():
            if other != own:
                yield replaced(site, f"{own} in `{site.place.text}` is {other}", applied(func, options))
        squared = lambda run, call: run.evaluate(Call(aten.square.default, (relu(run, call),), {}))  # noqa: E731
        yield replaced(site, f"{own} in `{site.place.text}` is the square of relu", squared)
    for other in BINARY.get(name, []):
        func = getattr(getattr(aten, other, None), call.func._overloadname, None)
        if func is not None and (call.reals or name in COMPARISONS):
            yield replaced(site, f"{name} in `{site.place.text}` is {other}", with_function(func))
    if name == "_softmax":
        yield replaced(site, f"softmax in `{site.place.text}` is sigmoid", applied(aten.sigmoid.default, {}))
    if name == "sigmoid":
        soft = lambda run, call: run.evaluate(Call(aten._softmax.default, (call.args[0], -1, False), {}))  # noqa: E731
        yield replaced(site, f"sigmoid in `{site.place.text}` is softmax", soft)


def relu(run: Evaluation, call: Call) -> Any:
    return run.evaluate(Call(aten.relu.default, call.args[:1], {}))


def applied(func: Any, options: dict[str, Any]) -> Function:
    return lambda run, call: run.evaluate(Call(func, call.args[:1], options))


def with_function(func: Any) -> Function:
    return lambda run, call: run.evaluate(Call(func, call.args, call.kwargs))


def with_argument(at: int, value: Any) -> Function:
    """Returns the same function with another argument."""

    def function(run: Evaluation, call: Call) -> None:
        call.with_args((*call.args[:at], value, *call.args[at + 1 :]))

    return function


def replaced(site: CodeSite, what: str, function: Function) -> Variant:
    return Variant(what, lambda run: BeforeEdit(lambda call: function(run, call) if site.is_of(call, run) else None))


def arguments(operation: Operation) -> Iterator[Variant]:
    """Yields other axes of a reduction, and other counts."""
    name, site, call = operation.site.operation, operation.site, operation.call
    if not call.args or not isinstance(call.args[0], torch.Tensor):
        return
    rank = call.args[0].dim()
    at = 2 if name == "linalg_vector_norm" else 1
    if name in REDUCTIONS and call.reals and len(call.args) > at + 1 and call.args[at + 1] is True:
        own = sorted(axis % rank for axis in axes(call.args[at]))
        for other in other_axes(own, rank):
            what = f"{name} in `{site.place.text}` is over the axes {other}, expected {own}"
            yield replaced(site, what, with_argument(at, other))
    if name in ALONG and len(call.args) > 1 and isinstance(call.args[1], int):
        for axis in range(rank):
            if axis != call.args[1] % rank:
                what = f"{name.strip('_')} in `{site.place.text}` is along axis {axis}, expected {call.args[1] % rank}"
                yield replaced(site, what, with_argument(1, axis))
    if name in COUNTS:
        count = call.args[1] if len(call.args) > 1 and isinstance(call.args[1], int) else 0
        for value in dict.fromkeys([1, count - 1, count + 1, count + 2]):
            if value != count and (value > 0 or name != "topk"):
                what = f"the number in `{site.place.text}` is {value} (expected {count})"
                args = with_argument(1, value)
                yield replaced(site, what, args)


def axes(value: Any) -> list[int]:
    return list(value) if isinstance(value, (list, tuple)) else [value] if isinstance(value, int) else []


def other_axes(own: list[int], rank: int) -> list[list[int]]:
    """Returns the other single axes, and these together with another one."""
    found = [[axis] for axis in range(1, rank)] + [sorted({*own, axis}) for axis in range(1, rank)]
    unique: list[list[int]] = []
    for other in found:
        if other != own and other not in unique:
            unique.append(other)
    return unique


def exchanges(operation: Operation) -> Iterator[Variant]:
    """Yields exchanged operands."""
    name, site, call = operation.site.operation, operation.site, operation.call
    places = [at for at, arg in enumerate(call.args) if isinstance(arg, torch.Tensor) and arg.dtype != torch.bool]
    if name not in EXCHANGED or len(places) < 2:
        return
    one, other = places[-2:]

    def function(run: Evaluation, call: Call) -> None:
        args = list(call.args)
        args[one], args[other] = args[other], args[one]
        call.with_args(tuple(args))

    yield replaced(site, f"the operands of {name} in `{site.place.text}` are exchanged", function)


def other_values(operations: list[Operation]) -> Iterator[Reading]:
    """Yields operands that are another value of the same module, the nearest ones first."""
    for number, operation in enumerate(operations):
        if operation.site.operation in PLAIN:
            continue
        for at, leaf in enumerate(operation.call.leaves):
            maker = operation.makers.get(at)
            if maker is None or not is_real(leaf):
                continue
            for source in range(max(0, min(maker, number) - FAR), number):
                other = operations[source]
                if source == maker or other.site.operation in PLAIN or not same_kind(leaf, other.result):
                    continue
                what = f"{operation.site.operation} in `{operation.site.place.text}` reads the result of " \
                       f"`{other.site.place.text}` in place of `{operations[maker].site.place.text}`"  # fmt: skip
                edit = lambda run, s=operation.site, a=at, o=other.site: OtherOperand(s, run, a, o)  # noqa: E731
                yield abs(source - maker), INPUT, Variant(what, edit), operation.site


def same_kind(one: torch.Tensor, other: Any) -> bool:
    if not is_real(other) or one.shape != other.shape:
        return False
    return not torch.equal(as_tracked(one).exact, as_tracked(other).exact)


def moves(operations: list[Operation]) -> Iterator[Reading]:
    """Yields operations that are applied to a later result of the same module."""
    for number, operation in enumerate(operations):
        name, call, role = operation.site.operation, operation.call, operation.site.role
        operands = [at for at, arg in enumerate(call.args) if is_real(arg)]
        if name not in MOVED or len(operands) < 2:
            continue
        for at in operands:
            if call.args[at].shape != getattr(operation.result, "shape", None):
                continue
            for distance, target in enumerate(operations[number + 1 : number + 1 + 2 * FAR], 1):
                is_same = is_real(target.result) and target.result.shape == operation.result.shape
                if not is_same or target.site.role != role or target.site.operation in PLAIN:
                    continue
                what = f"{name} in `{operation.site.place.text}` is applied after `{target.site.place.text}`"
                edit = lambda run, s=operation.site, a=at, t=target.site: Moved(s, run, a, t)  # noqa: E731
                yield distance, OPERATION, Variant(what, edit), operation.site


def causes(trial: Trial) -> Iterator[CodeChange]:
    """Yields each changed operation that explains every value of the output."""
    operations = traced(trial)
    near: list[Reading] = [
        (0, OPERATION, variant, operation.site)
        for operation in operations
        if not trial.skips(operation.site.role)
        for kind in (functions, arguments, exchanges)
        for variant in kind(operation)
    ]
    moved = list(moves(operations))
    far = sorted([*moved, *other_values(operations)], key=lambda found: found[0])
    far = [found for found in far if not trial.skips(found[3].role)]
    found = False
    for _, rank, variant, site in [*near, *islice(far, MANY)]:
        for change in tried(trial, variant, site, rank):
            found = True
            yield change
    if not found and len(near) + len(moved) <= FEW:
        yield from pairs(trial, [*near, *moved])


def pairs(trial: Trial, single: list[Reading]) -> Iterator[CodeChange]:
    """Yields two changes of different operations that explain every value together."""
    for (_, _, one, site), (_, _, other, place) in combinations(single, 2):
        if site != place:
            both = lambda run, one=one, other=other: Both(one.edit(run), other.edit(run))  # noqa: E731
            yield from tried(trial, Variant(f"{one.what}, and {other.what}", both), site, UNROUND)


def tried(trial: Trial, variant: Variant, site: CodeSite, rank: int = OPERATION) -> Iterator[CodeChange]:
    """Yields a variant if it explains every value of the output."""
    if not trial.has_time:
        return
    message = {"kind": "operation", "what": variant.what, "key": site.operation, **site.place.fields}
    change = CodeChange(rank, message, make=variant.edit)
    if explains(trial, change):
        yield change
