"""Runs judges over PortBugs and writes docs/benchmark.md.

    python run.py                         # everything, and the page
    python run.py --only ID ...           # some cases, printed; --page then writes the page
    python run.py --check FILE            # checks a submission: figures of another judge
    python run.py --page                  # writes the page again from data/results.json
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import modules
import torch
from judges import Tensors, gate, gates, logprobs_close, xcheck
from make import HERE, Made, entries, made
from runs import IDS, LEVELS, Pass, model_folder

RESULTS = HERE / "data" / "results.json"
FEW = 5  # likeliest tokens that check_logprobs_close compares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xcheck", default=os.environ.get("XCHECK", "xcheck"), help="the program [default: $XCHECK, else xcheck]")
    parser.add_argument("--python", default=sys.executable, help="Python with torch and transformers, for other architectures")
    parser.add_argument("--only", nargs="*", help="ids of cases; they are printed, and replace those of data/results.json")
    parser.add_argument("--levels", nargs="*", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--faults", action="store_true", help="faults and their twins only")
    parser.add_argument("--check", type=Path)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    if args.check:
        from submission import check

        return check(args.check)
    if args.page:
        from page import write_page

        return write_page(json.loads(RESULTS.read_text()))
    cases = [{**case, "role": role} for case in entries("faults") for role in ("fault", "twin")]
    cases += [] if args.faults else [{**case, "role": "variant"} for case in entries("variants")]
    if args.only:
        cases = [case for case in cases if case["id"] in args.only]
    if not args.only:
        RESULTS.unlink(missing_ok=True)
    for rows in run_all(cases, args):
        for row in rows if args.only else []:
            print(json.dumps({name: value for name, value in row.items() if name != "gates"}, ensure_ascii=False), flush=True)
        keep(rows)
    if not args.only:
        from page import write_page

        write_page(json.loads(RESULTS.read_text()))


def keep(rows: list[dict[str, Any]]) -> None:
    """Adds results to those of data/results.json, so that a run that is cut off keeps its part."""
    RESULTS.parent.mkdir(exist_ok=True)
    lock = RESULTS.with_suffix(".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed: another run may write too
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    merged = {(row["id"], row["role"]): row for row in known}
    for row in rows:
        before = merged.get((row["id"], row["role"]), {"xcheck": {}})
        merged[row["id"], row["role"]] = {**row, "xcheck": {**before["xcheck"], **row["xcheck"]}}
    temporary = RESULTS.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(list(merged.values()), ensure_ascii=False))
    temporary.replace(RESULTS)
    lock.close()


def run_all(cases: list[dict[str, Any]], args: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Judges cases in groups of one model; faults are judged one by one."""
    # Variants of one model share a call, as do a fault and its twin of another architecture.
    key = lambda case: (case["model"] if case["role"] == "variant" else case["id"] + ("" if "torch" in case else case["role"]))  # noqa: E731
    groups = [list(group) for _, group in groupby(sorted(cases, key=key), key)]
    groups = [group[i : i + 20] for group in groups for i in range(0, len(group), 20)]
    start = time.monotonic()
    with ProcessPoolExecutor(args.jobs) as pool:
        for done, judged in enumerate(as_completed([pool.submit(judge, group, vars(args)) for group in groups])):
            yield judged.result()
            print(f"\r{done + 1}/{len(groups)} groups, {time.monotonic() - start:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)


def judge(cases: list[dict[str, Any]], args: dict[str, Any]) -> list[dict[str, Any]]:
    """Makes the dumps of a group, judges them at every level, and deletes them."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="portbugs-"))
    try:
        runs = [made(case, fault=case["role"] == "fault") for case in cases]
        rows = [{"id": case["id"], "role": case["role"], "xcheck": {}, "gates": gates_of(case, one)} for case, one in zip(cases, runs)]
        levels = [level for level in args["levels"] if "torch" not in cases[0] or level != "logprobs"]
        paths = {level: [folder / f"{case['id']}-{case['role']}-{level}.safetensors" for case in cases] for level in levels}
        for row in rows:
            row["builds"] = builds(args["xcheck"])
        for level in levels:
            for one, path in zip(runs, paths[level]):
                one.write(path, level)
        options, model = options_of(cases[0], args)
        # One evaluator process judges all dumps of another architecture.
        parts = [levels] if "torch" in cases[0] else [[level] for level in levels]
        for part in parts:
            judged = iter(xcheck(args["xcheck"], model, [path for level in part for path in paths[level]], folder / "report", options))
            for level in part:
                for row in rows:
                    row["xcheck"][level] = next(judged)
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@lru_cache
def builds(program: str) -> str:
    """Names the versions that judge, and the processor."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    models = [line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{version}, torch {torch.__version__}, transformers {metadata.version('transformers')}, on {os.cpu_count()} × {models[0] if models else platform.machine()}"


def options_of(case: dict[str, Any], args: dict[str, Any]) -> tuple[list[str], Path]:
    if "torch" in case:
        return ["--evaluator", "torch", "--python", args["python"]], modules.model_folder(case["torch"])
    return (["--prompt", case["prompt"]] if "prompt" in case else []), model_folder(case["model"])


def gates_of(case: dict[str, Any], run: Made | modules.MadeModules) -> dict[str, dict[str, Any]]:
    """Judges a run by the gates, against a plain run of the same type on the same tokens."""
    reference = made(case, like=None if "tokens" in case else run, plain=True)
    results: dict[str, dict[str, Any]] = {}
    for level in ("taps", "blocks", "logits"):
        ours, theirs = values(run, level), values(reference, level)
        for name, (levels, accepts) in gates(case["dtype"]).items():
            if level in levels:
                results.setdefault(name, {})[level] = gate(accepts, ours, theirs)
    if isinstance(run, Made):
        own = Made(case, plain=True)
        judged = [logprobs_close(ours, theirs) for ours, theirs in zip(tokens(run.passes), tokens(own.passes), strict=True)]
        failed = [verdict for verdict in judged if verdict["verdict"] == "fail"]
        results["check_logprobs_close"] = {"logprobs": (failed or judged)[0]}
    return results


def values(run: Made | modules.MadeModules, level: str) -> Tensors:
    """Returns the values of a level that a gate compares: no ids, no rows of padding."""
    if isinstance(run, modules.MadeModules):
        return run.values(level)
    wanted = run.case.get("taps") if level == "taps" else LEVELS[level]
    found: Tensors = {}
    for index, one in enumerate(run.passes):
        real = [row for row, sequence in enumerate(one.rows.sequence) if sequence is not None]
        for (tap, layer), value in one.taps.items():
            skip = tap in IDS or "logprob" in tap or tap.startswith("expert_")
            if not skip and (tap in wanted if wanted else True):
                by_token = len(real) < len(one.rows.tokens) and value.shape[:1] == (len(one.rows.tokens),)
                found[tap, index, layer] = value[real] if by_token else value
    return found


def tokens(passes: list[Pass]) -> list[list[tuple[int, list[int]]]]:
    """Returns the chosen token of each pass with the likeliest ones, for each sequence."""
    chosen: dict[int, list[tuple[int, list[int]]]] = {}
    for one in passes:
        for place, sequence in enumerate(one.rows.sequences()):
            likeliest = one.taps["top_ids", None][one.rows.of(sequence)[-1], :FEW].tolist()
            chosen.setdefault(sequence, []).append((int(one.taps["argmax", None].flatten()[place]), likeliest))
    return [chosen[sequence] for sequence in sorted(chosen)]


if __name__ == "__main__":
    main()
