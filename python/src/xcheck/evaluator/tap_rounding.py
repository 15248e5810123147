"""Rounding of engines that are not transformers: they may round once more in each operation, or in another place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from .constants import U32, UNIT, rounding_sigma

SAME_CODE = ("transformers", "torch")  # producers whose operations are those that are evaluated


def is_other_engine(manifest: dict[str, Any]) -> bool:
    return manifest.get("producer", {}).get("name") not in SAME_CODE or is_compiled(manifest)


def is_compiled(manifest: dict[str, Any]) -> bool:
    """Returns true for a compiled model, whose fused kernels go on with values before they are rounded."""
    return manifest.get("producer", {}).get("settings", {}).get("torch_compile") == "on"


def with_another_rounding(sigma: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Adds one rounding of an intermediate result as large as the row's values, if the type is shorter than f32.

    A norm may round before it multiplies with its weight, or only after: engines do both.
    """
    if UNIT.get(dtype, 0.0) <= U32:
        return sigma
    seen = exact.nan_to_num(0.0, 0.0, 0.0)
    size = torch.maximum(seen.abs(), seen.square().mean(-1, keepdim=True).sqrt() if seen.dim() else seen.abs())
    return (sigma.square() + rounding_sigma(size, dtype).square()).sqrt()


@contextmanager
def gelu_from_a_table(model: Any, manifest: dict[str, Any]) -> Iterator[None]:
    """Rounds the input and the output of each GELU to f16 if llama.cpp made the dump: it reads GELU from a table."""
    with ExitStack() as handles:
        for module in model.modules() if manifest.get("producer", {}).get("name") == "llama.cpp" else ():
            if re.search("gelu", type(module).__name__, re.I) and not list(module.children()):
                before = module.register_forward_pre_hook(lambda _, args: (through_f16(args[0]), *args[1:]))
                after = module.register_forward_hook(lambda _, args, output: through_f16(output))
                handles.callback(before.remove)
                handles.callback(after.remove)
        yield


def through_f16(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.float16).to(value.dtype)
