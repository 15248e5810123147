#!/usr/bin/env python3
"""Dumps what transformers computes of several sequences at once, in version 2 of xcheck's dump format.

    PYTHON reference-scripts/dump/dump_batch.py --model DIR --tokens 1,2,3 --tokens 4,5 --out FILE.safetensors [--packed]

Sequences are padded on the left to one length and go on greedily, or are packed one behind the other into one row, which is
read once. Each is judged as if it had run alone. With --mistake no mask keeps a token from what is not its own: padding, or the
sequence before it.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import dump_transformers as one
from dump_writer import prepare, write_dump

PADDING = 0
# Sequence, position and token of each row, the logits of all rows, and those of each sequence's last.
Pass = tuple[list[tuple[int | None, int, int]], Tensor, Tensor]


class Recorder(one.Recorder):
    """Collects the taps of a pass over a batch: each keeps the axis for it in front."""

    def keep(self, tap: str, layer: int | None, value: Tensor) -> None:
        self.taps[tap, layer] = value.detach().clone()


def padded(model: nn.Module, sequences: list[list[int]], decode: int, mistake: bool) -> Iterator[Pass]:
    """Passes over a batch padded on the left: what each row is, and the logits of the last."""
    longest = max(len(tokens) for tokens in sequences)
    ids = torch.tensor([[PADDING] * (longest - len(tokens)) + tokens for tokens in sequences])
    mask = torch.tensor([[0] * (longest - len(tokens)) + [1] * len(tokens) for tokens in sequences])
    cache = DynamicCache()
    for _ in range(decode + 1):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        seen = torch.ones_like(mask) if mistake else mask
        logits = model(
            input_ids=ids, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True
        ).logits
        own = mask[:, -ids.shape[1] :]
        rows = [
            (index if own[index, at] else None, positions[index, at].item(), ids[index, at].item())
            for index in range(len(sequences))
            for at in range(ids.shape[1])
        ]
        yield rows, logits, logits[:, -1]
        ids = logits[:, -1].argmax(-1, keepdim=True)
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)


def packed(model: nn.Module, sequences: list[list[int]], mistake: bool) -> Iterator[Pass]:
    """One pass over sequences one behind the other."""
    rows = [(index, at, token) for index, tokens in enumerate(sequences) for at, token in enumerate(tokens)]
    _, positions, tokens = zip(*rows, strict=True)
    mask = torch.ones(1, len(tokens), dtype=torch.long) if mistake else None  # positions that begin anew tell the mask
    ids, positions = torch.tensor([tokens]), torch.tensor([positions])
    logits = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
    ends = torch.tensor([len(tokens) for tokens in sequences]).cumsum(0) - 1
    yield rows, logits[0], logits[0, ends]


def taps_of(recorder: one.Recorder, logits: Tensor, last: Tensor) -> dict:
    """The taps of a pass."""
    follow = {"logits": logits, "last_logits": last, "argmax": last.argmax(-1), "probs": last.float().softmax(dim=-1)}
    return recorder.take() | {(tap, None): value for tap, value in follow.items()}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model directory or hub id")
    parser.add_argument("--tokens", type=one.token_list, action="append", required=True, help="of one sequence: 1,2,3")
    parser.add_argument("--decode", type=one.at_least(0), default=2, help="greedy passes after the first (default: 2)")
    parser.add_argument("--packed", action="store_true", help="one behind the other instead of padded, and no decoding")
    parser.add_argument("--mistake", action="store_true", help="a mask that hides nothing of others: a wrong dump")
    parser.add_argument("--dtype", choices=one.DTYPES, default="f32", help="of weights and activations (default: f32)")
    parser.add_argument("--taps", type=lambda text: text.split(","), metavar="LIST", help=one.TAPS)
    parser.add_argument("--name", help="model.name in the manifest (default: the last part of --model)")
    parser.add_argument("--out", type=Path, required=True, help="a directory, FILE.safetensors or FILE.npz")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    arguments = parse_arguments()
    arguments.attention, arguments.activation, arguments.threads = "eager", None, 1
    arguments.autocast, arguments.compile, arguments.tf32, arguments.device = None, False, False, "cpu"
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    prepare(arguments.out)
    config = one.load_config(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=one.DTYPES[arguments.dtype], attn_implementation="eager"
    ).eval()
    # What is packed is one row, and so no batch.
    recorder = one.instrument(model, one.FAMILIES[config.model_type], one.Recorder if arguments.packed else Recorder)
    if arguments.packed:
        run = packed(model, arguments.tokens, arguments.mistake)
    else:
        run = padded(model, arguments.tokens, arguments.decode, arguments.mistake)

    records, passes, generated = [], [], [[] for _ in arguments.tokens]
    for index, (rows, logits, last) in enumerate(run):
        whose, positions, tokens = zip(*rows, strict=True)
        passes.append({"tokens": tokens, "sequence": whose, "position": positions})
        for (tap, layer), value in taps_of(recorder, logits, last).items():
            records.append(one.to_record(tap, index, layer, value))
        for chosen, row in zip(generated, last, strict=True):
            chosen.append(row.argmax().item())
    if arguments.taps is not None:
        records = [record for record in records if record.tap in arguments.taps]
    write_dump(arguments.out, manifest_of(arguments, config, passes, generated), records)
    print(f"{arguments.out}: {len(passes)} passes, {len(records)} tensors; generated {generated}")


def manifest_of(arguments: argparse.Namespace, config, passes: list[dict], generated: list[list[int]]) -> dict:
    """Version 2: the sequences in the place of the prompt."""
    alone = one.build_manifest(arguments_of_one(arguments), config, [one.Pass(0, arguments.tokens[0], torch.zeros(1, 1))])
    sequences = [
        {"tokens": tokens, "generated": chosen} for tokens, chosen in zip(arguments.tokens, generated, strict=True)
    ]
    producer = alone["producer"]
    producer["settings"]["batch"] = "packed" if arguments.packed else "padded on the left"
    if arguments.mistake:
        producer["settings"]["mask"] = "hides nothing of others"
    del alone["generated"]
    return alone | {"version": 2, "producer": producer, "input": {"sequences": sequences}, "passes": passes}


def arguments_of_one(arguments: argparse.Namespace) -> argparse.Namespace:
    return argparse.Namespace(**(vars(arguments) | {"prompt": None}))


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"error: {one.first_line(error)}")
