"""A byte-level BPE vocabulary as GPT-2's, of 512 entries, trained on tiny-llama2's stories."""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from make_tiny_llama2 import SEED, STORIES, tell_story

VOCABULARY = 512
END_OF_TEXT = "<|endoftext|>"  # the last id, as in GPT-2
CONFIG = {
    "tokenizer_class": "GPT2Tokenizer",
    "add_prefix_space": False,
    "bos_token": END_OF_TEXT,
    "eos_token": END_OF_TEXT,
    "unk_token": END_OF_TEXT,
}


def byte_level(model: models.BPE) -> Tokenizer:
    """The tokenizer of a BPE model over bytes, each written as one printable character."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train() -> Tokenizer:
    """256 bytes, then one token for each merge, and END_OF_TEXT last."""
    rng = random.Random(SEED)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained = byte_level(models.BPE())
    trained.train_from_iterator((tell_story(rng) for _ in range(STORIES)), trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = model["vocab"] | {END_OF_TEXT: VOCABULARY - 1}
    tokenizer = byte_level(models.BPE(vocabulary, [tuple(merge) for merge in model["merges"]]))
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def write(directory: Path) -> None:
    """tokenizer.json and its configuration, and the same as the two files that GPT-2 had first."""
    tokenizer = train()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    tokenizer.model.save(str(directory))  # vocab.json and merges.txt
