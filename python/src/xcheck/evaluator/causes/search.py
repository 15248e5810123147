"""Search for the cause of a wrong output: all changes that explain every value, the likeliest ones first."""

from __future__ import annotations

import time
from typing import Any

from ..evaluation import Session
from . import inputs, keys, numbers, operands, results, rotations, steps, weights
from .change import UNROUND, Change
from .confirmation import SHORT, confirmed
from .facts import facts
from .trial import Trial

# Kinds of changes, the quickest and likeliest first. The search ends after a group that explains the values.
GROUPS = (
    (keys.causes,),
    (results.causes, rotations.causes, weights.causes, inputs.causes),
    (steps.causes, operands.causes),
    (numbers.causes,),
)
CLOSE = 2.0  # explanations whose errors differ by less are equally good
SHARE = 0.8  # of the time for the search; the rest is for confirmations


def search(session: Session, module: str, call: int, pass_number: int, seconds: float) -> list[dict[str, Any]]:
    """Returns the causes of one output, all equally likely; if nothing explains every value, the facts about them."""
    end = time.monotonic() + seconds
    trial = Trial(session, module, call, pass_number, SHARE * seconds)
    trial.end = end
    if trial.before is None or trial.before.violations == 0:
        return []
    chosen = first_group(trial)
    if not chosen:
        limit = [] if trial.has_time else ["the search reached its time limit"]
        limit += [f"no time to confirm: {change.message['what']}" for change in trial.unconfirmed[:1]]
        return [{"message": "facts", "text": ", ".join(facts(trial) + limit)}]
    return [{"message": "cause", "rank": 1, **change.message, "error_before": trial.before.error} for change in chosen]


def first_group(trial: Trial) -> list[Change]:
    """Returns the likeliest changes of the first group that explains every value up to rounding; else of all groups."""
    found: list[Change] = []
    inner = trial.inner()
    for group in range(len(GROUPS)):
        for one in (inner, trial) if group else (trial,):
            if one is not None:
                one.deadline = trial.deadline
                found += tried(one, group)
                chosen = likeliest([change for change in found if change.is_exact])
                if chosen:
                    return chosen
    return likeliest(found)


def tried(trial: Trial, group: int) -> list[Change]:
    """Returns the changes of a group that explain every value; no kind uses the time of all later ones."""
    found: list[Change] = []
    end = trial.deadline
    later = sum(len(kinds) for kinds in GROUPS[group + 1 :])
    for number, kind in enumerate(GROUPS[group]):
        now = time.monotonic()
        left = len(GROUPS[group]) - number + later
        trial.deadline = min(end, now + 2 * (end - now) / left)
        found += kind(trial)
    trial.deadline = end
    return found + [key for change in found for key in keys.of_change(trial, change)]


def count_of(change: Change) -> int:
    """Returns the number of modules in which a change is confirmed; 0 if there is no time to confirm it."""
    if change.confirmed is None and time.monotonic() >= change.trial.end:
        change.trial.unconfirmed.append(change)
        return 0
    if change.confirmed is None:
        change.confirmed = confirmed(change.trial, change)
    return change.confirmed


def likeliest(found: list[Change]) -> list[Change]:
    """Returns the confirmed changes of the best rank; of these, those that explain the most modules."""
    by_error = sorted(found, key=lambda change: change.message["error_after"])
    best = next((change.message["error_after"] for change in by_error if count_of(change)), -1.0)
    found = [change for change in found if change.message["error_after"] <= max(CLOSE * best, 1e-12)]
    for rank in sorted({change.rank for change in found}):
        counted = [(count_of(change), change) for change in found if change.rank == rank]
        most = max(count for count, _ in counted)
        chosen = [change for count, change in counted if count == most and count]
        chosen.sort(key=lambda change: change.message["error_after"])
        if rank == UNROUND and len(chosen) > 1 and chosen[0].trial.row.dtype in SHORT:
            return []  # in a short type, many numbers explain the values: none is evidence
        if chosen:
            return chosen
    return []
