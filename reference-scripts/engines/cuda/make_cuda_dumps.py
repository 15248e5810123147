#!/usr/bin/env python3
"""Makes dumps of transformers on an NVIDIA GPU: every type, attention kernel and way of adding that torch offers there.

Runs `dump_transformers.py --device cuda` many times in one process. Not every kernel supports every model: dumps that
fail are listed at the end.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dump"))

import dump_transformers  # noqa: E402
import torch  # noqa: E402

TOKENS = "1,393,395,260,394,486,263,305,315,272,411,29,308,47,260,399,264,17,501,263,330,274,260,45"
# Name of the dump, and the options that make it.
EAGER = {
    "f32": "--dtype f32",
    "tf32": "--dtype f32 --tf32",
    "bf16": "--dtype bf16",
    "bf16-reduced": "--dtype bf16 --reduced-sums",
    "f16": "--dtype f16",
    "f16-reduced": "--dtype f16 --reduced-sums",
    "bf16-autocast": "--dtype f32 --autocast bf16",
}
FUSED = {
    "f32-sdpa": "--dtype f32 --attention sdpa",
    "tf32-sdpa": "--dtype f32 --tf32 --attention sdpa",
    "f32-efficient": "--dtype f32 --attention sdpa --kernel efficient",
    "bf16-sdpa": "--dtype bf16 --attention sdpa --reduced-sums",
    "bf16-flash": "--dtype bf16 --attention sdpa --kernel flash",
    "bf16-efficient": "--dtype bf16 --attention sdpa --kernel efficient",
    "bf16-cudnn": "--dtype bf16 --attention sdpa --kernel cudnn",
    "bf16-math": "--dtype bf16 --attention sdpa --kernel math",
    "f16-sdpa": "--dtype f16 --attention sdpa --reduced-sums",
    "f16-flash": "--dtype f16 --attention sdpa --kernel flash",
}
FLOAT8 = {"bf16-float8": "--dtype bf16 --attention sdpa --float8 row"}
COMPILED = {"bf16-compiled": "--dtype bf16 --attention sdpa --compile"}
DUMPS = EAGER | FUSED | FLOAT8 | COMPILED


def dump(model: Path, name: str, options: str, out: Path, decode: int) -> None:
    """Makes one dump, as the command line would."""
    sys.argv = [
        "dump_transformers.py", "--device", "cuda", "--model", str(model), "--tokens", TOKENS,
        "--name", model.parent.name if model.name == "hf" else model.name,
        "--decode", str(decode), "--out", str(out / f"{name}.safetensors"), *options.split(),
    ]  # fmt: skip
    dump_transformers.main()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", help="model directories")
    parser.add_argument("--decode", type=int, default=3, help="greedy passes after the prompt's (default: 3)")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of dumps to make: bf16,tf32")
    parser.add_argument("--out", type=Path, required=True, help="a folder: OUT/MODEL/NAME.safetensors")
    arguments = parser.parse_args()
    if unknown := set(arguments.only or ()) - set(DUMPS):
        parser.error(f"--only: unknown dumps {', '.join(sorted(unknown))}; known: {', '.join(DUMPS)}")
    failed, made = [], 0
    for model in arguments.models:
        out = arguments.out / (model.parent.name if model.name == "hf" else model.name)
        out.mkdir(parents=True, exist_ok=True)
        for name, options in DUMPS.items():
            if arguments.only and name not in arguments.only:
                continue
            start = time.monotonic()
            try:
                dump(model, name, options, out, arguments.decode)
                made += 1
            except (Exception, SystemExit) as error:  # noqa: BLE001
                failed.append(f"{out.name}/{name}: {traceback.format_exception_only(error)[-1].strip()[:300]}")
            finally:
                torch._dynamo.reset()
            print(f"{out.name}/{name}: {time.monotonic() - start:.1f} s", flush=True)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}; made: {made}, failed: {len(failed)}", *failed, sep="\n  ")
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())
