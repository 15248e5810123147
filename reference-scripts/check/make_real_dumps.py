#!/usr/bin/env python3
"""Makes dumps of a real trained model by llama.cpp, and of each the dumps that a producer with less to say would leave.

For every environment of build_dump_llama_cpp.sh: a short prompt and a long one, each with an f16 and an f32 KV cache.
A dump's name is BUILD.LENGTH.CACHE.CONTENT.safetensors, where BUILD is the environment's folder less a leading `.venv-`
and CONTENT is `full` or what is left out or left over (see --list). A thinned dump is the full one less some tensors
and their rows in the manifest; nothing else of the manifest changes, and the values are the same bytes.

The long prompt's dumps are large, 285 MB for SmolLM2 135M: of these only the thinnings that matter most are made.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from dump_writer import Record, write_safetensors

CACHES, RESIDUALS = {"k_cache", "v_cache"}, {"attn_residual"}
SCORES, WEIGHTS = {"attn_scores"}, {"attn_weights"}

# What a producer may not have: an engine that keeps its cache elsewhere, one that fuses a kernel, and so on.
LEFT_OUT = {
    "no-caches": CACHES,
    "no-residuals": RESIDUALS,
    "no-caches-residuals": CACHES | RESIDUALS,
    "no-scores": SCORES,
    "no-weights": WEIGHTS,
    "no-scores-weights": SCORES | WEIGHTS,  # flash attention: one operation from q, k, v to the context
    "no-rope": {"q_rope", "k_rope"},
    "no-norms": {"attn_norm", "ffn_norm", "final_norm"},
    "no-qkv": {"q", "k", "v"},
    "no-ffn-inner": {"ffn_gate", "ffn_up", "ffn_act"},
    "no-context": {"attn_context"},
}
# What a producer may have and nothing else.
LEFT_OVER = {
    "embed-blocks-logits": {"embed", "block_out", "logits"},
    "blocks-logits": {"block_out", "logits"},
    "logits": {"logits"},
    "last-logits": {"last_logits"},
    "tokens": {"argmax", "generated"},
    "generated": {"generated"},
}
OF_LONG = ["no-caches-residuals", "no-scores-weights", "embed-blocks-logits", "logits", "tokens"]

SHORT_TEXT = "The capital of Norway is the"
LONG_TEXT = """A lighthouse keeper on a small island wrote a letter to his sister every Sunday. He told her about the
weather, about the ships that passed, and about the birds that nested in the rocks below the tower. In winter the
boat could not land for weeks, and so the letters lay in a drawer until spring. One year she received eleven of them
at once, tied together with a piece of blue string. She read them in order, one each evening, and answered every one
as if it had come alone. When he retired, after thirty-four years, he moved to the village where she lived, and they
discovered that they had very little to say to each other that had not been written down already. So they bought two"""


@dataclass(frozen=True)
class Length:
    """An input, the passes after it, and the thinnings that are made of its dumps."""

    text: str
    decode: int
    tokens: range  # how many tokens the text may have: another tokenizer should not make a short prompt of the long one
    contents: list[str]


LENGTHS = {
    "short": Length(SHORT_TEXT, 3, range(5, 10), [*LEFT_OUT, *LEFT_OVER]),
    "long": Length(LONG_TEXT.replace("\n", " "), 2, range(120, 200), OF_LONG),
}


def is_kept(tap: str, content: str) -> bool:
    return tap in LEFT_OVER[content] if content in LEFT_OVER else tap not in LEFT_OUT[content]


def run_llama_cpp(build: Path, model: Path, text: list[str], decode: int, cache: str, out: Path) -> None:
    """Dumps a run; `text` is --prompt or --tokens with its value."""
    program = build / "bin/dump_llama_cpp"
    words = [program, "--model", model, *text, "--decode", decode, "--kv", cache, "--out", out]
    done = subprocess.run([str(word) for word in words], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: {program}: {done.stderr.strip()}")


def read(dump: Path) -> tuple[dict, list[Record]]:
    """The manifest, and the tensors in its order."""
    with safe_open(dump, "np") as opened:
        manifest = json.loads(opened.metadata()["xcheck"])
        arrays = [opened.get_tensor(row["file"].removesuffix(".npy")) for row in manifest["tensors"]]
    rows = zip(manifest["tensors"], arrays, strict=True)
    return manifest, [Record(row["tap"], row.get("pass"), row.get("layer"), row["dtype"], array) for row, array in rows]


def thin(manifest: dict, records: list[Record], content: str, out: Path) -> None:
    """The dump less what `content` says, its manifest otherwise as it was."""
    rows = [row for row in manifest["tensors"] if is_kept(row["tap"], content)]
    kept = [record for record in records if is_kept(record.tap, content)]
    if len(kept) in (0, len(records)):
        raise SystemExit(f"error: {out.name} would have {len(kept)} of {len(records)} tensors: none, or all of them")
    write_safetensors(out, json.dumps(manifest | {"tensors": rows}, indent=1) + "\n", kept)


def shown(dump: Path) -> str:
    return f"{dump.name}: {dump.stat().st_size / 1e6:.1f} MB"


def build_name(build: Path) -> str:
    return build.resolve().name.removeprefix(".venv-")


def make(build: Path, model: Path, name: str, cache: str, folder: Path) -> None:
    length = LENGTHS[name]
    stem = f"{build_name(build)}.{name}.{cache}"
    full = folder / f"{stem}.full.safetensors"
    start = time.monotonic()
    run_llama_cpp(build, model, ["--prompt", length.text], length.decode, cache, full)
    seconds = time.monotonic() - start
    manifest, records = read(full)
    tokens = len(manifest["input"]["tokens"])
    if tokens not in length.tokens:
        expected = f"{length.tokens.start} to {length.tokens.stop - 1}"
        raise SystemExit(f"error: the {name} prompt has {tokens} tokens of this model, not {expected}")
    print(f"{shown(full)}, {tokens} tokens and {length.decode} passes after them, {seconds:.1f} s", flush=True)
    for content in length.contents:
        thinned = folder / f"{stem}.{content}.safetensors"
        thin(manifest, records, content, thinned)
        print(shown(thinned), flush=True)


def list_contents() -> None:
    for content, taps in LEFT_OUT.items():
        print(f"{content}: without {', '.join(sorted(taps))}")
    for content, taps in LEFT_OVER.items():
        print(f"{content}: only {', '.join(sorted(taps))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the GGUF file")
    parser.add_argument("--build", type=Path, action="append", help="an environment of build_dump_llama_cpp.sh")
    parser.add_argument("--length", choices=LENGTHS, action="append", help="only this prompt (default: both)")
    parser.add_argument("--out", type=Path, help="folder to write to")
    parser.add_argument("--list", action="store_true", help="say what each thinned dump lacks or has, and end")
    options = parser.parse_args()
    if options.list:
        return list_contents()
    if not (options.model and options.build and options.out):
        parser.error("--model, --build and --out are needed")
    if len({build_name(build) for build in options.build}) != len(options.build):
        parser.error("two environments of the same name would write the same files")
    options.out.mkdir(parents=True, exist_ok=True)
    for build in options.build:
        for name in options.length or LENGTHS:
            for cache in ("f16", "f32"):
                make(build, options.model, name, cache, options.out)


if __name__ == "__main__":
    sys.exit(main())
