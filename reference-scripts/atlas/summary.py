"""Prints measured results as tables: false alarms, and faults detected, located and named."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

ENGINES = ["f32 eager", "f32 sdpa", "f32 compiled", "bf16 eager", "bf16 sdpa", "bf16 compiled"]  # of transformers
OTHERS = ["mlx-lm", "llama.cpp", "vllm", "sglang"]  # in f32


def read_results(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """Reads results; the last line of a model counts, and its correct runs and faults may be in different lines."""
    models: dict[str, dict[str, Any]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "failed" in row:
                models.setdefault(row["model"], row)
                continue
            old = models.get(row["model"], {})
            old = {} if "failed" in old else old
            models[row["model"]] = {
                **old,
                **row,
                "faults": {**old.get("faults", {}), **row["faults"]},
                "correct": {**old.get("correct", {}), **row["correct"]},
                "unmeasurable": {**old.get("unmeasurable", {}), **row["unmeasurable"]},
            }
    return dict(sorted(models.items()))


def alarms(models: dict[str, dict[str, Any]]) -> list[str]:
    """Lists false alarms: model, engine, module, bound ratio."""
    lines = []
    for name, row in models.items():
        for engine, run in row.get("correct", {}).items():
            if run.get("over"):
                module, call, index, ratio, over, count = run["first_over"][0]
                lines.append(f"{name} | {engine} | {run['over']} of {run['sites']} sites | {module} (call {call}, pass {index}) "
                             f"| {ratio} | {over} of {count} values | worst {run['worst']} at {run['at']}")  # fmt: skip
    return lines


def problems(models: dict[str, dict[str, Any]]) -> list[str]:
    """Lists models that could not be judged, and recorded arrays without an exact value."""
    lines = [
        f"{name} | {row['failed'].strip().splitlines()[-1][:200]}" for name, row in models.items() if "failed" in row
    ]
    for name, row in models.items():
        for engine, run in row.get("correct", {}).items():
            if run.get("error"):
                lines.append(f"{name} | {engine} | {run['error'][:200]}")
            elif run.get("missing"):
                lines.append(f"{name} | {engine} | missing {run['missing'][0]}: {run['missing'][1][:120]}")
    return lines


def cause_of(row: dict[str, Any]) -> str:
    """Says how the causes of a fault fit: named, among (one of several), unnamed, or wrong (none fits)."""
    causes = [cause for cause in row.get("causes", []) if cause.get("message") == "cause"]
    fitting = [cause for cause in causes if fits(row, cause)]
    if not causes:
        return "unnamed"
    if not fitting:
        return "wrong"
    return "named" if len(causes) == len(fitting) else "among"


def fits(row: dict[str, Any], cause: dict[str, Any]) -> bool:
    """True if a cause is the injected fault.

    A constant is right if it has the values of the fault, or of a number that a module derives from the changed key.
    An operation is right if the fault is an operation left out: the evaluator has checked the place by every value.
    """
    text = " ".join(str(cause.get(key, "")) for key in ("what", "key"))
    target = row["target"].split(".")[-1] if row["kind"] in ("config", "constant") else row["target"]
    if any(name in text for name in (target, *row.get("tied", []))):
        return True
    if row["kind"] == "operation" and cause.get("kind") == "operation":
        return True
    pairs = [(row["expected"], row["found"]), *row.get("constants", [])]
    numbers = re.findall(r"[-+]?\d[\d.e+-]*", text)  # of "another number, such as 1e-05"
    return any(
        close(cause.get("expected"), one) and any(close(found, other) for found in (cause.get("found"), *numbers))
        for one, other in pairs
    )


def close(one: Any, other: Any) -> bool:
    try:
        return abs(float(one) - float(other)) <= 0.01 * abs(float(other))
    except (TypeError, ValueError):
        return False


def count_faults(models: dict[str, dict[str, Any]], engine: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in models.values():
        counts["unmeasurable"] += row.get("unmeasurable", {}).get(engine, 0)
        for fault in row.get("faults", {}).get(engine, []):
            if fault.get("error"):
                counts["error"] += 1
                continue
            if fault.get("ties") and not fault["over"]:
                counts["undetermined"] += 1
                continue
            counts["faults"] += 1
            counts["detected"] += bool(fault["over"])
            counts["exact"] += fault.get("exact", False)
            if "causes" in fault and fault["kind"] != "scale":
                counts["asked"] += 1
                counts[cause_of(fault)] += 1
    return counts


def print_summary(paths: list[Path]) -> None:
    models = read_results(paths)
    print(f"{len(models)} models")
    for engine in ENGINES:
        runs = [row["correct"][engine] for row in models.values() if engine in row.get("correct", {})]
        runs = [run for run in runs if not run.get("error")]
        bad = sum(bool(run["over"]) for run in runs)
        sites, over = sum(run["sites"] for run in runs), sum(run["over"] for run in runs)
        print(f"correct {engine}: {len(runs)} runs, {bad} with false alarms ({over} of {sites} sites)")
    for engine in ("f32 eager", "bf16 eager"):
        print(f"faults {engine}: {dict(count_faults(models, engine))}")
    print("\nfalse alarms", *alarms(models), sep="\n  ")
    print("\nnot judged", *problems(models), sep="\n  ")
    print("\nmissed or misplaced faults")
    for name, row in models.items():
        for engine, faults in row.get("faults", {}).items():
            for fault in faults:
                if not fault.get("exact"):
                    first = fault.get("first", f"missed, worst {fault['worst']} at {fault['at']}")
                    print(
                        f"  {name} | {engine} | {fault['fault']} | first {first} | right {fault['right'][:4]} {fault.get('error', '')}"
                    )
