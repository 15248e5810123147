#!/usr/bin/env python3
"""Dumps the logits and tokens of a greedy run by CTranslate2 on the CPU, in xcheck's dump format.

CTranslate2's own converter makes its model of a Hugging Face directory, in a temporary place. Nothing inside the model
can be seen. The prompt's logits, of every position, are forward_batch's; those of the later passes are what
generate_batch chose its tokens by, with its cache. Nothing is written unless a second run gives the same bits, the
tokens are the argmax of the logits, and the prompt's last logits by generate_batch, which feeds the prompt in another
way, are no more than TOLERANCE away from forward_batch's. How far they are is in the manifest.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import ctranslate2
import numpy as np
import transformers
from ctranslate2.converters import TransformersConverter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from dump_writer import Record, prepare, write_dump
from model_files import load_config, sha256, weight_files

# Of the largest logit. float32: the last bits, after a model's worth of sums in another order. int8: activations are
# quantised anew where their last bits differ.
TOLERANCE = {"float32": 1e-4, "int8_float32": 5e-2}
FAMILIES = ("llama", "qwen3", "gemma3_text", "gpt2")


class Ids:
    """What the converter asks of a tokenizer: a vocabulary whose texts are the ids, so that no tokenizer is needed."""

    def __init__(self, config: dict):
        self.vocabulary = {str(token): token for token in range(config["vocab_size"])}
        self.bos_token, self.eos_token = str(config["bos_token_id"]), str(config["eos_token_id"])
        self.unk_token = "0"

    def get_vocab(self) -> dict[str, int]:
        """Every token's text and id."""
        return self.vocabulary

    def __len__(self) -> int:
        return len(self.vocabulary)


class Converter(TransformersConverter):
    """CTranslate2's converter, without a tokenizer's files."""

    def load_tokenizer(self, tokenizer_class, model_name_or_path, **kwargs) -> Ids:
        """Tokens named by their ids."""
        return Ids(load_config(Path(model_name_or_path)))


def run(generator: ctranslate2.Generator, tokens: list[int], decode: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The prompt's logits T x V, those of each choice N x V, and the N tokens chosen."""
    logits = np.array(generator.forward_batch([tokens]))[0]
    [result] = generator.generate_batch(
        [[str(token) for token in tokens]],
        max_length=decode + 1,
        min_length=decode + 1,  # together with no end token: exactly so many
        end_token=[],
        include_prompt_in_result=False,
        return_logits_vocab=True,
    )
    steps = np.stack([np.array(step).reshape(-1) for step in result.logits[0]])
    return logits, steps, result.sequences_ids[0]


def check(first: tuple, second: tuple) -> None:
    """Two runs, bit for bit."""
    if any(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in zip(first, second, strict=True)):
        sys.exit("error: a second run gave other values; nothing written")


def prompt_difference(logits: np.ndarray, steps: np.ndarray, tokens: list[int], compute_type: str) -> float:
    """The largest difference of a logit of the prompt's last row between the two ways to feed it."""
    rows = [logits[-1], *steps[1:]]
    if [int(row.argmax()) for row in rows] != tokens:
        sys.exit(f"error: generate_batch gives {tokens}, which are not the largest logits; nothing written")
    difference = float(np.abs(logits[-1] - steps[0]).max())
    if not difference <= TOLERANCE[compute_type] * float(np.abs(logits[-1]).max()):
        sys.exit(f"error: forward_batch and generate_batch differ by {difference:.3g}; nothing written")
    return difference


def pass_records(index: int, logits: np.ndarray) -> list[Record]:
    """The taps of one pass, of its logits T x V."""
    last = logits[-1]
    shares = np.exp(last.astype(np.float64) - last.max())
    taps = {"logits": logits, "last_logits": last, "probs": shares / shares.sum()}
    records = [Record(tap, index, None, "f32", values) for tap, values in taps.items()]
    return [*records, Record("argmax", index, None, "u32", np.array(last.argmax()))]


def build_manifest(
    arguments: argparse.Namespace,
    config: dict,
    generator: ctranslate2.Generator,
    generated: list[int],
    difference: float,
) -> dict:
    """The manifest without its tensors; generated[i] is the argmax of pass i."""
    tokens = arguments.tokens
    later = [{"position": len(tokens) + i, "tokens": [token]} for i, token in enumerate(generated[:-1])]
    return {
        "format": "xcheck-dump",
        "version": 1,
        "producer": {
            "name": "ctranslate2",
            "version": ctranslate2.__version__,
            "settings": {
                "dtype": "f32",
                "weights": {"float32": "f32", "int8_float32": "int8"}[generator.compute_type],
                "attention": "ctranslate2's, without flash attention",
                "kv_cache": "f32",
                "converter_transformers": transformers.__version__,
                "threads": 1,
                "prompt_logits_difference": difference,
            },
        },
        "model": {
            "name": arguments.name or arguments.model.resolve().name,
            "architecture": config["model_type"].removesuffix("_text"),
            "sha256": sha256(weight_files(arguments.model)),
        },
        "layout": {} if config["model_type"] == "gpt2" else {"rope_pairing": "half"},
        "input": {"tokens": tokens, "decode": "greedy"},
        "passes": [{"position": 0, "tokens": tokens}, *later],
        "generated": generated,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    tokens = parser.add_argument("--tokens", required=True, help="token ids: 1,2,3")
    tokens.type = lambda text: [int(token) for token in text.split(",")]
    parser.add_argument("--decode", type=int, default=4, help="greedy passes after the prompt's (default: 4)")
    parser.add_argument("--compute", choices=TOLERANCE, default="float32", help="compute_type (default: float32)")
    parser.add_argument("--name", help="model.name in the manifest (default: the last part of --model)")
    parser.add_argument("--out", type=Path, required=True, help="a directory, FILE.safetensors or FILE.npz")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    prepare(arguments.out)
    config = load_config(arguments.model)
    if config["model_type"] not in FAMILIES:
        sys.exit(f"error: {arguments.model}: family {config['model_type']!r} is not one of {', '.join(FAMILIES)}")
    with tempfile.TemporaryDirectory() as place:
        converted = Converter(str(arguments.model)).convert(f"{place}/model")
        generator = ctranslate2.Generator(converted, device="cpu", compute_type=arguments.compute, intra_threads=1)
    first, second = (run(generator, arguments.tokens, arguments.decode) for _ in range(2))
    check(first, second)
    logits, steps, generated = first
    difference = prompt_difference(logits, steps, generated, arguments.compute)
    records = pass_records(0, logits)
    for index, row in enumerate(steps[1:], 1):
        records += pass_records(index, row[None])
    records.append(Record("generated", None, None, "u32", np.array(generated)))
    write_dump(arguments.out, build_manifest(arguments, config, generator, generated, difference), records)
    print(f"{arguments.out}: {len(generated)} passes, {len(records)} tensors; generated {generated}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
