"""Search for the cause of a wrong output: the first kind of change that explains every value."""

from __future__ import annotations

from typing import Any

from ..evaluation import Session
from . import inputs, keys, numbers, steps, weights
from .trial import Trial

# Changes without a free parameter come before fitted numbers.
KINDS = (keys.causes, weights.causes, steps.causes, inputs.causes, numbers.causes)
CLOSE = 2.0  # explanations whose errors differ by less are equally good


def search(session: Session, module: str, call: int, pass_number: int, seconds: float) -> list[dict[str, Any]]:
    """Returns the causes of one output, all equally good; none if nothing explains every value."""
    trial = Trial(session, module, call, pass_number, seconds)
    now = trial.before
    if now is None or now.violations == 0:
        return []
    for kind in KINDS:
        found = list(kind(trial))
        if found:
            return ranked(found, now.error)
    return []


def ranked(found: list[dict[str, Any]], before: float) -> list[dict[str, Any]]:
    """Returns the best explanations as messages."""
    best = min(cause["error_after"] for cause in found)
    chosen = [cause for cause in found if cause["error_after"] <= max(CLOSE * best, 1e-12)]
    chosen.sort(key=lambda cause: cause["error_after"])
    return [{"message": "cause", "rank": 1, "left_over": 0, **cause, "error_before": before} for cause in chosen]
