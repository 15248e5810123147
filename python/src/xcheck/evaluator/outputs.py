"""The tensor of a module's output that a dump records."""

from __future__ import annotations

from typing import Any

import torch

FIELDS = ("logits", "last_hidden_state", "sentence_embedding", "token_embeddings")


def recorded(output: Any) -> torch.Tensor | None:
    """Returns the first tensor of a tuple, or the named tensor of a model's output."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict) or hasattr(output, "keys"):
        found = next((output.get(name) for name in FIELDS if output.get(name) is not None), None)
        return found if found is not None else next((v for v in output.values() if isinstance(v, torch.Tensor)), None)
    if isinstance(output, (tuple, list)):
        return next((value for value in output if isinstance(value, torch.Tensor)), None)
    return None


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
