"""Judges the same runs of transformers with both evaluators, and compares their verdicts and first wrong sites.

    python evaluators_agree.py [--xcheck target/release/xcheck] [--only tiny-llama3 ...] [--faults rope_theta ...]

Each shipped model runs in f32 and bf16, without a fault and with each fault of `faults_in_memory.py`. Every run is
recorded twice: as taps for our engine (`dump_transformers.py`), and as outputs of modules for torch (`xcheck.hook`). The
results replace those of the same models in `evaluators_agree.json`, after each model; the page is
`docs/reference/evaluators-agree.md`. `--page` writes the page alone.
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
from pathlib import Path
from typing import Any

os.environ["TQDM_DISABLE"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python/src"), str(Path(__file__).parent), str(ROOT / "reference-scripts/dump")]

import torch  # noqa: E402
import transformers  # noqa: E402
from dump_transformers import family_of, record_passes, run_passes, write_dump  # noqa: E402
from evaluators_agree_page import as_json, written  # noqa: E402
from faults_in_memory import faults_of  # noqa: E402
from site_names import Value, agreement, is_tied, order_of, ratio_there  # noqa: E402

import xcheck  # noqa: E402

FOLDERS = ("checkpoints/*/hf", "tests/data/architectures/*/hf")
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
PROMPT, NEW = 20, 2  # tokens
NONE = "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xcheck", type=Path, default=ROOT / "target/release/xcheck")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/reference/evaluators-agree.md", help="the page")
    parser.add_argument("--only", nargs="*", help="names of models; default: all")
    parser.add_argument("--faults", nargs="*", help="names of faults; default: all")
    parser.add_argument("--page", action="store_true", help="write the page from the existing results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    os.environ["OMP_NUM_THREADS"] = "1"
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if not args.page:
        measure(args)
    args.out.write_text(written(json.loads(args.results.read_text())))


def measure(args: argparse.Namespace) -> None:
    """Runs and judges all models, and writes the results of each one."""
    folders = [folder for pattern in FOLDERS for folder in sorted(ROOT.glob(pattern))]
    names = [folder.parent.name for folder in folders]
    rows = json.loads(args.results.read_text())["rows"] if args.results.exists() else []
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "xcheck": xcheck.__version__}
    run = f"a prompt of {PROMPT} tokens and {NEW} generated ones"
    for folder, name in zip(folders, names):
        if args.only and name not in args.only:
            continue
        begun = time.time()
        found = compared(args.xcheck, folder, args.faults)
        rows = [row for row in rows if row["model"] in names and row["model"] != name] + found
        rows.sort(key=lambda row: names.index(row["model"]))
        args.results.write_text(as_json({"versions": versions, "run": run, "rows": rows}))
        others = [row for row in found if row["how"] is None]
        print(f"{name}: {len(found)} runs, {len(others)} differ, {time.time() - begun:.0f} s", flush=True)
        for row in others:
            print("   ", row["dtype"], row["fault"], row["native"], row["torch"], row["torch_there"], flush=True)


def compared(program: Path, folder: Path, wanted: list[str] | None) -> list[dict[str, Any]]:
    """Judges the runs of one model with both evaluators, and compares the results."""
    correct = load(folder, "f32")
    order = order_of(correct, prompt(correct))
    check = [program, "check", "--model", folder]
    with tempfile.TemporaryDirectory() as scratch:
        runs = [run for dtype in TYPES for run in recorded(folder, dtype, Path(scratch), wanted)]
        native = judge([*check, "--evaluator", "native"], [run["taps"] for run in runs])
        options = ["--evaluator", "torch", "--python", sys.executable]
        other = judge([*check, *options], [run["modules"] for run in runs])
    return [row_of(folder.parent.name, *row, order) for row in zip(runs, native, other)]


def prompt(model: Any) -> list[int]:
    """Returns the tokens of the prompt, none of them special."""
    words = model.config.get_text_config().vocab_size - 8
    return [(7 * at + 3) % words + 4 for at in range(PROMPT)]


def recorded(folder: Path, dtype: str, scratch: Path, wanted: list[str] | None) -> list[dict[str, Any]]:
    """Records the runs of one model in one type: without a fault, and with each fault that changes a value."""
    correct = load(folder, dtype)
    runs: list[dict[str, Any]] = []
    right: dict[str, bytes] = {}  # the values without a fault
    for number, (name, change) in enumerate([(NONE, lambda model: None), *faults_of(correct).items()]):
        if wanted and name not in (NONE, *wanted):
            continue
        stem = f"{folder.parent.name}-{dtype}-{number}"
        taps, modules = scratch / f"{stem}-taps.safetensors", scratch / f"{stem}-modules.safetensors"
        with torch.no_grad():
            change(model := copy.deepcopy(correct))
            tokens = record_modules(model, modules)
            change(model := copy.deepcopy(correct))
            generated, values = record_taps(model, dtype, taps)
        assert generated == tokens, (folder, dtype, name)
        if values == right:
            continue
        right = right or values
        runs.append({"dtype": dtype, "fault": name, "taps": taps, "modules": modules})
    return runs


def record_modules(model: Any, out: Path) -> list[int]:
    """Records the outputs of modules, and returns the generated tokens."""
    with xcheck.hook(model, out, modules=True):
        return [current.greedy for current in run_passes(model, prompt(model), NEW - 1)]


def record_taps(model: Any, dtype: str, out: Path) -> tuple[list[int], dict[str, bytes]]:
    """Records all taps, and returns the generated tokens and the values."""
    family = family_of(model.config)
    passes, records = record_passes(model, family, prompt(model), NEW - 1)
    settings = {"dtype": dtype, "attention": "eager", "kv_cache": dtype, "experts": "eager", "threads": 1}
    generated = [current.greedy for current in passes]
    manifest = {
        "format": "xcheck-dump",
        "version": 1,
        "producer": {"name": "transformers", "version": transformers.__version__, "settings": settings},
        "model": {"architecture": model.config.model_type.removesuffix("_text")},
        "layout": {"rope_pairing": family.rope} if family.rope else {},
        "input": {"tokens": passes[0].tokens, "decode": "greedy"},
        "passes": [{"position": current.position, "tokens": current.tokens} for current in passes],
        "generated": generated,
    }
    write_dump(out, manifest, records)
    return generated, {record.key: record.values.tobytes() for record in records}


def load(folder: Path, dtype: str) -> Any:
    config = json.loads((folder / "config.json").read_text())
    model_class = getattr(transformers, config["architectures"][0])
    options = {"dtype": TYPES[dtype], "attn_implementation": "eager", "local_files_only": True}
    try:
        return model_class.from_pretrained(folder, experts_implementation="eager", **options).eval()
    except (TypeError, ValueError):  # an architecture without experts
        return model_class.from_pretrained(folder, **options).eval()


def judge(command: list[Any], dumps: list[Path]) -> list[dict[str, Any]]:
    """Returns the verdict and the first wrong site of each dump."""
    named = [word for dump in dumps for word in ("--candidate", dump)]
    words = [*command, *named, "--no-causes", "--format", "json", "--no-report"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}
    if report["error"] and len(dumps) > 1:
        return [row for dump in dumps for row in judge(command, [dump])]
    if report["error"]:
        return [{"verdict": "error", "why": str(report["error"])[-300:]}]
    return [described(row) for row in report["references"]]


def described(judged: dict[str, Any]) -> dict[str, Any]:
    """Returns what is compared of a verdict."""
    first = judged["first_divergence"]
    row = {"verdict": judged["verdict"], "results": judged["results"]}
    if first:
        ratio = first["bound_ratio"]
        row |= {"tap": first["tap"], "layer": first["layer"], "pass": first["pass"],
                "bound_ratio": None if ratio is None else float(f"{ratio:.3g}")}  # fmt: skip
    elif judged["verdict"] != "pass":
        row["why"] = str(judged["reason"])[:300]
    return row


def row_of(name: str, run: dict[str, Any], native: dict[str, Any], other: dict[str, Any], order: list[Value]) -> dict[str, Any]:
    """Returns the two results of a run, and how they agree."""
    how = agreement(native, other, order)
    there = ratio_there(native, other, order) if how is None else None
    tied = how is None and is_tied(native, other)
    for result in (native, other):
        result.pop("results", None)
    return {"model": name, "dtype": run["dtype"], "fault": run["fault"], "native": native, "torch": other,
            "how": how, "torch_there": there, "tied": tied}  # fmt: skip


if __name__ == "__main__":
    main()
