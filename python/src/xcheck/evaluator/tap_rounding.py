"""Rounding of engines that are not transformers: they may round once more in each operation, or in another place."""

from __future__ import annotations

from typing import Any

import torch

from .constants import U32, UNIT, rounding_sigma

SAME_CODE = ("transformers", "torch")  # producers whose operations are those that are evaluated


def is_other_engine(manifest: dict[str, Any]) -> bool:
    return manifest.get("producer", {}).get("name") not in SAME_CODE


def with_another_rounding(sigma: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Adds one rounding of an intermediate result as large as the row's values, if the type is shorter than f32.

    A norm may round before it multiplies with its weight, or only after: engines do both.
    """
    if UNIT.get(dtype, 0.0) <= U32:
        return sigma
    seen = exact.nan_to_num(0.0, 0.0, 0.0)
    size = torch.maximum(seen.abs(), seen.square().mean(-1, keepdim=True).sqrt() if seen.dim() else seen.abs())
    return (sigma.square() + rounding_sigma(size, dtype).square()).sqrt()
