"""Confirmation of an explanation: it explains the same module in other layers and passes, and breaks nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..bounds import over
from ..candidate import Row
from ..evaluation import run_passes
from ..forcing import Forcing
from ..model import mark_computed_buffers
from ..rounding import Evaluation
from ..tracked import Settings, exact_of
from .change import Change, CodeChange, Run, role_of
from .trial import Trial


class Broken(Exception):
    """Ends a run in which a right output has become wrong."""


def confirmed(trial: Trial, change: Change) -> int:
    """Returns the number of modules in which a change explains all wrong outputs, and leaves right ones right."""
    found = next((len(paths) for paths in scopes(trial, change) if holds(trial, change, paths)), 0)
    calls = frozenset() if found else wrong_calls(trial, change)
    if calls and holds(trial, change, frozenset([trial.root]), calls):
        change.message["what"] += f", {told(trial)}"
        return 1
    return found


def wrong_calls(trial: Trial, change: Change) -> frozenset[int]:
    """Returns the wrong calls of a module if other calls in the same pass are right, e.g. one of two kinds of RoPE."""
    if trial.root != trial.name or not isinstance(change, CodeChange) or trial.is_short:
        return frozenset()
    session = trial.session
    calls = {wrong: {session.forcing.call_of[site] for site in session.seen
                     if (site[0], site[2]) == (trial.path, trial.site[2]) and (site in session.wrong) == wrong}
             for wrong in (True, False)}  # fmt: skip
    return frozenset(calls[True]) if calls[False] else frozenset()


def told(trial: Trial) -> str:
    """Describes a call for messages: by the text arguments of the call, such as a layer type, or by its number."""
    texts = [value for value in (*trial.args, *trial.kwargs.values()) if isinstance(value, str)]
    return f"for {' and '.join(texts)} only" if texts else f"in call {trial.site[1]} of {trial.path} only"


def scopes(trial: Trial, change: Change) -> Iterator[frozenset[str]]:
    """Yields the modules in which a change may apply, from the most: of its class, of its role, with wrong outputs."""
    if change.is_local:
        yield frozenset([trial.root])
        return
    kind = type(trial.module)
    modules = list(trial.session.model.named_modules())
    layers = frozenset(path for path, _ in modules if role_of(path) == role_of(trial.root))
    same = frozenset(path for path, module in modules if type(module) is kind)
    if trial.root == trial.name and change.model is None and same > layers:
        yield same
    yield layers
    wrong = frozenset(path for path in layers if is_wrong(trial, path))
    is_weak = change.message["kind"] == "constant" and trial.is_short
    if wrong != layers and change.model is None and not is_weak:
        yield wrong


def is_wrong(trial: Trial, path: str) -> bool:
    """Returns true if the layer of a module has a wrong output of the module in question."""
    role = role_of(trial.path)
    inside = trial.path[len(trial.root) :]
    return any(role_of(site[0]) == role and site[0] == path + inside for site in trial.session.wrong)


def holds(trial: Trial, change: Change, paths: frozenset[str], calls: frozenset[int] | None = None) -> bool:
    """Runs all passes with the change in some modules, or only in some of their calls.

    Returns false if an output that was right becomes wrong, or one that the change must explain stays wrong.
    """
    session = trial.session
    model = change.model if change.model is not None else session.model
    if change.model is not None:
        mark_computed_buffers(model)
    inside = trial.path[len(trial.root) :] if trial.root else trial.path
    role = role_of(trial.path)
    demanded = {path + inside for path in paths} | {trial.path}
    if not change.is_local and all(path == trial.root for path in paths):
        demanded |= {site[0] for site in session.wrong if role_of(site[0]) == role}

    def look(row: Row, value: torch.Tensor) -> None:
        session.on_trial()
        may_be_wrong = row.site in session.wrong and row.module not in demanded
        if may_be_wrong:
            return
        exact = exact_of(value)
        above = over(session.dump.value(row), exact, session.sigma(value, row.dtype))
        known = session.undetermined.get(row.site)
        if bool((above if known is None else above & ~known).any()):
            raise Broken

    evaluation = Evaluation(Settings(session.settings.samples))
    forcing = Forcing(model, session.dump, evaluation, look)
    session.follow_recorded(forcing)

    def miss(row: Row, why: str) -> None:
        if row.site in session.seen:
            raise Broken

    forcing.on_missing = miss
    run = Run(model, evaluation, forcing, paths, calls)
    try:
        with torch.no_grad(), forcing, change.installed(run):
            run_passes(model, session.dump, evaluation, forcing)
    except Exception:  # Broken, or a model that the change makes unable to run
        return False
    return session.seen <= forcing.seen
