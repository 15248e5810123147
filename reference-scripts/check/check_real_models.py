#!/usr/bin/env python3
"""Tries the judge on a real trained model: sound dumps must not fail, and planted faults must.

- A dump that was made from the very model may pass, or be inconclusive where it holds too little; it must not fail,
  whatever build of the engine made it and whatever was left out of it.
- The full dump named by --full must pass: otherwise that it fails against a faulty model says nothing.
- Against each faulty model of faults.json that dump must fail, first at the tap and layer that faults.json names, and
  the cause that is found, if one is, must be the one that was planted.

Prints two tables with the time of each run, and counts; ends with status 1 where anything is not so. --only and --skip
take parts of dumps' names, as in `--only .short. --skip native`.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

TEXT_LIMIT = 140  # of a sentence in the table

# The kind of a cause by the beginning of a fault's name; all others change elements of a weight.
KINDS = {"eps": "norm_eps", "rope-base": "rope_theta", "q-of-two-layers": "layer_order"}
UNNAMED = {"partial", "unknown"}


@dataclass(frozen=True)
class Run:
    """What xcheck said of one model and one dump."""

    verdict: str  # pass, fail, inconclusive, or "error" where there is no report
    reason: str
    divergence: dict | None
    coverage: dict
    findings: list
    seconds: float

    @property
    def place(self) -> str:
        """The first divergence, or a dash."""
        if self.divergence is None:
            return "-"
        return shown_place(self.divergence["tap"], self.divergence["layer"]) + f" pass {self.divergence['pass']}"

    @property
    def cause(self) -> str:
        """The first cause, or a dash where none is named."""
        if not self.findings or self.findings[0]["kind"] in UNNAMED:
            return "-"
        return self.findings[0]["kind"]


def shown_place(tap: str, layer: int | None) -> str:
    return tap if layer is None else f"{tap} layer {layer}"


def run(xcheck: Path, model: Path, dump: Path, options: list[str]) -> Run:
    words = [xcheck, "run", "--model", model, "--reference", dump, "--no-report", "--format", "json", *options]
    start = time.monotonic()
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    seconds = time.monotonic() - start
    try:
        report = json.loads(done.stdout)
        (reference,) = report["references"]
        coverage, findings = reference["coverage"], reference["findings"]
        reason, divergence = reference["reason"] or "", reference["first_divergence"]
        return Run(report["verdict"], reason, divergence, coverage, findings, seconds)
    except (ValueError, KeyError) as problem:
        said = done.stderr.strip() or f"no report: {problem!r}"
        return Run("error", f"status {done.returncode}: {said}", None, {}, [], seconds)


def cell(text: str) -> str:
    line = " ".join(text.split())
    return (line if len(line) <= TEXT_LIMIT else line[: TEXT_LIMIT - 1] + "…").replace("|", "\\|")


def table(head: list[str]) -> None:
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|", flush=True)


def row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def chosen(dumps: Path, only: list[str], skip: list[str]) -> list[Path]:
    names = sorted(dumps.glob("*.safetensors"))
    kept = [name for name in names if not only or any(part in name.name for part in only)]
    return [name for name in kept if not any(part in name.name for part in skip)]


def check_dumps(xcheck: Path, model: Path, dumps: list[Path], full: Path | None, options: list[str]) -> list[str]:
    """One row per dump; what is wrong with them."""
    wrong, counts = [], Counter()
    table(["", "dump", "MB", "verdict", "taps", "first divergence", "s", "reason"])
    for dump in dumps:
        result = run(xcheck, model, dump, options)
        must_pass = full is not None and dump.samefile(full)
        is_right = result.verdict == "pass" or (result.verdict == "inconclusive" and not must_pass)
        counts[result.verdict] += 1
        if not is_right:
            wrong.append(f"{dump.name}: {result.verdict}" + (", and it has to pass" if must_pass else ""))
        size = f"{dump.stat().st_size / 1e6:.1f}"
        taps = f"{result.coverage.get('taps_compared', 0)}/{result.coverage.get('taps_expected', 0)}"
        name = dump.name.removesuffix(".safetensors")
        mark = "" if is_right else "WRONG"
        row([mark, name, size, result.verdict, taps, result.place, f"{result.seconds:.1f}", cell(result.reason)])
    print(f"\n{len(dumps)} dumps: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "\n")
    return wrong


def check_faults(xcheck: Path, faults: Path, full: Path, options: list[str]) -> list[str]:
    """One row per faulty model; what is wrong with them."""
    wrong, caught, named = [], 0, 0
    planted = json.loads((faults / "faults.json").read_text())
    table(["", "fault", "verdict", "expected", "found", "cause", "s", "reason"])
    for fault in planted:
        result = run(xcheck, faults / fault["file"], full, options)
        expected = (fault["tap"], fault["layer"])
        place = shown_place(*expected)
        found = result.divergence and (result.divergence["tap"], result.divergence["layer"])
        kinds = (kind for name, kind in KINDS.items() if fault["fault"].startswith(name))
        is_named = result.cause == next(kinds, "weight_corruption")
        named += is_named
        is_right = result.verdict == "fail" and found == expected and (is_named or result.cause == "-")
        caught += is_right
        if not is_right:
            wrong.append(f"{fault['fault']}: {result.verdict} at {result.place}, {result.cause}, expected fail at {place}")
        mark = "" if is_right else "WRONG"
        seconds, reason = f"{result.seconds:.1f}", cell(result.reason)
        row([mark, fault["fault"], result.verdict, place, result.place, result.cause, seconds, reason])
    print(f"\n{len(planted)} faults: {caught} named at the right place, {named} with their cause\n")
    return wrong if planted else ["faults.json names no fault"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xcheck", type=Path, required=True, help="the program")
    parser.add_argument("--model", type=Path, required=True, help="the sound GGUF file")
    parser.add_argument("--dumps", type=Path, required=True, help="folder of make_real_dumps.py")
    parser.add_argument("--full", type=Path, help="the full dump that must pass, and must fail against faulty models")
    parser.add_argument("--faults", type=Path, help="folder of plant_faults_gguf.py")
    parser.add_argument("--only", action="append", default=[], help="part of the names of the dumps to check")
    parser.add_argument("--skip", action="append", default=[], help="part of the names of the dumps not to check")
    parser.add_argument("--option", action="append", default=[], help="handed to xcheck run, as --option=--introduced")
    options = parser.parse_args()
    if options.faults and not options.full:
        parser.error("--faults needs --full")

    dumps = chosen(options.dumps, options.only, options.skip)
    if options.full and not any(dump.samefile(options.full) for dump in dumps):
        dumps.append(options.full)
    if not dumps:
        parser.error(f"{options.dumps}: no dump with such a name")
    wrong = check_dumps(options.xcheck, options.model, dumps, options.full, options.option)
    if options.faults:
        wrong += check_faults(options.xcheck, options.faults, options.full, options.option)
    print("\n".join(f"WRONG: {one}" for one in wrong) or "all as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
