"""Runs tiny models with other engines, and judges their values with the evaluator.

    python measure_engines.py mlx-lm --models DIR --out RESULTS.jsonl --python VENV/bin/python
    python measure_engines.py llama.cpp --models DIR --out RESULTS.jsonl --llama-cpp SOURCE --dump VENV/bin/dump_llama_cpp
    python measure_engines.py vllm --models DIR --out RESULTS.jsonl --python VENV/bin/python
    python measure_engines.py sglang --models DIR --out RESULTS.jsonl --python VENV/bin/python

VENV has ../requirements-mlx.txt, is made by ../dump/build_dump_llama_cpp.sh, or has vLLM (../engines/vllm) or SGLang
(../engines/sglang). SOURCE is vendor/llama.cpp of the source distribution of llama-cpp-python. The results are lines for
make_atlas.py.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from convert_gguf import convert
from run_candidate import decode_steps
from sizes import TOWERS
from tiny_models import quiet
from worker import Verdict, Worker
from xcheck.evaluator.candidate import open_dump

HERE = Path(__file__).parent
TOKENS = ",".join(str((7 * at + 3) % 90 + 4) for at in range(12))
SECONDS = 15  # for the causes of a wrong value
LIMIT = 600  # seconds for each program
ERROR = re.compile(r"(\w*Error|ERROR[^ ]*|error):")


class NoRun(Exception):
    """An engine cannot run a model; the last line that its program wrote."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--models", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--python", type=Path, help="Python with mlx-lm, vLLM or SGLang")
    parser.add_argument("--llama-cpp", type=Path, help="sources of llama.cpp, with its converter")
    parser.add_argument("--dump", type=Path, help="the program dump_llama_cpp")
    args = parser.parse_args()
    quiet()
    worker = Worker()
    for name in args.only or json.loads((args.models / "models.json").read_text())["made"]:
        cell = measured(worker, args, args.models / name)
        row = {"model": name, "correct": {args.engine: cell}, "faults": {}, "unmeasurable": {}}
        with args.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(name, cell, flush=True)
    worker.close()


def measured(worker: Worker, args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Runs one model, and returns its verdict as results.json has it."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.safetensors"
        try:
            ENGINES[args.engine](args, model, Path(folder), dump)
            verdict = worker.judge(model, dump)
        except NoRun as error:
            return {"verdict": "no run", "why": str(error)[:160]}
        except EOFError as error:
            return {"verdict": "error", "why": str(error)[:160]}
        causes = worker.causes(verdict.violations[0], SECONDS) if verdict.violations else []
        version = open_dump(str(dump)).manifest["producer"]["version"]
    return {**described(verdict, causes), "version": version}


def described(verdict: Verdict, causes: list[dict[str, Any]]) -> dict[str, Any]:
    if verdict.error:
        return {"verdict": "error", "why": verdict.error[:160]}
    cell: dict[str, Any] = {"verdict": "fail" if verdict.violations else "pass", "worst": float(f"{verdict.worst:.3g}"),
                            "sites": verdict.sites}  # fmt: skip
    if verdict.violations:
        first = verdict.violations[0]
        cell["first"] = first.module if first.call is None else f"{first.module}, layer {first.call}"
        cell["worst"] = float(f"{first.ratio:.3g}")
        named = [cause["what"] for cause in causes if cause["message"] == "cause"]
        if named:
            cell["cause"] = named[0]
    if verdict.missing:
        cell["missing"] = len(verdict.missing)
        cell["why"] = verdict.missing[0][:160]
    return cell


def mlx_lm(args: argparse.Namespace, model: Path, folder: Path, dump: Path) -> None:
    """Records a run of mlx-lm."""
    call(args.python, HERE / "record_mlx_lm.py", older(model, folder), "--out", dump)


def llama_cpp(args: argparse.Namespace, model: Path, folder: Path, dump: Path) -> None:
    """Converts a model to F32 GGUF, and records a run of llama.cpp with a KV cache of the same type."""
    if model.name in TOWERS:
        raise NoRun("an encoder, and dump_llama_cpp decodes")
    gguf = folder / "model.gguf"
    try:
        convert(args.llama_cpp, older(model, folder), gguf)
    except (Exception, SystemExit) as error:  # the converter knows no such architecture, or not this variant
        raise NoRun(f"converter: {type(error).__name__}: {error}") from error
    steps = decode_steps(model)
    call(args.dump, "--model", gguf, "--kv", "f32", "--decode", steps, "--tokens", TOKENS, "--out", dump)


def older(model: Path, folder: Path) -> Path:
    """Returns a copy of the model whose configuration has the keys of transformers 4, too."""
    copy = folder / model.name
    call(sys.executable, HERE.parent / "dump/older_config.py", "--model", model, "--out", copy)
    return copy


def vllm(args: argparse.Namespace, model: Path, folder: Path, dump: Path) -> None:
    """Records a run of vLLM, whose attention on the CPU needs heads of 32 values or more."""
    script = HERE.parent / "engines/vllm/dump_vllm.py"
    call(args.python, script, "--model", older(model, folder), "--tokens", TOKENS, "--out", dump)


def sglang(args: argparse.Namespace, model: Path, folder: Path, dump: Path) -> None:
    """Records a run of SGLang with torch's attention."""
    script = HERE.parent / "engines/sglang/dump_sglang.py"
    call(args.python, script, "--model", older(model, folder), "--tokens", TOKENS, "--out", dump)


def call(*command: Any) -> None:
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
        raise NoRun(f"{command[1]}: not finished after {LIMIT} s") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
        raise NoRun(next((line for line in reversed(lines) if ERROR.match(line)), lines[-1]))


ENGINES = {"mlx-lm": mlx_lm, "llama.cpp": llama_cpp, "vllm": vllm, "sglang": sglang}

if __name__ == "__main__":
    main()
