"""Taps that follow from others: the greedy choice, probabilities, and the experts of a token."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .constants import LAMBDA
from .tracked import Tracked


def choice(logits: Tracked, is_recorded: bool) -> tuple[torch.Tensor, bool]:
    """Returns the greedy choice, and true if rounding can decide it. Recorded logits decide by themselves."""
    with _disable_current_modes():
        exact = logits.exact
        best = exact.argmax(-1)
        variance = logits.variance()
        if is_recorded or variance is None:
            return best, False
        reach = LAMBDA * variance.sqrt()
        rivals = exact + reach >= (exact - reach).max(-1, keepdim=True).values
        return best, bool((rivals.sum(-1) > 1).any())


def probabilities(logits: Tracked, temperature: float) -> torch.Tensor:
    """Returns softmax(logits / temperature), computed in f32. Runs inside an evaluation."""
    wide = logits.float()
    return torch.softmax(wide / temperature if temperature != 1.0 else wide, -1)


def same_experts(recorded: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Returns the chosen experts in the recorded order; a chosen expert that is not recorded replaces a wrong one."""
    with _disable_current_modes():
        result = recorded.clone()
        for row, (found, expected) in enumerate(zip(recorded.tolist(), chosen.tolist())):
            others = [number for number in expected if number not in found]
            for at, number in enumerate(found):
                if number not in expected and others:
                    result[row, at] = others.pop(0)
        return result


def weights_of(recorded: torch.Tensor, chosen: torch.Tensor, weights: Tracked) -> torch.Tensor | None:
    """Returns the weights in the order of the recorded experts; None if other experts are chosen."""
    with _disable_current_modes():
        same = recorded.unsqueeze(-1) == chosen.unsqueeze(-2)
        if not bool(same.any(-1).all()):
            return None
        order = same.long().argmax(-1)
    return torch.gather(weights, -1, order)
