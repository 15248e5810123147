"""Values above their error bound."""

from __future__ import annotations

import torch

from .constants import LAMBDA, LEAST, UNIT


def over(stored: torch.Tensor, exact: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Returns true at values above their error bound."""
    value = stored.double()
    half = torch.maximum(value.abs(), exact.abs()) * UNIT.get(stored.dtype, 0.0) + LEAST.get(stored.dtype, 0.0)
    above = (value - exact).abs() > LAMBDA * sigma + half
    differs = ~torch.isfinite(exact) & (value != exact) & ~(value.isnan() & exact.isnan())
    result: torch.Tensor = (above & torch.isfinite(exact)) | (value.isnan() & torch.isfinite(exact)) | differs
    return result


def violations(stored: torch.Tensor, exact: torch.Tensor, sigma: torch.Tensor) -> int:
    """Returns the number of values above their error bound."""
    return int(over(stored, exact, sigma).sum())
