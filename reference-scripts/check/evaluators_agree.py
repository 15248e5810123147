"""Judges the same runs of transformers with both evaluators, and compares their verdicts and first wrong sites.

    python evaluators_agree.py [--xcheck target/release/xcheck] [--only tiny-llama3 ...] [--faults rope_theta ...]

Each shipped model runs in f32 and bf16, without a fault and with each fault of `faults_in_memory.py`. Every run is
recorded twice: as taps for our engine, and as outputs of modules for torch. The results are written to
`evaluators_agree.json`, and the page to `docs/reference/evaluators-agree.md`. `--page` writes the page alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python/src"), str(Path(__file__).parent)]

import torch  # noqa: E402
import transformers  # noqa: E402
from evaluators_agree_page import as_json, written  # noqa: E402
from faults_in_memory import faults_of  # noqa: E402
from site_names import agreement, ratio_there  # noqa: E402

import xcheck  # noqa: E402
from xcheck.maps import known_map  # noqa: E402

FOLDERS = ("checkpoints/*/hf", "tests/data/architectures/*/hf")
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
PROMPT, NEW = 20, 3  # tokens
NONE = "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xcheck", type=Path, default=ROOT / "target/release/xcheck")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/reference/evaluators-agree.md", help="the page")
    parser.add_argument("--only", nargs="*", help="names of models; default: all")
    parser.add_argument("--faults", nargs="*", help="names of faults; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="runs judged at the same time")
    parser.add_argument("--page", action="store_true", help="write the page from the existing results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if not args.page:
        args.results.write_text(as_json(measured(args)))
    args.out.write_text(written(json.loads(args.results.read_text())))


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Runs and judges all models."""
    folders = [folder for pattern in FOLDERS for folder in sorted(ROOT.glob(pattern))]
    rows: list[dict[str, Any]] = []
    places: dict[str, dict[str, str]] = {}
    with ThreadPoolExecutor(args.jobs) as pool, tempfile.TemporaryDirectory() as scratch:
        for folder in folders:
            name, begun = folder.parent.name, time.time()
            if args.only and name not in args.only:
                continue
            places[name] = places_of(load(folder, "f32"))
            runs = [run for dtype in TYPES for run in recorded(folder, dtype, Path(scratch), places[name], args.faults)]
            found = list(pool.map(lambda run: judged(args.xcheck, folder, run, places[name]), runs))  # noqa: B023
            rows += found
            others = [row for row in found if agreement(row["native"], row["torch"], places[name]) is None]
            print(f"{name}: {len(found)} runs, {len(others)} differ, {time.time() - begun:.0f} s", flush=True)
            for row in others:
                print("   ", row["dtype"], row["fault"], row["native"], row["torch"], flush=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "xcheck": xcheck.__version__}
    run = f"a prompt of {PROMPT} tokens and {NEW} generated ones"
    return {"versions": versions, "run": run, "places": places, "rows": rows}


def places_of(model: Any) -> dict[str, str]:
    """Returns the map of taps to modules with which a model is recorded."""
    return dict(known_map(model) or xcheck.guess_map(model))


def recorded(
    folder: Path, dtype: str, scratch: Path, places: dict[str, str], wanted: list[str] | None
) -> list[dict[str, Any]]:
    """Records the runs of one model in one type: without a fault, and with each fault."""
    correct = load(folder, dtype)
    words = correct.config.get_text_config().vocab_size - 8
    tokens = torch.tensor([[(7 * at + 3) % words + 4 for at in range(PROMPT)]])
    runs = []
    for name, change in {NONE: lambda model: None, **faults_of(correct)}.items():
        if wanted and name not in wanted:
            continue
        model = copy.deepcopy(correct)
        with torch.no_grad():
            change(model)
        stem = f"{folder.parent.name}-{dtype}-{len(runs)}"
        taps, modules = scratch / f"{stem}-taps.safetensors", scratch / f"{stem}-modules.safetensors"
        with torch.no_grad(), xcheck.hook(model, taps, map=places), xcheck.hook(model, modules, modules=True):
            model.generate(tokens, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
        runs.append({"dtype": dtype, "fault": name, "taps": taps, "modules": modules})
    return runs


def load(folder: Path, dtype: str) -> Any:
    config = json.loads((folder / "config.json").read_text())
    model_class = getattr(transformers, config["architectures"][0])
    options = {"dtype": TYPES[dtype], "attn_implementation": "eager", "local_files_only": True}
    try:
        return model_class.from_pretrained(folder, experts_implementation="eager", **options).eval()
    except (TypeError, ValueError):  # an architecture without experts
        return model_class.from_pretrained(folder, **options).eval()


def judged(program: Path, folder: Path, run: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """Judges the two dumps of a run."""
    native = judge(program, folder, run["taps"], "native")
    other = judge(program, folder, run["modules"], "torch")
    run["taps"].unlink()
    run["modules"].unlink()
    is_same = agreement(native, other, places) is not None
    there = None if is_same else ratio_there(native, other, places)
    for result in (native, other):
        result.pop("results", None)
    return {"model": folder.parent.name, "dtype": run["dtype"], "fault": run["fault"], "native": native, "torch": other,
            "torch_there": there}  # fmt: skip


def judge(program: Path, folder: Path, dump: Path, evaluator: str) -> dict[str, Any]:
    """Returns the verdict and the first wrong site of a dump."""
    command = [program, "check", "--model", folder, "--candidate", dump, "--evaluator", evaluator, "--no-causes"]
    command += ["--format", "json", "--no-report"]
    command += ["--python", sys.executable] if evaluator == "torch" else []
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}
    if report.get("error"):
        return {"verdict": "error", "why": str(report["error"])[-300:]}
    (reference,) = report["references"]
    first = reference["first_divergence"]
    row = {"verdict": reference["verdict"], "results": reference["results"]}
    if first:
        ratio = first["bound_ratio"]
        row |= {"tap": first["tap"], "layer": first["layer"], "pass": first["pass"],
                "bound_ratio": None if ratio is None else float(f"{ratio:.3g}")}  # fmt: skip
    elif reference["verdict"] != "pass":
        row["why"] = str(reference["reason"])[:300]
    return row


if __name__ == "__main__":
    main()
