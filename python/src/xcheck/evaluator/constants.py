"""Constants of rounding errors, from rounding.json, which the Rust engine's tests read too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

_TABLE: dict[str, Any] = {
    name: entry["value"] for name, entry in json.loads(Path(__file__).with_name("rounding.json").read_text()).items()
}

K: float = _TABLE["k"]
LAMBDA: float = _TABLE["lambda"]
U32: float = _TABLE["unit_f32"]
LIBRARY_ULPS: float = _TABLE["library_ulps"]
PRODUCT_SQUARES: list[float] = _TABLE["product_squares"]
PRODUCT_VALUE: list[float] = _TABLE["product_value"]
SUM_SQUARES: list[float] = _TABLE["sum_squares"]
SUM_VALUE: list[float] = _TABLE["sum_value"]
COMPUTED_BUFFER: float = _TABLE["computed_buffer"]
SLOPPY_RESULT: float = _TABLE["sloppy_result"]
OUTLIER_RATIO: float = _TABLE["outlier_ratio"]

# Half the spacing at 1, relative to the value, and the smallest number. f64 results count as exact.
UNIT = {
    torch.float32: U32,
    torch.bfloat16: _TABLE["unit_bf16"],
    torch.float16: _TABLE["unit_f16"],
    torch.float64: 2.0**-53,
    torch.complex64: U32,
    torch.complex128: 2.0**-53,
}
LEAST = {
    torch.float32: _TABLE["least_f32"],
    torch.bfloat16: _TABLE["least_bf16"],
    torch.float16: _TABLE["least_f16"],
    torch.float64: 2.0**-1022,
    torch.complex64: _TABLE["least_f32"],
    torch.complex128: 2.0**-1022,
}


def rounding_sigma(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the standard deviation of rounding `value` to `dtype`."""
    sigma = (value.abs() * UNIT[dtype]).clamp_(min=LEAST[dtype] / 2)
    sigma = torch.where(value == 0, 0.0, sigma.mul_(K))
    return torch.nan_to_num_(sigma, nan=0.0, posinf=0.0)


def is_exact_in_f32(number: float) -> bool:
    """Returns true if f32 represents a number."""
    return number != number or abs(number) > 3e38 or float(torch.tensor(number, dtype=torch.float32)) == number
