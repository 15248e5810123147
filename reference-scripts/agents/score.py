#!/usr/bin/env python3
"""Counts which engines of make_engines.py agents repaired: score.py OUT --truth TRUTH.json [--json LOG.json] [--markdown LOG.md]

Each engine is built, run and judged again with its run.sh. Its dump is also compared with that of the same engine without faults:
an engine is right if no array that this one recorded differs by more than a bound (common.py), and wrong otherwise. What the agent declared is
read from declared.json. An engine that an agent declared right and that is wrong is a missed fault. Ends with status 1 if there is
one.

Needs numpy and safetensors (requirements.txt), cc and rustc.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from common import LARGEST, difference

COLUMNS = ("engine", "language", "model", "faults", "declared", "rounds", "xcheck", "difference", "site", "right")

LONGEST = 300  # seconds of run.sh


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def declared(folder: Path) -> dict:
    try:
        told = json.loads((folder / "declared.json").read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def judge(folder: Path, xcheck: str | None) -> dict:
    """The report of run.sh. Its line in rounds.log is removed: the round was not the agent's."""
    log = folder / "rounds.log"
    before = log.read_text() if log.exists() else None
    environment = os.environ | ({"XCHECK": xcheck} if xcheck else {})
    try:
        output = subprocess.run([folder / "run.sh"], env=environment, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return {"error": f"run.sh took more than {LONGEST} s"}
    finally:
        log.unlink(missing_ok=True) if before is None else log.write_text(before)
    try:
        return json.loads(output.stdout)
    except ValueError:
        return {"error": output.stdout + output.stderr}


def compare(folder: Path, base: Path) -> tuple[float, str]:
    dump = folder / "dump.safetensors"
    try:
        return difference(dump, base) if dump.exists() else (float("inf"), "no dump")
    except (SystemExit, KeyError, ValueError, OSError) as error:
        return float("inf"), f"the dump cannot be read: {error}"


def score(folder: Path, truth: dict, base: Path, xcheck: str | None) -> dict:
    report = judge(folder, xcheck)
    found, site = compare(folder, base)
    told, calls = declared(folder), lines(folder / "rounds.log")
    return {
        "engine": truth["engine"],
        "language": truth["language"],
        "model": truth["model"],
        "faults": len(truth["faults"]),
        "declared": told.get("verdict", "none"),
        "rounds": told.get("rounds"),
        "calls": calls,
        "xcheck": report.get("verdict", "error"),
        "sentence": (report.get("dump") or {}).get("sentence"),
        "difference": found if found != float("inf") else "inf",
        "site": site,
        "right": found <= LARGEST,
        "names": [fault["name"] for fault in truth["faults"]],
    }


def summary(rows: list[dict]) -> dict:
    def count(holds) -> int:
        return sum(1 for row in rows if holds(row))

    return {
        "engines": len(rows),
        "repaired": count(lambda row: row["right"]),
        "repaired and declared right": count(lambda row: row["right"] and row["declared"] == "right"),
        "declared right while wrong": count(lambda row: not row["right"] and row["declared"] == "right"),
        "passed by xcheck while wrong": count(lambda row: not row["right"] and row["xcheck"] == "pass"),
        "failed by xcheck while right": count(lambda row: row["right"] and row["xcheck"] == "fail"),
        "more than four calls of run.sh": count(lambda row: len(row["calls"]) > 4),
    }


def cell(value: object) -> str:
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def markdown(rows: list[dict], total: dict) -> str:
    table = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    table += [f"| {' | '.join(cell(row[column]) for column in COLUMNS)} |" for row in rows]
    return "\n".join([*table, "", *(f"- {name}: {value}" for name, value in total.items())]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--xcheck", help="another program than that of run.sh")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    dumps = args.truth.with_name(f"{args.truth.stem}-dumps")
    engines = json.loads(args.truth.read_text())["engines"]
    rows = [
        score(args.out / each["engine"], each, dumps / f"{each['engine']}.safetensors", args.xcheck) for each in engines
    ]
    total = summary(rows)
    text = markdown(rows, total)
    print(text, end="")
    if args.markdown:
        args.markdown.write_text(text)
    if args.json:
        args.json.write_text(json.dumps({"summary": total, "engines": rows}, indent=1) + "\n")
    sys.exit(1 if total["declared right while wrong"] else 0)


if __name__ == "__main__":
    main()
