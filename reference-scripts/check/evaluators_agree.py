"""Judges the same runs of transformers with both evaluators, and compares their verdicts and first wrong sites.

    python evaluators_agree.py --xcheck target/release/xcheck --out docs/reference/evaluators-agree

Each shipped model runs in f32 and bf16, without a fault and with each fault of `faults_in_memory.py`. Every run is
recorded twice: as taps for our engine, and as outputs of modules for torch. The results are written to `OUT.json`, and
as a table to `OUT.md`. `--only NAME` limits the models, `--write` writes the page from an existing `OUT.json`.
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

import evaluators_agree_page as page  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import xcheck  # noqa: E402
from faults_in_memory import faults_of  # noqa: E402
from site_names import agreement, ratio_there  # noqa: E402
from xcheck.maps import known_map  # noqa: E402

FOLDERS = ("checkpoints/*/hf", "tests/data/architectures/*/hf")
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
PROMPT, NEW = 20, 3  # tokens
NONE = "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xcheck", type=Path, default=ROOT / "target/release/xcheck")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/reference/evaluators-agree")
    parser.add_argument("--only", nargs="*", help="names of models; default: all")
    parser.add_argument("--faults", nargs="*", help="names of faults; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="runs judged at the same time")
    parser.add_argument("--write", action="store_true", help="write the page from the existing JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kept = args.out.with_suffix(".json")
    if not args.write:
        rows = measured(args)
        kept.write_text(page.as_json(rows, versions()) + "\n")
    args.out.with_suffix(".md").write_text(page.written(json.loads(kept.read_text())))


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "transformers": transformers.__version__, "xcheck": xcheck.__version__}


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs and judges all models."""
    folders = [folder for pattern in FOLDERS for folder in sorted(ROOT.glob(pattern))]
    chosen = [folder for folder in folders if not args.only or folder.parent.name in args.only]
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.jobs) as pool, tempfile.TemporaryDirectory() as scratch:
        for folder in chosen:
            begun = time.time()
            runs = [run for dtype in TYPES for run in recorded(folder, dtype, Path(scratch), args.faults)]
            found = list(pool.map(lambda run: judged(args.xcheck, folder, run), runs))
            rows += found
            others = [row for row in found if not row["agrees"]]
            print(f"{folder.parent.name}: {len(found)} runs, {len(others)} differ, {time.time() - begun:.0f} s")
            for row in others:
                print("   ", row["dtype"], row["fault"], row["native"], row["torch"], flush=True)
    return rows


def recorded(folder: Path, dtype: str, scratch: Path, wanted: list[str] | None) -> list[dict[str, Any]]:
    """Records the runs of one model in one type: without a fault, and with each fault."""
    correct = load(folder, dtype)
    runs = []
    for name, change in {NONE: lambda model: None, **faults_of(correct)}.items():
        if wanted and name not in wanted:
            continue
        model = copy.deepcopy(correct)
        with torch.no_grad():
            change(model)
        stem = f"{folder.parent.name}-{dtype}-{len(runs)}"
        taps, modules = scratch / f"{stem}-taps.safetensors", scratch / f"{stem}-modules.safetensors"
        places = known_map(model) or xcheck.guess_map(model)
        tokens = torch.tensor([[(7 * i + 3) % (model.config.get_text_config().vocab_size - 8) + 4 for i in range(PROMPT)]])
        with torch.no_grad(), xcheck.hook(model, taps, map=places), xcheck.hook(model, modules, modules=True):
            model.generate(tokens, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
        runs.append({"dtype": dtype, "fault": name, "taps": taps, "modules": modules, "places": dict(places)})
    return runs


def load(folder: Path, dtype: str) -> Any:
    config = json.loads((folder / "config.json").read_text())
    model_class = getattr(transformers, config["architectures"][0])
    options = {"dtype": TYPES[dtype], "attn_implementation": "eager", "local_files_only": True}
    try:
        return model_class.from_pretrained(folder, experts_implementation="eager", **options).eval()
    except (TypeError, ValueError):  # an architecture without experts
        return model_class.from_pretrained(folder, **options).eval()


def judged(program: Path, folder: Path, run: dict[str, Any]) -> dict[str, Any]:
    """Judges the two dumps of a run, and compares the verdicts."""
    native = judge(program, folder, run["taps"], "native")
    other = judge(program, folder, run["modules"], "torch")
    run["taps"].unlink()
    run["modules"].unlink()
    how = agreement(native, other, run["places"])
    at_place = None if how else ratio_there(native, other, run["places"])
    for result in (native, other):
        result.pop("results", None)
    return {"torch_there": at_place, "model": folder.parent.name, "dtype": run["dtype"], "fault": run["fault"], "native": native, "torch": other,
            "agrees": how is not None, "how": how}  # fmt: skip


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
        row |= {"tap": first["tap"], "layer": first["layer"], "pass": first["pass"],
                "bound_ratio": rounded(first["bound_ratio"])}  # fmt: skip
    elif reference["verdict"] != "pass":
        row["why"] = str(reference["reason"])[:300]
    return row


def rounded(ratio: Any) -> Any:
    return None if ratio is None else float(f"{ratio:.3g}")


if __name__ == "__main__":
    main()
