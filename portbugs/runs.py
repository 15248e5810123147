"""Runs a model through a schedule of passes, and writes the recorded taps as a dump."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from engine import DTYPES, Engine, Rows
from safetensors.torch import save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
SAFE = {**DTYPES, "u32": torch.uint32}
IDS = ("experts", "argmax", "top_ids")


@dataclass
class Schedule:
    """The passes of a run: prompts in chunks, then greedy decoding. One chunk list for all sequences, cut at their lengths."""

    prompts: list[list[int]]
    chunks: list[int] = field(default_factory=list)
    decode: int = 2
    padding: str = ""  # "left" or "right": prompts of a batch are padded to one length
    drafts: list[int] = field(default_factory=list)  # tokens of each decode pass after the first: a rejected draft
    order: str = "packed"


@dataclass
class Pass:
    """One recorded pass."""

    rows: Rows
    taps: dict[tuple[str, int | None], Tensor]


def model_folder(name: str) -> Path:
    places = ("checkpoints/{}/hf", "tests/data/architectures/{}/hf", "tests/data/quantised/{}")
    for folder in (ROOT / place.format(name) for place in places):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no model '{name}' in checkpoints/ or tests/data/")


def prompt_rows(schedule: Schedule) -> list[Rows]:
    """Lists the rows of the prompt passes."""
    longest = max(len(prompt) for prompt in schedule.prompts)
    chunks = schedule.chunks or [longest]
    passes, start = [], 0
    while start < longest:
        size = chunks[min(len(passes), len(chunks) - 1)]
        rows = Rows([], [], [])
        for number, prompt in enumerate(schedule.prompts):
            part = list(range(start, min(start + size, len(prompt))))
            pad = [None] * (min(size, longest - start) - len(part)) if schedule.padding else []
            for position in pad + part if schedule.padding == "left" else part + pad:
                rows.tokens.append(0 if position is None else prompt[position])
                rows.sequence.append(None if position is None else number)
                rows.position.append(0 if position is None else position)
        passes.append(rows)
        start += size
    return passes


def run(engine: Engine, schedule: Schedule, given: list[Rows] | None = None, force: list[Pass] | None = None) -> list[Pass]:
    """Runs the schedule; with `given` the passes are these; with `force` each tap continues with the recorded value."""
    passes: list[Pass] = []
    todo = list(given) if given is not None else prompt_rows(schedule)
    lengths, last = [len(prompt) for prompt in schedule.prompts], {}
    while todo:
        rows = todo.pop(0)
        engine.force = force[len(passes)].taps if force else None
        with torch.no_grad():
            logits = engine.forward(rows)
            sampled(engine, rows, logits, last)
        passes.append(Pass(rows, engine.taps))
        if given is None and not todo and len(passes) < len(prompt_rows(schedule)) + schedule.decode:
            todo.append(next_rows(schedule, last, lengths))
    return passes


def sampled(engine: Engine, rows: Rows, logits: Tensor, last: dict[int, int]) -> None:
    """Records what sampling reads, and the chosen tokens."""
    ends = {sequence: rows.of(sequence)[-1] for sequence in rows.sequences()}
    taken = [engine.last(logits, row) for row in ends.values()]
    chosen = [engine.choose(row) for row in taken]
    last.update(zip(ends, chosen))
    alone = len(ends) == 1
    for name, values in (("last_logits", taken), ("argmax", [torch.tensor(one) for one in chosen]),
                         ("probs", [engine.probabilities(row) for row in taken])):  # fmt: skip
        engine.tap(name, values[0] if alone else torch.stack(values))
    logprobs = engine.logprobs(logits)
    top = logprobs.topk(8, -1)
    engine.taps["every_logprob", None] = engine.followed(logprobs)
    engine.tap("top_ids", top.indices)
    engine.tap("top_logprobs", top.values)


def next_rows(schedule: Schedule, last: dict[int, int], lengths: list[int]) -> Rows:
    rows = Rows([], [], [])
    for sequence, token in sorted(last.items()):
        tokens = [token, *schedule.drafts]
        rows.tokens += tokens
        rows.sequence += [sequence] + [None] * len(schedule.drafts)
        rows.position += list(range(lengths[sequence], lengths[sequence] + len(tokens)))
        lengths[sequence] += 1
    return rows


# --- dumps ---

LEVELS = {
    "taps": None,
    "blocks": ("block_out", "logits"),
    "logits": ("logits",),
    "logprobs": ("token_logprobs", "top_ids", "top_logprobs"),
}


def follow(passes: list[Pass]) -> list[tuple[list[int], Tensor]]:
    """Returns the rows of each pass that a token follows, and log p of that token; no token follows the last one."""
    tokens = {(s, p): t for one in passes for t, s, p in zip(one.rows.tokens, one.rows.sequence, one.rows.position) if s is not None}
    following = []
    for one in passes:
        after = [tokens.get((s, p + 1)) for s, p in zip(one.rows.sequence, one.rows.position)]
        rows = [row for row, token in enumerate(after) if token is not None and one.rows.sequence[row] is not None]
        chosen = torch.tensor([after[row] for row in rows], dtype=torch.long)
        following.append((rows, one.taps["every_logprob", None][torch.tensor(rows, dtype=torch.long), chosen]))
    return following


def manifest(engine: Engine, schedule: Schedule, passes: list[Pass]) -> dict[str, Any]:
    settings = {"dtype": engine.dtype, "kv_cache": engine.kv, **engine.settings}
    several = len(schedule.prompts) > 1 or any(None in one.rows.sequence for one in passes)
    head = {
        "format": "xcheck-dump",
        "version": 2,
        "producer": {"name": "portbugs", "version": "1", "settings": settings},
        "model": {"architecture": engine.kind},
    }
    if not engine.gpt2:
        head["layout"] = {"rope_pairing": engine.pairing}
    if several:
        head["input"] = {"sequences": [{"tokens": prompt} for prompt in schedule.prompts]}
        head["passes"] = [{"tokens": r.tokens, "sequence": r.sequence, "position": r.position} for r in (p.rows for p in passes)]
    else:
        head["input"] = {"tokens": schedule.prompts[0]}
        head["passes"] = [{"position": p.rows.position[0], "tokens": p.rows.tokens} for p in passes]
    return head


def write(path: Path, head: dict[str, Any], tensors: dict[tuple[str, int, int | None], tuple[str, Tensor]], level: str,
          case: dict[str, Any], following: list[list[int]]) -> None:
    """Writes the taps of one level of recording."""
    rows, arrays = [], {}
    wanted = case.get("taps") if level == "taps" else LEVELS[level]
    for (tap, index, layer), (dtype, value) in tensors.items():
        if tap in wanted if wanted else True:
            key = f"p{index}/" + (f"l{layer:02}/" if layer is not None else "") + tap
            row = {"tap": tap, "pass": index, "dtype": dtype, "shape": list(value.shape), "file": key}
            if "stored" in case and dtype in DTYPES:
                if case["stored"] == "f32" and dtype != "f32":
                    row["computed"] = dtype
                dtype = row["dtype"] = case["stored"]
            if tap == "token_logprobs":
                row["rows"] = following[index]
            rows.append(row if layer is None else {**row, "layer": layer})
            arrays[key] = value.to(SAFE[dtype]).contiguous()
    save_file(arrays, path, metadata={"xcheck": json.dumps({**head, "tensors": rows})})


def tensors_of(engine: Engine, passes: list[Pass]) -> dict[tuple[str, int, int | None], tuple[str, Tensor]]:
    """Lists every recorded array in order of execution, with the type it is stored in."""
    tensors = {}
    following = follow(passes)
    for index, one in enumerate(passes):
        for (tap, layer), value in one.taps.items():
            if tap != "every_logprob":
                wide = "probs" in tap or tap not in IDS and not torch.equal(value.to(DTYPES[engine.dtype]).float(), value.float())
                tensors[tap, index, layer] = ("u32" if tap in IDS else "f32" if wide else engine.dtype, value)
        if following[index][0]:
            tensors["token_logprobs", index, None] = ("f32", following[index][1])
    return tensors
