"""One call of an ATen operation, whose operands can be exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

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


@dataclass(frozen=True)
class Arguments:
    """The form of an operation's arguments: which of them are lists, and the names of the last ones."""

    lengths: tuple[int | None, ...]  # None for an argument that is no list
    kinds: tuple[Any, ...]  # list or tuple; None
    names: tuple[str, ...]

    @staticmethod
    def flattened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Arguments]:
        """Returns all operands in one list. ATen's lists are not nested."""
        leaves: list[Any] = []
        lengths: list[int | None] = []
        kinds: list[Any] = []
        for arg in (*args, *kwargs.values()):
            kind = type(arg)
            if kind is list or kind is tuple:
                leaves += arg
                lengths.append(len(arg))
                kinds.append(kind)
            else:
                leaves.append(arg)
                lengths.append(None)
                kinds.append(None)
        return leaves, Arguments(tuple(lengths), tuple(kinds), tuple(kwargs))

    def filled(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with these operands."""
        found: list[Any] = []
        at = 0
        for length, kind in zip(self.lengths, self.kinds):
            if length is None:
                found.append(leaves[at])
                at += 1
            else:
                found.append(kind(leaves[at : at + length]))
                at += length
        count = len(found) - len(self.names)
        return tuple(found[:count]), dict(zip(self.names, found[count:]))


class Call:
    """An ATen operation with its operands."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.func: Any = func
        self.name: str = func._schema.name.split("::")[1]
        self.args = args
        self.kwargs = kwargs
        self.leaves, self.form = Arguments.flattened(args, kwargs)
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
        self.args, self.kwargs = self.form.filled(self.leaves)
        self._wide = None

    def with_args(self, args: tuple[Any, ...]) -> None:
        """Takes over other arguments."""
        self.args = args
        self.leaves, self.form = Arguments.flattened(args, self.kwargs)
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
        args, kwargs = self.form.filled(leaves)
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
