#!/usr/bin/env python3
"""Times the search for a cause. Each change of the catalogue that applies to a model is injected into a dump, and the dump
is checked with and without the search; the difference of the processor seconds is the time of the search.

    cargo build --release
    python benches/cause_search.py [--models tiny-llama2 tiny-llama3 ...] [--values N] [--tokens IDS]

Prints for each model the number of dumps that fail, the median, the time that 95 % stay below, the longest time with its
change, and the share of dumps whose report names the injected cause. A model is a name that `xcheck models` lists, or a
path.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SHIPPED = [
    "tiny-llama2",
    "tiny-llama2c",
    "tiny-llama3",
    "tiny-qwen3",
    "tiny-gemma3",
    "tiny-gemma3-vision",
    "tiny-gpt2",
    "tiny-bitnet-b158",
    "tiny-bitnet",
]


def run(command: list) -> tuple[int, float, str]:
    """Exit code, processor seconds and output."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime, said


def changes(xcheck: Path, values: int) -> list[str]:
    """Each cause with the first values of its example."""
    causes = json.loads(run([xcheck, "causes", "--format", "json"])[2])["causes"]
    return [
        f"{cause['kind']}={value}" if value else cause["kind"]
        for cause in causes
        for value in (cause["suppose"][0]["takes"].split("|")[:values] if cause["suppose"] else [])
    ]


def search(xcheck: Path, model: str, change: str, prompt: list[str], folder: Path) -> tuple[float, bool] | None:
    """Seconds of the search, and whether it names the change; None if the change does not apply or changes nothing."""
    dump = folder / "dump.safetensors"
    dump.unlink(missing_ok=True)
    if run([xcheck, "dump", "--model", model, *prompt, "--out", dump, "--suppose", change])[0] != 0:
        return None
    check = [xcheck, "check", "--model", model, "--candidate", dump, "--no-report", "--threads", 1, "--format", "json"]
    code, without, _ = run([*check, "--no-causes"])
    if code != 1:
        return None
    _, seconds, said = run(check)
    return max(seconds - without, 0.0), f'"{change.partition("=")[0]}"' in said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xcheck", type=Path, default=REPOSITORY / "target" / "release" / "xcheck")
    parser.add_argument("--models", nargs="+", default=SHIPPED)
    parser.add_argument("--values", type=int, default=2, help="values of each cause")
    parser.add_argument("--tokens", default="1,17,5,80,33,12,7,91,64,3,29,101,54,76,18,2", help="ids of the prompt")
    args = parser.parse_args()

    every = changes(args.xcheck, args.values)
    print(f"{'model':20} {'dumps':>5} {'median, s':>9} {'95 %, s':>8} {'longest, s':>10} {'named':>6}")
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            prompt = ["--tokens", args.tokens]
            found = [(search(args.xcheck, model, change, prompt, Path(folder)), change) for change in every]
            found = sorted((seconds, named, change) for (seconds, named), change in filter(lambda one: one[0], found))
            times += found
            report(model, found)
    report("all", sorted(times))


def report(model: str, found: list[tuple[float, bool, str]]) -> None:
    if not found:
        print(f"{model:20} no change applies")
        return
    seconds = [one[0] for one in found]
    most = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
    named = sum(one[1] for one in found) / len(found)
    print(
        f"{model:20} {len(found):5} {statistics.median(seconds):9.2f} {most:8.2f} {seconds[-1]:10.2f} {named:6.0%}"
        f"  {found[-1][2]}",
        flush=True,
    )


if __name__ == "__main__":
    main()
