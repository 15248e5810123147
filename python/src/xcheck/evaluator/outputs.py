"""The tensor of a module's output that a dump records."""

from __future__ import annotations

from typing import Any

import torch

from xcheck.modules import tensors_in


def recorded(output: Any) -> torch.Tensor | None:
    """Returns the tensor that a hook records of what a module returns; None if there is none."""
    return next(iter(tensors_in(output)), None)


def replaced(output: Any, value: torch.Tensor) -> Any:
    """Returns the output with another recorded tensor."""
    old = recorded(output)
    if isinstance(output, torch.Tensor):
        return value
    if isinstance(output, dict) or hasattr(output, "keys"):
        for key in output.keys():  # noqa: SIM118  (a ModelOutput iterates over its values in some versions)
            if output[key] is old:
                output[key] = value
        return output
    parts = [value if part is old else part for part in output]
    if isinstance(output, list):
        return parts
    return type(output)(*parts) if hasattr(output, "_fields") else tuple(parts)


def has_choices(output: Any) -> bool:
    """Returns true if a module returns integers next to its recorded tensor, such as the numbers of experts."""
    return isinstance(output, (tuple, list)) and any(
        isinstance(part, torch.Tensor) and not part.is_floating_point() and part.dtype != torch.bool for part in output
    )
