"""Rounding errors of products and convolutions."""

from __future__ import annotations

from typing import Any

import torch

from .call import Call, wide
from .constants import PRODUCT_SQUARES, PRODUCT_VALUE, U32, UNIT, K
from .operations import CONVOLUTIONS
from .rounding import Evaluation, as_tracked, rule
from .tracked import Tracked, fresh

BLOCK = 1 << 23  # elements of a weight that are held in f64 at once


def product_sigma(n: int, squares: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns the sigma of a sum of n products in f32, in any order."""
    of_squares = n * PRODUCT_SQUARES[0] + PRODUCT_SQUARES[1]
    of_value = n * PRODUCT_VALUE[0] + PRODUCT_VALUE[1]
    return (squares.double().mul_(of_squares).add_(value.square().mul_(of_value))).sqrt_().mul_(K * U32)


def factors(call: Call) -> tuple[Any, Any, Any, float, float]:
    """Returns both factors, the addend, and the numbers that multiply product and addend."""
    alpha, beta = float(call.kwargs.get("alpha", 1)), float(call.kwargs.get("beta", 1))
    if call.name in ("addmm", "baddbmm", "addmv"):
        addend, a, b = call.args[:3]
        return a, b, (addend if beta else None), alpha, beta
    a, b = call.args[:2]
    return a, b, None, 1.0, 0.0


@rule("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv", "vdot")
def product(evaluation: Evaluation, call: Call) -> Any:
    """Computes a product with the second moment of its terms."""
    a, b, addend, alpha, beta = factors(call)
    dtype = call.dtype()
    value, variance, samples = multiplied(evaluation, a, b)
    if alpha != 1:
        value, variance = value * alpha, variance * alpha**2
        samples = samples and [sample * alpha for sample in samples]
    if addend is None:
        return fresh(value, dtype, variance, samples, pending=True)
    return with_addend(evaluation, (value, variance, samples), addend, beta, dtype, wide(a).shape[-1])


def with_addend(
    evaluation: Evaluation, result: tuple[Any, Any, Any], addend: Any, beta: float, dtype: torch.dtype, n: int
) -> Tracked:
    """Adds a bias, before the first term of the sum or after the last."""
    value, variance, samples = result
    tracked = as_tracked(addend)
    bias = tracked.exact * beta
    walked = (n * bias * (bias + value)).clamp_(min=0)
    own = walked.mul_((K * U32) ** 2)
    unit = max(UNIT[dtype], U32)
    if unit > U32:  # some kernels round the product before they add the bias
        own = own + (K * unit * value).square()
    variance = variance + own
    of_bias = tracked.variance()
    if of_bias is not None:
        variance = variance + of_bias * beta**2
    if samples is not None or of_bias is not None:
        base = samples if samples is not None else drawn(evaluation, value, variance - own)
        biases = tracked.samples(evaluation.settings)
        samples = [
            sample + moved * beta + own.sqrt() * evaluation.settings.noise(value) for sample, moved in zip(base, biases)
        ]
    return fresh(value + bias, dtype, variance, samples, pending=True)


def drawn(evaluation: Evaluation, value: torch.Tensor, variance: torch.Tensor) -> list[torch.Tensor]:
    sigma = variance.sqrt()
    return [value + sigma * evaluation.settings.noise(value) for _ in range(evaluation.settings.samples)]


def multiplied(evaluation: Evaluation, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Returns value, variance and samples of a product of matrices."""
    if not isinstance(b, Tracked) and b.dim() == 2 and b.numel() > 2 * BLOCK:
        columns = max(BLOCK // b.shape[0], 1)
        parts = [multiplied_block(evaluation, a, part) for part in torch.chunk(b, -(-b.shape[1] // columns), dim=1)]
        samples = None
        if parts[0][2] is not None:
            samples = [torch.cat(runs, dim=1) for runs in zip(*(part[2] for part in parts))]
        return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1), samples
    return multiplied_block(evaluation, a, b)


def multiplied_block(evaluation: Evaluation, a: Any, b: Any) -> tuple[Any, Any, Any]:
    x, w = wide(a), wide(b)
    value = torch.matmul(x, w)
    x2, w2 = x.square(), w.square()
    squares = torch.matmul(x2, w2)
    variance = product_sigma(x.shape[-1], squares, value).square_()
    of_a = a.variance() if isinstance(a, Tracked) else None
    of_b = b.variance() if isinstance(b, Tracked) else None
    if of_a is None and of_b is None:
        return value, variance, None
    own = variance.sqrt()
    if of_a is not None:
        variance = variance + torch.matmul(of_a, w2 if of_b is None else w2 + of_b)
    if of_b is not None:
        variance = variance + torch.matmul(x2, of_b)
    count = evaluation.settings.samples
    left = a.samples(evaluation.settings) if of_a is not None else [x] * count
    right = b.samples(evaluation.settings) if of_b is not None else [w] * count
    if of_b is None and x.dim() == 2 and w.dim() == 2 and x.shape[0]:  # an expert may have no rows
        results = list(torch.matmul(torch.cat(left), w).split(x.shape[0]))  # type: ignore[no-untyped-call]
    else:
        results = [torch.matmul(one, other) for one, other in zip(left, right)]
    return value, variance, [result + own * evaluation.settings.noise(result) for result in results]


@rule(*CONVOLUTIONS)
def convolution(evaluation: Evaluation, call: Call) -> Any:
    """Computes a convolution like a product."""
    x, w, bias = (None if arg is None else as_tracked(arg) for arg in call.args[:3])
    assert x is not None and w is not None
    rest = call.args[3:9]

    def convolve(one: torch.Tensor, other: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        return torch.ops.aten.convolution(one, other, added, *rest)  # type: ignore[no-any-return]

    value = convolve(x.exact, w.exact)
    squares = convolve(x.exact.square(), w.exact.square())
    variance = product_sigma(w.exact[0].numel(), squares, value).square_()
    own = variance.sqrt()
    samples = None
    of_x, of_w = x.variance(), w.variance()
    if of_x is not None:
        variance = variance + convolve(of_x, w.exact.square())
    if of_w is not None:
        variance = variance + convolve(x.exact.square(), of_w)
    if of_x is not None or of_w is not None:
        pairs = zip(x.samples(evaluation.settings), w.samples(evaluation.settings))
        samples = [convolve(one, other) for one, other in pairs]
        samples = [sample + own * evaluation.settings.noise(sample) for sample in samples]
    dtype = call.dtype()
    if bias is None:
        return fresh(value, dtype, variance, samples, pending=True)
    shape = (-1, *([1] * (value.dim() - 2)))
    reshaped = fresh(bias.exact.reshape(shape).clone(), bias.dtype)
    return with_addend(evaluation, (value, variance, samples), reshaped, 1.0, dtype, w.exact[0].numel())
