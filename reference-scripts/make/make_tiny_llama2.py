#!/usr/bin/env python3
"""Trains tiny-llama2, a 0.8 M parameter model with Llama-2's architecture, and writes it as every file xcheck reads.

Corpus, tokenizer and weights all come from one seed: the stories from the grammar below, a SentencePiece
BPE tokenizer from the stories, the model from both. The run takes a few minutes on one core and is
repeatable bit for bit on one machine with the pinned packages.
"""

import argparse
import hashlib
import io
import json
import platform
import random
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import export_gguf

NAME = "tiny-llama2"
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "checkpoints" / NAME

SEED = 2
STORIES = 4000
STEPS = 600
BATCH = 8
CONTEXT = 256
PEAK_LEARNING_RATE = 4e-3
VOCABULARY = 512
SAMPLE_PROMPT = "Once upon a time"
PACKAGES = ("torch", "transformers", "sentencepiece", "gguf", "safetensors")

TOKENIZER_CONFIG = {
    "tokenizer_class": "LlamaTokenizer",
    "add_bos_token": True,
    "add_eos_token": False,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "clean_up_tokenization_spaces": False,
    "legacy": False,
    "model_max_length": CONTEXT,
}

# ---------------------------------------------------------------------------------------------------
# The corpus. Earlier choices are likelier (see `pick`), so the next token is rarely a coin toss.

GIRLS = ("Lily", "Anna", "Mia", "Sue", "Ella")
BOYS = ("Tom", "Ben", "Max", "Sam", "Leo")
ANIMALS = ("cat", "dog", "rabbit", "bear", "fox", "duck", "mouse")
TRAITS = ("little", "kind", "happy", "brave", "shy", "clever")
PLACES = ("park", "garden", "forest", "river", "farm", "hill", "beach")
COLOURS = ("red", "blue", "green", "yellow", "shiny")
THINGS = ("ball", "boat", "hat", "kite", "drum", "book", "cup")
FOODS = ("cake", "apple", "soup", "bread", "honey")

OPENINGS = (
    "Once upon a time, there was a {trait} {kind} named {hero}. "
    "{He} had a {colour} {thing} and played with it every day.",
    "Once upon a time, a {trait} {kind} named {hero} lived near the {home}. "
    "{He} loved {his} {colour} {thing} very much.",
    "One day, a {trait} {kind} named {hero} found a {colour} {thing}. {He} was so happy that {he} began to sing.",
)
OUTINGS = (
    "One day, {hero} went to the {place} to play with {his} {thing}.",
    "In the morning, {hero} took the {thing} and walked to the {place}.",
    "{hero} wanted to show the {thing} to {friend}, so {he} ran to the {place}.",
)
TROUBLES = (
    "But the {thing} fell into a big hole, and {hero} could not get it out. {He} was very sad.",
    "But then the wind came and took the {thing} up into a tall tree. {hero} started to cry.",
    "But it began to rain, and {hero} lost the {thing} under the wet leaves.",
)
MEETINGS = (
    '{friend} saw {him} and asked, "What is wrong, {hero}?"',
    '"Why are you sad?" asked {friend}, who was eating some {food} by the tree.',
)
ANSWERS = (
    '"I lost my {colour} {thing}," said {hero}. "Can you help me?"',
    '"My {thing} is gone," said {hero}. "I do not know what to do."',
)
RESCUES = (
    '"Yes, I can help you," said {friend}. {friend} used a long stick, and soon they had the {thing} again.',
    '"Do not cry," said {friend}. They looked and looked, and at last they found the {thing}.',
)
ENDINGS = (
    '"Thank you!" said {hero}. They shared some {food} and played until the sun went down. '
    "From that day on, {hero} and {friend} were best friends.",
    "{hero} was happy and gave {friend} a big hug. Then they went home and ate {food} with {his} mom.",
    "{hero} learned that it is good to ask a friend for help. They lived happily ever after.",
)
# Each paragraph is one line of a story; its sentences are picked in turn.
PARAGRAPHS = ((OPENINGS, OUTINGS, TROUBLES), (MEETINGS, ANSWERS), (RESCUES, ENDINGS))


def pick(rng: random.Random, options: tuple[str, ...]) -> str:
    """One of `options`, the first twice as likely as the second, thrice as likely as the third, ..."""
    return rng.choices(options, [1 / rank for rank in range(1, len(options) + 1)])[0]


def cast(rng: random.Random) -> dict[str, str]:
    """Who, what and where: the fields that a story's sentences are filled with."""
    girl = rng.random() < 0.6
    animal = rng.random() < 0.4
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    return {
        "hero": pick(rng, GIRLS if girl else BOYS),
        "friend": pick(rng, BOYS if girl else GIRLS),
        "kind": pick(rng, ANIMALS) if animal else "girl" if girl else "boy",
        "he": he, "He": he.capitalize(), "him": him, "his": his,
        "trait": pick(rng, TRAITS),
        "home": pick(rng, PLACES),
        "place": pick(rng, PLACES),
        "colour": pick(rng, COLOURS),
        "thing": pick(rng, THINGS),
        "food": pick(rng, FOODS),
    }  # fmt: skip


def tell_story(rng: random.Random) -> str:
    """One story of three lines."""
    fields = cast(rng)
    lines = (" ".join(pick(rng, beat) for beat in paragraph) for paragraph in PARAGRAPHS)
    return "\n".join(lines).format(**fields)


# ---------------------------------------------------------------------------------------------------
# Tokenizer, rows, model.


def train_tokenizer(stories: list[str]) -> bytes:
    """A SentencePiece model with Llama-2's settings and ids (unk 0, bos 1, eos 2, then 256 bytes)."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(line for story in stories for line in story.split("\n")),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCABULARY,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def training_rows(stories: list[str], tokenizer: SentencePieceProcessor) -> Tensor:
    """Token ids, rows x CONTEXT: whole stories (BOS ... EOS) one after another, the last one cut."""
    rows, row = [], []
    for story in stories:
        row += tokenizer.encode(story, add_bos=True, add_eos=True)
        if len(row) >= CONTEXT:
            rows.append(row[:CONTEXT])
            row = []
    return torch.tensor(rows)


def new_model() -> LlamaForCausalLM:
    """The untrained model."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=False,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=None,
        )
    )


def train(model: LlamaForCausalLM, rows: Tensor, steps: int) -> float:
    """Trains in place on `rows` (rows x CONTEXT); returns the mean loss of the last tenth, in nats per token."""
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=steps, pct_start=0.1)
    losses = []
    progress = tqdm(range(steps), desc="training", unit="step")
    for _ in progress:
        batch = rows[torch.randint(len(rows), (BATCH,))]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        progress.set_postfix(loss=f"{loss.item():.3f}")
    tail = losses[-max(1, steps // 10) :]
    return sum(tail) / len(tail)


# ---------------------------------------------------------------------------------------------------
# What is written.


def save_hf(model: LlamaForCausalLM, sentencepiece_model: bytes, directory: Path) -> None:
    """The directory as Hugging Face has it for Llama-2."""
    model.save_pretrained(directory)
    (directory / "tokenizer.model").write_bytes(sentencepiece_model)
    (directory / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=2) + "\n")
    AutoTokenizer.from_pretrained(directory).backend_tokenizer.save(str(directory / "tokenizer.json"))


def check_tokenizer(directory: Path, stories: list[str]) -> None:
    """The directory's tokenizer must give SentencePiece's own ids, BOS first, on the corpus and beyond it.

    Text that starts with a space is left out: transformers 5 takes that space for the prefix, SentencePiece adds one.
    """
    tokenizer = AutoTokenizer.from_pretrained(directory)
    reference = SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    for text in [*stories, "Hello, World 2026!", "naïve café\n\tπ ≈ 3.14", "two  spaces "]:
        expected = reference.encode(text, add_bos=True)
        if tokenizer(text).input_ids != expected:
            sys.exit(f"error: {directory}: ids differ from SentencePiece's for {text!r}")


def greedy_text(directory: Path, prompt: str) -> str:
    """The story that the model tells greedily from `prompt` (included) to its EOS."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    inputs = tokenizer(prompt, return_tensors="pt")
    tokens = model.generate(**inputs, max_length=CONTEXT, do_sample=False, pad_token_id=2)
    return tokenizer.decode(tokens[0], skip_special_tokens=True)


CARD = """\
# tiny-llama2

Llama-2's architecture at 0.8 M parameters: 4 layers, hidden size 128, 4 heads of 32, feed-forward size 256,
vocabulary 512, context 256, RoPE base 10000, RMSNorm epsilon 1e-5, untied output matrix. Trained, so that its
activations and logit margins are those of a model and not of noise.

Made by `reference-scripts/make/make_tiny_llama2.py` (which writes this file too) from nothing but its own seed: {stories}
stories of a small grammar, seed {seed}, {steps} steps of {batch} x {context} tokens. Final loss {loss:.4f} nats per
token. No text and no weights of others are in it. On one machine the same versions give the same bytes again.

Versions: Python {python}, {versions}.

The greedy story from `{prompt}`:

{sample}

| file | what it is |
|---|---|
| `hf/` | the original: Hugging Face directory, float32 |
| `tiny-llama2-f32.gguf` | the same weights, q and k rows reordered for llama.cpp's RoPE pairs |
| `tiny-llama2-f16.gguf` | matrices F16, norms F32 |
| `tiny-llama2-q8_0.gguf` | matrices Q8_0 (embedding and output too), norms F32 |
| `dumps/` | reference dumps of these files |

sha256:

    {sums}
"""


def sha256(path: Path) -> str:
    """The digest of one file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_card(out: Path, loss: float, steps: int) -> None:
    """README.md beside the files: how they were made, and their hashes."""
    files = sorted([*(out / "hf").iterdir(), *out.glob("*.gguf")])
    card = CARD.format(
        stories=STORIES, seed=SEED, steps=steps, batch=BATCH, context=CONTEXT, loss=loss,
        python=platform.python_version(),
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
        prompt=SAMPLE_PROMPT,
        sample=textwrap.indent(greedy_text(out / "hf", SAMPLE_PROMPT), "> "),
        sums="\n    ".join(f"{sha256(path)}  {path.relative_to(out)}" for path in files),
    )  # fmt: skip
    (out / "README.md").write_text(card)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="directory to write (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rng = random.Random(SEED)
    stories = [tell_story(rng) for _ in range(STORIES)]
    sentencepiece_model = train_tokenizer(stories)
    model = new_model()
    rows = training_rows(stories, SentencePieceProcessor(model_proto=sentencepiece_model))
    loss = train(model, rows, arguments.steps)

    hf = arguments.out / "hf"
    hf.mkdir(parents=True, exist_ok=True)
    save_hf(model, sentencepiece_model, hf)
    check_tokenizer(hf, stories)
    for type_name in export_gguf.MATRIX_TYPES:
        export_gguf.export(hf, type_name, arguments.out / f"{NAME}-{type_name}.gguf", NAME, hf / "tokenizer.model")
    write_card(arguments.out, loss, arguments.steps)


if __name__ == "__main__":
    main()
