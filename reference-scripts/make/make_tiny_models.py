#!/usr/bin/env python3
"""Makes the small untrained models of architectures other than Llama-2's, as every file xcheck reads.

Weights are random but not neutral: norm weights are 1 + 0.3 * noise, attention scores have an RMS near 2, so that the
mask and RoPE decide where attention looks, and the best token of each pass leads the next by a clear margin. A model
that misses one of these is not written. The same versions on the same machine give the same bytes.
"""

import argparse
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "dump"))
import export_gguf
import tiny_bpe
from dump_transformers import family_of, instrument, run_passes
from make_tiny_llama2 import DEFAULT_OUT as TINY_LLAMA2
from make_tiny_llama2 import PACKAGES, sha256
import tiny_families
from tiny_model import FILES, Effect, TinyModel, new_model
from tiny_models import MODELS as NAMED

MODELS = {**NAMED, **tiny_families.MODELS}
CHECKPOINTS = TINY_LLAMA2.parent
TOKENIZER = TINY_LLAMA2 / "hf" / "tokenizer.model"  # for the GGUF files: llama.cpp loads none without a vocabulary

# What make_dumps.sh runs: the margins are checked there.
DECODE = 3
LEAST_MARGIN = 0.5
SCORES_RMS = (1.5, 2.5)

# ---------------------------------------------------------------------------------------------------
# What they must be.


@dataclass(frozen=True)
class Measures:
    """What a model does in the run that its dumps record."""

    tokens: list[int]  # the prompt
    generated: list[int]
    margin: float  # between the two largest logits, the least of all passes
    scores_rms: float
    effects: list[float]  # of each of the model's mistakes, see `effect_of`


def effect_of(effect: Effect, tiny: TinyModel, tokens: list[int]) -> float:
    """The most that the mistake changes of a row of logits, the least of all rows that it must change."""
    models = new_model(tiny), effect.wrong(tiny)
    right, wrong = (next(run_passes(model, tokens, 0)).logits for model in models)
    return (right - wrong).abs().amax(dim=-1)[effect.first_row :].min().item()


def prompt_tokens(tiny: TinyModel) -> list[int]:
    """The ids of the model's prompt."""
    return tiny_bpe.train().encode(tiny.prompt).ids if isinstance(tiny.prompt, str) else list(tiny.prompt)


def measure(tiny: TinyModel) -> Measures:
    """Runs the model as its dumps do."""
    model = new_model(tiny)
    model.set_attn_implementation("eager")  # which shows its scores
    recorder = instrument(model, family_of(model.config))
    tokens, generated, margins, scores = prompt_tokens(tiny), [], [], []
    for current in run_passes(model, tokens, DECODE):
        best, second = current.logits[-1].topk(2).values.tolist()
        generated.append(current.greedy)
        margins.append(best - second)
        scores += [value.flatten() for (tap, _), value in recorder.take().items() if tap == "attn_scores"]
    return Measures(
        tokens=tokens,
        generated=generated,
        margin=min(margins),
        scores_rms=torch.cat(scores).square().mean().sqrt().item(),
        effects=[effect_of(effect, tiny, [*tokens, *generated[:-1]]) for effect in tiny.effects],
    )


def check(name: str, tiny: TinyModel, measures: Measures) -> None:
    """A model whose errors would not show is not written."""
    if measures.margin < LEAST_MARGIN:
        sys.exit(f"error: {name}: the best token leads by {measures.margin:.3f} only; nothing written")
    if not SCORES_RMS[0] <= measures.scores_rms <= SCORES_RMS[1]:
        sys.exit(f"error: {name}: the scores have an RMS of {measures.scores_rms:.2f}; nothing written")
    for effect, measured in zip(tiny.effects, measures.effects, strict=True):
        if measured < effect.least:
            sys.exit(f"error: {name}: a mistake changes a row by {measured:.3f} only; nothing written:{effect.note}")


# ---------------------------------------------------------------------------------------------------
# What is written.

CARD = """\
# {name}

{summary}

Random weights, not trained: {weights}Made by `reference-scripts/make/make_tiny_models.py --model {name}` (which writes this file too),
seed {seed}. On one machine the same versions give the same bytes again. {vocabulary}

Versions: Python {python}, {versions}.

The dumps are of {prompt} and {decode} greedy passes more. transformers
generates {generated} in float32. In that run the best token of each pass leads the next by {margin:.2f} or more,
and the attention scores have an RMS of {scores_rms:.2f}.{effects}

| file | what it is |
|---|---|
{files}

sha256:

    {sums}
"""


def prompt_note(tiny: TinyModel, tokens: list[int]) -> str:
    """The input of the dumps."""
    ids = ",".join(map(str, tokens))
    return f"`{tiny.prompt}`, the tokens\n{ids}," if isinstance(tiny.prompt, str) else f"the tokens {ids}"


def not_left_out(file: str, tiny: TinyModel) -> bool:
    """Whether a file of the card's table is made of this model: of GGUF files, not all types are."""
    return not file.endswith(".gguf") or any(file.endswith(f"-{type_name}.gguf") for type_name in tiny.types)


def write_card(name: str, tiny: TinyModel, measures: Measures, out: Path) -> None:
    """README.md beside the files: how they were made, and their hashes."""
    kinds = {file: note for file, note in (FILES | tiny.files).items() if not_left_out(file, tiny)}
    files = sorted([*out.glob("hf/*"), *out.glob("pt/*"), *out.glob("*.gguf")])
    notes = [e.note.format(effect=measured) for e, measured in zip(tiny.effects, measures.effects, strict=True)]
    card = CARD.format(
        name=name, summary=tiny.summary, weights=tiny.weights, seed=tiny.seed, vocabulary=tiny.vocabulary,
        prompt=prompt_note(tiny, measures.tokens), decode=DECODE, generated=measures.generated,
        margin=measures.margin, scores_rms=measures.scores_rms, effects="".join(notes),
        python=platform.python_version(),
        versions=", ".join(f"{package} {version(package)}" for package in PACKAGES),
        files="\n".join(f"| `{file.format(name=name)}` | {note} |" for file, note in kinds.items()),
        sums="\n    ".join(f"{sha256(path)}  {path.relative_to(out)}" for path in files),
    )  # fmt: skip
    (out / "README.md").write_text(card)


def make(name: str, out: Path) -> None:
    """Writes one model's directory."""
    tiny = MODELS[name]
    measures = measure(tiny)
    check(name, tiny, measures)
    out.mkdir(parents=True, exist_ok=True)
    tiny.save(new_model(tiny), out)
    tokenizer = None if isinstance(tiny.prompt, str) else TOKENIZER
    for type_name in tiny.types:
        export_gguf.export(out / "hf", type_name, out / f"{name}-{type_name}.gguf", name, tokenizer)
    write_card(name, tiny, measures, out)
    print(f"{out}: {measures}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all", help="which one (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=CHECKPOINTS, help="where its directory goes (default: %(default)s)")
    return parser.parse_args()


@torch.no_grad()
def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in MODELS if arguments.model == "all" else [arguments.model]:
        make(name, arguments.out / name)


if __name__ == "__main__":
    main()
