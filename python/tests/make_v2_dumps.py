#!/usr/bin/env python3
"""Makes dumps of what only version 2 of the contract can say: make_v2_dumps.py OUT [CHECKPOINTS]

Needs the package (`pip install ./python`) and transformers, whose values on the models that ship all are. `alone-N` are
dumps of version 1 of each prompt by itself: what a reader makes of the others, by sequence, has to be judged as
these are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

import xcheck
from reader import Reader

PROMPTS = [
    [1, 33, 35, 60, 34, 86, 63, 5, 15, 17, 200, 77],
    [1, 260, 394, 486, 263, 305, 315],
    [1, 17],
    [1, 90, 91, 92, 93, 94, 95, 96, 97],
]
DECODE = 4
CHECKPOINTS = Path(__file__).resolve().parents[2] / "checkpoints"
PAD = 3


def cache_of(output: Any) -> Any:
    """Returns the KV cache of a call, as older or newer releases of transformers name it."""
    return next(output[name] for name in ("cache", "past_key_values") if name in output)


def load(name: str, dtype: torch.dtype = torch.float32, checkpoints: Path = CHECKPOINTS) -> Any:
    """A model that ships."""
    return load_from(checkpoints / name / "hf", dtype)


def load_from(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A model of transformers, without its generation defaults."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()
    model.generation_config = GenerationConfig(pad_token_id=PAD)
    return model


def padded(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    """A batch with padding on the left."""
    width = max(map(len, prompts))
    ids = [[PAD] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@torch.inference_mode()
def alone(model: Any, prompt: list[int], out: Path, **options: Any) -> None:
    """A dump of version 1."""
    with xcheck.hook(model, out, **options):
        model.generate(torch.tensor([prompt]), max_new_tokens=DECODE, do_sample=False)


@torch.inference_mode()
def batch(model: Any, out: Path, **options: Any) -> None:
    """Four prompts of unlike length, padded on the left, and decoded together."""
    with xcheck.hook(model, out, **options):
        model.generate(**padded(PROMPTS), max_new_tokens=DECODE, do_sample=False)


@torch.inference_mode()
def packed(model: Any, out: Path, **options: Any) -> None:
    """Four prompts one behind the other in one row."""
    ids = torch.tensor([[token for prompt in PROMPTS for token in prompt]])
    position = torch.tensor([[place for prompt in PROMPTS for place in range(len(prompt))]])
    with xcheck.hook(model, out, **options):
        model(input_ids=ids, position_ids=position, use_cache=False)


@torch.inference_mode()
def one_after_the_other(model: Any, out: Path) -> None:
    """Two prompts, each with a cache of its own, so that the passes have to say what attention looks at."""
    with xcheck.hook(model, out, also=("k_cache", "v_cache", "attn_weights")):
        for prompt in PROMPTS[:2]:
            model.generate(torch.tensor([prompt]), max_new_tokens=DECODE, do_sample=False)


# ---------------------------------------------------------------------------------------------------
# A dump of version 1, written once more in another form.


def told(source: Reader, model: Any) -> dict[str, Any]:
    """Returns the fields of a dump about its engine and its layout."""
    producer = source.manifest["producer"]
    return {
        "producer": producer["name"],
        "version": producer["version"],
        "settings": producer["settings"],
        "config": model.config,
        **source.manifest["layout"],
    }


@contextmanager
def rewritten(source: Reader, model: Any, out: Path, **options: Any) -> Iterator[xcheck.Dump]:
    """A dump of the same run."""
    with xcheck.Dump(out, **told(source, model), tokens=source.manifest["input"]["tokens"], **options) as dump:
        yield dump
        dump.generated(source.manifest["generated"])


def replay(source: Reader, model: Any, out: Path, write: Callable[..., None], **options: Any) -> None:
    """Every value of every pass by `write(dump, row, value, values of the same layer)`."""
    with rewritten(source, model, out, **options) as dump:
        for index, current in enumerate(source.manifest["passes"]):
            with dump.forward(current["tokens"], position=current["position"]):
                rows = [row for row in source.rows if row["pass"] == index]
                for row in rows:
                    beside = {r["tap"]: source.value(r) for r in rows if r.get("layer") == row.get("layer")}
                    write(dump, row, source.value(row), beside)


def by_head(dump: xcheck.Dump, row: dict, value: Any, beside: dict) -> None:
    """q, k and v in one array by key-value head, gate and up in turns."""
    tap, layer = row["tap"], row.get("layer")
    if tap == "q":
        tokens, heads, width = value.shape
        q, k, v = (torch.tensor(beside[name]) for name in ("q", "k", "v"))
        queries = q.reshape(tokens, k.shape[1], heads // k.shape[1], width)
        dump.tap("qkv", torch.cat([queries, k[:, :, None], v[:, :, None]], 2).flatten(1), layer, layout="by_head")
    elif tap == "ffn_gate":
        pairs = torch.stack([torch.tensor(beside["ffn_gate"]), torch.tensor(beside["ffn_up"])], -1)
        dump.tap("gate_up", pairs.flatten(1), layer, layout="interleaved")
    elif tap not in ("k", "v", "ffn_up"):
        dump.tap(tap, value, layer)


def eighth(dump: xcheck.Dump, row: dict, value: Any, beside: dict) -> None:
    """Queries and keys as f8_e4m3 with a scale for each token, `ffn_out` as f8_e5m2 with one scale."""
    tap, layer, wide = row["tap"], row.get("layer"), torch.tensor(value)
    if tap in ("q", "k"):
        scale = wide.abs().amax((1, 2), keepdim=True) / 448
        dump.tap(tap, (wide / scale).to(torch.float8_e4m3fn), layer, scale=scale)
    elif tap == "ffn_out":
        scale = float(wide.abs().max()) / 1000
        dump.tap(tap, (wide / scale).to(torch.float8_e5m2), layer, scale=scale)
    else:
        dump.tap(tap, value, layer)


def some_rows(dump: xcheck.Dump, row: dict, value: Any, beside: dict) -> None:
    """Logits and attention's weights of the first, second and last row of each pass."""
    tap, layer, count = row["tap"], row.get("layer"), len(beside.get("attn_norm", beside.get("embed")))
    rows = sorted({0, min(1, count - 1), count - 1})
    if tap == "attn_weights":
        dump.tap(tap, value[:, rows], layer, rows=rows)
    elif tap in ("ffn_act", "ffn_gate", "ffn_up"):
        dump.tap(tap, value[rows], layer, rows=rows)
    else:
        dump.tap(tap, value, layer)


def computed(dump: xcheck.Dump, row: dict, value: Any, beside: dict) -> None:
    """A run in bf16 whose hooks ended with .float()."""
    floats = row["dtype"] == "bf16"
    dump.tap(row["tap"], value, row.get("layer"), computed="bf16" if floats else None)


def continuous(sources: list[Reader], model: Any, out: Path) -> None:
    """Sequences that join while others decode: in pass i, sequence s runs its own pass i - s."""
    taps = ("attn_scores", "attn_weights", "k_cache", "v_cache")
    prompts = [source.manifest["input"]["tokens"] for source in sources]
    with xcheck.Dump(out, **told(sources[0], model), tokens=prompts) as dump:
        for index in range(DECODE + len(sources) - 1):
            running = [(s, r, index - s) for s, r in enumerate(sources) if 0 <= index - s < DECODE]
            tokens = [(token, s) for s, r, own in running for token in r.manifest["passes"][own]["tokens"]]
            with dump.forward([token for token, _ in tokens], sequence=[s for _, s in tokens]):
                first = [row for row in running[0][1].rows if row["pass"] == running[0][2] and row["tap"] not in taps]
                for row in first:
                    others = [r.find(row["tap"], own, row.get("layer")) for _, r, own in running]
                    if all(others):
                        parts = [torch.tensor(r.value(other)) for (_, r, _), other in zip(running, others)]
                        dump.tap(row["tap"], torch.cat(parts), row.get("layer"))
        for sequence, source in enumerate(sources):
            dump.generated(source.manifest["generated"], sequence=sequence)


def main(out: Path, checkpoints: Path = CHECKPOINTS) -> None:
    out.mkdir(parents=True, exist_ok=True)
    everything = ("k_cache", "v_cache", "attn_weights")
    for name in ("tiny-llama2", "tiny-qwen3", "tiny-gemma3", "tiny-gpt2"):
        model = load(name, checkpoints=checkpoints)
        for index, prompt in enumerate(PROMPTS):
            alone(model, prompt, out / f"{name}-alone-{index}.safetensors")
        batch(model, out / f"{name}-batch.safetensors")
        batch(load(name, torch.bfloat16, checkpoints), out / f"{name}-batch-bf16.safetensors")
        if name != "tiny-gpt2":
            packed(model, out / f"{name}-packed.safetensors")
        if name != "tiny-gemma3":  # whose windows keep fewer keys than the contract's default says
            batch(model, out / f"{name}-batch-caches", also=everything)
            one_after_the_other(model, out / f"{name}-one-after-the-other.safetensors")
        alone(model, PROMPTS[0], out / f"{name}-by-layer", by_layer=True)
        sources = [Reader(out / f"{name}-alone-{index}.safetensors") for index in range(len(PROMPTS))]
        continuous(sources, model, out / f"{name}-continuous.safetensors")
        replay(sources[0], model, out / f"{name}-f8.safetensors", eighth)
        replay(sources[0], model, out / f"{name}-f8", eighth)
        if name == "tiny-gpt2":
            alone(model, PROMPTS[0], out / f"{name}-fused.safetensors", cut_fused=False)
            batch(model, out / f"{name}-batch-fused", cut_fused=False)
        else:
            replay(sources[0], model, out / f"{name}-by-head.safetensors", by_head)
        weights = out / f"{name}-alone-weights.safetensors"
        alone(model, PROMPTS[0], weights, also=("attn_weights",))
        replay(Reader(weights), model, out / f"{name}-rows.safetensors", some_rows)
        weights = out / f"{name}-alone-bf16.safetensors"
        alone(load(name, torch.bfloat16, checkpoints), PROMPTS[0], weights)
        replay(Reader(weights), model, out / f"{name}-computed.safetensors", computed)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
