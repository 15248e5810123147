"""Evaluation of ATen operations: exact values in f64, with the rounding errors of the type the model computes in."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from . import operations
from .call import Call, is_real, wide
from .constants import LIBRARY_ULPS, U32, K, is_exact_in_f32
from .errors import unsupported
from .tracked import Settings, Tracked, fresh, like

Rule = Callable[["Evaluation", Call], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of some operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


class Evaluation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes each operation in f64, and propagates rounding errors.

    Tensors show the type of the model's own computation, so that the modelling code takes the same branches. Choices
    (top-k, comparisons) are made with the exact values, and are the same in all samples.
    """

    def __init__(self, settings: Settings | None = None):
        super().__init__()  # type: ignore[no-untyped-call]
        self.settings = settings or Settings(4)
        self.stack: list[str] = []  # paths of the modules that are running, from the outside in
        self.on_tie: Callable[[Any, int], Any] = lambda choice, count: None  # may return other indices
        self.before: Callable[[Call], Any] = lambda call: None
        self.after: Callable[[Call, Any], Any] = lambda call, result: result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in ("aten", "prims"):
            return self.foreign(func, args, kwargs or {})
        call = Call(func, args, kwargs or {})
        replaced = self.before(call)
        result = self.evaluate(call) if replaced is None else replaced
        return self.after(call, result)

    def evaluate(self, call: Call) -> Any:
        """Returns the result of an operation."""
        if is_composite(call.func):
            return self.decomposed(call)
        if call.func._schema.is_mutable:
            return self.in_place(call)
        if is_view(call.func):
            return view(call)
        found = RULES.get(call.name)
        if found is None and not call.reals and not is_real_by_type(call):
            result = call.run()  # integers and truth values
            if not any(map(is_real, flattened(result))):
                return result
            found = elementwise
        if found is None and torch.Tag.pointwise in call.func.tags:
            found = elementwise
        if found is None:
            return self.decomposed(call)
        return found(self, call)

    def decomposed(self, call: Call) -> Any:
        """Computes a composite operation by the operations that ATen composes it of."""
        with self:
            result = call.func.decompose(*call.args, **call.kwargs)
        if result is NotImplemented:
            raise unsupported(str(call.func))
        return result

    def foreign(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation that is not ATen's, if it computes nothing real."""
        call = Call(func, args, kwargs)
        if call.reals:
            raise unsupported(str(func))
        return func(*args, **kwargs)

    def in_place(self, call: Call) -> Any:
        """Computes the functional operation, and writes its result into the first operand."""
        target = call.args[0]
        if not is_real(target):
            return call.run()
        result = self.functional(call)
        if not isinstance(target, Tracked):
            if (result.has_errors and result.variance(rounded=False) is not None) or not represented(
                result.exact, target.dtype
            ):
                raise unsupported(f"{call.func} on a tensor that was created before the evaluation")
            return target.copy_(result.exact)
        write(target, result, self)
        return target

    def functional(self, call: Call) -> Tracked:
        """Returns the result of an in-place operation as a new tensor."""
        if call.name == "copy_":
            return as_tracked(call.args[1])
        if call.name in ("zero_", "fill_"):
            value = call.args[1] if call.name == "fill_" else 0.0
            value = value if isinstance(value, torch.Tensor) else torch.tensor(float(value), dtype=torch.float64)
            return as_tracked(value)
        base = operations.FUNCTIONAL.get(call.name) or call.name.rstrip("_")
        packet = getattr(torch.ops.aten, base, None)
        overload = getattr(packet, call.func._overloadname, None) if packet is not None else None
        if overload is None:
            raise unsupported(str(call.func))
        result = self.evaluate(Call(overload, call.args, call.kwargs))
        return result if isinstance(result, Tracked) else as_tracked(result)

    def propagate(
        self, call: Call, value: torch.Tensor, own: torch.Tensor | None = None
    ) -> tuple[torch.Tensor | None, list[torch.Tensor] | None]:
        """Returns variance and samples of a function's result by finite differences; `own` is the function's sigma."""
        groups = sources(call)
        scalars = scalar_sigmas(call)
        variance: torch.Tensor | None = None
        steps: list[dict[int, tuple[Any, Any]]] = []
        for places in groups:
            tensor = call.leaves[places[0]]
            square = tensor.variance()
            if square is None:
                continue
            sigma = square.sqrt()
            steps.append({at: (tensor.exact + sigma, tensor.exact - sigma) for at in places})
        steps += [{at: (call.leaves[at] + sigma, call.leaves[at] - sigma)} for at, sigma in scalars.items()]
        for step in steps:
            high = single(call.run({at: pair[0] for at, pair in step.items()}))
            low = single(call.run({at: pair[1] for at, pair in step.items()}))
            square = finite(((high - low) / 2).abs().square())
            variance = square if variance is None else variance.add_(square)
        if own is not None:
            variance = own.square() if variance is None else variance.add_(own.square())
        samples = self.sampled(call, groups, scalars, own) if any(len(step) for step in steps) and groups else None
        return variance, samples

    def sampled(
        self, call: Call, groups: list[list[int]], scalars: dict[int, float], own: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Returns the function's results of perturbed operands."""
        perturbed = {at: call.leaves[places[0]].samples(self.settings) for places in groups for at in places}
        results = []
        for run in range(self.settings.samples):
            changed: dict[int, Any] = {at: samples[run] for at, samples in perturbed.items()}
            for at, sigma in scalars.items():
                changed[at] = call.leaves[at] + sigma * float(torch.randn((), generator=self.settings.generator))
            result = single(call.run(changed))
            results.append(result if own is None else result + own * self.settings.noise(result))
        return results


def sources(call: Call) -> list[list[int]]:
    """Returns the places of each operand with rounding errors; an operand that is used twice is one."""
    found: dict[Any, list[int]] = {}
    for at, leaf in enumerate(call.leaves):
        if isinstance(leaf, Tracked) and leaf.has_errors:
            key = (id(leaf.errors), leaf.exact.shape, leaf.exact.stride(), leaf.exact.storage_offset())
            found.setdefault(key, []).append(at)
    return list(found.values())


def scalar_sigmas(call: Call) -> dict[int, float]:
    """Returns the sigmas of numbers that the engine rounds to f32."""
    if call.name not in operations.SCALAR_OPERANDS:
        return {}
    return {
        at: K * U32 * abs(leaf)
        for at, leaf in enumerate(call.leaves)
        if isinstance(leaf, float) and not is_exact_in_f32(leaf)
    }


def single(result: Any) -> torch.Tensor:
    """Returns the first result of an operation with several."""
    first: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return first


def flattened(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


@functools.cache
def is_composite(func: Any) -> bool:
    """Returns true for an operation that ATen composes of others. Inside a rule they arrive as a whole."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def is_view(func: Any) -> bool:
    return func.is_view or func._schema.name.split("::")[1] in operations.VIEWS


def is_real_by_type(call: Call) -> bool:
    """Returns true if an argument asks for real numbers."""
    asked = call.asked()
    return asked is not None and (asked.is_floating_point or asked.is_complex)


def finite(values: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def as_tracked(value: Any) -> Tracked:
    """Returns a tensor as an exact one, if it has no rounding errors yet."""
    if isinstance(value, Tracked):
        return value
    assert isinstance(value, torch.Tensor)
    exact = wide(value) if is_real(value) else value.double()
    return fresh(exact.clone() if exact is value else exact, value.dtype if is_real(value) else torch.float64)


def view(call: Call) -> Any:
    """Returns a view, which shares the rounding errors of its base."""
    base = next((leaf for leaf in call.leaves if isinstance(leaf, Tracked)), None)
    if base is None:
        return call.func(*call.args, **call.kwargs)
    narrow = {torch.complex128: torch.complex64, torch.float64: torch.float32}

    def wrap(result: Any) -> Any:
        if not is_real(result):
            return result
        dtype = base.dtype
        if result.is_complex() != base.exact.is_complex():
            dtype = narrow[result.dtype]
            return converted_view(base, result, dtype)
        return Tracked(result, dtype, base.errors)

    return tree_map(wrap, call.run())


def converted_view(base: Tracked, result: torch.Tensor, dtype: torch.dtype) -> Tracked:
    """Returns complex numbers as pairs, or pairs as complex numbers, with their variance."""
    variance = base.variance()
    if variance is not None:
        halves = (variance / 2).unsqueeze(-1)
        variance = variance.sum(-1) if result.is_complex() else halves.expand(result.shape)
    exact = result.clone()
    return fresh(exact, dtype, variance)


def write(target: Tracked, source: Tracked, evaluation: Evaluation) -> None:
    """Writes values and errors into a tensor and all tensors that share its storage."""
    shape = target.exact.shape
    variance = source.variance()
    samples = source.samples(evaluation.settings) if source.has_errors and source.errors.samples else None
    if samples is None and source.has_errors:
        samples = source.samples(evaluation.settings)
    value = source.exact.expand(shape)
    if variance is not None:
        variance = variance.expand(shape)
    if samples is not None:
        samples = [sample.expand(shape).to(target.exact.dtype) for sample in samples]
    target.exact.copy_(value)
    target.errors.forget()
    target.set_errors(variance, samples)


@rule(*operations.ELEMENTWISE)
def elementwise(evaluation: Evaluation, call: Call) -> Any:
    """Rounds the result once."""
    value = call.run()
    if not is_real(value):
        return value
    if not call.reals:  # a quotient of integers, or an integer times a real number
        call.widen_integers()
        value = call.run().double()
    variance, samples = evaluation.propagate(call, value)
    return fresh(own_storage(value, call), call.dtype(), variance, samples, pending=not is_power_of_two_product(call))


def own_storage(value: torch.Tensor, call: Call) -> torch.Tensor:
    """Returns a result that shares no storage with an operand."""
    pointers = {leaf.untyped_storage().data_ptr() for leaf in call.wide if isinstance(leaf, torch.Tensor)}
    return value.clone() if value.untyped_storage().data_ptr() in pointers else value


def is_power_of_two_product(call: Call) -> bool:
    """Returns true for a product with a power of two, which is exact."""
    if call.name not in ("mul", "div") or len(call.args) < 2:
        return False
    factor = call.args[1]
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or factor == 0:
        return False
    mantissa = abs(float(factor))
    return mantissa.hex().startswith("0x1.0000000000000p")


@rule(*operations.EXACT_ELEMENTWISE)
def exact_elementwise(evaluation: Evaluation, call: Call) -> Any:
    """Rounds nothing."""
    value = call.run()
    if not is_real(value):
        return value
    variance, samples = evaluation.propagate(call, value)
    return fresh(own_storage(value, call), call.dtype(), variance, samples)


@rule(*operations.LIBRARY)
def library(evaluation: Evaluation, call: Call) -> Any:
    """Adds the error of a library function in f32, and rounds the result."""
    if not any(map(is_real, call.wide)):
        call.widen_integers()
    if call.name == "pow" and not isinstance(call.args[1], torch.Tensor) and call.args[1] in (1, 2):
        return elementwise(evaluation, call)
    value = call.run()
    if isinstance(value, tuple):  # log_sigmoid_forward: the second result is a buffer of its derivative
        return (library_result(evaluation, call, value[0]), value[1])
    return library_result(evaluation, call, value)


def library_result(evaluation: Evaluation, call: Call, value: torch.Tensor) -> Any:
    ulps, cancelling = operations.LIBRARY[call.name]
    own = LIBRARY_ULPS * U32 * ulps * value.abs()
    if cancelling:
        own = own + LIBRARY_ULPS * U32 * cancelling * call.wide[0].abs()
    if call.name == "softplus" and evaluation.settings.is_other_engine:  # log(1 + exp(x)), whose sum rounds
        own = own + K * U32
    variance, samples = evaluation.propagate(call, value, finite(own))
    return fresh(value, call.dtype(), variance, samples, pending=True)


@rule(*operations.DECISIONS)
def decision(evaluation: Evaluation, call: Call) -> Any:
    """Decides by the exact values."""
    return call.run()


@rule(*operations.CREATIONS)
def creation(evaluation: Evaluation, call: Call) -> Any:
    """Creates a tensor."""
    value = call.run()
    if not is_real(value):
        return value
    if call.name.startswith("empty") or call.name.startswith("new_empty"):
        value.zero_()
    dtype = call.asked()
    if dtype is None:
        dtype = call.reals[0].dtype if call.reals else torch.get_default_dtype()
    if value.dtype == torch.float32:
        args = [wide(arg) for arg in call.args]
        value = call.func(*args, **{**call.kwargs, "dtype": torch.float64})
    pending = call.name in ("linspace", "logspace", "full", "scalar_tensor", "arange", "full_like", "new_full")
    return fresh(value, dtype, pending=pending and not represented(value, dtype))


def represented(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """Returns true if all values are numbers of the type."""
    return bool(((value.to(dtype).to(value.dtype) == value) | value.isinf() | (value.abs() > 1e30)).all())


@rule("_to_copy")
def conversion(evaluation: Evaluation, call: Call) -> Any:
    """Converts to another type: a shorter one rounds."""
    source = call.leaves[0]
    dtype = call.asked() or source.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        exact = source.exact if isinstance(source, Tracked) else source
        return exact.to(dtype)
    if not isinstance(source, Tracked):
        exact = source.double() if not source.is_complex() else source.to(torch.complex128)
        exact = exact.clone() if exact is source else exact
        return fresh(exact, dtype, pending=is_real(source) and is_shorter(dtype, source.dtype))
    return selected(evaluation, call, dtype, pending=is_shorter(dtype, source.dtype))


def is_shorter(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Returns true if a conversion from `other` to `dtype` rounds."""
    if dtype == other or dtype.is_complex:
        return False
    return torch.promote_types(dtype, other) != dtype


@rule(*operations.SELECTIONS)
def selection(evaluation: Evaluation, call: Call) -> Any:
    """Moves values, and rounds nothing."""
    if call.name == "index_put" and len(call.args) > 3 and call.args[3]:
        return RULES["index_add"](evaluation, call)
    if call.name == "embedding" and not isinstance(call.args[0], Tracked):
        value = call.func(call.args[0], *[wide(arg) for arg in call.args[1:]], **call.kwargs)
        return fresh(value.double(), call.args[0].dtype)
    return selected(evaluation, call, call.dtype(), pending=False)


def selected(evaluation: Evaluation, call: Call, dtype: torch.dtype, pending: bool) -> Any:
    """Returns a selection of the operands, and the same selection of their errors."""
    value = call.run()
    if not is_real(value):
        return value
    places = [at for group in sources(call) for at in group]
    if call.name in ("clone", "contiguous") and places:
        return cloned(call.leaves[0], value)
    variance, samples = None, None
    if places:
        of_variance: dict[int, Any] = {}
        for at, leaf in enumerate(call.leaves):
            if isinstance(leaf, Tracked):
                square = leaf.variance()
                of_variance[at] = torch.zeros_like(leaf.exact) if square is None else square
            elif is_real(leaf):
                of_variance[at] = torch.zeros_like(call.wide[at])
            elif isinstance(leaf, float):
                of_variance[at] = 0.0
        variance = call.run(of_variance)
        variance = variance.real if variance.is_complex() else variance
        samples = evaluation.sampled(call, sources(call), {})
    return fresh(own_storage(value, call), dtype, variance, samples, pending=pending)


def cloned(source: Tracked, value: torch.Tensor) -> Tracked:
    """Returns a copy, whose final rounding may still be pending."""
    variance = None if source.errors.variance is None else like(source.errors.variance, source.exact)
    return fresh(value, source.dtype, variance, source.drawn(), pending=source.errors.pending)
