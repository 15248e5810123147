#!/usr/bin/env python3
"""Writes twenty small engines with one to three faults each: make_engines.py OUT --truth TRUTH.json --xcheck PROGRAM

A coding agent repairs them with xcheck as its only oracle (prompt.md), and score.py counts how often it declares an engine right that
is wrong. An engine is a folder with its source and run.sh. The faults are in TRUTH.json alone, and the dumps of the engines without
faults are in the folder TRUTH-dumps.

Every engine without faults must pass, every subset of its faults must change its dump, and the engine with all of them must fail: else
the script ends with status 1. Needs numpy and safetensors (requirements.txt), cc and rustc.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import faults
from common import LARGEST, difference

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOKENS = [1, 393, 395, 260, 394, 486, 263, 305, 315, 17, 200, 77]
MODELS = {
    "tiny-gemma2": ROOT / "tests/data/architectures/tiny-gemma2/hf",
    "tiny-gemma3": ROOT / "checkpoints/tiny-gemma3/hf",
    "tiny-gpt2": ROOT / "checkpoints/tiny-gpt2/hf",
    "tiny-llama2": ROOT / "checkpoints/tiny-llama2/hf",
    "tiny-llama2c": ROOT / "checkpoints/tiny-llama2c",
    "tiny-llama3": ROOT / "checkpoints/tiny-llama3/hf",
    "tiny-qwen2": ROOT / "tests/data/architectures/tiny-qwen2/hf",
    "tiny-qwen3": ROOT / "checkpoints/tiny-qwen3/hf",
}
# Taps that an engine records: all that it has, those around attention and the feed-forward block, or the stream.
RECORDED = {
    "all": None,
    "some": (
        "embed",
        "attn_norm",
        "q",
        "k",
        "v",
        "q_rope",
        "k_rope",
        "attn_out",
        "ffn_norm",
        "ffn_out",
        "block_out",
        "logits",
    ),
    "stream": ("embed", "block_out", "logits"),
}


@dataclass(frozen=True)
class Kind:
    """An engine of a language: its source, its faults, the file to write and the commands that build and run it."""

    language: str
    source: Path
    faults: list[faults.Fault]
    file: str
    build: str
    run: str


PYTHON = {"language": "numpy", "file": "engine.py", "build": ":", "run": '"$PYTHON" engine.py'}
KINDS = {
    "llama": Kind(source=HERE / "engines/llama.py", faults=faults.LLAMA, **PYTHON),
    "gemma": Kind(source=HERE / "engines/gemma.py", faults=faults.GEMMA, **PYTHON),
    "gpt2": Kind(source=HERE / "engines/gpt2.py", faults=faults.GPT2, **PYTHON),
    "c": Kind(
        "C",
        ROOT / "writers/c/example.c",
        faults.C,
        "engine.c",
        'cc -O2 -ffp-contract=off -I"$SHARED" engine.c -o engine -lm',
        "./engine",
    ),
    "rust": Kind(
        "Rust",
        HERE / "engines/llama.rs",
        faults.RUST,
        "engine.rs",
        "rustc -O --edition 2021 -A warnings engine.rs -o engine",
        "./engine",
    ),
}
# Kind, model, recorded taps, and how many faults show in the prompt and while decoding alone.
ENGINES = [
    ("llama", "tiny-llama2", "all", 1, 0),
    ("llama", "tiny-llama3", "some", 2, 0),
    ("llama", "tiny-llama3", "stream", 1, 0),
    ("llama", "tiny-qwen2", "all", 2, 0),
    ("llama", "tiny-qwen2", "some", 0, 1),
    ("llama", "tiny-qwen3", "all", 3, 0),
    ("llama", "tiny-qwen3", "some", 1, 1),
    ("gemma", "tiny-gemma2", "all", 2, 0),
    ("gemma", "tiny-gemma2", "stream", 1, 0),
    ("gemma", "tiny-gemma3", "all", 3, 0),
    ("gemma", "tiny-gemma3", "some", 0, 1),
    ("gpt2", "tiny-gpt2", "all", 2, 0),
    ("gpt2", "tiny-gpt2", "stream", 0, 1),
    ("c", "tiny-llama2c", "all", 1, 0),
    ("c", "tiny-llama2c", "all", 2, 0),
    ("c", "tiny-llama2c", "all", 1, 1),
    ("c", "tiny-llama2c", "all", 3, 0),
    ("rust", "tiny-llama2", "all", 1, 0),
    ("rust", "tiny-qwen3", "all", 2, 0),
    ("rust", "tiny-qwen3", "all", 2, 1),
]

RUN = """#!/usr/bin/env bash
# Builds the engine, runs it, and prints the verdict of xcheck as JSON. Adds a line to rounds.log.
cd "$(dirname "${{BASH_SOURCE[0]}}")"
SHARED=$PWD/../shared
XCHECK=${{XCHECK:-{xcheck}}}
PYTHON=${{PYTHON:-{python}}}
MODEL=${{MODEL:-$SHARED/models/{model}}}
export PYTHONPATH=$SHARED PYTHONDONTWRITEBYTECODE=1
rm -rf dump.safetensors engine
if {{ {build} && {run} "$MODEL" dump.safetensors {tokens}; }} >build.log 2>&1; then
    "$XCHECK" check --model "$MODEL" --candidate dump.safetensors --no-report --format agent >report.json 2>>build.log
else
    "$PYTHON" -c 'import json, sys; print(json.dumps({{"error": "the engine does not run", "log": sys.stdin.read()[-1500:]}}))' \\
        <build.log >report.json
fi
"$PYTHON" -c 'import json, sys
report = json.load(open("report.json"))
line = {{"verdict": report.get("verdict", "error"), "sentence": (report.get("dump") or report).get("sentence", report.get("error"))}}
print(json.dumps(line))' >>rounds.log
cat report.json
"""


def plain_c(text: str) -> str:
    """The C example without its deliberate mistake and without comments."""
    text = re.sub(r"#ifdef MISTAKE\n.*?#else\n(.*?)#endif\n", r"\1", text, flags=re.S)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.splitlines())).lstrip() + "\n"


def source(kind: Kind, recorded: str) -> str:
    text = kind.source.read_text()
    if kind.language == "C":
        return plain_c(text)
    if RECORDED[recorded]:
        assert "RECORDED = None" in text, kind.source
        text = text.replace("RECORDED = None", f"RECORDED = {RECORDED[recorded]}")
    return text


def model_path(model: str) -> str:
    return f"{model}/tiny-llama2c-v0.bin" if model == "tiny-llama2c" else model


def write_engine(folder: Path, kind: Kind, text: str, model: str, xcheck: str) -> None:
    folder.mkdir()
    (folder / kind.file).write_text(text)
    if (config := MODELS[model] / "config.json").exists():
        shutil.copy(config, folder)
    run = RUN.format(
        xcheck=xcheck,
        python=sys.executable,
        model=model_path(model),
        build=kind.build,
        run=kind.run,
        tokens=" ".join(map(str, TOKENS)),
    )
    (folder / "run.sh").write_text(run)
    (folder / "run.sh").chmod(0o755)


def write_shared(out: Path) -> None:
    """The models and the writers of dumps."""
    shutil.copytree(ROOT / "python/src/xcheck", out / "shared/xcheck", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "writers/c/xcheck_dump.h", out / "shared")
    for model in sorted({model for _, model, *_ in ENGINES}):
        folder = out / "shared/models" / model
        folder.mkdir(parents=True)
        for file in MODELS[model].iterdir():
            if file.suffix in (".json", ".safetensors", ".bin"):
                shutil.copy(file, folder)


def run(folder: Path, judge: bool = True) -> dict:
    """The report of run.sh; without `judge` the engine runs, and nothing is judged."""
    environment = os.environ | ({} if judge else {"XCHECK": "true"})
    output = subprocess.run([folder / "run.sh"], env=environment, capture_output=True, text=True)
    if not judge:
        return {}
    report = json.loads(output.stdout)
    if "error" in report:
        sys.exit(f"error: {folder}: {report}")
    return report


def choose(
    kind: Kind, model: str, text: str, counts: tuple[int, int], used: Counter, chance: random.Random
) -> list[faults.Fault]:
    """Faults that can be planted in any order, those first that few engines have."""
    while True:
        fitting = sorted(
            (fault for fault in kind.faults if fault.fits(model)),
            key=lambda fault: used[fault.name] + 1.5 * chance.random(),
        )
        chosen = [fault for fault in fitting if not fault.decode][: counts[0]] + [
            fault for fault in fitting if fault.decode
        ][: counts[1]]
        try:
            planted(text, chosen)
            planted(text, chosen[::-1])
        except ValueError:
            continue
        return chosen


def planted(text: str, chosen: Sequence[faults.Fault]) -> str:
    for fault in chosen:
        text = fault.plant(text)
    return text


def effect(work: Path, kind: Kind, text: str, model: str, chosen: Sequence[faults.Fault], base: Path) -> float:
    """The difference that some faults make. Faults of decoding must not show in the prompt."""
    folder = work / "tried"
    write_engine(folder, kind, planted(text, chosen), model, "true")
    run(folder, judge=False)
    dump = folder / "dump.safetensors"
    found, _ = difference(dump, base)
    if all(fault.decode for fault in chosen) and (early := difference(dump, base, passes=1))[0] > LARGEST:
        sys.exit(f"error: {[fault.name for fault in chosen]} of {model} shows in the prompt, at {early[1]}")
    shutil.rmtree(folder)
    return found


def effects(work: Path, kind: Kind, text: str, model: str, chosen: list[faults.Fault], base: Path) -> list[float]:
    """The difference of every subset of faults, those of one fault first."""
    subsets = [subset for size in range(1, len(chosen) + 1) for subset in combinations(chosen, size)]
    return [effect(work, kind, text, model, subset, base) for subset in subsets]


def make(out: Path, work: Path, dumps: Path, xcheck: str, seed: int) -> list[dict]:
    chance, used, truth = random.Random(seed), Counter(), []
    order = chance.sample(range(len(ENGINES)), len(ENGINES))
    for number, index in enumerate(order, 1):
        name, model, recorded, prompt, decode = ENGINES[index]
        kind, title = KINDS[name], f"engine-{number:02}"
        text, base = source(kind, recorded), dumps / f"{title}.safetensors"
        write_engine(work / title, kind, text, model, xcheck)
        if (report := run(work / title))["verdict"] != "pass":
            sys.exit(f"error: {name} without faults does not pass on {model}: {report}")
        shutil.move(work / title / "dump.safetensors", base)
        sizes = [0.0]
        while min(sizes) <= LARGEST:  # two faults may cancel each other
            chosen = choose(kind, model, text, (prompt, decode), used, chance)
            sizes = effects(work, kind, text, model, chosen, base)
        used.update(fault.name for fault in chosen)
        write_engine(out / title, kind, planted(text, chosen), model, xcheck)
        report = run(out / title)
        if report["verdict"] != "fail":
            sys.exit(f"error: {title} with {[fault.name for fault in chosen]} gives {report['verdict']}: {report}")
        for file in ("rounds.log", "report.json", "build.log", "dump.safetensors", "engine"):
            (out / title / file).unlink(missing_ok=True)
        told = [
            {"name": fault.name, "decode": fault.decode, "difference": size, "edits": fault.edits}
            for fault, size in zip(chosen, sizes)
        ]
        truth.append(
            {
                "engine": title,
                "language": kind.language,
                "model": model,
                "recorded": recorded,
                "faults": told,
                "first_sentence": report["dump"]["sentence"],
            }
        )
        print(
            f"{title}  {kind.language:6} {model:12} {recorded:6} {', '.join(fault.name for fault in chosen)}: {report['dump']['sentence']}",
            flush=True,
        )
    return truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a new folder outside the repository")
    parser.add_argument("--truth", type=Path, required=True, help="a new file for the faults, outside OUT")
    parser.add_argument("--xcheck", default="xcheck", help="the program that run.sh calls")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dumps = args.truth.with_name(f"{args.truth.stem}-dumps")
    if taken := [path for path in (args.out, args.truth, dumps) if path.exists()]:
        sys.exit(f"error: {taken[0]} exists")
    if args.truth.resolve().is_relative_to(args.out.resolve()):
        sys.exit("error: an agent that sees OUT would see the truth in it")
    xcheck = shutil.which(args.xcheck) or sys.exit(f"error: there is no program {args.xcheck}")
    args.out.mkdir(parents=True)
    dumps.mkdir(parents=True)
    write_shared(args.out)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shared").symlink_to((args.out / "shared").resolve())
        truth = make(args.out, Path(folder), dumps, str(Path(xcheck).resolve()), args.seed)
    args.truth.write_text(json.dumps({"seed": args.seed, "engines": truth}, indent=1) + "\n")


if __name__ == "__main__":
    main()
