"""Judges tiny models and injected faults with the evaluator, and prints how often it is right.

    python measure.py --models DIR --out RESULTS.jsonl [--only NAME ...] [--faults 12] [--part 1/2]
    python measure.py --summary RESULTS.jsonl

Each line of the results is one model: its correct runs and its faults, per type and attention.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
import traceback
import zlib
from pathlib import Path
from typing import Any

import torch
from faults import Fault, affected, faults_of
from recorder import Run, run, write_dump
from run_candidate import compile_model, decode_steps, load_model, prompt, settings
from summary import ENGINES
from tiny_models import quiet
from worker import Verdict, Worker

ROUNDOFF = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
MEASURABLE = 20.0
COMPILE_SECONDS = 60  # of processor time; a longer compilation is given up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument(
        "--faults", type=int, default=12, help="faults per model in f32, a third as many in bf16; eager attention"
    )
    parser.add_argument("--causes", type=float, default=0.0, help="seconds for the causes of each fault; 0: do not ask")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="default: all of transformers")
    parser.add_argument("--part", default="1/1", help="1/2: every second model, from the first on")
    parser.add_argument("--summary", type=Path, nargs="+")
    args = parser.parse_args()
    quiet()
    if args.summary is not None:
        from summary import print_summary

        print_summary(args.summary)
        return
    part, parts = map(int, args.part.split("/"))
    made = json.loads((args.models / "models.json").read_text())["made"]
    worker = Worker()
    for name in (args.only or list(made))[part - 1 :: parts]:
        start = time.time()
        try:
            result = measure(worker, args.models / name, args.engines, args.faults, args.causes)
        except Exception:  # listed with the reason: the next model is measured all the same
            result = {"model": name, "failed": traceback.format_exc(limit=-3)[-600:]}
        result["seconds"] = round(time.time() - start, 1)
        with args.out.open("a") as out:
            out.write(json.dumps(result) + "\n")
        print_line(result)
    worker.close()


def measure(worker: Worker, path: Path, engines: list[str], count: int, cause_seconds: float) -> dict[str, Any]:
    """Judges the correct runs and the faults of one model."""
    result: dict[str, Any] = {"model": path.name, "correct": {}, "faults": {}, "unmeasurable": {}}
    plan = planned(path, count) if count else []
    for engine in engines:
        dtype, attention = engine.split()
        try:
            model, recorded = recorded_run(path, dtype, attention)
        except Exception as error:  # transformers cannot run it in this type
            result["correct"][engine] = {"error": f"no run: {type(error).__name__}: {error}"[:200]}
            continue
        if attention not in ("compiled", model.config._attn_implementation):
            result["correct"][engine] = {"error": f"no {attention} attention"}
            continue
        verdict, _ = judged(worker, path, model, recorded, dtype)
        result["correct"][engine] = described(verdict)
        if attention == "eager" and count:
            rows, dropped = [], 0
            limit = count if dtype == "f32" else count // 3
            same = {fault.name: fault for fault in faults_of(model, seed_of(path))}
            for fault, changes in plan:
                if right_modules(fault, changes, dtype) is None:
                    dropped += 1
                elif len(rows) < limit and fault.name in same:
                    row = judged_fault(worker, path, model, same[fault.name], changes, dtype, cause_seconds)
                    rows += [] if row is None else [row]
                    dropped += row is None
            result["faults"][engine], result["unmeasurable"][engine] = rows, dropped
    return result


def recorded_run(path: Path, dtype: str, attention: str) -> tuple[Any, Run]:
    """Runs a correct model: with a kind of attention, or compiled as transformers loads it by default."""
    if attention != "compiled":
        model = load_model(path, dtype, attention)
        return model, run(model, prompt(model), decode_steps(path) if attention == "eager" else 0)
    model = load_model(path, dtype, "sdpa")
    compile_model(model)
    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
    try:
        return model, run(model, prompt(model), 0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def give_up(*_: Any) -> None:
    raise TimeoutError(f"not compiled in {COMPILE_SECONDS} s of processor time")


def planned(path: Path, count: int) -> list[tuple[Fault, list[tuple[Any, float]]]]:
    """Chooses faults that change something in f64, with the sites they change."""
    model = widest_model(path)
    plan: list[tuple[Fault, list[tuple[Any, float]]]] = []
    small = large = 0
    for fault in faults_of(model, seed_of(path)):
        try:
            faulty = run(fault.make(model), prompt(model), steps(path, fault))
            changes = affected(model, faulty)
        except Exception:  # a config key that the weights' shapes or the modelling code refuse is no fault
            continue
        if changes and all(value.isfinite().all() or "score" in site.module for site, value in faulty.values.items()):
            plan.append((fault, changes))
            small += right_modules(fault, changes, "f32") is not None
            large += right_modules(fault, changes, "bf16") is not None
        if large >= count // 3 and small >= count:
            break
    return plan


def widest_model(path: Path) -> Any:
    """Returns the model in f64, or in f32 if its code creates tensors of f32 (XLNet)."""
    model = load_model(path, "f64")
    try:
        run(model, prompt(model), 0)
    except RuntimeError:
        return load_model(path, "f32")
    return model


def steps(path: Path, fault: Fault) -> int:
    """Returns the decoding steps of a faulty run: one if the fault is in the positions of decoding steps."""
    return decode_steps(path, 1) if fault.kind == "input" else 0


def seed_of(path: Path) -> int:
    return zlib.crc32(path.name.encode())


def right_modules(
    fault: Fault, changes: list[tuple[Any, float]], dtype: str, undetermined: tuple[str, ...] = ()
) -> list[str] | None:
    """Lists the right answers for the first wrong module; None if the fault is not measurable in this type.

    They are the modules that the fault changes, in order of execution, up to the first with a measurable change, and
    the module that has the changed weight or was left out.
    """
    modules = []
    for site, change in changes:
        modules.append(site.module)
        if change >= MEASURABLE * ROUNDOFF[dtype] and site.module not in undetermined:
            return [*dict.fromkeys([*modules, fault.target, fault.target.rsplit(".", 1)[0]])]
    return None


def judged_fault(
    worker: Worker, path: Path, model: Any, fault: Fault, changes: list[tuple[Any, float]], dtype: str, seconds: float
) -> dict[str, Any] | None:
    """Judges a faulty run; None if transformers cannot run it in this type."""
    faulty = fault.make(model)
    try:
        recorded = run(faulty, prompt(model), steps(path, fault))
    except RuntimeError:
        return None
    verdict, causes = judged(worker, path, model, recorded, dtype, seconds if fault.kind != "scale" else 0.0)
    right = right_modules(fault, changes, dtype, verdict.ties) or []
    row = {"fault": fault.name, "kind": fault.kind, "target": fault.target, "expected": fault.expected,
           "found": fault.found, "right": right[:6], **described(verdict)}  # fmt: skip
    if verdict.violations:
        row["first"] = verdict.violations[0].module
        row["exact"] = row["first"] in right
        if seconds:
            row["causes"], row["constants"] = causes, changed_constants(model, faulty)
            row["tied"] = tied(model, fault.target)
    return row


def tied(model: Any, target: str) -> list[str]:
    """Lists the other names of a weight."""
    weights = dict(model.named_parameters(remove_duplicate=False))
    return [name for name, weight in weights.items() if name != target and weight is weights.get(target)]


def changed_constants(model: Any, faulty: Any) -> list[list[float]]:
    """Lists the numbers kept by modules that a fault changes: expected and found."""
    pairs = set()
    for one, other in zip(model.modules(), faulty.modules()):
        for attribute, value in vars(one).items():
            found = vars(other).get(attribute)
            if isinstance(value, float) and isinstance(found, float) and value != found:
                pairs.add((value, found))
    return [list(pair) for pair in sorted(pairs)]


def judged(
    worker: Worker, path: Path, model: Any, recorded: Run, dtype: str, seconds: float = 0.0
) -> tuple[Verdict, list[dict[str, Any]]]:
    """Judges a run; asks for the causes of the first violation if `seconds` is given."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.safetensors"
        write_dump(dump, model, recorded, settings(model, dtype))
        try:
            verdict = worker.judge(path, dump)
            return verdict, worker.causes(verdict.violations[0], seconds) if seconds and verdict.violations else []
        except EOFError as error:
            return Verdict(0, 0.0, "", [], [], str(error), {}), []


def described(verdict: Verdict) -> dict[str, Any]:
    first = [[v.module, v.call, v.index, float(f"{v.ratio:.3g}"), v.over, v.count] for v in verdict.violations[:4]]
    row: dict[str, Any] = {"sites": verdict.sites, "worst": float(f"{verdict.worst:.3g}"),
                           "at": verdict.worst_module, "over": len(verdict.violations), "first_over": first}  # fmt: skip
    if verdict.ties:
        row["ties"] = len(verdict.ties)
    if verdict.missing:
        row["missing"] = [len(verdict.missing), *verdict.missing[:3]]
    if verdict.error:
        row["error"] = verdict.error[:300]
    return row


def print_line(result: dict[str, Any]) -> None:
    if "failed" in result:
        print(result["model"], "FAILED", result["failed"], flush=True)
        return
    cells = [
        f"{engine}: {row.get('error') or (row['worst'], row['over'])}" for engine, row in result["correct"].items()
    ]
    for engine, rows in result["faults"].items():
        exact = sum(row.get("exact", False) for row in rows)
        cells.append(f"faults {engine}: {sum(bool(row['over']) for row in rows)}/{exact}/{len(rows)}")
    print(f"{result['model']} {result['seconds']}s", "; ".join(map(str, cells)), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
