"""One call of an ATen operation, whose operands can be exchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .tracked import Tracked

WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}


def is_real(value: Any) -> bool:
    """Returns true for a tensor of floating-point or complex numbers."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def wide(leaf: Any) -> Any:
    """Returns an operand with which an exact value is computed."""
    if isinstance(leaf, Tracked):
        return leaf.exact
    if isinstance(leaf, torch.Tensor) and leaf.dtype in WIDE:
        return leaf.detach().to(WIDE[leaf.dtype])
    if isinstance(leaf, torch.dtype):
        return WIDE.get(leaf, leaf)
    return leaf


class Call:
    """An ATen operation with its operands."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.func: Any = func
        self.name: str = func._schema.name.split("::")[1]
        self.args = args
        self.kwargs = kwargs
        self.leaves, self.spec = tree_flatten((args, kwargs))
        self._wide: list[Any] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Operands that are tensors."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    @property
    def reals(self) -> list[torch.Tensor]:
        """Operands that are tensors of floating-point or complex numbers."""
        return [leaf for leaf in self.leaves if is_real(leaf)]

    @property
    def wide(self) -> list[Any]:
        """Operands with which the exact value is computed."""
        if self._wide is None:
            self._wide = [wide(leaf) for leaf in self.leaves]
        return self._wide

    def rebuild(self) -> None:
        """Takes over exchanged operands."""
        self.args, self.kwargs = tree_unflatten(self.leaves, self.spec)
        self._wide = None

    def widen_integers(self) -> None:
        """Replaces integer tensors by f64, for operations whose result is not an integer."""
        for at, leaf in enumerate(self.wide):
            if isinstance(leaf, torch.Tensor) and not is_real(leaf) and leaf.dtype != torch.bool:
                self.wide[at] = leaf.double()

    def run(self, changed: dict[int, Any] | None = None) -> Any:
        """Computes the operation in f64, with some operands exchanged."""
        leaves = list(self.wide)
        for at, leaf in (changed or {}).items():
            leaves[at] = leaf
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.func(*args, **kwargs)

    def asked(self) -> torch.dtype | None:
        """Returns the type that an argument asks for."""
        for leaf in self.leaves:
            if isinstance(leaf, torch.dtype):
                return leaf
        return None

    def dtype(self) -> torch.dtype:
        """Returns the type of a real result, by torch's rules of promotion."""
        asked = self.asked()
        return asked if asked is not None else promoted(self.tensors)


def promoted(tensors: list[torch.Tensor]) -> torch.dtype:
    """Returns the type of a real result: that of tensors with axes before that of single numbers."""
    reals = [tensor for tensor in tensors if is_real(tensor)]
    with_axes = [tensor for tensor in reals if tensor.dim() > 0]
    result: torch.dtype | None = None
    for tensor in with_axes or reals:
        result = tensor.dtype if result is None else torch.promote_types(result, tensor.dtype)
    return result or torch.get_default_dtype()
