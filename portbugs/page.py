"""Writes docs/benchmark.md from the results of run.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import HEADER, NAMES, Case, Figures, Verdict, located, named
from make import HERE, entries
from runs import LEVELS
from submission import submission_rows

PAGE = HERE.parent / "docs" / "benchmark.md"


def write_page(results: list[dict[str, Any]]) -> None:
    faults = {case["id"]: case for case in entries("faults")}
    variants = {case["id"]: case for case in entries("variants")}
    cases = {**faults, **variants}
    order = {name: place for place, name in enumerate(cases)}
    results = sorted((row for row in results if row["id"] in cases), key=lambda row: (order[row["id"]], row["role"]))

    def rows(pick: Callable[[dict[str, Any]], Verdict | None]) -> list[tuple[Case, str, Verdict]]:
        return [(cases[row["id"]], row["role"], verdict) for row in results if (verdict := pick(row))]

    ours = {level: Figures(rows(lambda row: row["xcheck"].get(level)), level) for level in LEVELS}
    gates = list(dict.fromkeys(name for row in results for name in row["gates"]))
    table = [ours[level].row("xcheck", True) for level in LEVELS]
    for name in gates:
        for level in LEVELS:
            # The same runs as xcheck's, so that the rows can be compared.
            judged = rows(lambda row: row["gates"].get(name, {}).get(level) if level in row["xcheck"] else None)
            if judged:
                table.append(Figures(judged, level).row(name, False))
    for path in sorted((HERE / "submissions").glob("*.json")):
        table += submission_rows(json.loads(path.read_text()))
    judged = {(row["id"], row["role"], level) for row in results for level in row["xcheck"]}
    runs = [(name, role, level) for name in faults for role in ("fault", "twin") for level in levels_of(faults[name])]
    runs += [(name, "variant", level) for name in variants for level in LEVELS]
    missing = dict.fromkeys(name for name, role, level in runs if (name, role, level) not in judged)
    builds = "; ".join(sorted({row["builds"] for row in results}))
    partial = f"\n\nNot judged for this page at one level at least: {', '.join(missing)}." if missing else ""
    text = TEXT.format(
        partial=partial, builds=builds, faults=len(faults), twins=len(faults), variants=len(variants), header=HEADER, table="\n".join(table),
        kinds=by_kind(results, faults), alarms=alarms(results, cases), withheld=withheld(results), misses=misses(results, faults),
    )  # fmt: skip
    PAGE.write_text(text)


def levels_of(case: Case) -> list[str]:
    """Lists the levels at which a case is judged: modules of other architectures have no log-probabilities."""
    return [level for level in LEVELS if "torch" not in case or level != "logprobs"]


def by_kind(results: list[dict[str, Any]], faults: dict[str, Case]) -> str:
    """One row for each kind of fault, with all taps and with block outputs."""
    lines = []
    for kind in dict.fromkeys(case["kind"] for case in faults.values()):
        judged = [row for row in results if row["role"] == "fault" and faults[row["id"]]["kind"] == kind]
        cells = [kind]
        for level in ("taps", "blocks", "logits"):
            f = Figures([(faults[row["id"]], "fault", row["xcheck"][level]) for row in judged if level in row["xcheck"]], level)
            cells.append(f"{f.detected} / {f.located} / {f.named} of {f.faults}" if f.faults else "–")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def misses(results: list[dict[str, Any]], faults: dict[str, Case]) -> str:
    """One row for each fault that is not detected, located and named at each level where it shows."""
    lines = []
    for row in results:
        if row["role"] != "fault":
            continue
        case = faults[row["id"]]
        judged = {level: row["xcheck"].get(level) for level in levels_of(case) if level in case["levels"]}
        cells = [shortcoming(case, level, verdict) if verdict else "not judged" for level, verdict in judged.items()]
        if any(cells):
            shown = dict(zip(judged, cells))
            causes = ", ".join(f"`{cause}`" for cause in case["causes"]) or "outside of the catalogue"
            lines.append("| " + " | ".join([row["id"], *(shown.get(level, "–") or "" for level in LEVELS), causes]) + " |")
    return "\n".join(lines)


def shortcoming(case: Case, level: str, verdict: Verdict) -> str:
    """Says what is missing or wrong in a verdict; empty if nothing is."""
    if verdict["verdict"] != "fail":
        return f"not detected: {verdict['verdict']}"
    parts = []
    if not located(case, level, verdict):
        site = verdict["site"] or {}
        layer = f" layer {site['layer']}" if site.get("layer") is not None else ""
        parts.append(f"at {site.get('tap')}{layer} pass {site.get('pass')}")
    if not named(case, verdict):
        given = ", ".join(f"`{cause}`" for cause in verdict["causes"])
        parts.append(f"named {given}" if given else f"no name ({verdict.get('unclear') or 'none given'})")
    return "; ".join(parts)


def alarms(results: list[dict[str, Any]], cases: dict[str, Case]) -> str:
    """Lists the correct runs that fail, with the report's sentence."""
    lines = []
    for row in results:
        for level, verdict in row["xcheck"].items():
            if row["role"] != "fault" and verdict["verdict"] in ("fail", "error"):
                sentence = str(verdict["sentence"] or verdict["verdict"]).partition(": ")
                name = row["id"] + (" (twin)" if row["role"] == "twin" else "")
                told = (sentence[2] or sentence[0]).replace("|", "/")
                lines.append(f"| {name} | {cases[row['id']]['kind']} | {NAMES[level]} | {told} |")
    return "| run | kind | recorded | report |\n|---|---|---|---|\n" + "\n".join(lines) if lines else "None."


def withheld(results: list[dict[str, Any]]) -> str:
    """Lists the correct runs that are inconclusive, by level."""
    lines = []
    for level in LEVELS:
        names = [row["id"] for row in results if row["role"] != "fault" and row["xcheck"].get(level, {}).get("verdict") == "inconclusive"]
        lines.append(f"- {NAMES[level]}: " + (", ".join(names) or "none"))
    return "\n".join(lines)


TEXT = """# PortBugs: how well judges find real faults

Use this page to compare xcheck with the gates that engines commonly use, and to see what xcheck misses. A **gate** is a
rule with a limit, such as cosine ≥ 0.99. A **judge** is a gate or a tool. The set has {faults} faults from public reports
of inference engines, {twins} correct twins (the same run without the fault), and {variants} correct variants. Its
[README](../portbugs/README.md) describes it, and how to run another judge. This page is generated by
`python portbugs/run.py`.

- **Detected**: the verdict of the faulty run is fail. A fault counts at a level only if it changes a value recorded there.
- **Located**: the report gives the first wrong tap, layer and pass. With block outputs, the layer and pass are enough;
  with logits or log-probabilities, the pass.
- **Named**: the first finding that xcheck's rerun of the model does not contradict names a right cause, alone or among
  equivalent causes. Two faults have no right name in xcheck's list and count as not named.
- **False alarms**: correct runs that fail. *Withheld*: correct runs that are inconclusive.

Gates compare the run with a reference run of the same dtype on the same tokens. They do not compare chosen experts or
log-probabilities. `check_logprobs_close` compares generated tokens. xcheck gets the model and no reference run. Its search for causes has the default limit of 10 s of wall-clock time, so a busy machine names fewer faults. Times
are wall-clock times.

Made with {builds}.{partial}

## Judges

{header}
{table}

## Kinds of faults

xcheck: detected / located / named.

| kind | all taps | block outputs and logits | logits |
|---|---|---|---|
{kinds}

## What xcheck misses

Each row is a fault that is not detected, not located, or not named at one level of recording or more. A cell states
what xcheck missed, and the reason: the causes that were tried, the nearest cause, NaN or infinity in the dump (no
search), or the time limit. An empty cell means detected, located and named. "–" means that the fault changes no
recorded value of that level, or that the level is not recorded (log-probabilities of models judged with torch). The
last column has the accepted causes.

| fault | all taps | block outputs and logits | logits | log-probabilities | right |
|---|---|---|---|---|---|
{misses}

## False alarms of xcheck

{alarms}

Inconclusive, with the reason in the report (mostly choices of experts that rounding can change, a noise floor that is too
high, and 8-bit caches without recorded scales):

{withheld}
"""
