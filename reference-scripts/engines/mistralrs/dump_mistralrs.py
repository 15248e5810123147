#!/usr/bin/env python3
"""Dumps a greedy run of mistral.rs on the CPU for xcheck: of each pass `probs`, `argmax` and the token chosen.

mistral.rs shows no more than log-probabilities, here of the whole vocabulary. It reads text, so it is given a tokenizer whose
texts are the ids, or, of a GGUF file, whose own texts a tokenizer must have, one that reads these apart by spaces. Nothing is
written unless it has read the ids asked for, a second run gives the same values, and their sum is 1.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import xcheck
from mistralrs import ChatCompletionRequest, ModelDType, Runner, Which

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib"))
from model_files import sha256, weight_files

DTYPES = {"f32": ModelDType.F32, "bf16": ModelDType.BF16, "f16": ModelDType.F16}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def tokenizer(size: int) -> dict:
    """tokenizer.json of a vocabulary whose texts are the ids, separated by spaces."""
    model = {"type": "WordLevel", "vocab": {str(token): token for token in range(size)}, "unk_token": "0"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
    split = {"type": "WhitespaceSplit"}
    return empty | {"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "decoder": BYTE_LEVEL, "model": model}


def source(arguments: argparse.Namespace, place: Path) -> Which:
    """What mistral.rs loads: a directory of links with our tokenizer, or the GGUF file with the one that is named."""
    dtype = DTYPES[arguments.dtype]
    if arguments.model.is_file():
        if arguments.tokenizer is None:
            raise ValueError("a GGUF file needs --tokenizer tokenizer.json, with its own vocabulary")
        names = {
            "quantized_model_id": str(arguments.model.resolve().parent),
            "quantized_filename": arguments.model.name,
        }
        return Which.GGUF(**names, dtype=dtype, tokenizer_json=str(arguments.tokenizer))
    for file in [*weight_files(arguments.model), arguments.model / "config.json"]:
        (place / file.name).symlink_to(file.resolve())
    for file in arguments.model.glob("*.index.json"):
        (place / file.name).symlink_to(file.resolve())
    config = json.loads((arguments.model / "config.json").read_text())
    (place / "tokenizer.json").write_text(json.dumps(tokenizer(config["vocab_size"])))
    return Which.Plain(model_id=str(place), dtype=dtype)


def run(runner: Runner, text: str, arguments: argparse.Namespace, size: int) -> list[list[float]]:
    """The log-probabilities of each choice, by token."""
    request = ChatCompletionRequest(
        messages=[{"role": "user", "content": text}],
        model="default",
        logprobs=True,
        top_logprobs=size,
        max_tokens=arguments.decode + 1,
        temperature=0.0,
        ignore_eos=True,
    )
    rows = []
    for step in runner.send_chat_completion_request(request).choices[0].logprobs.content:
        row = {entry.token: entry.logprob for entry in step.top_logprobs}
        if sorted(row) != list(range(size)):
            raise ValueError(f"log-probabilities of {len(row)} tokens, not of {size}; nothing written")
        rows.append([row[token] for token in range(size)])
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model directory, or a GGUF file")
    tokens = parser.add_argument("--tokens", required=True, help="token ids: 1,2,3")
    tokens.type = lambda text: [int(token) for token in text.split(",")]
    parser.add_argument("--prompt", help="the text that --tokenizer makes these tokens of (GGUF)")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json (GGUF)")
    parser.add_argument("--config", type=Path, help="config.json (GGUF): architecture and vocabulary")
    parser.add_argument("--decode", type=int, default=2, help="greedy passes after the prompt's (default: 2)")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument(
        "--kv",
        choices=("f16", "f32"),
        default="f16",
        help="cache on the CPU (default: f16, its own; bf16 runs keep bf16)",
    )
    parser.add_argument("--name", help="the model's name in the manifest (default: the last part of --model)")
    parser.add_argument("--out", type=Path, required=True, help="a directory or FILE.safetensors")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    arguments.out = arguments.out.resolve()
    if arguments.kv == "f32":
        os.environ["MISTRALRS_CPU_KV_F32"] = "1"
    gguf = arguments.model.is_file()
    config = json.loads((arguments.config if gguf else arguments.model / "config.json").read_text())
    size = config["vocab_size"]
    with tempfile.TemporaryDirectory() as place:
        template = Path(place) / "template.jinja"
        template.write_text("{{ messages[0]['content'] }}")
        runner = Runner(which=source(arguments, Path(place)), jinja_explicit=str(template), prefix_cache_n=0)
        text = arguments.prompt or " ".join(map(str, arguments.tokens))
        read = runner.tokenize_text(text, True, enable_thinking=False)
        if read != arguments.tokens:
            raise ValueError(f"mistral.rs reads {read}, not {arguments.tokens}; nothing written")
        rows, again = (run(runner, text, arguments, size) for _ in range(2))
    if rows != again:
        raise ValueError("a second run gave other values; nothing written")
    probs = [[math.exp(value) for value in row] for row in rows]
    if any(abs(math.fsum(row) - 1) > 1e-5 for row in probs):
        raise ValueError("the probabilities do not add up to 1; nothing written")
    chosen = [max(range(size), key=row.__getitem__) for row in rows]
    with xcheck.Dump(
        arguments.out,
        producer="mistral.rs",
        version=version("mistralrs"),
        model=arguments.name or arguments.model.resolve().stem,
        sha256=sha256([arguments.model] if gguf else weight_files(arguments.model)),
        config=config,
        settings={"dtype": arguments.dtype, "kv_cache": arguments.kv if arguments.dtype == "f32" else arguments.dtype},
        tokens=arguments.tokens,
    ) as dump:
        for index, row in enumerate(probs):
            with dump.forward(arguments.tokens if index == 0 else [chosen[index - 1]]):
                dump.tap("probs", row)
                dump.tap("argmax", chosen[index])
        dump.generated(chosen)
    print(f"{arguments.out}: {len(probs)} passes, generated {chosen}")


if __name__ == "__main__":
    os.environ.setdefault("RUST_LOG", "error")
    try:
        main()
    except (OSError, ValueError, xcheck.DumpError) as error:
        sys.exit(f"error: {error}")
