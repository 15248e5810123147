"""A tensor with its exact value in f64, the type that the model computes in, and its rounding error."""

from __future__ import annotations

from typing import Any

import torch

from .constants import rounding_sigma


class Settings:
    """Number of samples, and the random numbers of their rounding errors."""

    def __init__(self, samples: int, seed: int = 0):
        self.samples = samples
        self.is_other_engine = False  # True if the candidate's library functions are not torch's
        self.generator = torch.Generator().manual_seed(seed)

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        """Returns standard Gaussian numbers."""
        return torch.randn(like.shape, dtype=like.dtype, generator=self.generator)


class RoundingErrors:
    """Rounding errors of one storage, shared by all views of the storage.

    `variance` is propagated under the assumption that errors are independent. `samples` are perturbed values, which
    show correlations. Both are flat, in the layout of the storage; None means that the values are exact. While
    `pending` is true, the final rounding to the tensor's type is not included.
    """

    __slots__ = ("_cache", "pending", "samples", "variance")

    def __init__(self, pending: bool = False):
        self.variance: torch.Tensor | None = None
        self.samples: list[torch.Tensor] | None = None
        self.pending = pending
        self._cache: RoundingErrors | None = None

    @property
    def is_exact(self) -> bool:
        return self.variance is None and not self.pending

    def rounded(self, exact: torch.Tensor, dtype: torch.dtype) -> RoundingErrors:
        """Returns the errors with the final rounding included."""
        if not self.pending:
            return self
        if self._cache is None:
            self._cache = RoundingErrors()
            rounding = rounding_sigma(flat(exact), dtype).square_()
            self._cache.variance = rounding if self.variance is None else rounding.add_(self.variance)
        return self._cache

    def forget(self) -> None:
        """Drops errors derived from values that have changed."""
        self._cache = None

    def rounded_samples(self, exact: torch.Tensor, dtype: torch.dtype, settings: Settings) -> list[torch.Tensor]:
        """Returns flat perturbed values with the final rounding included."""
        rounded = self.rounded(exact, dtype)
        if rounded.samples is None:
            values = flat(exact)
            if rounded is not self and self.samples is not None:
                sigma = rounding_sigma(values, dtype)
                rounded.samples = [sample + sigma * settings.noise(sample) for sample in self.samples]
            else:
                assert rounded.variance is not None
                sigma = rounded.variance.sqrt()
                rounded.samples = [values + sigma * settings.noise(values) for _ in range(settings.samples)]
        return rounded.samples


class Tracked(torch.Tensor):
    """A tensor that shows the type the model computes in, and holds an exact f64 value and rounding errors."""

    exact: torch.Tensor
    errors: RoundingErrors
    is_known: bool = False  # True for a value of the candidate

    @staticmethod
    def __new__(cls, exact: torch.Tensor, dtype: torch.dtype, errors: RoundingErrors | None = None) -> Tracked:
        result = torch.Tensor._make_wrapper_subclass(
            cls, exact.shape, strides=exact.stride(), storage_offset=exact.storage_offset(), dtype=dtype
        )
        result.exact = exact
        result.errors = errors or RoundingErrors()
        return result

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Tracked({self.exact!r}, dtype={self.dtype}, pending={self.errors.pending})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} of a tracked tensor outside an evaluation")

    def __deepcopy__(self, memo: Any) -> Tracked:
        errors = RoundingErrors(self.errors.pending)
        if self.errors.variance is not None:
            errors.variance = self.errors.variance.clone()
        if self.errors.samples is not None:
            errors.samples = [sample.clone() for sample in self.errors.samples]
        values = flat(self.exact).clone()
        return Tracked(like(values, self.exact), self.dtype, errors)

    @property
    def has_errors(self) -> bool:
        """True if rounding has changed the value."""
        return not self.errors.is_exact

    def variance(self, rounded: bool = True) -> torch.Tensor | None:
        """Returns the variance of the rounding error, or None if the value is exact."""
        errors = self.errors.rounded(self.exact, self.dtype) if rounded else self.errors
        return None if errors.variance is None else like(errors.variance, self.exact)

    def samples(self, settings: Settings) -> list[torch.Tensor]:
        """Returns perturbed values."""
        if self.errors.is_exact:
            return [self.exact] * settings.samples
        samples = self.errors.rounded_samples(self.exact, self.dtype, settings)
        return [like(sample, self.exact) for sample in samples]

    def drawn(self) -> list[torch.Tensor] | None:
        """Returns the perturbed values without the final rounding, or None if none have been computed."""
        samples = self.errors.samples
        return [like(sample, self.exact) for sample in samples] if samples else None

    def set_errors(self, variance: torch.Tensor | None, samples: list[torch.Tensor] | None) -> None:
        """Sets errors of this view; the rest of the storage keeps its own."""
        errors, values = self.errors, flat(self.exact)
        errors.forget()
        if variance is None and errors.variance is None:
            return
        if errors.variance is None:
            errors.variance = torch.zeros(values.shape, dtype=torch.float64)
        like(errors.variance, self.exact).copy_(torch.zeros(()) if variance is None else variance)
        if samples is not None and errors.samples is None:
            errors.samples = [values.clone() for _ in samples]
        if errors.samples is not None:
            new = [self.exact] * len(errors.samples) if samples is None else samples
            for target, sample in zip(errors.samples, new):
                like(target, self.exact).copy_(sample)


def fresh(
    exact: torch.Tensor,
    dtype: torch.dtype,
    variance: torch.Tensor | None = None,
    samples: list[torch.Tensor] | None = None,
    pending: bool = False,
) -> Tracked:
    """Returns a new tensor with errors in the layout of its exact value."""
    errors = RoundingErrors(pending)
    errors.variance = None if variance is None else to_layout(variance, exact)
    errors.samples = None if samples is None else [to_layout(sample, exact) for sample in samples]
    return Tracked(exact, dtype, errors)


def flat(exact: torch.Tensor) -> torch.Tensor:
    """Returns all values of a tensor's storage."""
    count = exact.untyped_storage().nbytes() // exact.element_size()
    return exact.as_strided((count,), (1,), 0)


def like(values: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Returns the view of flat values that `exact` is of its storage."""
    return values.as_strided(exact.size(), exact.stride(), exact.storage_offset())


def to_layout(values: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Returns values of the shape of `exact` as flat values of its storage."""
    count = exact.untyped_storage().nbytes() // exact.element_size()
    whole = values.stride() == exact.stride() and values.shape == exact.shape and exact.storage_offset() == 0
    if whole and values.untyped_storage().nbytes() // values.element_size() == count and values.storage_offset() == 0:
        return values.as_strided((count,), (1,), 0)
    result = torch.zeros(count, dtype=values.dtype)
    like(result, exact).copy_(values)
    return result


def exact_of(value: torch.Tensor) -> torch.Tensor:
    """Returns the exact values of a tensor with or without rounding errors."""
    return value.exact if isinstance(value, Tracked) else value.double()
