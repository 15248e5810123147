"""Fused operations in terms of simpler ones, as kernels compute them: in f32 inside, rounded once."""

from __future__ import annotations

from typing import Any

import torch

from .call import Call
from .rounding import Evaluation, as_tracked, rule
from .tracked import Tracked, fresh

INNER = torch.float32


def inner(tensor: Any) -> Any:
    """Returns an operand as the kernel reads it."""
    return None if tensor is None else tensor.to(INNER)


def unmoved(tensor: torch.Tensor) -> Tracked:
    """Returns the exact values alone. A softmax does not depend on the number that it subtracts."""
    return fresh(tensor.exact.clone() if isinstance(tensor, Tracked) else tensor.double(), tensor.dtype)


@rule("_softmax", "_safe_softmax")
def softmax(evaluation: Evaluation, call: Call) -> Any:
    x, dim = call.args[:2]
    fixed = unmoved(x)
    with evaluation:
        exponentials = (inner(x) - fixed.amax(dim, keepdim=True).to(INNER)).exp()
        return (exponentials / exponentials.sum(dim, keepdim=True)).to(x.dtype)


@rule("_log_softmax")
def log_softmax(evaluation: Evaluation, call: Call) -> Any:
    x, dim = call.args[:2]
    fixed = unmoved(x)
    with evaluation:
        shifted = inner(x) - fixed.amax(dim, keepdim=True).to(INNER)
        return (shifted - shifted.exp().sum(dim, keepdim=True).log()).to(x.dtype)


@rule("logsumexp")
def logsumexp(evaluation: Evaluation, call: Call) -> Any:
    x, dims = call.args[:2]
    keep = bool(call.args[2]) if len(call.args) > 2 else False
    fixed = unmoved(x)
    with evaluation:
        largest = fixed.amax(dims, keepdim=True).to(INNER)
        result = (inner(x) - largest).exp().sum(dims, keepdim=True).log() + largest
        result = result if keep else result.squeeze(dims if isinstance(dims, int) else tuple(dims))
        return result.to(x.dtype)


def normalized(x: Any, dims: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """Returns the centred and scaled values, the mean and the reciprocal standard deviation."""
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    scale = (centred.square().mean(dims, keepdim=True) + eps).rsqrt()
    return x * scale - mean * scale, mean, scale


@rule("native_layer_norm")
def layer_norm(evaluation: Evaluation, call: Call) -> Any:
    x, shape, weight, bias, eps = call.args
    with evaluation:
        dims = tuple(range(x.dim() - len(shape), x.dim()))
        result, mean, scale = normalized(inner(x), dims, eps)
        result = scaled(result, weight, bias)
        return result.to(x.dtype), mean, scale


def scaled(result: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        result = result * inner(weight)
    return result if bias is None else result + inner(bias)


@rule("native_group_norm")
def group_norm(evaluation: Evaluation, call: Call) -> Any:
    x, weight, bias, batch, channels, _, groups, eps = call.args
    with evaluation:
        result, mean, scale = normalized(inner(x).reshape(batch, groups, -1), (2,), eps)
        shape = (1, channels, *([1] * (x.dim() - 2)))
        weight = None if weight is None else weight.reshape(shape)
        bias = None if bias is None else bias.reshape(shape)
        result = scaled(result.reshape(x.shape), weight, bias)
        return result.to(x.dtype), mean.reshape(batch, groups), scale.reshape(batch, groups)


@rule("_fused_rms_norm")
def rms_norm(evaluation: Evaluation, call: Call) -> Any:
    x, shape, weight = call.args[:3]
    eps = call.args[3] if len(call.args) > 3 else call.kwargs.get("eps")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    with evaluation:
        dims = tuple(range(x.dim() - len(shape), x.dim()))
        wide_x = inner(x)
        scale = (wide_x.square().mean(dims, keepdim=True) + eps).rsqrt()
        result = scaled(wide_x * scale, weight, None).to(x.dtype)
    return result, scale


@rule(
    "native_batch_norm",
    "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit",
    "cudnn_batch_norm",
    "_batch_norm_no_update",
)
def batch_norm(evaluation: Evaluation, call: Call) -> Any:
    x, weight, bias, mean, variance = call.args[:5]
    eps = call.args[-1]
    shape = (1, -1, *([1] * (x.dim() - 2)))
    mean, variance = as_tracked(mean), as_tracked(variance)
    with evaluation:
        scale = (inner(variance) + eps).rsqrt().reshape(shape)
        result = (inner(x) - inner(mean).reshape(shape)) * scale
        weight = None if weight is None else weight.reshape(shape)
        bias = None if bias is None else bias.reshape(shape)
        result = scaled(result, weight, bias).to(x.dtype)
    empty = torch.zeros(0)
    return (result, empty, empty, empty)[: len(call.func._schema.returns)]


@rule("glu")
def glu(evaluation: Evaluation, call: Call) -> Any:
    x = call.args[0]
    dim = call.args[1] if len(call.args) > 1 else -1
    with evaluation:
        first, second = x.chunk(2, dim)
        return (inner(first) * inner(second).sigmoid()).to(x.dtype)


@rule("var", "std", "var_mean", "std_mean")
def spread(evaluation: Evaluation, call: Call) -> Any:
    x = call.args[0]
    dims = call.args[1] if len(call.args) > 1 else None
    dims = tuple(dims) if dims else tuple(range(x.dim()))
    correction = call.kwargs.get("correction")
    correction = 1.0 if correction is None else float(correction)
    keep = bool(call.kwargs.get("keepdim", False))
    with evaluation:
        wide_x = inner(x)
        mean = wide_x.mean(dims, keepdim=True)
        count = 1
        for dim in dims:
            count *= x.shape[dim]
        result = (wide_x - mean).square().sum(dims, keepdim=keep) / (count - correction)
        result = result.sqrt() if call.name.startswith("std") else result
        mean = mean if keep else mean.squeeze(dims)
        return (result.to(x.dtype), mean.to(x.dtype)) if call.name.endswith("mean") else result.to(x.dtype)


@rule("linalg_vector_norm", "norm")
def vector_norm(evaluation: Evaluation, call: Call) -> Any:
    x = call.args[0]
    order = call.args[1] if len(call.args) > 1 and call.args[1] is not None else 2
    dims = call.args[2] if len(call.args) > 2 else call.kwargs.get("dim")
    keep = bool(call.args[3]) if len(call.args) > 3 else bool(call.kwargs.get("keepdim", False))
    dims = tuple(range(x.dim())) if not dims else tuple(dims)
    with evaluation:
        if order == 2:
            return inner(x).square().sum(dims, keepdim=keep).sqrt().to(x.dtype)
        if order == 1:
            return inner(x).abs().sum(dims, keepdim=keep).to(x.dtype)
        return evaluation.decomposed(call)


@rule("prod")
def prod(evaluation: Evaluation, call: Call) -> Any:
    x = call.args[0]
    dim = call.args[1] if len(call.args) > 1 and isinstance(call.args[1], int) else None
    with evaluation:
        parts = (x.reshape(-1) if dim is None else x).unbind(dim or 0)
        result = parts[0]
        for part in parts[1:]:
            result = result * part
        return result


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
)
def attention(evaluation: Evaluation, call: Call) -> Any:
    """Computes attention step by step, in f32 inside."""
    mask = call.kwargs.get("attn_mask")
    causal = call.kwargs.get("is_causal", call.args[4] if len(call.args) > 4 else False)
    scale = call.kwargs.get("scale")
    scale = call.args[0].shape[-1] ** -0.5 if scale is None else scale
    with evaluation:
        query, key, value = (inner(arg) for arg in call.args[:3])
        if key.shape[1] != query.shape[1]:
            key, value = (of.repeat_interleave(query.shape[1] // of.shape[1], 1) for of in (key, value))
        scores = query @ key.transpose(-1, -2) * scale
        if causal:
            keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~keep, float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + inner(mask)
        result = (scores.softmax(-1).to(call.args[0].dtype).to(INNER) @ value).to(call.args[0].dtype)
        return (result, torch.zeros(result.shape[:-1]))[: max(len(call.func._schema.returns), 1)]


@rule("linalg_solve_triangular")
def solve_triangular(evaluation: Evaluation, call: Call) -> Any:
    """Solves by substitution, row by row."""
    a, b = call.args[:2]
    upper, left = bool(call.kwargs["upper"]), bool(call.kwargs.get("left", True))
    unit = bool(call.kwargs.get("unitriangular", False))
    with evaluation:
        if not left:
            a, b, upper = a.transpose(-1, -2), b.transpose(-1, -2), not upper
        count = a.shape[-1]
        order = range(count - 1, -1, -1) if upper else range(count)
        rows: list[Any] = []
        for step, row in enumerate(order):
            value = b[..., row : row + 1, :]
            if step:
                known = torch.cat(rows, dim=-2)
                columns = a[..., row : row + 1, row + 1 :].flip(-1) if upper else a[..., row : row + 1, :row]
                value = value - columns @ known
            rows.append(value if unit else value / a[..., row : row + 1, row : row + 1])
        result = torch.cat(rows[::-1] if upper else rows, dim=-2)
        return result if left else result.transpose(-1, -2)


@rule("_grouped_mm")
def grouped_mm(evaluation: Evaluation, call: Call) -> Any:
    """Multiplies groups of rows with the matrix of their group."""
    x, weights = call.args[:2]
    ends = call.args[2] if len(call.args) > 2 else call.kwargs["offs"]
    return grouped(evaluation, x, weights, ends)


def grouped(evaluation: Evaluation, x: Any, weights: Any, ends: torch.Tensor) -> Any:
    parts, start = [], 0
    bounds = [int(end) for end in ends]
    with evaluation:
        for group, end in enumerate(bounds):
            if end > start:
                parts.append(x[start:end] @ weights[group])
            start = end
        if start < x.shape[0]:
            parts.append(torch.zeros(x.shape[0] - start, weights.shape[-1], dtype=x.dtype))
        return torch.cat(parts)
