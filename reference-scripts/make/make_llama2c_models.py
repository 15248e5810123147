#!/usr/bin/env python3
"""Makes the llama2.c files that ship and are tested: tiny-llama2c in all three versions, tiny-llama2 in version 2, and a tiny version-0
file with a classifier of its own. `make_llama2c_dumps.sh` makes their dumps.

tiny-llama2c is trained on the stories and with the tokenizer of tiny-llama2, whose files must be there. One seed, one
thread: the same versions give the same bytes on one machine.
"""

import argparse
import random
import sys
from pathlib import Path

import torch
from sentencepiece import SentencePieceProcessor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import export_llama2c
import llama2c_file
import make_tiny_llama2 as stories

ROOT = Path(__file__).resolve().parents[2]
NAME = "tiny-llama2c"
STEPS = 500
GROUPS = {NAME: 32, stories.NAME: 64}  # elements that share a scale

CARD = """\
# tiny-llama2c

llama2.c's own kind of model, in the proportions of stories260K: {layers} layers, dim {dim}, {heads} heads of {head},
{kv} key-value heads, hidden_dim {hidden}, vocabulary {vocab}, seq_len {context}, the classifier shared with the
embedding. Trained on the stories of `tiny-llama2`, with its tokenizer; final loss {loss:.4f} nats per token.

Made by `reference-scripts/make/make_llama2c_models.py` (which writes this file too). No text and no weights of others are
in it.

| file | what it is |
|---|---|
| `tiny-llama2c-v0.bin` | version 0, f32: what `run.c` reads |
| `tiny-llama2c-v2.bin` | version 2, groups of {group} int8: what `runq.c` reads |
| `tokenizer.bin` | the vocabulary of all of them |
| `dumps/` | reference dumps of these files; those of versions 0 and 2 are held against real runs |

sha256:

    {sums}
"""


def config(**sizes: int) -> LlamaConfig:
    """A Llama that run.c computes as it is."""
    return LlamaConfig(
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
        vocab_size=stories.VOCABULARY,
        **sizes,
    )


def trained(tokenizer: SentencePieceProcessor, steps: int) -> tuple[LlamaForCausalLM, float]:
    """tiny-llama2c, and its loss."""
    rng = random.Random(stories.SEED)
    texts = [stories.tell_story(rng) for _ in range(stories.STORIES)]
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": stories.CONTEXT,
        "tie_word_embeddings": True,
    }
    model = LlamaForCausalLM(config(**sizes))
    return model, stories.train(model, stories.training_rows(texts, tokenizer), steps)


def untied() -> LlamaForCausalLM:
    """Random weights and a classifier of its own: version 0 says so by the sign of vocab_size."""
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(config(**sizes))


def write_card(folder: Path, model: LlamaForCausalLM, loss: float) -> None:
    """README.md beside the files, with their hashes."""
    c = model.config
    card = CARD.format(
        layers=c.num_hidden_layers, dim=c.hidden_size, heads=c.num_attention_heads, head=c.head_dim,
        kv=c.num_key_value_heads, hidden=c.intermediate_size, vocab=c.vocab_size, context=c.max_position_embeddings,
        loss=loss, group=GROUPS[NAME],
        sums="\n    ".join(f"{stories.sha256(path)}  {path.name}" for path in sorted(folder.glob("*.bin"))),
    )  # fmt: skip
    (folder / "README.md").write_text(card)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT, help="root to write under (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(stories.SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    original = ROOT / "checkpoints" / stories.NAME
    tokenizer = SentencePieceProcessor(model_file=str(original / "hf/tokenizer.model"))
    folder, data = arguments.out / "checkpoints" / NAME, arguments.out / "tests/data/llama2c"
    folder.mkdir(parents=True, exist_ok=True)
    data.mkdir(parents=True, exist_ok=True)

    model, loss = trained(tokenizer, arguments.steps)
    for version, place in [(0, folder), (1, data), (2, folder)]:
        export_llama2c.export(model, version, GROUPS[NAME], place / f"{NAME}-v{version}.bin")
    large = AutoModelForCausalLM.from_pretrained(original / "hf")
    export_llama2c.export(large, 2, GROUPS[stories.NAME], data / f"{stories.NAME}-v2.bin")
    llama2c_file.write_tokenizer(folder / "tokenizer.bin", tokenizer)
    write_card(folder, model, loss)
    export_llama2c.export(untied(), 0, 0, data / "untied-v0.bin")


if __name__ == "__main__":
    main()
