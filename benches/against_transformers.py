#!/usr/bin/env python3
"""Times a whole check, `xcheck run` on a Hugging Face directory, beside what people write by hand: transformers with a hook on
every module, and a comparison of what it sees with numpy. Imports, loading and the dump's reading included on both sides.

    cargo build --release
    PYTHON benches/against_transformers.py --work DIR [--tokens 128 512] [--rounds 3] [--threads 2]

PYTHON has torch, transformers and numpy (reference-scripts/requirements.txt). In DIR a model of SmolLM2 135M's shape with
random weights is made, and for each number of tokens a reference dump by reference-scripts/dump/dump_transformers.py, unless they
are there: some 2 GB. Both sides take turns; of each the least of all rounds counts, and a ratio of 2 says that ours
takes half the time. Processor seconds tell more where other programs run.

The script compares less than xcheck does: what modules give and attention's weights, by the largest and the root mean
square difference. Scores, rotated queries and keys, caches, choices and what rounding explains have no counterpart in it.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TAPS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn": "attn_weights",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_out",
    "": "block_out",
}
WHOLE = {"model.embed_tokens": "embed", "model.norm": "final_norm", "lm_head": "logits"}


def tokens_of(count: int) -> list[int]:
    """Ids all over the vocabulary."""
    return [1 + index * 7919 % 49000 for index in range(count)]


def make_model(directory: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
    )
    LlamaForCausalLM(config).float().save_pretrained(directory)


def make_dump(model: Path, count: int, path: Path) -> None:
    script = REPOSITORY / "reference-scripts" / "dump" / "dump_transformers.py"
    ids = ",".join(map(str, tokens_of(count)))
    command = [sys.executable, script, "--model", model, "--tokens", ids, "--decode", "0", "--out", path]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tap_of(module: str) -> str | None:
    """The dump's name of what a module gives."""
    if module in WHOLE:
        return f"p0/{WHOLE[module]}"
    found = re.fullmatch(r"model\.layers\.(\d+)\.?(.*)", module)
    if not found or found[2] not in TAPS:
        return None
    return f"p0/l{int(found[1]):02}/{TAPS[found[2]]}"


def check_by_hand(model_path: Path, dump: Path, count: int, threads: int) -> None:
    """What the other side of the bench does, in a process of its own."""
    import numpy as np
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="eager").eval()
    seen = {}

    def keep(name: str):
        def hook(_, args, output) -> None:
            value = output
            if isinstance(output, tuple):
                value = output[1] if name.endswith("self_attn") else output[0]
            if isinstance(value, torch.Tensor):
                seen[name] = value.detach().numpy()

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(keep(name))
    with torch.inference_mode():
        model(input_ids=torch.tensor([tokens_of(count)]), output_attentions=True)
    compared = 0
    worst = ("", 0.0)
    with safe_open(dump, "np") as file:
        there = set(file.keys())
        for name, value in seen.items():
            tap = tap_of(name)
            if tap not in there:
                continue
            expected = file.get_tensor(tap)
            error = np.abs(value.reshape(expected.shape) - expected)
            relative = np.sqrt(np.mean(error**2)) / max(np.sqrt(np.mean(expected**2)), 1e-30)
            compared += 1
            worst = max(worst, (tap, float(relative)), key=lambda one: one[1])
            if not error.max() <= 1e-3:
                raise SystemExit(f"{tap} differs by {error.max()}")
    if compared < 200:
        raise SystemExit(f"only {compared} of the dump's tensors were found")
    print(f"{compared} tensors, worst {worst}")


def timed(command: list) -> tuple[float, float]:
    """Wall-clock and processor seconds of a command that must succeed."""
    start = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with status {process.returncode}:\n{said[-2000:]}")
    return wall, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--xcheck", type=Path, default=REPOSITORY / "target" / "release" / "xcheck")
    parser.add_argument("--by-hand", type=int, metavar="TOKENS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    model = args.work / "llama-135m"
    dumps = {count: args.work / f"dump-{count}.safetensors" for count in args.tokens}
    if args.by_hand is not None:
        check_by_hand(model, args.work / f"dump-{args.by_hand}.safetensors", args.by_hand, args.threads)
        return

    args.work.mkdir(parents=True, exist_ok=True)
    if not model.exists():
        make_model(model)
    for count, dump in dumps.items():
        if not dump.exists():
            make_dump(model, count, dump)
    threads = ["--threads", args.threads]
    print(f"{'tokens':>6} {'ours, s':>9} {'by hand, s':>11} {'ratio':>6} {'cpu ratio':>10}")
    for count, dump in dumps.items():
        ours = [args.xcheck, "run", "--model", model, "--reference", dump, "--no-report", *threads]
        theirs = [sys.executable, __file__, "--work", args.work, "--by-hand", count, *threads]
        rounds = [(timed(ours), timed(theirs)) for _ in range(args.rounds)]
        least = [[min(one[side][what] for one in rounds) for what in (0, 1)] for side in (0, 1)]
        (wall, cpu), (their_wall, their_cpu) = least
        print(f"{count:6} {wall:9.2f} {their_wall:11.2f} {their_wall / wall:6.2f} {their_cpu / cpu:10.2f}", flush=True)


if __name__ == "__main__":
    main()
