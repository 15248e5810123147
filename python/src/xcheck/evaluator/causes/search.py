"""Search for the cause of a wrong output: all changes that explain every value, the likeliest ones first."""

from __future__ import annotations

import time
from typing import Any

from ..evaluation import Session
from . import inputs, keys, numbers, operands, results, rotations, steps, weights
from .change import FITTED_KEY, UNROUND, Change
from .confirmation import confirmed
from .facts import facts
from .trial import Trial

# Kinds of changes, the quickest and likeliest first. The search ends after a group that explains the values.
GROUPS = (
    (keys.causes,),
    (results.causes, rotations.causes, weights.causes, inputs.causes),
    (steps.causes, operands.causes),
    (numbers.causes,),
)
NUMBERS = (rotations.causes, numbers.causes)  # kinds that fit a number
HASTY = "; other numbers may explain the values as well, but the search reached its time limit"
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
    complete = []
    end = trial.deadline
    later = sum(len(kinds) for kinds in GROUPS[group + 1 :])
    for number, kind in enumerate(GROUPS[group]):
        now = time.monotonic()
        left = len(GROUPS[group]) - number + later
        trial.deadline = min(end, now + 2 * (end - now) / left)
        found += kind(trial)
        complete += [kind] if trial.has_time else []
    trial.deadline = end
    found += keys_of(trial, found)
    return found + rivals(trial, found, complete)


def keys_of(trial: Trial, found: list[Change]) -> list[Change]:
    """Returns the keys that set the changed constants."""
    return [key for change in found for key in keys.of_change(trial, change)]


def rivals(trial: Trial, found: list[Change], complete: list[Any]) -> list[Change]:
    """Returns all other numbers that explain every value, if a key's number was fitted or is vague."""
    unsure = [change for change in found if change.is_key and (change.is_vague or change.rank == FITTED_KEY)]
    if not unsure:
        return []
    others = [change for kind in NUMBERS if kind not in complete for change in kind(trial)]
    for change in [] if trial.has_time else unsure + others:
        change.message["what"] += HASTY
    return others + keys_of(trial, others)


def count_of(change: Change) -> int:
    """Returns the number of modules in which a change is confirmed; 0 if there is no time to confirm it."""
    if change.confirmed is None and time.monotonic() >= change.trial.end:
        change.trial.unconfirmed.append(change)
        return 0
    if change.confirmed is None:
        change.confirmed = confirmed(change.trial, change)
    return change.confirmed


def likeliest(found: list[Change]) -> list[Change]:
    """Returns the confirmed changes of the best rank; of these, those that explain the most modules.

    If a chosen number is vague, all other numbers that fit are listed, too; beside a fitted key, all round ones that fit.
    """
    by_error = sorted(found, key=lambda change: change.message["error_after"])
    best = next((change.message["error_after"] for change in by_error if count_of(change)), -1.0)
    found = [change for change in found if change.message["error_after"] <= max(CLOSE * best, 1e-12)]
    for rank in sorted({change.rank for change in found}):
        counted = [(count_of(change), change) for change in found if change.rank == rank]
        most = max(count for count, _ in counted)
        chosen = [change for count, change in counted if count == most and count]
        if chosen:
            rivals = [change for change in found if is_as_good(change, chosen)]
            chosen += [change for change in rivals if count_of(change) == most]
            for change in chosen if any(rival.confirmed is None for rival in rivals) else []:
                change.message["what"] += "" if HASTY in change.message["what"] else HASTY
            return distinct(chosen)
    return []


def is_as_good(change: Change, chosen: list[Change]) -> bool:
    """Returns true for a number if a chosen one is vague; for a round number, also if a fitted key is chosen."""
    is_round = change.rank != UNROUND and any(one.is_key and one.rank == FITTED_KEY for one in chosen)
    return change.is_number and (is_round or any(one.is_vague for one in chosen))


def distinct(chosen: list[Change]) -> list[Change]:
    """Returns each key once, without the constants that it sets, the smallest error first."""
    listed = {id(change) for change in chosen}
    chosen = [change for change in chosen if not any(id(key) in listed for key in change.keys)]
    chosen.sort(key=lambda change: change.message["error_after"], reverse=True)
    named = {change.message["key" if change.is_key else "what"]: change for change in chosen}
    is_evidence = len(named) == 1 or any(change.is_key or change.rank != UNROUND for change in chosen)
    if chosen[0].trial.is_short and not is_evidence:
        return []  # in a short type, many numbers of the code explain the values
    return sorted(named.values(), key=lambda change: change.message["error_after"])
