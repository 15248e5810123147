"""Facts about wrong values that no cause explains: where they are, and how they differ from the expected ones."""

from __future__ import annotations

import torch

from ..bounds import over
from ..tracked import Settings, exact_of
from .trial import Exact, Trial
from .weights import heads_of

RANGES = 4  # ranges that are listed


def facts(trial: Trial) -> list[str]:
    """Returns what the wrong values have in common, as parts of a sentence."""
    output = trial.run(Exact(Settings(0)))
    if output is None or trial.sigma is None or trial.want.dim() == 0:
        return []
    exact = exact_of(output)
    wrong = over(trial.stored, exact, trial.sigma) & ~trial.undetermined
    if not bool(wrong.any()):
        return []
    return [*places(trial, wrong), *relations(trial, exact, wrong)]


def places(trial: Trial, wrong: torch.Tensor) -> list[str]:
    """Describes the positions, the heads and the channels of wrong values, if not all of them are wrong."""
    width = wrong.shape[-1]
    found = [f"{int(wrong.sum())} of {wrong.numel()} values are wrong"]
    by_row, by_channel = wrong.reshape(-1, width).any(1), wrong.reshape(-1, width).any(0)
    if not bool(by_row.all()):
        found.append(f"rows {ranges(by_row)} of {len(by_row)}")
    for count in sorted(heads_of(trial)):
        heads = by_channel.view(count, -1) if width % count == 0 and 1 < count < width else None
        if heads is not None and bool((heads.all(1) == heads.any(1)).all()) and not bool(by_channel.all()):
            found.append(f"heads {ranges(heads.any(1))} of {count}")
            return found
    if not bool(by_channel.all()):
        found.append(f"channels {ranges(by_channel)} of {width}")
    return found


def relations(trial: Trial, exact: torch.Tensor, wrong: torch.Tensor) -> list[str]:
    """Describes one ratio or one difference that all wrong values have."""
    stored, want = trial.stored[wrong], trial.want[wrong]
    own = exact[wrong]
    assert trial.sigma is not None
    sigma = trial.sigma[wrong]
    if not bool(torch.isfinite(want).all()):
        return ["not all of them are finite"]
    if bool((want == 0).all()):
        return ["all of them are 0"]
    if want.numel() < 2:
        return []
    ratio = float((want * own).sum() / own.square().sum().clamp(min=1e-300))
    if not bool(over(stored, ratio * own, max(1.0, abs(ratio)) * sigma).any()):
        return [f"each is {ratio:.6g} times the expected value"]
    difference = float((want - own).mean())
    if not bool(over(stored, own + difference, sigma).any()):
        return [f"each is larger than expected by {difference:.6g}"]
    return []


def ranges(marked: torch.Tensor) -> str:
    """Lists marked numbers as ranges."""
    numbers = marked.nonzero().flatten().tolist()
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    words = [str(first) if first == last else f"{first} to {last}" for first, last in parts[:RANGES]]
    return ", ".join(words) + (", ..." if len(parts) > RANGES else "")
