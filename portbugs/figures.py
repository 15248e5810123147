"""Counts how well a judge does over PortBugs."""

from __future__ import annotations

from typing import Any

NAMES = {"taps": "all taps", "blocks": "block outputs and logits", "logits": "logits", "logprobs": "log-probabilities"}
LAST_TAPS = ("final_norm", "logits", "last_logits", "argmax", "probs", "token_logprobs", "top_ids", "top_logprobs")
HEADER = ("| judge | recorded | detected | located | named | false alarms | withheld | time for a run |\n"
          "|---|---|---|---|---|---|---|---|")  # fmt: skip
Case = dict[str, Any]
Verdict = dict[str, Any]


def located(case: Case, level: str, verdict: Verdict) -> bool:
    """Tests the site: tap, layer and pass with all taps, the layer with block outputs."""
    site, right = verdict.get("site"), case["site"]
    if not site:
        return False
    if level == "taps":
        also = [right, *case.get("also", [])]
        return any(all(site[name] == one[name] for name in ("tap", "layer", "pass")) for one in also)
    if level == "blocks":
        # What runs before the first layer shows in its output.
        layer = right["layer"] if right["layer"] is not None or is_last(right["tap"]) else 0
        return site["pass"] == right["pass"] and (site["layer"] == layer or site["tap"] == right["tap"])
    return site["pass"] == right["pass"]


def is_last(tap: str) -> bool:
    """Tests for a tap or module after the last layer."""
    return tap in LAST_TAPS or tap.endswith(("norm", "norm_f", "lm_head", "logits"))


def named(case: Case, verdict: Verdict) -> bool:
    return bool(set(verdict["causes"]) & set(case["causes"]))


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}" if whole else "–"


class Figures:
    """Counts of one judge at one level."""

    def __init__(self, rows: list[tuple[Case, str, Verdict]], level: str) -> None:
        faults = [(case, verdict) for case, role, verdict in rows if role == "fault" and level in case["levels"]]
        right = [verdict for _, role, verdict in rows if role != "fault"]
        found = [(case, verdict) for case, verdict in faults if verdict["verdict"] == "fail"]
        self.level, self.faults = level, len(faults)
        self.detected = len(found)
        self.located = sum(located(case, level, verdict) for case, verdict in found)
        self.named = sum(named(case, verdict) for case, verdict in found)
        self.correct = len(right)
        self.alarms = sum(verdict["verdict"] in ("fail", "error") for verdict in right)
        self.withheld = sum(verdict["verdict"] == "inconclusive" for verdict in right)
        self.seconds = [verdict["seconds"] for _, _, verdict in rows if "seconds" in verdict]

    def row(self, name: str, causes: bool) -> str:
        time = f"{sum(self.seconds) / len(self.seconds):.2f} s" if self.seconds else "–"
        cells = [name, NAMES[self.level], share(self.detected, self.faults), share(self.located, self.faults),
                 share(self.named, self.faults) if causes else "–", share(self.alarms, self.correct), str(self.withheld), time]  # fmt: skip
        return "| " + " | ".join(cells) + " |"
