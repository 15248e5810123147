"""Rounding errors of sums, running sums and accumulations, and choices among values."""

from __future__ import annotations

from typing import Any

import torch

from .call import Call, is_real
from .constants import LAMBDA, SUM_SQUARES, SUM_VALUE, U32, UNIT, K
from .operations import ACCUMULATIONS, REDUCTIONS
from .rounding import Evaluation, rule, sources
from .ties import Choice
from .tracked import Tracked, fresh


@rule(*REDUCTIONS)
def reduction(evaluation: Evaluation, call: Call) -> Any:
    """Computes a sum or a mean in f32, in any order, and rounds the result."""
    value = call.run()
    if not is_real(value):
        return value
    place = next(at for at, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor))
    operand = call.wide[place]
    n = operand.numel() / max(value.numel(), 1)
    divisor = n if call.name == "mean" else 1.0
    squares = call.run({place: operand.square()}) / divisor  # mean: sum / n^2
    of_squares, of_value = n * SUM_SQUARES[0] + SUM_SQUARES[1], n * SUM_VALUE[0] + SUM_VALUE[1]
    own2 = (of_squares * squares + of_value * value.square()) * (K * U32) ** 2 if n > 1 else torch.zeros_like(value)
    variance, samples = own2, None
    source = call.leaves[place]
    if isinstance(source, Tracked) and source.has_errors:
        square = source.variance()
        assert square is not None
        variance = variance + call.run({place: square}) / divisor
        samples = [
            sample + own2.sqrt() * evaluation.settings.noise(sample)
            for sample in evaluation.sampled(call, sources(call), {})
        ]
    return fresh(value, call.dtype() if is_real(source) else torch.float32, variance, samples, pending=True)


@rule("cumsum")
def cumsum(evaluation: Evaluation, call: Call) -> Any:
    """Computes running sums, each of which is rounded."""
    value = call.run()
    if not is_real(value):
        return value
    own2 = call.run({0: value.square()}) * (K * U32) ** 2
    variance, samples = own2, None
    source = call.leaves[0]
    if isinstance(source, Tracked) and source.has_errors:
        square = source.variance()
        assert square is not None
        variance = variance + call.run({0: square})
        dim = call.args[1]
        samples = []
        for sample in evaluation.sampled(call, sources(call), {}):
            rounding = K * U32 * value.abs() * evaluation.settings.noise(value)
            samples.append(sample + rounding.cumsum(dim))
    return fresh(value, call.dtype(), variance, samples, pending=True)


@rule(*ACCUMULATIONS)
def accumulation(evaluation: Evaluation, call: Call) -> Any:
    """Adds values at places of a tensor, one by one in the tensor's type."""
    value = call.run()
    if not is_real(value):
        return value
    dtype = call.reals[0].dtype
    places = [at for at, leaf in enumerate(call.leaves) if is_real(leaf)]
    own2 = call.run({at: call.wide[at].square() for at in places}).abs() * (K * max(UNIT[dtype], U32)) ** 2
    of_variance: dict[int, Any] = {}
    for at in places:
        leaf = call.leaves[at]
        square = leaf.variance() if isinstance(leaf, Tracked) else None
        of_variance[at] = torch.zeros_like(call.wide[at]) if square is None else square
    variance = own2 + call.run(of_variance)
    samples = None
    if sources(call):
        samples = [
            sample + own2.sqrt() * evaluation.settings.noise(sample)
            for sample in evaluation.sampled(call, sources(call), {})
        ]
    return fresh(value, dtype, variance, samples)


@rule("amax", "amin")
def extreme(evaluation: Evaluation, call: Call) -> Any:
    """Returns the largest value, whose rounding error is that of the value."""
    value = call.run()
    source = call.leaves[0]
    if not is_real(value) or not isinstance(source, Tracked) or not source.has_errors:
        return fresh(value, source.dtype) if is_real(value) else value
    variance = source.variance()
    assert variance is not None
    dims = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", [])
    keep = value if (len(call.args) > 2 and call.args[2]) or call.kwargs.get("keepdim") else None
    if keep is None:
        keep = torch.amax(source.exact, dims, True) if call.name == "amax" else torch.amin(source.exact, dims, True)
    chosen = torch.where(source.exact == keep, variance, 0.0)
    variance = torch.amax(chosen, dims, value.dim() == source.exact.dim() and source.exact.dim() > 0)
    return fresh(value, source.dtype, variance.reshape(value.shape), evaluation.sampled(call, sources(call), {}))


@rule("topk", "sort", "max", "min", "kthvalue", "argmax", "argmin", "argsort", "cummax", "median", "mode")
def choice(evaluation: Evaluation, call: Call) -> Any:
    """Chooses by the exact values: the same places in all samples."""
    result = call.run()
    source = call.leaves[0]
    if len(call.reals) > 1:  # max(a, b) of two tensors
        return evaluation.evaluate(Call(torch.ops.aten.maximum.default if call.name == "max" else
                                        torch.ops.aten.minimum.default, call.args, {}))  # fmt: skip
    if not isinstance(source, Tracked):
        source = fresh(source.double(), source.dtype) if is_real(source) else source
    if not isinstance(source, Tracked):
        return result
    if call.name == "topk" and source.has_errors:
        tie = tied_choice(source, call, result[1])
        other = None if tie is None else evaluation.on_tie(*tie)
        if other is not None:
            other = other.movedim(-1, axis_of(call))
            result = type(result)((source.exact.gather(axis_of(call), other), other))
    if isinstance(result, torch.Tensor):
        return extreme_of_all(source, result) if is_real(result) else result
    values, indices = result
    return type(result)((gathered(evaluation, call, source, values, indices), indices))


def extreme_of_all(source: Tracked, value: torch.Tensor) -> Tracked:
    variance = source.variance()
    if variance is None:
        return fresh(value, source.dtype)
    return fresh(value, source.dtype, variance[source.exact == value].max().reshape(value.shape))


def gathered(
    evaluation: Evaluation, call: Call, source: Tracked, values: torch.Tensor, indices: torch.Tensor
) -> Tracked:
    """Returns the chosen values with their errors."""
    variance = source.variance()
    if variance is None:
        return fresh(values, source.dtype)
    default = 0 if call.name == "mode" else -1
    place = 2 if call.name in ("topk", "kthvalue") else 1
    dim = call.args[place] if len(call.args) > place else call.kwargs.get("dim", default)
    dim = dim if isinstance(dim, int) and not isinstance(dim, bool) else -1
    index = indices if indices.dim() == source.exact.dim() else indices.unsqueeze(dim)

    def take(of: torch.Tensor) -> torch.Tensor:
        return of.gather(dim, index).reshape(values.shape)

    return fresh(values, source.dtype, take(variance), [take(sample) for sample in source.samples(evaluation.settings)])


def axis_of(call: Call) -> int:
    """Returns the axis of a top-k choice."""
    return int(call.args[2] if len(call.args) > 2 else call.kwargs.get("dim", -1))


def tied_choice(source: Tracked, call: Call, indices: torch.Tensor) -> tuple[Choice, int] | None:
    """Returns a choice that rounding can decide in some row, and the number of values that it chooses from.

    Rounding can exchange a chosen and a rejected value if it can exchange both with those next to the cut.
    """
    count, dim = call.args[1], axis_of(call)
    largest = call.args[3] if len(call.args) > 3 else call.kwargs.get("largest", True)
    scores, variance = source.exact.movedim(dim, -1), source.variance()
    assert variance is not None
    variance = variance.movedim(dim, -1)
    if count == 0 or count >= scores.shape[-1]:
        return None
    scores = scores if largest else -scores
    ranked, places = scores.topk(count + 1, -1)
    of_ranked = variance.gather(-1, places)

    def reaches(at: int) -> torch.Tensor:
        """Returns true for values that rounding can exchange with one at the cut."""
        return (scores - ranked[..., at : at + 1]).abs() <= LAMBDA * (variance + of_ranked[..., at : at + 1]).sqrt()

    cut = LAMBDA * (of_ranked[..., count - 1] + of_ranked[..., count]).sqrt()
    tied = (ranked[..., count - 1] - ranked[..., count]).abs() < cut
    if not bool(tied.any()):
        return None
    top = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, places[..., :count], True)
    may = torch.where(top, reaches(count), reaches(count - 1)) & tied.unsqueeze(-1)
    return Choice("", tied, indices.movedim(dim, -1), top & ~may, may), scores.shape[-1]
