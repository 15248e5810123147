"""Standard deviation of the rounding error at each value of a module's output."""

from __future__ import annotations

import torch

from .constants import OUTLIER_RATIO, SLOPPY_RESULT, UNIT
from .rounding import as_tracked
from .tracked import Tracked

ROW = 64  # smallest number of values whose ratios are averaged


def sigma_of(output: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """Returns the sigma of an output that is stored in `stored`.

    The final rounding is left out if the stored type rounds at least as much, since storage is counted separately.
    """
    if not isinstance(output, Tracked):
        return torch.zeros(as_tracked(output).exact.shape, dtype=torch.float64)
    counted_by_storage = UNIT.get(stored, 0.0) >= UNIT[output.dtype]
    variance = output.variance(rounded=not counted_by_storage)
    rounds = output.has_errors
    sigma = torch.zeros(output.exact.shape, dtype=torch.float64)
    if variance is not None:
        sigma = calibrated(output, variance)
    if rounds:
        sigma = torch.maximum(sigma, SLOPPY_RESULT * UNIT[output.dtype] * output.exact.abs())
        sigma = torch.maximum(sigma, row_floor(sigma))
    return torch.where(torch.isfinite(output.exact), sigma, 0.0)


def calibrated(output: Tracked, variance: torch.Tensor) -> torch.Tensor:
    """Multiplies the propagated sigma by the ratio that samples show in each row: errors may be correlated."""
    sigma = torch.nan_to_num(variance, nan=0.0, posinf=0.0).sqrt()
    samples = output.drawn()
    if not samples:
        return sigma
    measured = torch.stack([(sample - output.exact).square() for sample in samples]).mean(0)
    measured = torch.nan_to_num(measured, nan=0.0, posinf=0.0)
    ratio = (measured / sigma.square().clamp(min=1e-300)).clamp(max=OUTLIER_RATIO)
    count = ratio.shape[-1] if ratio.dim() else 1
    mean = ratio.mean(-1, keepdim=True) if count >= ROW else ratio.mean()
    spread = 1 + 2 / max(count if count >= ROW else ratio.numel(), 1) ** 0.5
    factor = (mean.sqrt() * spread).clamp(min=0.5)
    return torch.maximum(sigma * factor, measured.sqrt())


def row_floor(sigma: torch.Tensor) -> torch.Tensor:
    """Returns a small share of the row's root mean square: no value is exact among rounded ones."""
    if not sigma.dim():
        return sigma
    return 1e-3 * sigma.square().mean(-1, keepdim=True).sqrt()
