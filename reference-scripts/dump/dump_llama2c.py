#!/usr/bin/env python3
"""Dumps a run of a llama2.c model, of version 0, 1 or 2, in the arithmetic of run.c and runq.c.

run.c shows nothing of what it computes, so the values come from dump_llama2c.c beside this script, which is compiled
for each run. --program holds them against the real thing: gdb runs your own build of run.c (version 0) or runq.c
(version 2), made with -g, on the same model and prompt, and nothing is written unless every token it read, every logit
of every position and the whole KV cache of every layer are the same, bit for bit.
"""

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceProcessor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import dump_writer
from dump_writer import Record

HERE = Path(__file__).resolve().parent
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-ffp-contract=off"]

Token = dict[tuple[str, int], np.ndarray]  # one token's values, by tap and layer; -1 outside of layers


def compiler() -> list[str]:
    return os.environ.get("CC", "cc").split()


def run_ours(model: Path, tokens: list[int], decode: int) -> tuple[list[int], list[Token]]:
    """Compiles dump_llama2c.c and runs it: the model's sizes, and what it computes for each token."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "dump_llama2c"
        subprocess.run([*compiler(), *FLAGS, str(HERE / "dump_llama2c.c"), "-o", str(program), "-lm"], check=True)
        arguments = [str(program), str(model), str(decode), *map(str, tokens)]
        run = subprocess.run(arguments, stdout=subprocess.PIPE)
    if run.returncode != 0:
        sys.exit(run.returncode)
    records, at = [], 0
    while at < len(run.stdout):
        end = run.stdout.index(b"\n", at)
        tap, layer, count = run.stdout[at:end].decode().split()
        at = end + 1 + 4 * int(count)
        records.append((tap, int(layer), np.frombuffer(run.stdout[end + 1 : at], np.float32)))
    sizes = [int(size) for size in records[0][2]]
    starts = [index for index, record in enumerate(records) if record[0] == "embed"] + [len(records)]
    groups = (records[start:end] for start, end in zip(starts, starts[1:]))
    return sizes, [{(tap, layer): values for tap, layer, values in group} for group in groups]


# ---- a real run -------------------------------------------------------------------------------------------------


def check_program(arguments: argparse.Namespace, read: list[int], ours: list[Token]) -> dict:
    """Runs the user's program under gdb; ends this one unless it computes the same. Gives back its provenance."""
    n_layers = 1 + max(layer for _, layer in ours[0])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "watched"
        command = [str(arguments.program), str(arguments.model), "-t", "0", "-n", str(len(read)), "-i", arguments.prompt]
        command += ["-z", str(arguments.program_tokenizer)] if arguments.program_tokenizer else []
        gdb = ["gdb", "-nx", "-batch", "-x", str(HERE / "watch_llama2c.py"), "--args", *command]
        run = subprocess.run(gdb, env=os.environ | {"XCHECK_WATCH_OUT": str(out)}, capture_output=True, text=True)
        watched = out.read_bytes() if out.exists() else b""
    if not watched:
        sys.exit(f"error: {arguments.program} was not seen computing; is it built with -g?\n{run.stdout}{run.stderr}")
    at = 0

    def take(kind: type, count: int) -> np.ndarray:
        nonlocal at
        values = np.frombuffer(watched[at : at + 4 * count], kind)
        at += 4 * count
        return values

    def same(what: str, theirs: np.ndarray, values: np.ndarray) -> None:
        if theirs.tobytes() != values.tobytes():
            sys.exit(f"error: {what}: {arguments.program} does not compute what dump_llama2c.c does")

    for position, token in enumerate(ours):
        same(f"token {position}", take(np.int32, 2), np.array([read[position], position], np.int32))
        same(f"logits of position {position}", take(np.float32, token["logits", -1].size), token["logits", -1])
        for layer in range(n_layers):
            for tap in ("k_cache", "v_cache"):
                values = token[tap, layer]
                same(f"{tap} of layer {layer}, position {position}", take(np.float32, values.size), values)
    if at != len(watched):
        sys.exit(f"error: {arguments.program} read more than {len(read)} tokens")
    digest = hashlib.sha256(arguments.program.read_bytes()).hexdigest()
    print(f"{arguments.program}: the same tokens, logits and caches at {len(ours)} positions, bit for bit")
    checked = {"checked_against": arguments.program.name, "program_sha256": digest}
    if arguments.source:
        checked["source_sha256"] = hashlib.sha256(arguments.source.read_bytes()).hexdigest()
    return checked


# ---- the dump ---------------------------------------------------------------------------------------------------


def stacked(tap: str, tokens: list[Token], layer: int, sizes: list[int], keys: int) -> np.ndarray:
    """One tap of a pass, from its tokens."""
    _, _, _, heads, kv_heads, head, _ = sizes
    rows = [token[tap, layer] for token in tokens]
    if tap in ("k_cache", "v_cache"):
        return rows[-1].reshape(keys, kv_heads, head)
    if tap in ("attn_scores", "attn_weights"):
        padded = np.zeros((heads, len(rows), keys), np.float32)
        for index, row in enumerate(rows):
            seen = row.size // heads
            padded[:, index, :seen] = row.reshape(heads, seen)
        return padded
    values = np.stack(rows)
    if tap in ("q", "q_rope"):
        return values.reshape(len(rows), heads, head)
    if tap in ("k", "v", "k_rope"):
        return values.reshape(len(rows), kv_heads, head)
    return values


def records_of(tokens: list[Token], cuts: list[range], sizes: list[int]) -> list[Record]:
    """Every tap of every pass; a pass is a range of positions."""
    records = []
    for index, cut in enumerate(cuts):
        part = tokens[cut.start : cut.stop]
        for tap, layer in part[0]:
            place = None if layer < 0 else layer
            if tap in ("probs", "argmax"):
                continue
            values = stacked(tap, part, layer, sizes, cut.stop)
            records.append(Record(tap, index, place, "f32", values))
        last = part[-1]
        records.append(Record("last_logits", index, None, "f32", last["logits", -1]))
        records.append(Record("argmax", index, None, "u32", np.array(last["argmax", -1][0])))
        records.append(Record("probs", index, None, "f32", last["probs", -1]))
    return records


def version_of_compiler() -> str:
    return subprocess.run([*compiler(), "--version"], capture_output=True, text=True).stdout.split("\n")[0]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="llama2.c model file")
    parser.add_argument("--prompt", help="text to read, BOS first; needs --tokenizer")
    parser.add_argument("--tokenizer", type=Path, help="SentencePiece tokenizer.model of the model")
    parser.add_argument("--tokens", help="ids to read instead, e.g. 1,15043")
    parser.add_argument("--decode", type=int, default=0, help="greedy passes after the prompt's (default: 0)")
    parser.add_argument("--name", help="the model's name in the manifest (default: the file's)")
    parser.add_argument("--out", type=Path, required=True, help="directory, or NAME.safetensors or NAME.npz")
    parser.add_argument("--program", type=Path, help="your own build of run.c or runq.c, with -g: held against")
    parser.add_argument("--program-tokenizer", type=Path, help="the tokenizer.bin it needs")
    parser.add_argument("--source", type=Path, help="the file it was built from: its hash goes into the manifest")
    arguments = parser.parse_args()
    if (arguments.tokens is None) == (arguments.prompt is None):
        parser.error("give --prompt or --tokens")
    if arguments.prompt is not None and not arguments.tokenizer:
        parser.error("--prompt needs --tokenizer")
    if arguments.program and arguments.prompt is None:
        parser.error("--program reads text: it needs --prompt")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    dump_writer.prepare(arguments.out)
    if arguments.prompt is not None:
        prompt = SentencePieceProcessor(model_file=str(arguments.tokenizer)).encode(arguments.prompt, add_bos=True)
    else:
        prompt = [int(token) for token in arguments.tokens.split(",")]
    sizes, tokens = run_ours(arguments.model, prompt, arguments.decode)
    choices = [int(token["argmax", -1][0]) for token in tokens]
    generated = choices[len(prompt) - 1 :]
    read = prompt + generated[: arguments.decode]
    checked = check_program(arguments, read, tokens) if arguments.program else {}
    version, group = sizes[:2]
    cuts = [range(len(prompt)), *(range(at, at + 1) for at in range(len(prompt), len(tokens)))]
    records = records_of(tokens, cuts, sizes)
    records.append(Record("generated", None, None, "u32", np.array(generated)))
    settings = {
        "weights": "int8_groups" if group else "f32",
        "file_version": version,
        **({"group_size": group} if group else {}),
        "program": "dump_llama2c.c",
        "compiler": version_of_compiler(),
        "build_flags": " ".join(FLAGS),
        "libc": " ".join(platform.libc_ver()),
        **checked,
    }
    manifest = {
        "format": "xcheck-dump",
        "version": 1,
        "producer": {"name": "llama2.c", "version": f"model version {version}", "settings": settings},
        "model": {
            "name": arguments.name or arguments.model.stem,
            "architecture": "llama",
            "sha256": hashlib.sha256(arguments.model.read_bytes()).hexdigest(),
        },
        "layout": {"rope_pairing": "interleaved"},
        "input": {"prompt": arguments.prompt or "", "tokens": prompt},
        "passes": [{"position": cut.start, "tokens": read[cut.start : cut.stop]} for cut in cuts],
        "generated": generated,
    }
    dump_writer.write_dump(arguments.out, manifest, records)


if __name__ == "__main__":
    main()
