"""Values of the attention functions that transformers' models call: queries, keys, values and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable

import torch
from transformers.modeling_utils import AttentionInterface

from .modules import call as run
from .rounding import Evaluation
from .tracked import Settings

NEARLY = 1e-6  # of sums of weights


@dataclass
class AttentionCall:
    """One call of an attention function; `scaling` multiplies its scores, `weights` is None before it has run."""

    module: Any
    query: torch.Tensor
    key: torch.Tensor
    values: torch.Tensor
    scaling: float | None = None
    softcap: float | None = None
    weights: torch.Tensor | None = None

    @property
    def is_first(self) -> bool:
        """True before the function has run."""
        return self.weights is None

    @property
    def has_scaled_queries(self) -> bool:
        """True if the module has multiplied the queries by its factor, in place of the scores (OPT)."""
        return self.scaling == 1.0 and getattr(self.module, "scaling", 1.0) != 1.0

    @property
    def lacks_sinks(self) -> bool:
        """True if the module multiplies by the share of its attention sinks only after the weights (Granite)."""
        if self.weights is None or getattr(self.module, "sinks", None) is None:
            return False
        exact = getattr(self.weights, "exact", self.weights)
        return bool(((exact.sum(-1) - 1).abs() < NEARLY).all())

    def value(self, tap: str, tokens: int) -> torch.Tensor | None:
        """Returns a tap's tensor: [batch, head, token, head_dim]; scores and weights: [batch, head, token, key]."""
        if self.weights is not None:
            return self.weights if tap == "attn_weights" and not self.lacks_sinks else None
        if tap == "attn_scores":
            return self.scores()
        found = {"k_cache": self.key, "v_cache": self.values}
        if not self.has_scaled_queries:
            found.update((query, self.query) for query in ("q_rope", "q_scaled", "q_rope_norm"))
        return self.key[:, :, -tokens:] if tap in ("k_rope", "k_rope_norm") else found.get(tap)

    def scores(self) -> torch.Tensor | None:
        """Returns the scores before the mask and the softmax: scaled, and limited by the soft cap."""
        if self.scaling is None or self.query.shape[-1] != self.key.shape[-1]:
            return None
        keys = self.key.repeat_interleave(self.query.shape[1] // self.key.shape[1], 1)
        scores = torch.matmul(self.query, keys.transpose(2, 3)) * self.scaling
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap


def called_once(model: Any, tokens: list[int], settings: Settings) -> set[str]:
    """Returns the modules that call an attention function once in a pass, found by a short run."""
    calls: Counter[int] = Counter()
    count = watched_attention(lambda call: calls.update([id(call.module)] if call.is_first else []))
    with torch.no_grad(), count, Evaluation(settings):
        try:
            run(model, tokens[:2], {})
        except Exception:  # a model that needs other inputs: its attention is not watched
            return set()
    return {path for path, module in model.named_modules() if calls[id(module)] == 1}


@contextmanager
def watched_attention(see: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Shows each call of an attention function to `see`, before and after it runs."""
    found = AttentionInterface.get_interface

    def get_interface(self: Any, name: str, default: Any) -> Any:
        function = found(self, name, default)

        def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
            call = AttentionCall(module, query, key, value, options.get("scaling"), options.get("softcap"))
            see(call)
            result = function(module, query, key, value, *args, **options)
            if isinstance(result, tuple) and len(result) > 1 and isinstance(result[1], torch.Tensor):
                see(replace(call, weights=result[1]))
            return result

        return attend

    AttentionInterface.get_interface = get_interface  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        AttentionInterface.get_interface = found  # type: ignore[method-assign]
