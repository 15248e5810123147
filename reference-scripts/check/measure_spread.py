"""Measures how far llama.cpp differs from itself: builds, threads, and weights repacked or not.

Every file is run by each environment of build_dump_llama_cpp.sh, with one and two threads, with and without repacked
weights. Everything is compared with the first environment, one thread, nothing repacked: what xcheck reproduces. Prints
a Markdown table of the runs that gave other bits: the largest total difference at each checkpoint, and the
first tap at which an activation is quantised to another int8 (or rounded to another f16), from where on differences are
steps and no longer rounding.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "make"))
from make_format_models import DECODE, PROMPT

# As xcheck groups them.
CHECKPOINTS = {
    "norm": ["attn_norm"],
    "qkv": ["q", "k", "v"],
    "rope": ["q_rope", "k_rope", "k_cache", "v_cache"],
    "scores": ["attn_scores", "attn_weights"],
    "attn_out": ["attn_context", "attn_out", "attn_residual"],
    "ffn_out": ["ffn_norm", "ffn_gate", "ffn_up", "ffn_act", "ffn_out"],
    "block_out": ["block_out"],
    "logits": ["final_norm", "logits"],
    "probs": ["probs"],
}
# What products with a matrix take in.
QUANTISED = ["attn_norm", "attn_context", "ffn_norm", "ffn_act", "final_norm"]
LARGE_BLOCKS = ("_k", "_K", "iq1", "iq2", "iq3", "iq4_xs", "tq")


class Dump:
    """The arrays of one run, in the order of the data flow."""

    def __init__(self, file: Path):
        with safe_open(file, "np") as opened:
            manifest = json.loads(opened.metadata()["xcheck"])
            self.arrays = {key: opened.get_tensor(key) for key in opened.keys()}
        self.settings = manifest["producer"]["settings"]
        self.architecture = manifest["model"]["architecture"]
        threads = ", 2 threads" if self.settings["threads"] == 2 else ""
        repacked = ", repacked" if "REPACK" in self.settings["weight_buffers"] else ""
        self.name = self.settings["build_flags"].split(",")[0] + threads + repacked
        self.order = [row["file"].removesuffix(".npy") for row in manifest["tensors"]]


def make(environment: Path, model: Path, threads: int, repack: str, out: Path) -> Dump:
    tokens = ",".join(map(str, PROMPT))
    words = ["--model", model, "--tokens", tokens, "--decode", DECODE, "--threads", threads, "--repack", repack]
    program = environment / "bin/dump_llama_cpp"
    subprocess.run([str(word) for word in [program, *words, "--out", out]], check=True, capture_output=True)
    return Dump(out)


def codes(values: np.ndarray, weights: str) -> np.ndarray:
    """What activations become where they meet weights of this type."""
    if weights == "f32":
        return np.zeros(0)  # nothing is rounded
    if weights == "f16":
        return values.astype(np.float16)
    if weights == "bf16":
        bits = values.view(np.uint32)
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    blocks = values.reshape(-1, 256 if any(mark in weights for mark in LARGE_BLOCKS) else 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    return np.rint(blocks * (np.float32(127) / np.where(largest == 0, 1, largest)))


def tap_of(key: str) -> str:
    return key.rsplit("/", 1)[-1]


def first_flip(dump: Dump, base: Dump) -> str:
    for key in base.order:
        if tap_of(key) in QUANTISED:
            changed = codes(dump.arrays[key], weights(dump)) != codes(base.arrays[key], weights(dump))
            if changed.any():
                return f"{key} ({changed.sum()} of {changed.size})"
    return "none"


def largest(dump: Dump, base: Dump, taps: list[str]) -> float:
    keys = [key for key in base.order if tap_of(key) in taps]
    return max(float(np.abs(dump.arrays[key] - base.arrays[key]).max()) for key in keys)


def is_same(a: Dump, b: Dump) -> bool:
    return all(np.array_equal(a.arrays[key], b.arrays[key]) for key in a.order)


def weights(dump: Dump) -> str:
    return dump.settings["weights"].split()[0]


def row(model: Path, dump: Dump, base: Dump) -> str:
    figures = [largest(dump, base, taps) for taps in CHECKPOINTS.values()]
    numbers = [f"{figure:.1e}" if figure else "0" for figure in figures]
    tokens = "same" if np.array_equal(dump.arrays["generated"], base.arrays["generated"]) else "others"
    return "| " + " | ".join([model.stem, dump.name, *numbers, tokens, first_flip(dump, base)]) + " |"


def distinct_runs(model: Path, builds: list[Path], scratch: Path) -> list[Dump]:
    """The first run, and each that gives other bits than those before."""
    runs = itertools.product(builds, ["off", "on"], [1, 2])
    dumps = [make(build, model, threads, repack, scratch) for build, repack, threads in runs]
    return [dump for i, dump in enumerate(dumps) if not any(is_same(dump, other) for other in dumps[:i])]


def rows(model: Path, base: Dump, others: list[Dump]) -> list[str]:
    return [row(model, dump, base) for dump in others] or [f"| {model.stem} | all the same bits |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, action="append", required=True, help="environments; the first is the measure")
    parser.add_argument("model", type=Path, nargs="+", help="GGUF files")
    options = parser.parse_args()

    head = ["file", "run", *CHECKPOINTS, "tokens", "first rounded to another number"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.model:
            base, *others = distinct_runs(model, options.build, Path(folder) / "run.safetensors")
            print(*rows(model, base, others), sep="\n", flush=True)


if __name__ == "__main__":
    main()
